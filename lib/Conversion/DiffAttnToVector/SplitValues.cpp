//===- SplitValues.cpp - outputs of few queries ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitNest.h"

#include "DiffAttn/Kernel/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

void SplitNest::clearOutputs() {
  b.loop(groups.signal, [&](Value head) {
    b.loop(sizes.queries, [&](Value query) {
      Value output = getOutput(getGroupState(head, query), 0);
      b.loop(b.index(0), b.mul(paddedValueDim, 2), b.lanes,
             [&](Value c) { b.store(b.zero(), output, c); });
    });
  });
}

/// Both outputs of a row += weights * values, for `vectors` vectors from
/// `column` on and the keys [first, end); in pairs, first is even.
void SplitNest::emitColumns(const Rows &rows, ProductInput input, Value first,
                            Value end, Value weights1, Value weights2,
                            Value state, Value column, int64_t vectors,
                            bool masked) {
  bool pairs = input == ProductInput::Bf16Pairs;
  Value mask = masked ? b.firstLanes(b.sub(rows.columns, column)) : Value();
  Value outputs[] = {getOutput(state, 0), getOutput(state, 1)};
  SmallVector<Value> sums;
  for (Value output : outputs)
    for (int64_t i = 0; i < vectors; ++i)
      sums.push_back(b.load(b.vector, output, b.add(column, i * b.lanes)));
  auto add = [&](Value row, Value weight1, Value weight2, ValueRange sums) {
    SmallVector<Value> next(2 * vectors);
    weight1 = b.splat(weight1);
    weight2 = b.splat(weight2);
    for (int64_t i = 0; i < vectors; ++i) {
      Value at = b.add(column, i * b.lanes);
      if (pairs) {
        Value value = b.load(b.integers, row, b.i32, at);
        next[i] = b.dotPairs(weight1, value, sums[i]);
        next[vectors + i] = b.dotPairs(weight2, value, sums[vectors + i]);
      } else {
        Value value = b.loadWide(row, rows.element, at, mask);
        next[i] = b.fma(weight1, value, sums[i]);
        next[vectors + i] = b.fma(weight2, value, sums[vectors + i]);
      }
    }
    return next;
  };
  // A step is a key or a pair of keys; rows of pairs begin with the tile.
  Value from = pairs ? b.index(0) : first;
  Value to = pairs ? b.ceilDiv(b.sub(end, first), 2) : end;
  Value before = pairs ? b.div(first, 2) : b.index(0);
  sums = b.loop(from, to, 1, sums, [&](Value step, ValueRange carried) {
    Value row =
        b.at(rows.base, pairs ? b.i32 : rows.element, b.mul(step, rows.stride));
    auto weight = [&](Value weights) {
      if (pairs)
        return b.load(b.i32, weights, b.i32, b.add(before, step));
      return b.loadWideScalar(weights, spec.usesBf16Pairs() ? b.bf16 : b.f32,
                              step);
    };
    Value weight1 = weight(weights1), weight2 = weight(weights2);
    if (pairs || !spec.bias.present())
      return add(row, weight1, weight2, carried);
    // A hidden key's value may be Inf or NaN, which 0 does not silence.
    Value visible = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, weight1,
                                          emitConstant(b, b.f32, 0.0f));
    return b.choose(
        visible, carried.getTypes(),
        [&] { return add(row, weight1, weight2, carried); },
        [&] { return SmallVector<Value>(carried); });
  });
  for (int map : {0, 1})
    for (int64_t i = 0; i < vectors; ++i)
      b.store(sums[map * vectors + i], outputs[map],
              b.add(column, i * b.lanes));
}

void SplitNest::emitOutputs(const Rows &rows, ProductInput input, Value first,
                            Value end, Value weights1, Value weights2,
                            Value state) {
  // Two maps, the loaded vectors and two weights fill the registers.
  int64_t widest = b.target.vectorRegisters >= 32 ? 8 : 4;
  Value done = b.index(0), whole = b.div(rows.columns, b.lanes);
  std::optional<int64_t> known = KernelBuilder::known(rows.columns);
  for (int64_t width = widest; width; width /= 2) {
    if (known) {
      int64_t left = *known / b.lanes;
      if (width < widest)
        left %= 2 * width;
      if (left < width)
        continue;
    }
    Value stop = b.mul(b.div(whole, width), width * b.lanes);
    b.loop(done, stop, width * b.lanes, [&](Value column) {
      emitColumns(rows, input, first, end, weights1, weights2, state, column,
                  width, /*masked=*/false);
    });
    done = stop;
  }
  if (!rows.padded && (!known || *known % b.lanes))
    b.ifThen(b.less(done, rows.columns), [&] {
      emitColumns(rows, input, first, end, weights1, weights2, state, done, 1,
                  /*masked=*/true);
    });
}

/// One row takes the keys [first, end) of a tile that it sees.
void SplitNest::multiplyTile(const Rows &inPlace, const Rows &panel,
                             Value first, Value end, Value head, Value query) {
  Value noise = b.div(head, b.div(groups.signal, groups.noise));
  auto weights = [&](int map, Value head) {
    return b.at(s.scores[map], b.f32, b.mul(row(head, query), s.scoreStride));
  };
  Value weights1 = weights(0, head), weights2 = weights(1, noise);
  Value state = getGroupState(head, query);
  KeyRange seen = getSeenKeys(query);
  Value low = b.max(first, seen.low), high = b.min(end, seen.high);
  auto one = [&](const Rows &rows, ProductInput input) {
    emitOutputs(rows, input, low, high, weights1, weights2, state);
  };
  if (panel.element != b.i32)
    return one(panel, ProductInput::F32);
  if (!spec.hasPositionMask())
    return one(panel, ProductInput::Bf16Pairs);
  // A pair is multiplied as a whole: only where every key of the tile is seen.
  Value whole = b.both(b.equal(low, first), b.equal(high, end));
  b.ifElse(
      whole, [&] { one(panel, ProductInput::Bf16Pairs); },
      [&] { one(inPlace, ProductInput::F32); });
}

void SplitNest::multiplyValues() {
  clearOutputs();
  Value heads = b.div(groups.signal, groups.value);
  Value stride = v.stride(spec.v, 2);
  b.loop(groups.value, [&](Value valueHead) {
    Value number = b.add(b.mul(group, groups.value), valueHead);
    Value base = b.at(v.head(spec.v, batch, number), spec.v.element,
                      b.mul(begin, stride));
    Rows inPlace{base, spec.v.element, stride, sizes.valueDim,
                 /*padded=*/false};
    auto tiles = [&](int64_t size, bool copies) {
      b.loop(b.index(0), n, size, [&](Value first) {
        Value end = b.min(b.add(first, size), n);
        Rows panel = size == valueTile(spec) ? getValueTile(inPlace, first, end)
                                             : inPlace;
        b.loop(heads, [&](Value i) {
          Value head = b.add(b.mul(valueHead, heads), i);
          b.loop(sizes.queries, [&](Value query) {
            multiplyTile(inPlace, panel, first, end, head, query);
          });
        });
      });
    };
    // A row that is alone gains nothing from tiles.
    auto tiled = [&] { tiles(valueTile(spec), /*copies=*/true); };
    Value alone = b.equal(b.mul(heads, sizes.queries), b.index(1));
    std::optional<int64_t> known = KernelBuilder::known(heads);
    if (!spec.v.hasUnitColumns() || (known && *known > 1))
      return tiled();
    b.ifElse(
        alone, [&] { tiles(spec.schedule.splitKeys, /*copies=*/false); },
        tiled);
  });
}

/// The keys [first, end) as all rows read them: where they lie, or copied.
SplitNest::Rows SplitNest::getValueTile(const Rows &inPlace, Value first,
                                        Value end) {
  Value count = b.sub(end, first);
  if (spec.usesBf16Pairs()) {
    if (spec.bias.present())
      return inPlace;
    Value from =
        b.at(inPlace.base, inPlace.element, b.mul(first, inPlace.stride));
    packValuePairs(v, from, b.index(0), count, s.valuePanel, paddedValueDim);
    return {s.valuePanel, b.i32, paddedValueDim, paddedValueDim,
            /*padded=*/true};
  }
  if (NestSpec::readsInPlace(spec.v))
    return inPlace;
  packRows(v, spec.v, inPlace.base, first, count, sizes.valueDim,
           paddedValueDim, s.valuePanel);
  // Keys are counted from the item's first.
  Value before = b.mul(b.sub(b.index(0), first), paddedValueDim);
  return {b.at(s.valuePanel, b.f32, before), b.f32, paddedValueDim,
          paddedValueDim, /*padded=*/true};
}
