//===- GradientQueries.cpp - gradients of a block of queries --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block has queries of a noise head. For each signal head that it serves, one
// after another, keys and values come through the pipeline of KVPipeline.h; the
// sums of Q2 go on from head to head.
//
//===----------------------------------------------------------------------===//
#include "GradientQueries.h"
#include "KVPipeline.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

//===----------------------------------------------------------------------===//
// Whatever multiplies
//===----------------------------------------------------------------------===//

GradientQueryBlock::GradientQueryBlock(AttentionKernel &kernel)
    : kernel(kernel), b(kernel.b), spec(kernel.spec), layout(kernel.layout),
      keys(spec.getTiles().keys), tiles(kernel, /*columnsAreQueries=*/false) {}

void GradientQueryBlock::locateWarp() {
  // Warps ahead of those that read have no rows.
  const int64_t ahead = (spec.getThreads() - spec.getReadingThreads()) / 32;
  Value warp = ahead ? b.add(kernel.warp, -ahead) : kernel.warp;
  warpRow = b.add(place.firstRow, b.mul(warp, 16));
}

void GradientQueryBlock::locate() {
  perNoise = spec.maps == 2 ? kernel.param(GpuParam::SignalPerNoise) : b.i32(1);
  // Blocks start in order of their number: rows that see most keys come first.
  const AttentionKernel::Part rows =
      kernel.locateRows(b.sub(b.add(b.gridSize(0), -1), b.blockId(0)));
  place.clusterRow = place.firstRow = rows.firstRow;
  place.noiseHead = b.blockId(1);
  place.batch = kernel.batchOfBlock();
  place.sequence = rows.sequence ? rows.sequence : place.batch;
  signalHeads = b.mul(b.gridSize(1), perNoise);
  locateWarp();
  kernel.enterSequence(place.sequence);
  std::tie(firstTile, endTile) = kernel.findTiles(place, keys);
}

void GradientQueryBlock::loadStatistics(Value head) {
  Value last = b.add(kernel.queries(), -1);
  for (int64_t h = 0; h < 2; ++h) {
    Value query = b.minS(b.add(b.add(warpRow, kernel.laneRow), 8 * h), last),
          row = kernel.queryAt(query);
    for (int64_t map = 0; map < spec.maps; ++map) {
      Value logarithm = b.loadConstant(
          b.f32(),
          kernel.stridePointer(
              b.f32(),
              tiles.getLogSums(map, place.batch, map ? place.noiseHead : head),
              b.toI64(row), tiles.getLogSumStride(map)));
      shifts[map][h] = tiles.getShift(logarithm);
      Value sums = tiles.getRowSums(map ? GpuParam::D2 : GpuParam::D1,
                                    place.batch, head, signalHeads);
      rowSums[map][h] =
          b.loadConstant(b.f32(), b.element(b.f32(), sums, b.toI64(row)));
    }
    if (spec.maps == 2)
      minusLambda[h] =
          b.mulF(kernel.loadLambda(place.batch, query, head), b.f32(-1.0));
  }
}

void GradientQueryBlock::weigh(int64_t map, MutableArrayRef<Fragment> scores,
                               const GradientTiles::Place &where,
                               RowFragments &slopes) {
  tiles.weigh(
      scores, where, [&](int64_t, int64_t i) { return shifts[map][i / 2]; },
      slopes);
  if (!map)
    return;
  for (Fragment &fragment : scores)
    for (auto [i, weight] : llvm::enumerate(fragment))
      weight = b.mulF(weight, minusLambda[i / 2]);
}

SmallVector<Fragment>
GradientQueryBlock::differentiate(int64_t map, ArrayRef<Fragment> weights,
                                  ArrayRef<Fragment> dP,
                                  ArrayRef<Fragment> slopes) {
  return tiles.pack(tiles.differentiate(
      weights, dP, [&](int64_t, int64_t i) { return rowSums[map][i / 2]; },
      slopes));
}

GpuBuilder::Values GradientQueryBlock::forHeads(
    ValueRange carried,
    function_ref<Values(Value head, ValueRange carried)> body) {
  Value firstHead = b.mul(place.noiseHead, perNoise);
  if (spec.maps == 1)
    return body(firstHead, carried);
  return b.loop(firstHead, b.add(firstHead, perNoise), 1, carried, body,
                /*mayUnroll=*/false);
}

void GradientQueryBlock::store(GpuGradient gradient, ArrayRef<Fragment> sums,
                               Value head) {
  if (spec.getGradientType(gradient))
    tiles.store(sums, kernel.param(GpuParam::GradientScale), gradient,
                kernel.headBase(getGpuParam(gradient), place.batch, head),
                kernel.queryAt(warpRow), kernel.queryAt(kernel.queries()));
}

//===----------------------------------------------------------------------===//
// By mma.sync
//===----------------------------------------------------------------------===//

namespace {
class GradientQueries : GradientQueryBlock {
public:
  explicit GradientQueries(AttentionKernel &kernel);
  void emit();

private:
  /// All of signal head `head`, from `carried` sums of Q2 to the next ones.
  Values emitHead(Value head, ValueRange carried);
  void bringRows(Value head);
  Values computeTile(const KVPipeline::Tile &tile, ValueRange carried);
  Value rowBase(int64_t offset, int64_t pitch) {
    return b.bytes(b.bytes(kernel.shared, layout.queries.offset + offset),
                   b.mul(kernel.warp, 16 * pitch));
  }

  RowProducts heads, values;
  std::optional<KVPipeline> pipeline;
};
} // namespace

GradientQueries::GradientQueries(AttentionKernel &kernel)
    : GradientQueryBlock(kernel),
      heads(kernel, layout.headPitch, spec.getPaddedHeadDim()),
      values(kernel, layout.valuePitch, spec.getPaddedValueDim()) {}

void GradientQueries::bringRows(Value head) {
  using P = GpuParam;
  const int64_t rows = spec.getRows();
  auto copy = [&](int64_t offset, int64_t padded, int64_t pitch, Value base,
                  Value rowStride, Value columnStride, int64_t width) {
    kernel.loader->copy({b.bytes(kernel.shared, layout.queries.offset + offset),
                         rows, padded, pitch},
                        {base, rowStride, columnStride,
                         kernel.queryAt(place.firstRow),
                         kernel.queryAt(kernel.queries()), width});
  };
  for (int64_t map = 0; map < spec.maps; ++map) {
    const P tensor = map ? P::Q2 : P::Q1;
    copy(map * layout.queryBytes, spec.getPaddedHeadDim(), layout.headPitch,
         kernel.headBase(tensor, place.batch, map ? place.noiseHead : head),
         kernel.rowStride(tensor), kernel.columnStride(tensor), spec.headDim);
  }
  copy(layout.rowValueOffset, spec.getPaddedValueDim(), layout.valuePitch,
       tiles.getRowGradients(place.batch, head, signalHeads),
       b.i64(spec.valueDim), b.i64(1), spec.valueDim);
}

GpuBuilder::Values GradientQueries::computeTile(const KVPipeline::Tile &tile,
                                                ValueRange carried) {
  RowFragments sums = toFragments(carried);
  const size_t ofMap = sums.size() / spec.maps;
  const GradientTiles::Place where = at(b.mul(tile.number, keys));
  RowFragments dP =
      values.multiply(rowBase(layout.rowValueOffset, layout.valuePitch),
                      pipeline->values(tile.stage), keys);
  for (int64_t map = 0; map < spec.maps; ++map) {
    Value keyTile = pipeline->keys(tile.stage);
    if (map && spec.hasSecondKeys())
      keyTile = b.bytes(keyTile, layout.keyBytes);
    RowFragments weights = heads.multiply(
        rowBase(map * layout.queryBytes, layout.headPitch), keyTile, keys);
    RowFragments slopes;
    weigh(map, weights, where, slopes);
    heads.accumulate(differentiate(map, weights, dP, slopes), keyTile,
                     MutableArrayRef(sums).slice(map * ofMap, ofMap));
  }
  return toValues(sums);
}

GpuBuilder::Values GradientQueries::emitHead(Value head, ValueRange carried) {
  // The warps are through with the rows and tiles of the head before.
  b.barrier();
  pipeline.emplace(kernel, place.batch, head, place.noiseHead);
  pipeline->start(firstTile, endTile, [&] { bringRows(head); });
  loadStatistics(head);
  Values initial = toValues(heads.getZeros());
  const size_t ofMap = initial.size();
  llvm::append_range(initial, carried);
  Values final = pipeline->loop(
      initial, [&](const KVPipeline::Tile &tile, ValueRange carried) {
        return computeTile(tile, carried);
      });
  // Without tiles nothing has waited for the rows.
  kernel.loader->wait(0);
  store(GpuGradient::Q1, toFragments(ValueRange(final).take_front(ofMap)),
        head);
  return Values(ValueRange(final).drop_front(ofMap));
}

void GradientQueries::emit() {
  locate();
  kernel.unlessEmpty(place.firstRow, [&] {
    Values final =
        forHeads(spec.maps == 2 ? toValues(heads.getZeros()) : Values(),
                 [&](Value head, ValueRange carried) {
                   return emitHead(head, carried);
                 });
    if (spec.maps == 2)
      store(GpuGradient::Q2, toFragments(final), place.noiseHead);
  });
}

void mlir::diffattn::gpucode::emitGradientQueriesKernel(
    AttentionKernel &kernel) {
  if (kernel.spec.byWarpgroups)
    return emitWgmmaGradientQueries(kernel);
  GradientQueries(kernel).emit();
}
