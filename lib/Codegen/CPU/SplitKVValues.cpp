//===- SplitKVValues.cpp - outputs of few queries -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitKVKernel.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;

/// Keys of a tile where rows that lie apart are prefetched once a tile.
static constexpr int64_t kApartKeys = 32;

SmallVector<Value, 2> SplitKVKernel::getExponentials(Value head, Value query) {
  if (!spec.hasSecondMap())
    return {getScores(getMap(0), row(head, query))};
  Value noise = b.div(head, b.div(groups.signal, groups.noise));
  return {getScores(getMap(0), row(head, query)),
          getScores(getMap(1), row(noise, query))};
}

/// P = A1 - lambda * A2 of one row, as numbers of packs.
void SplitKVKernel::emitWeights(Value head, Value query, Value first, Value end,
                                int64_t span) {
  SmallVector<Value, 2> exponentials = getExponentials(head, query);
  Value number = row(head, query);
  Value inAll = b.add(b.mul(group, groups.signal), head);
  auto factor = [&](int map) {
    return b.splat(b.load(b.f32, getFactors(map, batch, inAll, query), block));
  };
  SmallVector<Value, 2> factors;
  for (int map : spec.maps())
    factors.push_back(factor(map));
  Value to = getWeights(number, first, span);
  b.loop(first, end, b.lanes, [&](Value key) {
    auto load = [&](int map, Value e) {
      return b.load(b.vector, e, getPosition(getMap(map), key, b.lanes));
    };
    Value second;
    if (spec.hasSecondMap())
      second = load(1, exponentials[1]);
    Value p = b.mulf(load(0, exponentials[0]), factors[0]);
    if (second)
      p = b.fma(second, factors[1], p);
    b.storeNarrow(p, to, valueAtom.getNumber(b), key);
  });
}

/// Keys are counted from the item's first.
Value SplitKVKernel::getWeights(Value row, Value first, int64_t span) {
  return b.at(s.weights, valueAtom.getNumber(b),
              b.sub(b.mul(row, span), first));
}

/// Whether one of the maps gives a key weight.
Value SplitKVKernel::isSeen(const Outputs &outputs, Value key) {
  Value seen;
  for (int map : spec.maps()) {
    Value e = b.load(b.f32, outputs.exponentials[map],
                     getPosition(getMap(map), key, /*step=*/1));
    Value some = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, e,
                                       emitConstant(b, b.f32, 0.0f));
    seen = seen ? arith::OrIOp::create(b, seen, some).getResult() : some;
  }
  return seen;
}

/// outputs += weights * values, for `vectors` vectors from `column` on and the
/// keys [first, end); both are multiples of the packs of `of`.
void SplitKVKernel::emitColumns(const Rows &rows, const ProductAtom &of,
                                Value first, Value end, const Outputs &outputs,
                                Value column, int64_t vectors, bool masked) {
  Value mask = masked ? b.firstLanes(b.sub(rows.columns, column)) : Value();
  SmallVector<Value> sums;
  for (Value output : outputs.outputs)
    for (int64_t i = 0; i < vectors; ++i)
      sums.push_back(b.load(b.vector, output, b.add(column, i * b.lanes)));
  sums = b.loop(first, end, of.pack, sums, [&](Value key, ValueRange carried) {
    auto weight = [&](Value weights) -> Value {
      Type element = valueAtom.getNumber(b);
      if (of.pack > 1)
        return b.load(of.getPacked(b), weights, element, key);
      return b.loadWideScalar(weights, element, key);
    };
    // With `kept`, of the values of a pack only those bits.
    auto add = [&](Value kept) {
      SmallVector<Value> next(carried);
      Value from = b.at(rows.base, rows.element, b.mul(key, rows.stride));
      prefetchNext(rows, column, b.sub(key, first), vectors * b.lanes);
      for (int64_t packed = 0; packed < of.pack; ++packed)
        prefetchAhead(rows,
                      b.at(from, rows.element, b.mul(rows.stride, packed)),
                      column, vectors * b.lanes);
      SmallVector<Value> values;
      // A single vector is what the last pair leaves.
      if (pairsValues && vectors > 1)
        for (int64_t i = 0; i < vectors; i += 2)
          llvm::append_range(values,
                             b.loadWidePairs(from, b.add(column, i * b.lanes)));
      else
        values = of.loadColumns(b, from, rows.element, rows.stride, column,
                                vectors, mask);
      if (kept)
        for (Value &value : values)
          value = arith::AndIOp::create(b, value, b.splat(kept));
      for (auto [row, weights] : llvm::enumerate(outputs.weights)) {
        Value scale = b.splat(weight(weights));
        for (auto [i, value] : llvm::enumerate(values)) {
          Value &sum = next[row * vectors + i];
          sum = of.multiplyAdd(b, scale, value, sum);
        }
      }
      return next;
    };
    if (!isCareful)
      return add(Value());
    // A hidden key's value may be Inf or NaN, which 0 does not silence. A
    // weight of 0 does not mean hidden: those of a visible key may cancel. The
    // sum of a pack is that of its visible keys to the last bit, so that a row
    // which sees all of them need not be careful.
    Value kept = b.index(0);
    const int64_t bits = 32 / of.pack;
    for (int64_t packed = 0; packed < of.pack; ++packed) {
      Value isVisible = isSeen(outputs, b.add(key, packed));
      Value ones =
          b.index(llvm::maskTrailingOnes<uint64_t>(bits) << bits * packed);
      kept =
          arith::OrIOp::create(b, kept, b.select(isVisible, ones, b.index(0)));
    }
    return b.choose(
        b.less(b.index(0), kept), carried.getTypes(),
        [&] { return add(of.pack > 1 ? b.narrow(kept) : Value()); },
        [&] { return SmallVector<Value>(carried); });
  });
  for (auto [row, output] : llvm::enumerate(outputs.outputs))
    for (int64_t i = 0; i < vectors; ++i)
      b.store(sums[row * vectors + i], output, b.add(column, i * b.lanes));
}

void SplitKVKernel::emitOutputs(const Rows &rows, const ProductAtom &of,
                                Value first, Value end,
                                const Outputs &outputs) {
  Value whole = b.div(rows.columns, b.lanes);
  int64_t widest = getOutputVectors(outputs.outputs.size());
  auto emit = [&](Value column, int64_t vectors) {
    emitColumns(rows, of, first, end, outputs, b.mul(column, b.lanes), vectors,
                /*masked=*/false);
  };
  // Memory is fastest where a row is read to its end before the next one.
  std::optional<int64_t> vectors = KernelBuilder::known(whole);
  if (vectors && *vectors <= widest) {
    const int64_t together = pairsValues ? *vectors / 2 * 2 : *vectors;
    if (together)
      emit(b.index(0), together);
    if (together < *vectors)
      emit(b.index(together), 1);
  } else {
    forBlocks(whole, widest, emit);
  }
  std::optional<int64_t> known = KernelBuilder::known(rows.columns);
  Value done = b.mul(whole, b.lanes);
  if (!rows.padded && (!known || *known % b.lanes))
    b.ifThen(b.less(done, rows.columns), [&] {
      emitColumns(rows, of, first, end, outputs, done, 1, /*masked=*/true);
    });
}

/// `count` heads from `head` on take the keys [first, end) of a tile that
/// `query` sees.
void SplitKVKernel::multiplyTile(const Rows &values, Value first, Value end,
                                 Value head, int64_t count, Value query,
                                 function_ref<Value(Value row)> weightsOf) {
  Outputs outputs;
  outputs.exponentials = getExponentials(head, query);
  for (int64_t i = 0; i < count; ++i) {
    Value number = row(b.add(head, i), query);
    outputs.weights.push_back(weightsOf(number));
    outputs.outputs.push_back(getSums(number));
  }
  KeyRange seen = getSeenKeys(query);
  first = b.max(first, seen.low);
  end = b.min(end, seen.high);
  if (valueAtom.pack == 1)
    return emitOutputs(values, getFmaF32(), first, end, outputs);
  // Whole packs, before and after them keys that have no partner.
  Value firstPack = b.min(b.roundUp(first, valueAtom.pack), end);
  Value lastPack =
      b.max(b.mul(b.div(end, valueAtom.pack), valueAtom.pack), firstPack);
  emitOutputs(values, valueAtom, firstPack, lastPack, outputs);
  b.loop(b.index(2), [&](Value i) {
    Value before = b.equal(i, b.index(0));
    Value from = b.select(before, first, lastPack),
          to = b.select(before, firstPack, end);
    b.ifThen(b.less(from, to),
             [&] { emitOutputs(values, getFmaF32(), from, to, outputs); });
  });
}

void SplitKVKernel::multiplyValues() {
  Value heads = b.div(groups.signal, groups.value);
  Value stride = v.stride(spec.v, 2);
  b.loop(groups.value, [&](Value valueHead) {
    Value number = b.add(b.mul(group, groups.value), valueHead);
    Value base = spec.isPaged() ? v.head(spec.v, /*batch=*/b.index(0), number)
                                : b.at(v.head(spec.v, batch, number),
                                       spec.v.element, b.mul(begin, stride));
    Rows inPlace{base,
                 spec.v.element,
                 stride,
                 sizes.valueDim,
                 /*padded=*/false,
                 spec.isPaged() ? Value()
                                : getBytesAhead({&spec.v, v}, sizes.valueDim)};
    auto forRows = [&](function_ref<void(Value head, Value query)> body) {
      b.loop(heads, [&](Value i) {
        Value head = b.add(b.mul(valueHead, heads), i);
        b.loop(sizes.queries, [&](Value query) { body(head, query); });
      });
    };
    forRows([&](Value head, Value query) {
      Value sums = getSums(row(head, query));
      b.loop(b.index(0), paddedValueDim, b.lanes,
             [&](Value c) { b.store(b.zero(), sums, c); });
    });
    // Rows that take a value together read it once.
    Value together = b.both(b.less(heads, b.index(schedule.getPvRows() + 1)),
                            b.equal(sizes.queries, b.index(1)));
    std::optional<int64_t> readsOnce = KernelBuilder::known(together);
    const bool isOneRow = readsOnce == 1 && KernelBuilder::known(heads) == 1;
    auto multiplyKeys = [&](Value first, Value end, int64_t size,
                            function_ref<Value(Value row)> weights) {
      prefetchApart({&spec.v, v}, base, sizes.valueDim, first,
                    b.sub(end, first));
      Rows values = spec.isPaged() || size == schedule.getPvKeys()
                        ? getValueTile(inPlace, first, end)
                        : inPlace;
      // While several rows use the tile, or it is widened first, nothing else
      // would be read from memory.
      const bool readsInPlace = pairsValues || valueAtom.readsRows(b, spec.v);
      if (size == schedule.getPvKeys() && spec.v.hasUnitColumns() &&
          inPlace.ahead && !(isOneRow && readsInPlace)) {
        Value tile = b.at(base, spec.v.element, b.mul(first, stride));
        values.next = b.at(tile, b.i8, inPlace.ahead);
        // Behind a row that has a gap lies what is not wanted.
        if (Value hasGaps = findGaps({&spec.v, v}, sizes.valueDim))
          values.next = b.select(hasGaps, s.outputs, values.next);
        values.nextElement = spec.v.element;
        values.ahead = Value();
      }
      b.loop(sizes.queries, [&](Value query) {
        forBlocks(heads, isCareful ? 1 : schedule.getPvRows(),
                  [&](Value i, int64_t count) {
                    Value head = b.add(b.mul(valueHead, heads), i);
                    multiplyTile(values, first, end, head, count, query,
                                 weights);
                  });
      });
    };
    auto tiles = [&](int64_t size) {
      // Weights are made for whole vectors of keys.
      const int64_t span =
          std::min(std::lcm(size, b.lanes), schedule.getKvSplitSize());
      b.loop(b.index(0), n, span, [&](Value first) {
        Value end = b.min(b.add(first, span), n);
        forRows([&](Value head, Value query) {
          emitWeights(head, query, first, end, span);
        });
        auto weights = [&](Value row) { return getWeights(row, first, span); };
        if (size >= span)
          return multiplyKeys(first, end, size, weights);
        b.loop(first, end, size, [&](Value tile) {
          multiplyKeys(tile, b.min(b.add(tile, size), end), size, weights);
        });
      });
    };
    // Rows that take a value together gain nothing from tiles, unless they are
    // too wide for one pass over the keys.
    std::optional<int64_t> width = KernelBuilder::known(sizes.valueDim);
    const int64_t vectors =
        getOutputVectors(isOneRow ? 1 : schedule.getPvRows());
    const bool takesPasses = width && *width > vectors * b.lanes;
    int64_t largest = schedule.getKvSplitSize();
    if (spec.isPaged())
      largest =
          std::max(schedule.getPvKeys(), getPageTile(schedule.getPvKeys()));
    else if (findGaps({&spec.v, v}, sizes.valueDim))
      largest = std::min(largest, kApartKeys);
    if (!spec.v.hasUnitColumns() || takesPasses || readsOnce == 0)
      tiles(schedule.getPvKeys());
    else if (readsOnce)
      tiles(largest);
    else
      b.ifElse(
          together, [&] { tiles(largest); },
          [&] { tiles(schedule.getPvKeys()); });
    forRows([&](Value head, Value query) {
      Value number = row(head, query);
      Value sums = getSums(number), output = getOutput(item, number);
      Value paired =
          pairsValues ? getPairedColumns(sizes.valueDim) : b.index(0);
      b.loop(b.index(0), paired, 2 * b.lanes, [&](Value c) {
        Value even = b.load(b.vector, sums, c),
              odd = b.load(b.vector, sums, b.add(c, b.lanes));
        b.store(vector::InterleaveOp::create(b, even, odd), output, c);
      });
      b.loop(paired, paddedValueDim, b.lanes,
             [&](Value c) { b.store(b.load(b.vector, sums, c), output, c); });
    });
  });
}

/// The keys [first, end) as all rows read them: where they lie, or copied.
SplitKVKernel::Rows SplitKVKernel::getValueTile(const Rows &inPlace,
                                                Value first, Value end) {
  if (spec.isPaged()) {
    Rows tile =
        getPagedTile(spec.v, inPlace.base, first, b.sub(end, first),
                     sizes.valueDim, schedule.getPvKeys(), s.valuePanel);
    // Keys are counted from the item's first.
    Value before = b.mul(b.sub(b.index(0), first), tile.stride);
    tile.base = b.at(tile.base, tile.element, before);
    return tile;
  }
  if (pairsValues || valueAtom.readsRows(b, spec.v))
    return inPlace;
  packRows(v, spec.v, inPlace.base, first, b.sub(end, first), sizes.valueDim,
           paddedValueDim, s.valuePanel);
  // Keys are counted from the item's first.
  Value before = b.mul(b.sub(b.index(0), first), paddedValueDim);
  return {b.at(s.valuePanel, b.f32, before), b.f32, paddedValueDim,
          paddedValueDim, /*padded=*/true};
}
