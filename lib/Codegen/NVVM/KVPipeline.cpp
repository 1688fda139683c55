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

using Values = GpuBuilder::Values;

KVPipeline::KVPipeline(AttentionKernel &kernel, Value batch, Value head,
                       Value noiseHead)
    : kernel(kernel), b(kernel.b), stages(kernel.spec.getTiles().stages),
      tileKeys(kernel.spec.getTiles().keys) {
  using P = GpuParam;
  auto base = [&](P tensor, Value head, P sharing) {
    return kernel.headBase(tensor, batch, b.divU(head, kernel.param(sharing)));
  };
  key1 = base(P::K1, head, P::SignalPerKey1);
  if (kernel.spec.hasSecondKeys())
    key2 = base(P::K2, noiseHead, P::NoisePerKey2);
  value = base(P::V, head, P::SignalPerValue);
}

void KVPipeline::issue(Value tile, Value stage) {
  using P = GpuParam;
  const GpuKernelSpec &spec = kernel.spec;
  const GpuSharedLayout &layout = kernel.layout;
  Value first = b.mul(tile, tileKeys), limit = kernel.masks->keyLimit;
  if (spec.isOfGradients()) {
    first = kernel.keyAt(first);
    limit = kernel.keyAt(limit);
  }
  Value base = b.bytes(kernel.shared, stage);
  auto copy = [&](int64_t offset, int64_t padded, int64_t pitch, Value global,
                  P tensor, int64_t width) {
    kernel.loader->copy({b.bytes(base, layout.pipeline.offset + offset),
                         tileKeys, padded, pitch},
                        {global, kernel.rowStride(tensor),
                         kernel.columnStride(tensor), first, limit, width,
                         kernel.pages.get(),
                         kernel.param(getGpuStride(tensor, 0))});
  };
  copy(0, spec.getPaddedHeadDim(), layout.headPitch, key1, P::K1, spec.headDim);
  if (spec.hasSecondKeys())
    copy(layout.keyBytes, spec.getPaddedHeadDim(), layout.headPitch, key2,
         P::K2, spec.headDim);
  copy(layout.valueOffset, spec.getPaddedValueDim(), layout.valuePitch, value,
       P::V, spec.valueDim);
}

void KVPipeline::bring(Value tile, Value exists, function_ref<Value()> stage,
                       function_ref<void()> beside) {
  b.branch(exists, [&] { issue(tile, stage()); });
  if (beside)
    beside();
  // A group for each stage, empty or not, so that waits count the same.
  kernel.loader->commit();
}

void KVPipeline::wait() {
  kernel.loader->wait(stages - 2);
  b.barrier();
}

Value KVPipeline::getFreeStage(Value stage) {
  int64_t bytes = kernel.layout.stageBytes;
  Value wrapped = b.compare(LLVM::ICmpPredicate::eq, stage, b.i32(0));
  return b.select(wrapped, b.i32((stages - 1) * bytes), b.add(stage, -bytes));
}

Value KVPipeline::following(Value stage) {
  int64_t bytes = kernel.layout.stageBytes;
  Value next = b.add(stage, bytes);
  return b.select(
      b.compare(LLVM::ICmpPredicate::eq, next, b.i32(stages * bytes)), b.i32(0),
      next);
}

void KVPipeline::start(Value first, Value end, function_ref<void()> beside) {
  GpuMasks &masks = *kernel.masks;
  firstTile = first;
  endTile = end;
  for (int64_t i = 0; i < stages - 1; ++i) {
    Value tile = b.add(first, i), exists;
    if (masks.hasTiles()) {
      Value from = i ? b.add(masks.getNumber(visibleTiles.back()), 1) : first;
      visibleTiles.push_back(masks.findSeen(from, end, tileKeys));
      tile = masks.getNumber(visibleTiles.back());
      exists = masks.isBefore(visibleTiles.back(), end);
    } else {
      exists = b.compare(LLVM::ICmpPredicate::slt, tile, end);
    }
    bring(
        tile, exists, [&] { return b.i32(i * kernel.layout.stageBytes); },
        i == 0 ? beside : nullptr);
  }
}

Values KVPipeline::loop(ValueRange initial, Compute compute) {
  if (kernel.masks->hasTiles())
    return loopOverVisible(initial, compute);
  Value first = firstTile, end = endTile;
  auto isBeforeEnd = [&](Value tile) {
    return b.compare(LLVM::ICmpPredicate::slt, tile, end);
  };
  Values carried{b.i32(0)};
  llvm::append_range(carried, initial);
  Values final = b.loop(
      first, end, 1, carried, [&](Value number, ValueRange carried) -> Values {
        Value stage = carried.front();
        wait();
        Value ahead = b.add(number, stages - 1);
        bring(ahead, isBeforeEnd(ahead), [&] { return getFreeStage(stage); });
        Values after =
            compute({number, stage, /*isPartial=*/{}}, carried.drop_front());
        Values next{following(stage)};
        llvm::append_range(next, after);
        return next;
      });
  return Values(ValueRange(final).drop_front());
}

/// Loops over the tiles that some query sees. Others take no stage, and no turn
/// of the loop: a branch around the computation was seen to spill.
Values KVPipeline::loopOverVisible(ValueRange initial, Compute compute) {
  GpuMasks &masks = *kernel.masks;
  Value end = endTile;
  auto find = [&](Value from) { return masks.findSeen(from, end, tileKeys); };
  // The stage of the tile, it and those under way.
  Values carried{b.i32(0)};
  llvm::append_range(carried, visibleTiles);
  llvm::append_range(carried, initial);
  Values final = b.loopWhile(
      carried, [&](ValueRange now) { return masks.isBefore(now[1], end); },
      [&](ValueRange now) -> Values {
        Value stage = now[0], tile = now[1], last = now[stages - 1];
        wait();
        Value ahead = find(b.add(masks.getNumber(last), 1));
        bring(masks.getNumber(ahead), masks.isBefore(ahead, end),
              [&] { return getFreeStage(stage); });
        Values after =
            compute({masks.getNumber(tile), stage, masks.isPartial(tile)},
                    now.drop_front(stages));
        Values next{following(stage)};
        llvm::append_range(next, now.slice(2, stages - 2));
        next.push_back(ahead);
        llvm::append_range(next, after);
        return next;
      });
  return Values(ValueRange(final).drop_front(stages));
}

Value KVPipeline::keys(Value stage) {
  return b.bytes(b.bytes(kernel.shared, stage), kernel.layout.pipeline.offset);
}

Value KVPipeline::values(Value stage) {
  return b.bytes(keys(stage), kernel.layout.valueOffset);
}
