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
                      GpuParam map, Value row, Value head, Value barrier) {
  for (int64_t panel = 0; panel < panels; ++panel)
    hopper.copyBox(b.bytes(target, panel * panelBytes), kernel.param(map),
                   {b.i32(panel * kGpuPanelWidth), row, head, place.batch},
                   barrier);
}

void TensorRing::bringQueries() {
  using P = GpuParam;
  hopper.arriveExpecting(queryBarrier(), 2 * layout.queryBytes);
  copy(queries(0), layout.headPanels, layout.queryPanelBytes, P::Q1Map,
       place.firstRow, place.head, queryBarrier());
  copy(queries(layout.queryBytes), layout.headPanels, layout.queryPanelBytes,
       P::Q2Map, place.firstRow, place.noiseHead, queryBarrier());
}

void TensorRing::bring(Value first, Value end) {
  using P = GpuParam;
  const bool sharedKeys = kernel.spec.sharedKeys;
  // Stages are empty at first: as if a phase of parity 1 had ended.
  b.loop(first, end, 1, {b.i32(0), b.i32(1)},
         [&](Value tile, ValueRange carried) -> GpuBuilder::Values {
           Position position{carried[0], carried[1]};
           Value row = b.mul(tile, tileKeys);
           hopper.wait(barrier(Empty, position.stage), position.parity);
           Value full = barrier(Keys, position.stage);
           hopper.arriveExpecting(full, layout.valueOffset);
           copy(keys(position), layout.headPanels, layout.keyPanelBytes,
                P::K1Map, row, key1Head, full);
           if (!sharedKeys)
             copy(b.bytes(keys(position), layout.keyBytes), layout.headPanels,
                  layout.keyPanelBytes, P::K2Map, row, key2Head, full);
           full = barrier(Values, position.stage);
           hopper.arriveExpecting(full,
                                  layout.valuePanels * layout.keyPanelBytes);
           copy(values(position), layout.valuePanels, layout.keyPanelBytes,
                P::VMap, row, valueHead, full);
           position = following(position);
           return {position.stage, position.parity};
         });
}
