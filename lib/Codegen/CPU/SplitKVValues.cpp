//===- SplitKVValues.cpp - outputs of few queries -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitKVKernel.h"

#include "DiffAttn/Codegen/Attention/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

SplitKVTiles SplitKVKernel::getTiles() {
  return selectSplitKVTiles({b.lanes, spec.v.element.getIntOrFloatBitWidth(),
                             spec.usesBf16Pairs(),
                             KernelBuilder::known(sizes.valueDim)},
                            b.target);
}

/// P = A1 - lambda * A2 of one row, in pairs as bf16; and its output becomes 0.
void SplitKVKernel::emitWeights(Value head, Value query) {
  Value noise = b.div(head, b.div(groups.signal, groups.noise));
  Value e1 = getScores(0, row(head, query)),
        e2 = getScores(1, row(noise, query));
  Value inAll = b.add(b.mul(group, groups.signal), head);
  auto factor = [&](int map) {
    return b.splat(b.load(b.f32, getFactors(map, inAll, query), block));
  };
  Value factor1 = factor(0), factor2 = factor(1);
  Type element = spec.usesBf16Pairs() ? b.bf16 : b.f32;
  Value to = getWeights(row(head, query));
  b.loop(b.index(0), n, b.lanes, [&](Value key) {
    Value p = b.fma(b.load(b.vector, e2, key), factor2,
                    b.mulf(b.load(b.vector, e1, key), factor1));
    b.storeNarrow(p, to, element, key);
  });
  Value output = getOutput(item, row(head, query));
  b.loop(b.index(0), paddedValueDim, b.lanes,
         [&](Value c) { b.store(b.zero(), output, c); });
}

Value SplitKVKernel::getWeights(Value row) {
  return b.at(s.weights, b.f32, b.mul(row, spec.schedule.splitKeys));
}

/// `vectors` vectors of columns of a key as f32, or of two keys in pairs.
SmallVector<Value> SplitKVKernel::loadValues(const Rows &rows,
                                             ProductInput input, Value key,
                                             Value column, int64_t vectors,
                                             Value mask) {
  SmallVector<Value> values;
  Value row = b.at(rows.base, rows.element, b.mul(key, rows.stride));
  if (input == ProductInput::F32) {
    for (int64_t i = 0; i < vectors; ++i)
      values.push_back(
          b.loadWide(row, rows.element, b.add(column, i * b.lanes), mask));
    return values;
  }
  // Two vectors of columns side by side, where there are two, fill one of bf16.
  int64_t wide = vectors > 1 ? 2 : 1;
  VectorType halves = VectorType::get({wide * b.lanes}, b.getI16Type());
  SmallVector<Value> loaded[2];
  for (int64_t which : {0, 1}) {
    for (int64_t i = 0; i < vectors; i += wide) {
      Value c = b.add(column, i * b.lanes);
      loaded[which].push_back(mask ? b.loadMasked(halves, row, c, mask)
                                   : b.load(halves, row, b.bf16, c));
    }
    row = b.at(row, b.bf16, rows.stride);
    b.keepOrder();
  }
  for (auto [first, second] : llvm::zip_equal(loaded[0], loaded[1]))
    for (int64_t part = 0; part < wide; ++part) {
      SmallVector<int64_t> order;
      for (int64_t i = part * b.lanes; i < (part + 1) * b.lanes; ++i)
        order.append({i, wide * b.lanes + i});
      values.push_back(vector::BitCastOp::create(
          b, b.integers, vector::ShuffleOp::create(b, first, second, order)));
    }
  return values;
}

/// outputs += weights * values, for `vectors` vectors from `column` on and the
/// keys [first, end); in pairs, both are even.
void SplitKVKernel::emitColumns(const Rows &rows, ProductInput input,
                                Value first, Value end, const Outputs &outputs,
                                Value column, int64_t vectors, bool masked) {
  bool pairs = input == ProductInput::Bf16Pairs;
  Value mask = masked ? b.firstLanes(b.sub(rows.columns, column)) : Value();
  SmallVector<Value> sums;
  for (Value output : outputs.outputs)
    for (int64_t i = 0; i < vectors; ++i)
      sums.push_back(b.load(b.vector, output, b.add(column, i * b.lanes)));
  sums = b.loop(
      first, end, pairs ? 2 : 1, sums, [&](Value key, ValueRange carried) {
        auto weight = [&](Value weights) -> Value {
          Type element = spec.usesBf16Pairs() ? b.bf16 : b.f32;
          if (pairs)
            return b.load(b.i32, weights, element, key);
          return b.loadWideScalar(weights, element, key);
        };
        auto add = [&] {
          SmallVector<Value> next(carried);
          SmallVector<Value> values =
              loadValues(rows, input, key, column, vectors, mask);
          for (auto [row, weights] : llvm::enumerate(outputs.weights)) {
            Value scale = b.splat(weight(weights));
            for (auto [i, value] : llvm::enumerate(values)) {
              Value &sum = next[row * vectors + i];
              sum = getProductAtom(input).multiplyAdd(b, scale, value, sum);
            }
          }
          return next;
        };
        if (!spec.scores.hasElementMasks())
          return add();
        // A hidden key's value may be Inf or NaN, which 0 does not silence.
        Value visible = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                              weight(outputs.weights.front()),
                                              emitConstant(b, b.f32, 0.0f));
        return b.choose(visible, carried.getTypes(), add,
                        [&] { return SmallVector<Value>(carried); });
      });
  for (auto [row, output] : llvm::enumerate(outputs.outputs))
    for (int64_t i = 0; i < vectors; ++i)
      b.store(sums[row * vectors + i], output, b.add(column, i * b.lanes));
}

void SplitKVKernel::emitOutputs(const Rows &rows, ProductInput input,
                                Value first, Value end,
                                const Outputs &outputs) {
  Value whole = b.div(rows.columns, b.lanes);
  const SplitKVTiles tiles = getTiles();
  int64_t count = outputs.outputs.size();
  int64_t widest = std::min(tiles.sumVectors / count, tiles.passVectors);
  forBlocks(whole, widest, [&](Value column, int64_t vectors) {
    emitColumns(rows, input, first, end, outputs, b.mul(column, b.lanes),
                vectors, /*masked=*/false);
  });
  std::optional<int64_t> known = KernelBuilder::known(rows.columns);
  Value done = b.mul(whole, b.lanes);
  if (!rows.padded && (!known || *known % b.lanes))
    b.ifThen(b.less(done, rows.columns), [&] {
      emitColumns(rows, input, first, end, outputs, done, 1, /*masked=*/true);
    });
}

/// `count` heads from `head` on take the keys [first, end) of a tile that
/// `query` sees.
void SplitKVKernel::multiplyTile(const Rows &values, Value first, Value end,
                                 Value head, int64_t count, Value query) {
  Outputs outputs;
  for (int64_t i = 0; i < count; ++i) {
    Value number = row(b.add(head, i), query);
    outputs.exponentials.push_back(getScores(0, number));
    outputs.weights.push_back(getWeights(number));
    outputs.outputs.push_back(getOutput(item, number));
  }
  KeyRange seen = getSeenKeys(query);
  first = b.max(first, seen.low);
  end = b.min(end, seen.high);
  if (!spec.usesBf16Pairs() || spec.scores.hasElementMasks())
    return emitOutputs(values, ProductInput::F32, first, end, outputs);
  // Pairs, before and after them a key that has no partner.
  Value firstPair = b.min(b.roundUp(first, 2), end);
  Value lastPair = b.max(b.mul(b.div(end, 2), 2), firstPair);
  emitOutputs(values, ProductInput::Bf16Pairs, firstPair, lastPair, outputs);
  b.loop(b.index(2), [&](Value i) {
    Value before = b.equal(i, b.index(0));
    Value from = b.select(before, first, lastPair),
          to = b.select(before, firstPair, end);
    b.ifThen(b.less(from, to), [&] {
      emitOutputs(values, ProductInput::F32, from, to, outputs);
    });
  });
}

void SplitKVKernel::multiplyValues() {
  b.loop(groups.signal, [&](Value head) {
    b.loop(sizes.queries, [&](Value query) { emitWeights(head, query); });
  });
  Value heads = b.div(groups.signal, groups.value);
  Value stride = v.stride(spec.v, 2);
  b.loop(groups.value, [&](Value valueHead) {
    Value number = b.add(b.mul(group, groups.value), valueHead);
    Value base = b.at(v.head(spec.v, batch, number), spec.v.element,
                      b.mul(begin, stride));
    Rows inPlace{base, spec.v.element, stride, sizes.valueDim,
                 /*padded=*/false};
    auto tiles = [&](int64_t size) {
      b.loop(b.index(0), n, size, [&](Value first) {
        Value end = b.min(b.add(first, size), n);
        Rows values = size == getTiles().valueKeys
                          ? getValueTile(inPlace, first, end)
                          : inPlace;
        b.loop(sizes.queries, [&](Value query) {
          forBlocks(heads,
                    spec.scores.hasElementMasks() ? 1 : getTiles().outputRows,
                    [&](Value i, int64_t count) {
                      Value head = b.add(b.mul(valueHead, heads), i);
                      multiplyTile(values, first, end, head, count, query);
                    });
        });
      });
    };
    // Rows that take a value together gain nothing from tiles.
    Value together = b.both(b.less(heads, b.index(getTiles().outputRows + 1)),
                            b.equal(sizes.queries, b.index(1)));
    std::optional<int64_t> known = KernelBuilder::known(together);
    if (!spec.v.hasUnitColumns() || getTiles().takesPasses || known == 0)
      return tiles(getTiles().valueKeys);
    if (known)
      return tiles(spec.schedule.splitKeys);
    b.ifElse(
        together, [&] { tiles(spec.schedule.splitKeys); },
        [&] { tiles(getTiles().valueKeys); });
  });
}

/// The keys [first, end) as all rows read them: where they lie, or copied.
SplitKVKernel::Rows SplitKVKernel::getValueTile(const Rows &inPlace,
                                                Value first, Value end) {
  if (AttentionSpec::readsInPlace(spec.v) || spec.usesBf16Pairs())
    return inPlace;
  packRows(v, spec.v, inPlace.base, first, b.sub(end, first), sizes.valueDim,
           paddedValueDim, s.valuePanel);
  // Keys are counted from the item's first.
  Value before = b.mul(b.sub(b.index(0), first), paddedValueDim);
  return {b.at(s.valuePanel, b.f32, before), b.f32, paddedValueDim,
          paddedValueDim, /*padded=*/true};
}
