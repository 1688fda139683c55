//===- TensorRing.cpp - tiles that one thread brings for others -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TensorRing.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

TensorRing::TensorRing(AttentionKernel &kernel, const QueryBlock &place)
    : kernel(kernel), b(kernel.b), hopper(kernel.b), place(place),
      layout(kernel.layout) {
  using P = GpuParam;
  stages = kernel.spec.getStages();
  tileKeys = kernel.spec.getTileKeys();
  key1Head = b.divU(place.head, kernel.param(P::SignalPerKey1));
  if (!kernel.spec.sharedKeys)
    key2Head = b.divU(place.noiseHead, kernel.param(P::NoisePerKey2));
  valueHead = b.divU(place.head, kernel.param(P::SignalPerValue));
}

Value TensorRing::queryBarrier() {
  return b.bytes(kernel.shared, layout.barriers.offset);
}

Value TensorRing::barrier(Kind kind, Value stage) {
  constexpr int64_t bytes = GpuSharedLayout::kBarrierBytes;
  return b.bytes(b.bytes(kernel.shared, b.mul(stage, bytes)),
                 layout.barriers.offset + (1 + kind * stages) * bytes);
}

void TensorRing::initBarriers() {
  if (kernel.spec.isWgmma())
    hopper.initBarrier(queryBarrier(), 1);
  for (int64_t stage = 0; stage < stages; ++stage) {
    hopper.initBarrier(barrier(Keys, b.i32(stage)), 1);
    hopper.initBarrier(barrier(Values, b.i32(stage)), 1);
    hopper.initBarrier(barrier(Empty, b.i32(stage)),
                       kernel.spec.getReadingThreads() / 32);
  }
  hopper.publishBarriers();
}

TensorRing::Position TensorRing::following(Position position) {
  Value next = b.add(position.stage, 1);
  Value isLast = b.compare(LLVM::ICmpPredicate::eq, next, b.i32(stages));
  return {b.select(isLast, b.i32(0), next),
          b.select(isLast, b.xorI(position.parity, 1), position.parity)};
}

void TensorRing::waitForQueries() { hopper.wait(queryBarrier(), b.i32(0)); }
void TensorRing::waitForKeys(Position position) {
  hopper.wait(barrier(Keys, position.stage), position.parity);
}
void TensorRing::waitForValues(Position position) {
  hopper.wait(barrier(Values, position.stage), position.parity);
}
void TensorRing::release(Position position) {
  b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0)),
           [&] { hopper.arrive(barrier(Empty, position.stage)); });
}

Value TensorRing::queries(int64_t byteOffset) {
  return b.bytes(kernel.shared, layout.queries.offset + byteOffset);
}
Value TensorRing::keys(Position position) {
  return b.bytes(
      b.bytes(kernel.shared, b.mul(position.stage, layout.stageBytes)),
      layout.pipeline.offset);
}
Value TensorRing::values(Position position) {
  return b.bytes(keys(position), layout.valueOffset);
}

void TensorRing::copy(Value target, int64_t panels, int64_t panelBytes,
                      GpuParam map, Value row, Value head, Value batch,
                      Value barrier) {
  for (int64_t panel = 0; panel < panels; ++panel)
    hopper.copyBox(b.bytes(target, panel * panelBytes), kernel.param(map),
                   {b.i32(panel * kGpuPanelWidth), row, head, batch}, barrier);
}

void TensorRing::bringQueries() {
  using P = GpuParam;
  hopper.arriveExpecting(queryBarrier(), 2 * layout.queryBytes);
  Value row = kernel.queryAt(place.firstRow);
  copy(queries(0), layout.headPanels, layout.queryPanelBytes, P::Q1Map, row,
       place.head, place.batch, queryBarrier());
  copy(queries(layout.queryBytes), layout.headPanels, layout.queryPanelBytes,
       P::Q2Map, row, place.noiseHead, place.batch, queryBarrier());
}

void TensorRing::bringKeys(Position position, Value offset, Value row,
                           Value batch) {
  using P = GpuParam;
  auto at = [&](Value pointer) {
    return offset ? b.bytes(pointer, offset) : pointer;
  };
  Value full = barrier(Keys, position.stage);
  copy(at(keys(position)), layout.headPanels, layout.keyPanelBytes, P::K1Map,
       row, key1Head, batch, full);
  if (!kernel.spec.sharedKeys)
    copy(at(b.bytes(keys(position), layout.keyBytes)), layout.headPanels,
         layout.keyPanelBytes, P::K2Map, row, key2Head, batch, full);
  copy(at(values(position)), layout.valuePanels, layout.keyPanelBytes, P::VMap,
       row, valueHead, batch, barrier(Values, position.stage));
}

void TensorRing::bringPages(Position position, Value firstKey) {
  Value box = kernel.param(GpuParam::PageBox), limit = kernel.masks->keyLimit;
  b.loopWhile(
      b.i32(0),
      [&](ValueRange now) {
        return b.compare(LLVM::ICmpPredicate::slt, now[0], b.i32(tileKeys));
      },
      [&](ValueRange now) -> GpuBuilder::Values {
        Value key = b.add(firstKey, now[0]);
        PageTable::Place found =
            kernel.pages->find(b.minS(key, b.add(limit, -1)));
        Value exists = b.andI(b.compare(LLVM::ICmpPredicate::slt, key, limit),
                              found.exists);
        // Behind the last page lie zeros.
        Value page =
            b.select(exists, found.page, kernel.param(GpuParam::Pages));
        bringKeys(position, b.mul(now[0], kGpuPanelPitch), found.row, page);
        return {b.add(now[0], box)};
      },
      /*mayUnroll=*/false);
}

void TensorRing::bring(Value first, Value end) {
  // Stages are empty at first: as if a phase of parity 1 had ended.
  b.loop(first, end, 1, {b.i32(0), b.i32(1)},
         [&](Value tile, ValueRange carried) -> GpuBuilder::Values {
           Position position{carried[0], carried[1]};
           Value row = b.mul(tile, tileKeys);
           hopper.wait(barrier(Empty, position.stage), position.parity);
           hopper.arriveExpecting(barrier(Keys, position.stage),
                                  layout.valueOffset);
           hopper.arriveExpecting(barrier(Values, position.stage),
                                  layout.valuePanels * layout.keyPanelBytes);
           if (kernel.pages)
             bringPages(position, row);
           else
             bringKeys(position, /*offset=*/{}, kernel.keyAt(row), place.batch);
           position = following(position);
           return {position.stage, position.parity};
         });
}
