//===- KVPipeline.cpp - tiles of keys and values under way ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KVPipeline.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

KVPipeline::KVPipeline(AttentionKernel &kernel, Value batch, Value head,
                       Value noiseHead)
    : kernel(kernel), b(kernel.b), stages(kernel.spec.getTiles().stages),
      tileKeys(kernel.spec.getTiles().keys) {
  using P = GpuParam;
  auto base = [&](P tensor, Value head, P sharing) {
    return kernel.headBase(tensor, batch, b.divU(head, kernel.param(sharing)));
  };
  key1 = base(P::K1, head, P::SignalPerKey1);
  if (!kernel.spec.sharedKeys)
    key2 = base(P::K2, noiseHead, P::NoisePerKey2);
  value = base(P::V, head, P::SignalPerValue);
}

void KVPipeline::issue(Value tile, Value stage) {
  using P = GpuParam;
  const GpuKernelSpec &spec = kernel.spec;
  const GpuSharedLayout &layout = kernel.layout;
  Value first = b.mul(tile, tileKeys);
  Value base = b.bytes(kernel.shared, stage);
  auto copy = [&](int64_t offset, int64_t padded, int64_t pitch, Value global,
                  P tensor, int64_t width) {
    kernel.loader->copy({b.bytes(base, layout.pipeline.offset + offset),
                         tileKeys, padded, pitch},
                        {global, kernel.rowStride(tensor),
                         kernel.columnStride(tensor), first,
                         kernel.masks->keyLimit, width});
  };
  copy(0, spec.getPaddedHeadDim(), layout.headPitch, key1, P::K1, spec.headDim);
  if (!spec.sharedKeys)
    copy(layout.keyBytes, spec.getPaddedHeadDim(), layout.headPitch, key2,
         P::K2, spec.headDim);
  copy(layout.valueOffset, spec.getPaddedValueDim(), layout.valuePitch, value,
       P::V, spec.valueDim);
}

void KVPipeline::fill(Value tile, Value endTile) {
  for (int64_t i = 0; i < stages - 1; ++i) {
    Value next = b.add(tile, i);
    b.branch(b.compare(LLVM::ICmpPredicate::slt, next, endTile),
             [&] { issue(next, b.i32(i * kernel.layout.stageBytes)); });
    // A group for each stage, empty or not, so that waits count the same.
    kernel.loader->commit();
  }
}

void KVPipeline::advance(Value tile, Value stage, Value endTile) {
  int64_t bytes = kernel.layout.stageBytes;
  kernel.loader->wait(stages - 2);
  b.barrier();
  Value ahead = b.add(tile, stages - 1);
  b.branch(b.compare(LLVM::ICmpPredicate::slt, ahead, endTile), [&] {
    Value wrapped = b.compare(LLVM::ICmpPredicate::eq, stage, b.i32(0));
    issue(ahead,
          b.select(wrapped, b.i32((stages - 1) * bytes), b.add(stage, -bytes)));
  });
  kernel.loader->commit();
}

Value KVPipeline::following(Value stage) {
  int64_t bytes = kernel.layout.stageBytes;
  Value next = b.add(stage, bytes);
  return b.select(
      b.compare(LLVM::ICmpPredicate::eq, next, b.i32(stages * bytes)), b.i32(0),
      next);
}

Value KVPipeline::keys(Value stage) {
  return b.bytes(b.bytes(kernel.shared, stage), kernel.layout.pipeline.offset);
}

Value KVPipeline::values(Value stage) {
  return b.bytes(keys(stage), kernel.layout.valueOffset);
}
