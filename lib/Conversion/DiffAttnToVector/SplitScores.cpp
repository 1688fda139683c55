//===- SplitScores.cpp - scores and exponentials of few queries -----------===//
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

Value SplitNest::highest(Value vector) {
  SmallVector<int64_t> order(b.lanes);
  for (int64_t half = b.lanes / 2; half; half /= 2) {
    for (int64_t i = 0; i < b.lanes; ++i)
      order[i] = (i + half) % b.lanes;
    vector = emitMaximum(b, vector,
                         vector::ShuffleOp::create(b, vector, vector, order));
  }
  return vector;
}

/// Scaled and as f32, or as it is where pairs are multiplied; padded with
/// zeros.
void SplitNest::packQuery(int map, Value head, Value query, Value to) {
  const NestOperand &operand = map ? spec.q2 : spec.q1;
  bool pairs = spec.usesBf16Pairs();
  Value from = b.at(v.head(operand, batch, head), operand.element,
                    b.mul(query, v.stride(operand, 2)));
  Value columnStride = v.stride(operand, 3);
  float scale = spec.foldsLog2E() ? spec.scale * kLog2E : spec.scale;
  Value factor = emitConstant(b, b.f32, scale);
  Type i16 = b.getI16Type();
  b.loop(sizes.headDim, [&](Value c) {
    Value position = b.mul(c, columnStride);
    if (pairs) {
      b.store(b.load(i16, from, i16, position), to, i16, c);
      return;
    }
    Value q = b.loadWideScalar(from, operand.element, position);
    b.store(b.mulf(q, factor), to, c);
  });
  Value end = b.mul(s.queryStride, pairs ? 2 : 1);
  b.loop(sizes.headDim, end, 1, [&](Value c) {
    if (pairs)
      b.store(arith::ConstantOp::create(b, b.getI16IntegerAttr(0)), to, i16, c);
    else
      b.store(emitConstant(b, b.f32, 0.0f), to, c);
  });
}

/// `count` keys from `key` on: where they lie, or copied to f32 where a vector
/// cannot be loaded.
SplitNest::Rows SplitNest::getKeyTile(int map, Value base, Value key,
                                      Value count) {
  const NestOperand &operand = map ? spec.k2 : spec.k1;
  Value stride = v.stride(operand, 2);
  if (operand.hasUnitColumns())
    return {b.at(base, operand.element, b.mul(key, stride)), operand.element,
            stride, sizes.headDim, /*padded=*/false};
  packRows(v, operand, base, key, count, sizes.headDim, s.queryStride,
           s.keyPanel);
  return {s.keyPanel, b.f32, s.queryStride, s.queryStride, /*padded=*/true};
}

/// The products of a key's columns with those of each query, each summed to one
/// vector; the key is read once.
SmallVector<Value> SplitNest::emitDot(const Rows &rows, Value row,
                                      const Queries &queries) {
  bool pairs = spec.usesBf16Pairs();
  int64_t width = queries.width;
  auto step = [&](Value c, Value mask, ValueRange sums,
                  function_ref<Value(size_t)> query) {
    Value k;
    if (pairs) {
      VectorType halves = VectorType::get({width}, b.getI16Type());
      k = mask ? b.loadMasked(halves, row, c, mask)
               : b.load(halves, row, rows.element, c);
      k = vector::BitCastOp::create(b, b.integers, k);
    } else {
      k = b.loadWide(row, rows.element, c, mask);
    }
    SmallVector<Value> next;
    for (auto [i, sum] : llvm::enumerate(sums)) {
      Value q = query(i);
      next.push_back(pairs ? b.dotPairs(k, q, sum) : b.fma(k, q, sum));
    }
    return next;
  };
  auto loadStep = [&](Value c, Value mask, ValueRange sums) {
    return step(c, mask, sums,
                [&](size_t i) { return loadQuery(queries, i, c); });
  };
  SmallVector<Value> sums(queries.rows.size(), b.zero());
  Value whole = b.mul(b.div(rows.columns, width), width);
  // Unrolled up to heads of 256, beyond which code would grow with the head.
  std::optional<int64_t> known = KernelBuilder::known(whole);
  if (known && *known <= 16 * width) {
    for (int64_t c = 0; c < *known; c += width)
      sums = queries.loaded.empty() || rows.padded
                 ? loadStep(b.index(c), Value(), sums)
                 : step(b.index(c), Value(), sums,
                        [&](size_t i) { return queries.loaded[i][c / width]; });
  } else {
    sums = b.loop(b.index(0), whole, width, sums,
                  [&](Value c, ValueRange carried) {
                    return loadStep(c, Value(), carried);
                  });
  }
  Value rest = b.sub(rows.columns, whole);
  if (!rows.padded && KernelBuilder::known(rest) != 0)
    sums = loadStep(whole, b.firstLanes(rest, width), sums);
  return sums;
}

Value SplitNest::loadQuery(const Queries &queries, size_t i, Value c) {
  if (spec.usesBf16Pairs())
    return b.load(b.integers, queries.rows[i], b.bf16, c);
  return b.load(b.vector, queries.rows[i], c);
}

/// As many columns of the queries as registers hold beside the sums.
void SplitNest::loadQueries(Queries &queries) {
  queries.width = spec.usesBf16Pairs() ? 2 * b.lanes : b.lanes;
  std::optional<int64_t> columns = KernelBuilder::known(sizes.headDim);
  int64_t count = queries.rows.size();
  if (!columns ||
      count * (*columns / queries.width) > b.target.vectorRegisters / 2)
    return;
  for (int64_t i = 0; i < count; ++i) {
    SmallVector<Value> vectors;
    for (int64_t c = 0; c + queries.width <= *columns; c += queries.width)
      vectors.push_back(loadQuery(queries, i, b.index(c)));
    queries.loaded.push_back(vectors);
  }
}

/// The products of `lanes / queries` keys with each of the queries, in the
/// order [key][query]: each is a sum over lanes, and sums of neighbours are
/// folded into one vector as soon as there are two, so that keys are read in
/// the order of their addresses, on which the speed of memory depends. Past row
/// `last`, it is repeated.
Value SplitNest::emitDots(const Rows &rows, Value last,
                          const Queries &queries) {
  int64_t perQuery = b.lanes / queries.rows.size();
  SmallVector<std::pair<int64_t, Value>> folded;
  for (int64_t key = 0; key < perQuery; ++key) {
    b.keepOrder();
    Value position = b.min(b.index(key), last);
    Value row = b.at(rows.base, rows.element, b.mul(position, rows.stride));
    for (Value sum : emitDot(rows, row, queries)) {
      folded.push_back({1, sum});
      while (folded.size() > 1 &&
             folded[folded.size() - 2].first == folded.back().first) {
        auto [size, y] = folded.pop_back_val();
        folded.back() = {2 * size, fold(folded.back().second, y, 2 * size)};
      }
    }
  }
  return folded.front().second;
}

/// One vector of `count` sums, each over `lanes / count` neighbours, of two
/// with half as many each.
Value SplitNest::fold(Value x, Value y, int64_t count) {
  int64_t part = b.lanes / count;
  SmallVector<int64_t> low, high;
  for (int64_t k = 0; k < count; ++k)
    for (int64_t i = 0; i < part; ++i) {
      low.push_back(k * 2 * part + i);
      high.push_back(k * 2 * part + part + i);
    }
  return b.addf(vector::ShuffleOp::create(b, x, y, low),
                vector::ShuffleOp::create(b, x, y, high));
}

/// The scores of `count` rows from `row` on with all keys of a head.
void SplitNest::scoreRows(int map, Value base, Value row, int64_t count) {
  int64_t perQuery = b.lanes / count;
  auto rowOf = [&](Value panel, Value stride, int64_t i) {
    return b.at(panel, b.f32, b.mul(b.add(row, i), stride));
  };
  Queries queries;
  for (int64_t i = 0; i < count; ++i)
    queries.rows.push_back(rowOf(s.queries[map], s.queryStride, i));
  loadQueries(queries);
  b.loop(b.index(0), n, perQuery, [&](Value key) {
    Value keys = b.min(b.sub(n, key), b.index(perQuery));
    Rows tile = getKeyTile(map, base, key, keys);
    Value dots = emitDots(tile, b.add(keys, -1), queries);
    SmallVector<int64_t> order;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t k = 0; k < perQuery; ++k)
        order.push_back(k * count + i);
    if (count > 1)
      dots = vector::ShuffleOp::create(b, dots, dots, order);
    for (int64_t i = 0; i < count; ++i) {
      Value part = dots;
      if (count > 1)
        part = vector::ExtractStridedSliceOp::create(
            b, dots, ArrayRef<int64_t>{i * perQuery},
            ArrayRef<int64_t>{perQuery}, ArrayRef<int64_t>{1});
      b.store(part, rowOf(s.scores[map], s.scoreStride, i), key);
    }
  });
}

/// Softcap, bias, and -inf where a key is not seen; gives the maximum in all
/// lanes.
Value SplitNest::editScores(int map, Value scores, Value bias,
                            const KeyRange &seen) {
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  Value floor = b.splat(-std::numeric_limits<float>::max());
  Value never = arith::ConstantOp::create(b, b.getZeroAttr(b.mask));
  Value maximum =
      b.loop(b.index(0), n, b.lanes, floor, [&](Value key, ValueRange carried) {
        Value score = b.load(b.vector, scores, key);
        if (spec.usesBf16Pairs() && spec.editsEveryScore())
          score = b.mulf(score, b.splat(spec.scale));
        if (spec.softcap)
          score = emitSoftcap(b, score, *spec.softcap);
        if (bias) {
          Value stride = v.stride(spec.bias, 3), add;
          Value count = b.min(b.sub(n, key), b.index(b.lanes));
          if (spec.bias.element.isInteger(1)) {
            Value flags = b.loadFlags(bias, b.mul(key, stride), stride, count);
            add = b.select(flags, b.zero(), lowest);
          } else {
            add = b.loadStrided(bias, spec.bias.element, b.mul(key, stride),
                                stride, count);
          }
          Value hidden =
              arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, add, lowest);
          score = b.select(hidden, lowest, b.addf(score, add));
        }
        Value visible = b.firstLanes(b.sub(seen.high, key));
        if (KernelBuilder::known(seen.low) != 0)
          visible =
              b.select(b.firstLanes(b.sub(seen.low, key)), never, visible);
        score = b.select(visible, score, lowest);
        b.store(score, scores, key);
        return SmallVector<Value>{emitMaximum(b, carried[0], score)};
      })[0];
  return highest(maximum);
}

/// One row's scores become exponentials; in pairs, as bf16.
void SplitNest::emitSoftmax(int map, Value head, Value query) {
  Value perNoise = b.div(groups.signal, groups.noise);
  Value noise = map ? head : b.div(head, perNoise), bias;
  if (spec.bias.present()) {
    Type element = spec.bias.element.isInteger(1) ? b.i8 : spec.bias.element;
    noise = b.add(b.mul(group, groups.noise), noise);
    bias = b.at(v.head(spec.bias, batch, noise), element,
                b.add(b.mul(query, v.stride(spec.bias, 2)),
                      b.mul(begin, v.stride(spec.bias, 3))));
  }
  Value scores =
      b.at(s.scores[map], b.f32, b.mul(row(head, query), s.scoreStride));
  Value maximum = editScores(map, scores, bias, getSeenKeys(query));
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  Value sums = b.loop(
      b.index(0), n, b.lanes, b.zero(), [&](Value key, ValueRange carried) {
        Value score = b.load(b.vector, scores, key);
        Value x = scaleExponent(b.subf(score, maximum));
        Value hidden =
            arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, score, lowest);
        Value e = b.select(hidden, b.zero(), emitExp2(b, x));
        b.storeNarrow(e, scores, spec.usesBf16Pairs() ? b.bf16 : b.f32, key);
        return SmallVector<Value>{b.addf(carried[0], e)};
      })[0];
  Value top = b.lane(maximum, 0), sum = b.sum(sums);
  if (map == 0)
    return writeHeader(map, head, query, top, sum);
  // Every signal head's state holds its noise head's.
  b.loop(perNoise, [&](Value i) {
    writeHeader(map, b.add(b.mul(head, perNoise), i), query, top, sum);
  });
}

void SplitNest::scoreMap(int map) {
  const NestOperand &operand = map ? spec.k2 : spec.k1;
  Value heads = map ? groups.noise : groups.signal;
  Value keyHeads = map ? groups.key2 : groups.key1;
  Value rowsPerKeyHead = b.mul(b.div(heads, keyHeads), sizes.queries);
  auto queryRow = [&](Value row) {
    return b.at(s.queries[map], b.f32, b.mul(row, s.queryStride));
  };
  b.loop(heads, [&](Value head) {
    b.loop(sizes.queries, [&](Value query) {
      packQuery(map, b.add(b.mul(group, heads), head), query,
                queryRow(row(head, query)));
    });
  });
  b.loop(keyHeads, [&](Value keyHead) {
    Value number = b.add(b.mul(group, keyHeads), keyHead);
    Value base = b.at(v.head(operand, batch, number), operand.element,
                      b.mul(begin, v.stride(operand, 2)));
    Value done = b.index(0);
    std::optional<int64_t> known = KernelBuilder::known(rowsPerKeyHead);
    for (int64_t rows = rowBlock(b); rows; rows /= 2) {
      if (known && rows < rowBlock(b) && *known % (2 * rows) < rows)
        continue;
      Value end = b.mul(b.div(rowsPerKeyHead, rows), rows);
      b.loop(done, end, rows, [&](Value row) {
        scoreRows(map, base, b.add(b.mul(keyHead, rowsPerKeyHead), row), rows);
      });
      done = end;
    }
  });
  b.loop(heads, [&](Value head) {
    b.loop(sizes.queries, [&](Value query) { emitSoftmax(map, head, query); });
  });
}
