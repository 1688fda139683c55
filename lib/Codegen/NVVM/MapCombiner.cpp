//===- MapCombiner.cpp - from sums of two maps to the result --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "MapCombiner.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

MapSums::MapSums(GpuBuilder &b, int64_t sumMaps, int64_t stateMaps,
                 int64_t rowTiles, int64_t columns) {
  Value zero = b.f32(0.0);
  RowFragments ofTile(columns, Fragment{zero, zero, zero, zero});
  sums.assign(sumMaps, Accumulator(rowTiles, ofTile));
  RowState empty{{b.minusInfinity(), b.minusInfinity()}, {zero, zero}};
  states.assign(stateMaps, SmallVector<RowState>(rowTiles, empty));
}

GpuBuilder::Values MapSums::flatten() const {
  GpuBuilder::Values flat;
  for (const Accumulator &map : sums)
    for (const RowFragments &tile : map)
      for (const Fragment &fragment : tile)
        flat.append(fragment.begin(), fragment.end());
  for (const auto &map : states)
    for (const RowState &state : map) {
      flat.append(state.max.begin(), state.max.end());
      flat.append(state.sum.begin(), state.sum.end());
    }
  return flat;
}

void MapSums::assign(ValueRange values) {
  auto next = values.begin();
  for (Accumulator &map : sums)
    for (RowFragments &tile : map)
      for (Fragment &fragment : tile)
        for (Value &value : fragment)
          value = *next++;
  for (auto &map : states)
    for (RowState &state : map) {
      for (Value &value : state.max)
        value = *next++;
      for (Value &value : state.sum)
        value = *next++;
    }
}

void gpucode::rescaleSums(OnlineSoftmax &softmax, Accumulator &sums,
                          ArrayRef<OnlineSoftmax::Step> steps) {
  GpuBuilder::Values flat;
  for (RowFragments &tile : sums)
    for (Fragment &fragment : tile)
      flat.append(fragment.begin(), fragment.end());
  GpuBuilder::Values scaled = softmax.rescale(flat, steps);
  auto next = scaled.begin();
  for (RowFragments &tile : sums)
    for (Fragment &fragment : tile)
      for (Value &value : fragment)
        value = *next++;
}

SmallVector<Value> MapCombiner::sumSquares(const Accumulator &x) {
  SmallVector<Value> squares;
  for (const auto &tile : x) {
    std::array<Value, 2> sums{b.f32(0.0), b.f32(0.0)};
    for (const Fragment &fragment : tile)
      for (int64_t i = 0; i < 4; ++i)
        sums[i / 2] = b.fma(fragment[i], fragment[i], sums[i / 2]);
    for (Value sum : sums)
      squares.push_back(softmax.reduceQuad(sum));
  }
  return squares;
}

void MapCombiner::finishRows(const Accumulator &x) {
  Epilogue epilogue(kernel, place.batch, place.head);
  if (kernel.spec.savedType) {
    Epilogue saved(kernel, place.batch, place.head, GpuParam::X);
    storeRows(x, /*squares=*/{}, saved);
  }
  SmallVector<Value> squares = sumSquares(x);
  if (exchange) // the other half of the columns
    for (auto [sum, other] : llvm::zip(squares, exchange->numbers(squares)))
      sum = b.addF(sum, other);
  if (storeTile)
    return storeTile(x.front(), {epilogue.rowFactor(squares[0]),
                                 epilogue.rowFactor(squares[1])});
  storeRows(x, squares, epilogue);
}

void MapCombiner::storeRows(const Accumulator &x, ArrayRef<Value> squares,
                            Epilogue &epilogue) {
  const QuadColumns columns = getColumns();
  for (auto [rowTile, tile] : llvm::enumerate(x))
    for (int64_t h = 0; h < 2; ++h) {
      SmallVector<std::array<Value, 2>> pairs;
      for (const Fragment &fragment : tile)
        pairs.push_back({fragment[2 * h], fragment[2 * h + 1]});
      Value factor;
      if (!squares.empty())
        factor = epilogue.rowFactor(squares[2 * rowTile + h]);
      epilogue.storeRow(pairs, factor, queryRow(rowTile, h), columns);
    }
}

MapCombiner::RowFactors
MapCombiner::getFactors(size_t maps, ArrayRef<SmallVector<RowState>> states) {
  const auto rowTiles = static_cast<int64_t>(states.front().size());
  Epilogue epilogue(kernel, place.batch, place.head);
  Value lastRow = b.add(kernel.queries(), -1);
  RowFactors factors;
  factors.maps.assign(maps, Factors(rowTiles));
  const bool storesSecond = bool(kernel.spec.secondType);
  if (storesSecond)
    factors.inverseSums = factors.maps;
  for (int64_t rowTile = 0; rowTile < rowTiles; ++rowTile)
    for (int64_t h = 0; h < 2; ++h) {
      Value minusLambda;
      if (kernel.spec.maps == 2) {
        Value row = b.minS(queryRow(rowTile, h), lastRow);
        minusLambda = b.mulF(kernel.loadLambda(place.batch, row, place.head),
                             b.f32(-1.0));
      }
      for (auto [map, ofMap] : llvm::enumerate(states)) {
        Epilogue::RowSum row;
        row.map = static_cast<int64_t>(map);
        row.max = ofMap[rowTile].max[h];
        row.sum = softmax.reduceQuad(ofMap[rowTile].sum[h]);
        Value weight = minusLambda;
        if (placement == GpuPlacement::Both)
          weight = map ? minusLambda : b.f32(1.0);
        else
          weight =
              b.select(b.compare(LLVM::ICmpPredicate::eq, ownMap, b.i32(0)),
                       b.f32(1.0), minusLambda);
        if (kernel.spec.endsSums()) {
          row.query = queryRow(rowTile, h);
          // The first of the four lanes that have the row, if it exists.
          row.isStored = b.andI(
              b.compare(LLVM::ICmpPredicate::eq, kernel.laneColumn, b.i32(0)),
              b.compare(LLVM::ICmpPredicate::sle, row.query, lastRow));
          if (placement != GpuPlacement::Both)
            row.isSecond = b.compare(LLVM::ICmpPredicate::ne, ownMap, b.i32(0));
        }
        factors.maps[map][rowTile][h] = epilogue.divideBySum(
            weight, row,
            storesSecond ? &factors.inverseSums[map][rowTile][h] : nullptr);
      }
    }
  if (exchange) {
    auto swap = [&](SmallVector<Factors> &ofMaps) {
      SmallVector<Value> flat;
      for (auto &ofTile : ofMaps[0])
        flat.append(ofTile.begin(), ofTile.end());
      for (auto [i, factor] : llvm::enumerate(exchange->numbers(flat)))
        ofMaps[1][i / 2][i % 2] = factor;
    };
    swap(factors.maps);
    if (storesSecond)
      swap(factors.inverseSums);
  }
  return factors;
}

QuadColumns MapCombiner::getColumns() {
  if (exchange)
    return {b.mul(ownMap, 16), /*maxStart=*/16, /*alternating=*/true};
  return {b.i32(0)};
}

void MapCombiner::storeSecond(const SmallVector<Accumulator> &sums,
                              ArrayRef<Factors> inverseSums) {
  // Fragments that are made before their stores: more of them would take
  // registers beside the sums.
  constexpr size_t atOnce = 4;
  const bool isBoth = placement == GpuPlacement::Both;
  Value second;
  if (!isBoth)
    second = b.compare(LLVM::ICmpPredicate::ne, ownMap, b.i32(0));
  Epilogue saved(kernel, place.batch, place.head, GpuParam::O2);
  auto store = [&](size_t rowTile, int64_t h, size_t first) {
    const RowFragments &ours = sums.back()[rowTile],
                       &others = sums.front()[rowTile];
    Value factor = inverseSums.back()[rowTile][h];
    SmallVector<std::array<Value, 2>> pairs;
    for (size_t n = first; n < std::min(first + atOnce, ours.size()); ++n) {
      std::array<Value, 2> &pair = pairs.emplace_back();
      for (int64_t i = 0; i < 2; ++i) {
        pair[i] = b.mulF(ours[n][2 * h + i], factor);
        // A warp of a pair has its own map first.
        if (exchange)
          pair[i] = b.select(
              second,
              b.mulF(others[n][2 * h + i], inverseSums.front()[rowTile][h]),
              pair[i]);
      }
    }
    QuadColumns columns = getColumns();
    const int64_t offset = columns.offset(static_cast<int64_t>(first));
    columns.start = b.add(columns.start, offset);
    columns.maxStart += offset;
    saved.storeRow(pairs, /*factor=*/{}, queryRow(rowTile, h), columns);
  };
  auto storeAll = [&] {
    for (size_t rowTile = 0; rowTile < sums.back().size(); ++rowTile)
      for (int64_t h = 0; h < 2; ++h)
        for (size_t n = 0; n < sums.back()[rowTile].size(); n += atOnce)
          store(rowTile, h, n);
  };
  if (isBoth || exchange)
    storeAll();
  else
    b.branch(second, storeAll);
}

void MapCombiner::finish(const MapSums &maps) {
  const SmallVector<Accumulator> &sums = maps.sums;
  const RowFactors ofRows = getFactors(sums.size(), maps.states);
  const SmallVector<Factors> &factors = ofRows.maps;
  if (kernel.spec.secondType)
    storeSecond(sums, ofRows.inverseSums);
  Accumulator x = sums.front();
  for (auto [rowTile, tile] : llvm::enumerate(x))
    for (auto [n, fragment] : llvm::enumerate(tile))
      for (int64_t i = 0; i < 4; ++i) {
        Value sum = b.mulF(fragment[i], factors[0][rowTile][i / 2]);
        if (sums.size() > 1)
          sum = b.fma(sums[1][rowTile][n][i], factors[1][rowTile][i / 2], sum);
        fragment[i] = sum;
      }
  if (placement == GpuPlacement::Apart)
    pass(x);
  else
    finishRows(x);
}

/// Warps of the second map leave their part in shared memory, each lane in
/// places of its own.
void MapCombiner::pass(Accumulator &x) {
  meet();
  Value passed = getPassed();
  auto forEach = [&](function_ref<void(Fragment &, Value)> body) {
    int64_t place = 0;
    for (RowFragments &tile : x)
      for (Fragment &fragment : tile) {
        body(fragment, b.bytes(passed, place));
        place += 512;
      }
  };
  Value second = b.compare(LLVM::ICmpPredicate::ne, ownMap, b.i32(0));
  b.branch(second, [&] {
    forEach([&](Fragment &fragment, Value place) {
      b.store(b.pack(fragment), place, 16);
    });
  });
  meet();
  b.branch(b.compare(LLVM::ICmpPredicate::eq, ownMap, b.i32(0)), [&] {
    auto vector = VectorType::get(4, b.f32());
    forEach([&](Fragment &fragment, Value place) {
      for (auto [sum, part] :
           llvm::zip(fragment, b.unpack(b.load(vector, place, 16))))
        sum = b.addF(sum, part);
    });
    if (!finishInMemory)
      return finishRows(x);
    forEach([&](Fragment &fragment, Value place) {
      b.store(b.pack(fragment), place, 16);
    });
    finishPassed(passed, sumSquares(x), x.front().size());
  });
}

void MapCombiner::finishPassed(Value passed, ArrayRef<Value> squares,
                               int64_t tiles) {
  // Tiles of 8 columns that the quads of a warp store at once.
  constexpr int64_t atOnce = 4;
  const int64_t maxStart = (tiles - 1) / atOnce * atOnce * 8;
  Epilogue epilogue(kernel, place.batch, place.head);
  std::optional<Epilogue> saved;
  if (kernel.spec.savedType)
    saved.emplace(kernel, place.batch, place.head, GpuParam::X);
  std::array<Value, 2> factors{epilogue.rowFactor(squares[0]),
                               epilogue.rowFactor(squares[1])};
  auto vector = VectorType::get(4, b.f32());
  b.loop(
      b.i32(0), b.i32(tiles), atOnce, ValueRange(),
      [&](Value first, ValueRange) -> GpuBuilder::Values {
        SmallVector<SmallVector<Value>> fragments;
        for (int64_t i = 0; i < atOnce; ++i) {
          // A tile behind the last one is not stored.
          Value tile = b.add(first, i);
          if (tiles % atOnce)
            tile = b.minS(tile, b.i32(tiles - 1));
          fragments.push_back(
              b.unpack(b.load(vector, b.bytes(passed, b.mul(tile, 512)), 16)));
        }
        QuadColumns columns{b.mul(first, 8), maxStart};
        for (int64_t h = 0; h < 2; ++h) {
          SmallVector<std::array<Value, 2>> pairs;
          for (const SmallVector<Value> &fragment : fragments)
            pairs.push_back({fragment[2 * h], fragment[2 * h + 1]});
          if (saved)
            saved->storeRow(pairs, /*factor=*/{}, queryRow(0, h), columns);
          epilogue.storeRow(pairs, factors[h], queryRow(0, h), columns);
        }
        return {};
      },
      /*mayUnroll=*/false);
}
