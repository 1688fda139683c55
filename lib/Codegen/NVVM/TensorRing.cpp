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

static constexpr int64_t kWarpThreads = 32;

TensorRing::TensorRing(AttentionKernel &kernel)
    : kernel(kernel), b(kernel.b), hopper(kernel.b), layout(kernel.layout) {
  stages = kernel.spec.getStages();
  tileKeys = kernel.spec.getTileKeys();
  blocks = kernel.spec.getClusterBlocks();
  partKeys = tileKeys / blocks;
  ofKeys = kernel.spec.kind == GpuKernelKind::GradientKeys;
}

SmallVector<TensorRing::Source> TensorRing::getRowSources() const {
  using P = GpuParam;
  const GpuKernelSpec &spec = kernel.spec;
  SmallVector<Source> sources;
  const std::tuple<P, Value> ofMaps[] = {
      {ofKeys ? P::K1Map : P::Q1Map, place->head},
      {ofKeys ? P::K2Map : P::Q2Map, place->noiseHead}};
  const bool hasSecond = ofKeys ? spec.hasSecondKeys() : spec.maps == 2;
  for (auto [map, head] : ArrayRef(ofMaps).take_front(hasSecond ? 2 : 1))
    sources.push_back({map, head,
                       static_cast<int64_t>(sources.size()) * layout.queryBytes,
                       layout.headPanels});
  if (spec.isOfGradients())
    sources.push_back({ofKeys ? P::VMap : P::DXMap, place->head,
                       layout.rowValueOffset, layout.valuePanels});
  return sources;
}

SmallVector<TensorRing::Source> TensorRing::getTileSources() const {
  using P = GpuParam;
  SmallVector<Source> sources{{ofKeys ? P::Q1Map : P::K1Map,
                               ofKeys ? place->head : key1Head, /*offset=*/0,
                               layout.headPanels}};
  if (ofKeys ? kernel.spec.maps == 2 : kernel.spec.hasSecondKeys())
    sources.push_back({ofKeys ? P::Q2Map : P::K2Map,
                       ofKeys ? place->noiseHead : key2Head, layout.keyBytes,
                       layout.headPanels});
  sources.push_back({ofKeys ? P::DXMap : P::VMap,
                     ofKeys ? place->head : valueHead, layout.valueOffset,
                     layout.valuePanels});
  return sources;
}

void TensorRing::enter(const QueryBlock &place) {
  using P = GpuParam;
  this->place = &place;
  if (ofKeys)
    return;
  key1Head = b.divU(place.head, kernel.param(P::SignalPerKey1));
  if (kernel.spec.hasSecondKeys())
    key2Head = b.divU(place.noiseHead, kernel.param(P::NoisePerKey2));
  valueHead = b.divU(place.head, kernel.param(P::SignalPerValue));
}

Value TensorRing::queryBarrier() {
  return b.bytes(kernel.shared, layout.barriers.offset);
}

Value TensorRing::queryPlaceBarrier() {
  return b.bytes(kernel.shared, layout.barriers.offset +
                                    GpuSharedLayout::barrierBytes(stages));
}

Value TensorRing::barrier(Kind kind, Value stage) {
  constexpr int64_t bytes = GpuSharedLayout::kBarrierBytes;
  return b.bytes(b.bytes(kernel.shared, b.mul(stage, bytes)),
                 layout.barriers.offset + (1 + kind * stages) * bytes);
}

void TensorRing::initBarriers() {
  if (kernel.spec.isWgmma())
    hopper.initBarrier(queryBarrier(), 1);
  if (kernel.spec.refillsRows())
    hopper.initBarrier(queryPlaceBarrier(),
                       kernel.spec.getReadingThreads() / 32);
  for (int64_t stage = 0; stage < stages; ++stage) {
    hopper.initBarrier(barrier(Keys, b.i32(stage)), 1);
    hopper.initBarrier(barrier(Values, b.i32(stage)), 1);
    hopper.initBarrier(barrier(Empty, b.i32(stage)),
                       blocks * kernel.spec.getReadingThreads() / 32);
    if (ofKeys)
      hopper.initBarrier(barrier(Statistics, b.i32(stage)), kWarpThreads);
  }
  hopper.publishBarriers();
}

void TensorRing::meet() {
  if (blocks == 1)
    return b.barrier();
  hopper.arriveAtCluster();
  hopper.waitForCluster();
}

TensorRing::Position TensorRing::following(Position position) {
  Value next = b.add(position.stage, 1);
  Value isLast = b.compare(LLVM::ICmpPredicate::eq, next, b.i32(stages));
  return {b.select(isLast, b.i32(0), next),
          b.select(isLast, b.xorI(position.parity, 1), position.parity)};
}

TensorRing::Position TensorRing::preceding(Position position) {
  Value isFirst = b.compare(LLVM::ICmpPredicate::eq, position.stage, b.i32(0));
  return {b.select(isFirst, b.i32(stages - 1), b.add(position.stage, -1)),
          b.select(isFirst, b.xorI(position.parity, 1), position.parity)};
}

void TensorRing::waitForQueries(Value parity) {
  hopper.wait(queryBarrier(), parity);
}
void TensorRing::waitForQueryPlace(Value parity) {
  hopper.wait(queryPlaceBarrier(), parity);
}
void TensorRing::releaseQueries(bool wroteThere) {
  if (wroteThere)
    hopper.publishToCopies();
  // One lane arrives for all of the warp.
  b.warpBarrier();
  b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0)),
           [&] { hopper.arrive(queryPlaceBarrier()); });
}
void TensorRing::waitForKeys(Position position) {
  hopper.wait(barrier(Keys, position.stage), position.parity);
}
void TensorRing::waitForValues(Position position) {
  hopper.wait(barrier(Values, position.stage), position.parity);
}
void TensorRing::release(Position position) {
  b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0)), [&] {
    Value empty = barrier(Empty, position.stage);
    hopper.arrive(empty);
    if (blocks > 1)
      hopper.arriveAtBlock(empty, b.xorI(place->rank, 1));
  });
}

void TensorRing::waitForPlace(Position position) {
  hopper.wait(barrier(Empty, position.stage), position.parity);
}
void TensorRing::arriveWithStatistics(Position position) {
  hopper.arrive(barrier(Statistics, position.stage));
}
void TensorRing::waitForStatistics(Position position) {
  hopper.wait(barrier(Statistics, position.stage), position.parity);
}

Value TensorRing::firstOfPart() {
  return blocks == 1 ? b.i32(0) : b.mul(place->rank, partKeys);
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

Value TensorRing::statistics(Position position) {
  return b.bytes(keys(position), layout.statisticsOffset);
}

void TensorRing::clearHidden(function_ref<Value()> getBase, int64_t panels,
                             int64_t panelBytes, int64_t rows, Value firstKey,
                             function_ref<void()> meetReaders) {
  const int64_t readers = kernel.spec.getReadingThreads();
  Value limit = kernel.masks->keyLimit;
  Value hasHidden = b.andI(
      b.compare(LLVM::ICmpPredicate::sgt, b.add(firstKey, rows), limit),
      b.compare(LLVM::ICmpPredicate::slt, limit, kernel.param(GpuParam::Keys)));
  b.branch(hasHidden, [&] {
    constexpr int64_t chunks = kGpuPanelPitch / kChunkBytes;
    Value reader = b.add(kernel.thread, -GpuWgmmaAttr::kGroupThreads);
    Value row = b.divU(reader, chunks), hidden = b.sub(limit, firstKey);
    Value start = b.bytes(getBase(), b.mul(reader, kChunkBytes));
    Value zero = b.i32(0);
    for (int64_t first = 0; first < rows; first += readers / chunks) {
      Value clear =
          b.compare(LLVM::ICmpPredicate::sge, b.add(row, first), hidden);
      if (first + readers / chunks > rows)
        clear = b.andI(clear, b.compare(LLVM::ICmpPredicate::slt,
                                        b.add(row, first), b.i32(rows)));
      b.branch(clear, [&] {
        for (int64_t panel = 0; panel < panels; ++panel)
          b.store(b.pack({zero, zero, zero, zero}),
                  b.bytes(start, panel * panelBytes + first * kGpuPanelPitch),
                  kChunkBytes);
      });
    }
    hopper.publishToCopies();
    meetReaders();
  });
}

void TensorRing::clearHiddenValues(Position position, Value firstKey,
                                   function_ref<void()> meetReaders) {
  clearHidden([&] { return values(position); }, layout.valuePanels,
              layout.keyPanelBytes, tileKeys, firstKey, meetReaders);
}

void TensorRing::clearHiddenKeys(Position position, Value firstKey,
                                 function_ref<void()> meetReaders) {
  clearHidden([&] { return keys(position); },
              layout.valueOffset / layout.keyPanelBytes + layout.valuePanels,
              layout.keyPanelBytes, tileKeys, firstKey, meetReaders);
}

void TensorRing::clearHiddenRows(Value firstKey,
                                 function_ref<void()> meetReaders) {
  clearHidden(
      [&] { return queries(0); }, layout.queries.bytes / layout.queryPanelBytes,
      layout.queryPanelBytes, kernel.spec.getRows(), firstKey, meetReaders);
}

void TensorRing::copy(Value target, int64_t panels, int64_t panelBytes,
                      GpuParam map, Value row, Value head, Value batch,
                      Value barrier, int64_t blocks) {
  for (int64_t panel = 0; panel < panels; ++panel)
    hopper.copyBox(b.bytes(target, panel * panelBytes), kernel.param(map),
                   {b.i32(panel * kGpuPanelWidth), row, head, batch}, barrier,
                   blocks);
}

void TensorRing::forQueryBoxes(CopyQueries body) {
  Value row =
      ofKeys ? kernel.keyAt(place->firstRow) : kernel.queryAt(place->firstRow);
  for (const Source &source : getRowSources())
    for (int64_t panel = 0; panel < source.panels; ++panel)
      body(queries(source.offset + panel * layout.queryPanelBytes), source.map,
           {b.i32(panel * kGpuPanelWidth), row, source.head, place->batch});
}

void TensorRing::prefetchQueries() {
  forQueryBoxes([&](Value, GpuParam map, std::array<Value, 4> at) {
    hopper.prefetchBox(kernel.param(map), at);
  });
}

void TensorRing::bringQueries() {
  hopper.arriveExpecting(queryBarrier(), layout.queries.bytes);
  forQueryBoxes([&](Value target, GpuParam map, std::array<Value, 4> at) {
    hopper.copyBox(target, kernel.param(map), at, queryBarrier());
  });
}

void TensorRing::endQueries() { hopper.arrive(queryBarrier()); }

void TensorRing::bringKeys(Position position, Value offset, Value row,
                           Value batch) {
  auto at = [&](Value pointer) {
    return offset ? b.bytes(pointer, offset) : pointer;
  };
  Value full = barrier(Keys, position.stage);
  const SmallVector<Source> sources = getTileSources();
  for (const Source &source : sources)
    copy(at(source.offset ? b.bytes(keys(position), source.offset)
                          : keys(position)),
         source.panels, layout.keyPanelBytes, source.map, row, source.head,
         batch,
         &source == &sources.back() ? barrier(Values, position.stage) : full,
         blocks);
}

void TensorRing::bringPages(Position position, Value firstKey) {
  Value box = kernel.param(GpuParam::PageBox), limit = kernel.masks->keyLimit;
  Value first = firstOfPart(), end = b.add(first, partKeys);
  b.loopWhile(
      first,
      [&](ValueRange now) {
        return b.compare(LLVM::ICmpPredicate::slt, now[0], end);
      },
      [&](ValueRange now) -> GpuBuilder::Values {
        Value key = b.add(firstKey, now[0]);
        PageTable::Place ofKey =
            kernel.pages->find(b.minS(key, b.add(limit, -1)));
        Value exists = b.andI(b.compare(LLVM::ICmpPredicate::slt, key, limit),
                              ofKey.exists);
        // Behind the last page lie zeros.
        Value page =
            b.select(exists, ofKey.page, kernel.param(GpuParam::Pages));
        bringKeys(position, b.mul(now[0], kGpuPanelPitch), ofKey.row, page);
        return {b.add(now[0], box)};
      },
      /*mayUnroll=*/false);
}

GpuBuilder::Values TensorRing::forTiles(Value first, Value end,
                                        ValueRange initial, TileBody body,
                                        bool mayUnroll) {
  return kernel.spec.isWgmma()
             ? b.loopDown(first, end, initial, body, mayUnroll)
             : b.loop(first, end, 1, initial, body, mayUnroll);
}

TensorRing::Position TensorRing::bring(Value first, Value end,
                                       Position position) {
  GpuBuilder::Values final = forTiles(
      first, end, {position.stage, position.parity},
      [&](Value tile, ValueRange carried) -> GpuBuilder::Values {
        Position position{carried[0], carried[1]};
        Value row = b.mul(tile, tileKeys);
        hopper.wait(barrier(Empty, position.stage), position.parity,
                    /*clusterwide=*/blocks > 1);
        hopper.arriveExpecting(barrier(Keys, position.stage),
                               layout.valueOffset);
        hopper.arriveExpecting(barrier(Values, position.stage),
                               layout.valuePanels * layout.keyPanelBytes);
        if (kernel.pages) {
          bringPages(position, row);
        } else if (blocks == 1) {
          bringKeys(position, /*offset=*/{},
                    ofKeys ? kernel.queryAt(row) : kernel.keyAt(row),
                    place->batch);
        } else {
          Value part = firstOfPart();
          bringKeys(position, b.mul(part, kGpuPanelPitch),
                    kernel.keyAt(b.add(row, part)), place->batch);
        }
        position = following(position);
        return {position.stage, position.parity};
      });
  return {final[0], final[1]};
}

TensorRing::Position TensorRing::lend(Position position) {
  hopper.wait(barrier(Empty, position.stage), position.parity);
  hopper.arrive(barrier(Keys, position.stage));
  hopper.arrive(barrier(Values, position.stage));
  return following(position);
}
