//===- ForwardKernel.cpp - both maps of a block of queries ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Safety of the ring. (1) A stage is read only after this thread's wait for its
// copies and the block's barrier after it. (2) A stage is refilled only after
// the barrier of the next tile, which every warp passes after its last read.
// (3) What a pair of warps exchanges is written after the tile's barrier, read
// after the pair's own, and so never overwritten while it is read.
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

namespace {
/// Accumulators of one map: [row tile][8 columns].
using Accumulator = SmallVector<SmallVector<Fragment>>;

class ForwardKernel {
public:
  explicit ForwardKernel(AttentionKernel &kernel);
  void emit();

private:
  bool isPair() const { return placement == GpuPlacement::Pair; }
  /// Maps whose scores a warp computes, and maps that it accumulates. With more
  /// than one warp to a row, index 0 is the warp's own map, whichever that is.
  int64_t scoreMaps() const { return placement == GpuPlacement::Both ? 2 : 1; }
  int64_t sumMaps() const { return placement == GpuPlacement::Apart ? 1 : 2; }
  /// Column of accumulator `n`, before the lane's part.
  Value sumColumn(int64_t n);
  int64_t maxSumColumn(int64_t n);

  void locate();
  void loadQueries();
  void issueTile(Value tile, Value stage);
  Values tileBody(Value tile, ValueRange carried);
  SmallVector<SmallVector<Fragment>> scores(int64_t map, Value stage);
  void rescale(Accumulator &sums, ArrayRef<std::array<Value, 2>> alpha,
               Value needed);
  /// Gives the partner this warp's probabilities and factors, and takes the
  /// partner's.
  void exchange(SmallVector<OnlineSoftmax::Step> &own,
                SmallVector<OnlineSoftmax::Step> &other);
  void accumulate(Value stage, SmallVector<Accumulator> &sums,
                  ArrayRef<SmallVector<OnlineSoftmax::Step>> steps);
  void combine(SmallVector<Accumulator> &sums,
               SmallVector<SmallVector<RowState>> &states);
  void finishRows(const Accumulator &x);
  Value queryRow(int64_t rowTile, int64_t half) {
    return b.add(b.add(warpRow, kernel.laneRow), 16 * rowTile + 8 * half);
  }
  Value exchangeSlot(Value ofWarp) {
    return b.bytes(b.bytes(kernel.shared, b.mul(ofWarp, layout.exchangeBytes)),
                   layout.exchangeOffset);
  }
  Value mapOffset(int64_t bytes, int64_t map);

  Values flatten(const SmallVector<Accumulator> &sums,
                 const SmallVector<SmallVector<RowState>> &states);
  void unflatten(ValueRange values, SmallVector<Accumulator> &sums,
                 SmallVector<SmallVector<RowState>> &states);

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const SharedLayout &layout;
  GpuPlacement placement;
  int64_t rowTiles, keys, headSteps, sumTiles;
  OnlineSoftmax softmax;

  Value batch, head, noiseHead, firstRow;
  /// First query of this warp; the group of rows that it belongs to; its own
  /// map.
  Value warpRow, rowGroup, ownMap;
  Value key1, key2, value, k1Stride, k2Stride, vStride;
  Value firstTile, endTile;
  SmallVector<SmallVector<SmallVector<Fragment>>>
      queries; // [map][row tile][step]
  std::optional<MatrixReader> queryReader, keyReader, valueReader;
};
} // namespace

ForwardKernel::ForwardKernel(AttentionKernel &kernel)
    : kernel(kernel), b(kernel.b), spec(kernel.spec), layout(kernel.layout),
      placement(spec.schedule.getPlacement()),
      rowTiles(spec.schedule.getRowTiles()), keys(spec.schedule.getKeys()),
      headSteps(spec.getPaddedHeadDim() / 16),
      sumTiles(spec.getPaddedValueDim() / 8 /
               (placement == GpuPlacement::Pair ? 2 : 1)),
      softmax(kernel) {}

Value ForwardKernel::sumColumn(int64_t n) {
  Value pair = b.mul(kernel.laneColumn, 2);
  if (!isPair())
    return b.add(pair, 8 * n);
  // Warps of a pair take turns at 16 columns: so both halves use the same
  // chunks of a swizzle.
  return b.add(b.add(pair, b.mul(ownMap, 16)), 32 * (n / 2) + 8 * (n % 2));
}

int64_t ForwardKernel::maxSumColumn(int64_t n) {
  return isPair() ? 32 * (n / 2) + 16 + 8 * (n % 2) + 6 : 8 * n + 6;
}

void ForwardKernel::locate() {
  using P = GpuParam;
  // Blocks start in order of their number: rows that see most keys come first.
  Value block = b.sub(b.add(b.gridSize(0), -1), b.blockId(0));
  head = b.blockId(1);
  batch = b.blockId(2);
  firstRow = b.mul(block, spec.getRows());
  noiseHead = b.divU(head, kernel.param(P::SignalPerNoise));
  int64_t groups = spec.getRows() / (16 * rowTiles);
  rowGroup = kernel.warp;
  ownMap = b.i32(0);
  if (isPair()) {
    rowGroup = b.divU(kernel.warp, 2);
    ownMap = b.remU(kernel.warp, 2);
  } else if (placement == GpuPlacement::Apart) {
    rowGroup = b.remU(kernel.warp, groups);
    ownMap = b.divU(kernel.warp, groups);
  }
  warpRow = b.add(firstRow, b.mul(rowGroup, 16 * rowTiles));
  kernel.readPositions(batch);

  key1 = kernel.headBase(P::K1, P::K1B, batch,
                         b.divU(head, kernel.param(P::SignalPerKey1)));
  key2 = kernel.headBase(P::K2, P::K2B, batch,
                         b.divU(noiseHead, kernel.param(P::NoisePerKey2)));
  value = kernel.headBase(P::V, P::VB, batch,
                          b.divU(head, kernel.param(P::SignalPerValue)));

  // Keys that some row of the block sees, in whole tiles.
  Value lastRow =
      b.minS(b.add(firstRow, spec.getRows()), kernel.param(P::Queries));
  Value end =
      b.add(b.add(lastRow, kernel.position0), kernel.param(P::WindowRight));
  end = b.minS(end, kernel.keyLimit);
  Value begin =
      b.sub(b.add(firstRow, kernel.position0), kernel.param(P::WindowLeft));
  begin = b.maxS(begin, b.i32(0));
  firstTile = b.divU(begin, keys);
  endTile = b.divU(b.add(b.maxS(end, b.i32(0)), keys - 1), keys);
}

Value ForwardKernel::mapOffset(int64_t bytes, int64_t map) {
  return placement == GpuPlacement::Both ? b.i32(map * bytes)
                                         : b.mul(ownMap, bytes);
}

void ForwardKernel::loadQueries() {
  using P = GpuParam;
  int64_t rows = spec.getRows();
  for (int64_t map = 0; map < 2; ++map) {
    Value base = map == 0 ? kernel.headBase(P::Q1, P::Q1B, batch, head)
                          : kernel.headBase(P::Q2, P::Q2B, batch, noiseHead);
    SharedTile tile{b.bytes(kernel.shared, map * layout.queryBytes), rows,
                    spec.getPaddedHeadDim(), layout.headPitch};
    kernel.copyTile(tile, {base, kernel.param(map ? P::Q2T : P::Q1T),
                           kernel.param(map ? P::Q2W : P::Q1W), firstRow,
                           kernel.param(P::Queries), spec.headDim});
  }
  b.commitCopies();
  queryReader.emplace(kernel, layout.headPitch, MatrixReader::RowsFirst);
  keyReader.emplace(kernel, layout.headPitch, MatrixReader::ColumnsFirst);
  valueReader.emplace(kernel, layout.valuePitch, MatrixReader::RowsFirst,
                      isPair() ? b.mul(ownMap, 2) : Value());
  if (!spec.schedule.getQInRegisters())
    return;
  b.waitForCopies(0);
  b.barrier();
  for (int64_t map = 0; map < scoreMaps(); ++map) {
    auto &ofMap = queries.emplace_back();
    Value base = b.bytes(kernel.shared, mapOffset(layout.queryBytes, map));
    base = b.bytes(base, b.mul(rowGroup, 16 * rowTiles * layout.headPitch));
    for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile) {
      auto &ofTile = ofMap.emplace_back();
      for (int64_t step = 0; step < headSteps; ++step)
        ofTile.push_back(
            queryReader->read(base, rowTile, 2 * step, /*transpose=*/false));
    }
  }
  // The ring takes the place of the queries.
  b.barrier();
}

void ForwardKernel::issueTile(Value tile, Value stage) {
  using P = GpuParam;
  Value first = b.mul(tile, keys);
  Value base = b.bytes(kernel.shared, stage);
  auto copy = [&](int64_t offset, int64_t padded, int64_t pitch, Value global,
                  P row, P column, int64_t width) {
    kernel.copyTile(
        {b.bytes(base, layout.ringOffset + offset), keys, padded, pitch},
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

SmallVector<SmallVector<Fragment>> ForwardKernel::scores(int64_t map,
                                                         Value stage) {
  Value zero = b.f32(0.0);
  SmallVector<SmallVector<Fragment>> result(
      rowTiles,
      SmallVector<Fragment>(keys / 8, Fragment{zero, zero, zero, zero}));
  Value keyBase = b.bytes(kernel.shared, stage);
  if (!spec.sharedKeys)
    keyBase = b.bytes(keyBase, mapOffset(layout.keyBytes, map));
  keyBase = b.bytes(keyBase, layout.ringOffset);
  Value queryBase;
  if (!spec.schedule.getQInRegisters()) {
    queryBase = b.bytes(kernel.shared, mapOffset(layout.queryBytes, map));
    queryBase =
        b.bytes(queryBase, b.mul(rowGroup, 16 * rowTiles * layout.headPitch));
  }
  for (int64_t step = 0; step < headSteps; ++step) {
    SmallVector<Fragment> q;
    for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
      q.push_back(queryBase
                      ? queryReader->read(queryBase, rowTile, 2 * step, false)
                      : queries[map][rowTile][step]);
    for (int64_t block = 0; block < keys / 16; ++block) {
      Fragment k =
          keyReader->read(keyBase, block, 2 * step, /*transpose=*/false);
      for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
        for (int64_t n = 0; n < 2; ++n) {
          Fragment &sum = result[rowTile][2 * block + n];
          sum = b.multiply(kernel.element, q[rowTile], k[2 * n], k[2 * n + 1],
                           sum);
        }
    }
  }
  return result;
}

void ForwardKernel::rescale(Accumulator &sums,
                            ArrayRef<std::array<Value, 2>> alpha,
                            Value needed) {
  Values flat;
  for (auto &tile : sums)
    for (Fragment &fragment : tile)
      flat.append(fragment.begin(), fragment.end());
  // A branch that a warp takes as one; it also keeps loads of V behind the
  // softmax, which spares registers.
  Values scaled = b.branch(
      b.voteAny(needed),
      [&] {
        Values products;
        size_t perTile = flat.size() / alpha.size();
        for (size_t i = 0; i < flat.size(); ++i)
          products.push_back(b.mulF(flat[i], alpha[i / perTile][i % 4 / 2]));
        return products;
      },
      flat);
  size_t next = 0;
  for (auto &tile : sums)
    for (Fragment &fragment : tile)
      for (Value &value : fragment)
        value = scaled[next++];
}

void ForwardKernel::exchange(SmallVector<OnlineSoftmax::Step> &own,
                             SmallVector<OnlineSoftmax::Step> &other) {
  Value laneBytes = b.mul(kernel.lane, 16);
  Value mine = b.bytes(exchangeSlot(kernel.warp), laneBytes);
  Value theirs = b.bytes(exchangeSlot(b.xorI(kernel.warp, 1)), laneBytes);
  auto words = VectorType::get(4, b.getI32Type());
  auto factors = VectorType::get(2, b.f32());
  auto pack = [&](VectorType type, ArrayRef<Value> values) {
    Value vector = LLVM::PoisonOp::create(b, type);
    for (auto [i, value] : llvm::enumerate(values))
      vector = LLVM::InsertElementOp::create(b, vector, value, b.i32(i));
    return vector;
  };
  int64_t perTile = 512 * (keys / 16) + 256;
  for (auto [tile, step] : llvm::enumerate(own)) {
    for (auto [i, fragment] : llvm::enumerate(step.probabilities))
      b.store(pack(words, fragment), b.bytes(mine, tile * perTile + i * 512),
              16);
    // Factors lie 8 bytes a lane behind the fragments.
    Value slot = b.bytes(exchangeSlot(kernel.warp), b.mul(kernel.lane, 8));
    b.store(pack(factors, step.alpha),
            b.bytes(slot, tile * perTile + 512 * (keys / 16)), 8);
  }
  b.namedBarrier(b.add(rowGroup, 1), 64);
  for (int64_t tile = 0; tile < rowTiles; ++tile) {
    OnlineSoftmax::Step step;
    for (int64_t i = 0; i < keys / 16; ++i) {
      Value vector =
          b.load(words, b.bytes(theirs, tile * perTile + i * 512), 16);
      Fragment fragment;
      for (int64_t j = 0; j < 4; ++j)
        fragment[j] = LLVM::ExtractElementOp::create(b, vector, b.i32(j));
      step.probabilities.push_back(fragment);
    }
    Value slot =
        b.bytes(exchangeSlot(b.xorI(kernel.warp, 1)), b.mul(kernel.lane, 8));
    Value vector =
        b.load(factors, b.bytes(slot, tile * perTile + 512 * (keys / 16)), 8);
    for (int64_t h = 0; h < 2; ++h)
      step.alpha[h] = LLVM::ExtractElementOp::create(b, vector, b.i32(h));
    step.rescale =
        b.orI(b.compareF(LLVM::FCmpPredicate::une, step.alpha[0], b.f32(1.0)),
              b.compareF(LLVM::FCmpPredicate::une, step.alpha[1], b.f32(1.0)));
    other.push_back(step);
  }
}

void ForwardKernel::accumulate(
    Value stage, SmallVector<Accumulator> &sums,
    ArrayRef<SmallVector<OnlineSoftmax::Step>> steps) {
  Value base = b.bytes(b.bytes(kernel.shared, stage),
                       layout.ringOffset + layout.valueOffset);
  int64_t chunkStep = isPair() ? 4 : 2;
  for (int64_t block = 0; block < keys / 16; ++block)
    for (int64_t pair = 0; pair < sumTiles / 2; ++pair) {
      // One load of V for both maps.
      Fragment v =
          valueReader->read(base, block, chunkStep * pair, /*transpose=*/true);
      for (auto [map, ofMap] : llvm::enumerate(sums))
        for (auto [rowTile, ofTile] : llvm::enumerate(ofMap))
          for (int64_t n = 0; n < 2; ++n) {
            Fragment &sum = ofTile[2 * pair + n];
            sum = b.multiply(kernel.element,
                             steps[map][rowTile].probabilities[block], v[2 * n],
                             v[2 * n + 1], sum);
          }
    }
}

Values
ForwardKernel::flatten(const SmallVector<Accumulator> &sums,
                       const SmallVector<SmallVector<RowState>> &states) {
  Values flat;
  for (const Accumulator &map : sums)
    for (const auto &tile : map)
      for (const Fragment &fragment : tile)
        flat.append(fragment.begin(), fragment.end());
  for (const auto &map : states)
    for (const RowState &state : map) {
      flat.append(state.max.begin(), state.max.end());
      flat.append(state.sum.begin(), state.sum.end());
    }
  return flat;
}

void ForwardKernel::unflatten(ValueRange values, SmallVector<Accumulator> &sums,
                              SmallVector<SmallVector<RowState>> &states) {
  size_t next = 0;
  sums.assign(sumMaps(),
              Accumulator(rowTiles, SmallVector<Fragment>(sumTiles)));
  for (Accumulator &map : sums)
    for (auto &tile : map)
      for (Fragment &fragment : tile)
        for (Value &value : fragment)
          value = values[next++];
  states.assign(scoreMaps(), SmallVector<RowState>(rowTiles));
  for (auto &map : states)
    for (RowState &state : map) {
      for (Value &value : state.max)
        value = values[next++];
      for (Value &value : state.sum)
        value = values[next++];
    }
}

Values ForwardKernel::tileBody(Value tile, ValueRange carried) {
  Value stage = carried.front();
  SmallVector<Accumulator> sums;
  SmallVector<SmallVector<RowState>> states;
  unflatten(carried.drop_front(), sums, states);
  int64_t stages = spec.schedule.getStages();

  b.waitForCopies(stages - 2);
  b.barrier();
  // Refill the stage that the last tile was read from.
  Value ahead = b.add(tile, stages - 1);
  b.branch(b.compare(LLVM::ICmpPredicate::slt, ahead, endTile), [&] {
    Value wrapped = b.compare(LLVM::ICmpPredicate::eq, stage, b.i32(0));
    issueTile(ahead, b.select(wrapped, b.i32((stages - 1) * layout.stageBytes),
                              b.add(stage, -layout.stageBytes)));
  });
  b.commitCopies();

  Value firstKey = b.mul(tile, keys);
  // Whether any row of the warp does not see any key of the tile.
  Value position = b.add(warpRow, kernel.position0);
  Value lastSeen = b.minS(b.add(position, kernel.param(GpuParam::WindowRight)),
                          b.add(kernel.keyLimit, -1));
  Value firstSeen = b.sub(b.add(position, 16 * rowTiles - 1),
                          kernel.param(GpuParam::WindowLeft));
  Value partial = b.orI(
      b.compare(LLVM::ICmpPredicate::sgt, b.add(firstKey, keys - 1), lastSeen),
      b.compare(LLVM::ICmpPredicate::slt, firstKey, firstSeen));

  SmallVector<SmallVector<OnlineSoftmax::Step>> steps;
  for (int64_t map = 0; map < scoreMaps(); ++map) {
    auto all = scores(map, stage);
    auto &ofMap = steps.emplace_back();
    SmallVector<std::array<Value, 2>> alpha;
    Value needed;
    for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile) {
      auto &tileScores = all[rowTile];
      std::array<Value, 2> rows{queryRow(rowTile, 0), queryRow(rowTile, 1)};
      softmax.transform(tileScores, batch, noiseHead, rows, firstKey);
      Values flat;
      for (Fragment &fragment : tileScores)
        flat.append(fragment.begin(), fragment.end());
      // One loop with a branch: two loops, with and without the mask, were seen
      // to spill.
      Values masked = b.branch(
          partial,
          [&] {
            Values values;
            for (Fragment &fragment : softmax.mask(tileScores, rows, firstKey))
              values.append(fragment.begin(), fragment.end());
            return values;
          },
          flat);
      for (size_t i = 0; i < masked.size(); ++i)
        tileScores[i / 4][i % 4] = masked[i];
      ofMap.push_back(softmax.step(tileScores, states[map][rowTile]));
      states[map][rowTile] = ofMap.back().state;
      alpha.push_back(ofMap.back().alpha);
      needed =
          needed ? b.orI(needed, ofMap.back().rescale) : ofMap.back().rescale;
    }
    rescale(sums[map], alpha, needed);
  }
  if (isPair()) {
    auto &other = steps.emplace_back();
    exchange(steps[0], other);
    SmallVector<std::array<Value, 2>> alpha;
    Value needed;
    for (OnlineSoftmax::Step &step : other) {
      alpha.push_back(step.alpha);
      needed = needed ? b.orI(needed, step.rescale) : step.rescale;
    }
    rescale(sums[1], alpha, needed);
  }
  accumulate(stage, sums, steps);

  Value following = b.add(stage, layout.stageBytes);
  Value wraps = b.compare(LLVM::ICmpPredicate::eq, following,
                          b.i32(stages * layout.stageBytes));
  Values next{b.select(wraps, b.i32(0), following)};
  llvm::append_range(next, flatten(sums, states));
  return next;
}

void ForwardKernel::finishRows(const Accumulator &x) {
  using P = GpuParam;
  Epilogue epilogue(kernel);
  // Sums of squares, of the other half of the columns too.
  SmallVector<std::array<Value, 2>> squares;
  for (const auto &tile : x) {
    std::array<Value, 2> sums{b.f32(0.0), b.f32(0.0)};
    for (const Fragment &fragment : tile)
      for (int64_t i = 0; i < 4; ++i)
        sums[i / 2] = b.fma(fragment[i], fragment[i], sums[i / 2]);
    for (Value &sum : sums)
      sum = softmax.reduceQuad(sum);
    squares.push_back(sums);
  }
  if (isPair()) {
    // The slots held factors of the sums until now: wait until both warps have
    // read those.
    b.namedBarrier(b.add(rowGroup, 1), 64);
    auto slot = [&](Value ofWarp, int64_t i) {
      return b.bytes(b.bytes(exchangeSlot(ofWarp), b.mul(kernel.lane, 4)),
                     128 * i);
    };
    for (int64_t i = 0; i < 2 * rowTiles; ++i)
      b.store(squares[i / 2][i % 2], slot(kernel.warp, i));
    b.namedBarrier(b.add(rowGroup, 1), 64);
    for (int64_t i = 0; i < 2 * rowTiles; ++i)
      squares[i / 2][i % 2] =
          b.addF(squares[i / 2][i % 2],
                 b.load(b.f32(), slot(b.xorI(kernel.warp, 1), i)));
  }
  Value outBase = kernel.headBase(P::O, P::OB, batch, head);
  Value gateBase =
      spec.gateType ? kernel.headBase(P::Gate, P::GateB, batch, head) : Value();
  for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
    for (int64_t h = 0; h < 2; ++h) {
      Value row = queryRow(rowTile, h);
      b.branch(
          b.compare(LLVM::ICmpPredicate::slt, row, kernel.param(P::Queries)),
          [&] {
            Value factor = epilogue.rowFactor(squares[rowTile][h]);
            Value wide = b.toI64(row);
            Value out = kernel.stridePointer(kernel.element, outBase, wide,
                                             kernel.param(P::OT));
            Value gate =
                gateBase ? kernel.stridePointer(spec.gateType, gateBase, wide,
                                                kernel.param(P::GateT))
                         : Value();
            for (int64_t n = 0; n < sumTiles; ++n)
              epilogue.storePair(x[rowTile][n][2 * h], x[rowTile][n][2 * h + 1],
                                 factor, out, gate, sumColumn(n),
                                 maxSumColumn(n));
          });
    }
}

void ForwardKernel::combine(SmallVector<Accumulator> &sums,
                            SmallVector<SmallVector<RowState>> &states) {
  using P = GpuParam;
  Epilogue epilogue(kernel);
  Value lastRow = b.add(kernel.param(P::Queries), -1);
  // What each map's sums are multiplied by: 1 / l1 and -lambda / l2.
  SmallVector<SmallVector<std::array<Value, 2>>> factors(
      sums.size(), SmallVector<std::array<Value, 2>>(rowTiles));
  for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
    for (int64_t h = 0; h < 2; ++h) {
      Value row = b.minS(queryRow(rowTile, h), lastRow);
      Value minusLambda =
          b.mulF(kernel.loadLambda(batch, row, head), b.f32(-1.0));
      for (int64_t map = 0; map < scoreMaps(); ++map) {
        Value inverse = epilogue.inverseSum(
            softmax.reduceQuad(states[map][rowTile].sum[h]));
        Value weight = minusLambda;
        if (placement == GpuPlacement::Both)
          weight = map ? minusLambda : b.f32(1.0);
        else
          weight =
              b.select(b.compare(LLVM::ICmpPredicate::eq, ownMap, b.i32(0)),
                       b.f32(1.0), minusLambda);
        factors[map][rowTile][h] = b.mulF(inverse, weight);
      }
    }
  if (isPair()) {
    // The last tile's exchange is over once both warps are here.
    b.namedBarrier(b.add(rowGroup, 1), 64);
    auto slot = [&](Value ofWarp, int64_t i) {
      return b.bytes(b.bytes(exchangeSlot(ofWarp), b.mul(kernel.lane, 4)),
                     128 * i);
    };
    for (int64_t i = 0; i < 2 * rowTiles; ++i)
      b.store(factors[0][i / 2][i % 2], slot(kernel.warp, i));
    b.namedBarrier(b.add(rowGroup, 1), 64);
    for (int64_t i = 0; i < 2 * rowTiles; ++i)
      factors[1][i / 2][i % 2] =
          b.load(b.f32(), slot(b.xorI(kernel.warp, 1), i));
  }
  Accumulator x(rowTiles, SmallVector<Fragment>(sumTiles));
  for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
    for (int64_t n = 0; n < sumTiles; ++n)
      for (int64_t i = 0; i < 4; ++i) {
        Value sum = b.mulF(sums[0][rowTile][n][i], factors[0][rowTile][i / 2]);
        if (sums.size() > 1)
          sum = b.fma(sums[1][rowTile][n][i], factors[1][rowTile][i / 2], sum);
        x[rowTile][n][i] = sum;
      }
  if (placement != GpuPlacement::Apart) {
    finishRows(x);
    return;
  }
  // Warps of the second map leave their part in shared memory, each lane in
  // places of its own.
  b.waitForCopies(0);
  b.barrier();
  auto vector = VectorType::get(4, b.f32());
  Value base =
      b.bytes(kernel.shared, b.mul(rowGroup, 512 * rowTiles * sumTiles));
  base = b.bytes(base, b.mul(kernel.lane, 16));
  Value second = b.compare(LLVM::ICmpPredicate::ne, ownMap, b.i32(0));
  b.branch(second, [&] {
    for (int64_t i = 0; i < rowTiles * sumTiles; ++i) {
      Value packed = LLVM::PoisonOp::create(b, vector);
      for (int64_t j = 0; j < 4; ++j)
        packed = LLVM::InsertElementOp::create(
            b, packed, x[i / sumTiles][i % sumTiles][j], b.i32(j));
      b.store(packed, b.bytes(base, 512 * i), 16);
    }
  });
  b.barrier();
  b.branch(b.compare(LLVM::ICmpPredicate::eq, ownMap, b.i32(0)), [&] {
    for (int64_t i = 0; i < rowTiles * sumTiles; ++i) {
      Value packed = b.load(vector, b.bytes(base, 512 * i), 16);
      for (int64_t j = 0; j < 4; ++j) {
        Value part = LLVM::ExtractElementOp::create(b, packed, b.i32(j));
        Value &sum = x[i / sumTiles][i % sumTiles][j];
        sum = b.addF(sum, part);
      }
    }
    finishRows(x);
  });
}

void ForwardKernel::emit() {
  locate();
  loadQueries();
  int64_t stages = spec.schedule.getStages();
  for (int64_t i = 0; i < stages - 1; ++i) {
    Value tile = b.add(firstTile, i);
    b.branch(b.compare(LLVM::ICmpPredicate::slt, tile, endTile),
             [&] { issueTile(tile, b.i32(i * layout.stageBytes)); });
    b.commitCopies();
  }
  Value zero = b.f32(0.0);
  SmallVector<Accumulator> sums(
      sumMaps(),
      Accumulator(rowTiles, SmallVector<Fragment>(
                                sumTiles, Fragment{zero, zero, zero, zero})));
  RowState empty{{b.minusInfinity(), b.minusInfinity()}, {zero, zero}};
  SmallVector<SmallVector<RowState>> states(
      scoreMaps(), SmallVector<RowState>(rowTiles, empty));
  Values initial{b.i32(0)};
  llvm::append_range(initial, flatten(sums, states));
  Values final = b.loop(
      firstTile, endTile, 1, initial,
      [&](Value tile, ValueRange carried) { return tileBody(tile, carried); });
  unflatten(ValueRange(final).drop_front(), sums, states);
  combine(sums, states);
}

void mlir::diffattn::gpucode::emitForwardKernel(AttentionKernel &kernel) {
  ForwardKernel(kernel).emit();
}
