//===- KeyRing.cpp - tiles of keys and values under way -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KeyRing.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

KeyRing::KeyRing(AttentionKernel &kernel, Value batch, Value head,
                 Value noiseHead)
    : kernel(kernel), b(kernel.b), stages(kernel.spec.schedule.getStages()),
      tileKeys(kernel.spec.schedule.getKeys()) {
  using P = GpuParam;
  auto base = [&](P pointer, P strides, Value head, P sharing) {
    return kernel.headBase(pointer, strides, batch,
                           b.divU(head, kernel.param(sharing)));
  };
  key1 = base(P::K1, P::K1B, head, P::SignalPerKey1);
  key2 = base(P::K2, P::K2B, noiseHead, P::NoisePerKey2);
  value = base(P::V, P::VB, head, P::SignalPerValue);
}

void KeyRing::issue(Value tile, Value stage) {
  using P = GpuParam;
  const GpuKernelSpec &spec = kernel.spec;
  const SharedLayout &layout = kernel.layout;
  Value first = b.mul(tile, tileKeys);
  Value base = b.bytes(kernel.shared, stage);
  auto copy = [&](int64_t offset, int64_t padded, int64_t pitch, Value global,
                  P row, P column, int64_t width) {
    kernel.copyTile(
        {b.bytes(base, layout.ringOffset + offset), tileKeys, padded, pitch},
        {global, kernel.param(row), kernel.param(column), first,
         kernel.keyLimit, width});
  };
  copy(0, spec.getPaddedHeadDim(), layout.headPitch, key1, P::K1T, P::K1W,
       spec.headDim);
  if (!spec.sharedKeys)
    copy(layout.keyBytes, spec.getPaddedHeadDim(), layout.headPitch, key2,
         P::K2T, P::K2W, spec.headDim);
  copy(layout.valueOffset, spec.getPaddedValueDim(), layout.valuePitch, value,
       P::VT, P::VW, spec.valueDim);
}

void KeyRing::fill(Value tile, Value endTile) {
  for (int64_t i = 0; i < stages - 1; ++i) {
    Value next = b.add(tile, i);
    b.branch(b.compare(LLVM::ICmpPredicate::slt, next, endTile),
             [&] { issue(next, b.i32(i * kernel.layout.stageBytes)); });
    // A group for each stage, empty or not, so that waits count the same.
    b.commitCopies();
  }
}

void KeyRing::advance(Value tile, Value stage, Value endTile) {
  int64_t bytes = kernel.layout.stageBytes;
  b.waitForCopies(stages - 2);
  b.barrier();
  Value ahead = b.add(tile, stages - 1);
  b.branch(b.compare(LLVM::ICmpPredicate::slt, ahead, endTile), [&] {
    Value wrapped = b.compare(LLVM::ICmpPredicate::eq, stage, b.i32(0));
    issue(ahead,
          b.select(wrapped, b.i32((stages - 1) * bytes), b.add(stage, -bytes)));
  });
  b.commitCopies();
}

Value KeyRing::following(Value stage) {
  int64_t bytes = kernel.layout.stageBytes;
  Value next = b.add(stage, bytes);
  return b.select(
      b.compare(LLVM::ICmpPredicate::eq, next, b.i32(stages * bytes)), b.i32(0),
      next);
}

Value KeyRing::keys(Value stage) {
  return b.bytes(b.bytes(kernel.shared, stage), kernel.layout.ringOffset);
}

Value KeyRing::values(Value stage) {
  return b.bytes(keys(stage), kernel.layout.valueOffset);
}
