//===- SplitKVScores.cpp - scores and exponentials of few queries ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitKVKernel.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Bytes of a line of a cache.
static constexpr int64_t kLine = 64;

/// The queries of `count` rows from `row` on of the group, and as many of their
/// columns as registers hold beside the sums.
SplitKVKernel::Queries SplitKVKernel::packQueries(Map &map, Value row,
                                                  int64_t count) {
  Queries queries;
  queries.width = atom.pack * b.lanes;
  queries.paired = readsPairs(*map.k.spec, atom);
  for (int64_t i = 0; i < count; ++i) {
    queries.rows.push_back(
        b.at(s.queries, b.f32, b.mul(queryStride, b.index(i))));
    packQuery(map, b.add(row, i), queries.rows.back(), queries.paired);
  }
  std::optional<int64_t> columns = KernelBuilder::known(sizes.headDim);
  if (!columns || count * (*columns / queries.width) > schedule.getQVectors())
    return queries;
  for (int64_t i = 0; i < count; ++i) {
    SmallVector<Value> &vectors = queries.loaded.emplace_back();
    for (int64_t c = 0; c + queries.width <= *columns; c += queries.width)
      vectors.push_back(loadQuery(queries, i, b.index(c)));
  }
  return queries;
}

/// The address of a row's query.
Value SplitKVKernel::getQuery(Map &map, Value row) {
  Value head = b.add(b.mul(group, map.heads), b.div(row, sizes.queries));
  return b.at(map.q.head(batch, head), map.q->element,
              b.mul(b.rem(row, sizes.queries), map.q.stride(2)));
}

/// Scaled and as f32, or as it is where the scale waits; padded with zeros.
void SplitKVKernel::packQuery(Map &map, Value row, Value to, bool paired) {
  const SpecOperand &operand = *map.q.spec;
  const bool raw = !atom.scalesQueries;
  Value from = getQuery(map, row);
  float scale =
      spec.foldsLog2E() ? spec.scores.scale * kLog2E : spec.scores.scale;
  // Unscaled queries are copied as bits.
  const unsigned width = atom.getNumber(b).getIntOrFloatBitWidth();
  Type bits = b.getIntegerType(width), element = raw ? bits : b.f32;
  auto copy = [&](Value c, Value place) {
    Value position = b.mul(c, map.q.stride(3));
    Value q = raw ? b.load(bits, from, bits, position)
                  : b.mulf(b.loadWideScalar(from, operand.element, position),
                           emitConstant(b, b.f32, scale));
    b.store(q, to, element, place);
  };
  Value done = b.index(0);
  if (paired) {
    done = getPairedColumns(sizes.headDim);
    b.loop(b.index(0), done, 2 * b.lanes, [&](Value first) {
      if (operand.hasUnitColumns() && operand.element.isBF16()) {
        Value place = first;
        for (Value q : b.loadWidePairs(from, first)) {
          b.store(b.mulf(q, b.splat(scale)), to, place);
          place = b.add(place, b.lanes);
        }
        return;
      }
      b.loop(b.index(b.lanes), [&](Value i) {
        Value even = b.add(first, b.mul(i, 2)), place = b.add(first, i);
        copy(even, place);
        copy(b.add(even, 1), b.add(place, b.lanes));
      });
    });
  }
  // Whole vectors where they can be loaded, then columns.
  if (operand.hasUnitColumns()) {
    Value whole = b.mul(b.div(sizes.headDim, b.lanes), b.lanes);
    b.loop(done, whole, b.lanes, [&](Value c) {
      if (raw)
        b.store(b.load(VectorType::get({b.lanes}, bits), from, bits, c), to,
                bits, c);
      else
        b.store(b.mulf(b.loadWide(from, operand.element, c), b.splat(scale)),
                to, c);
    });
    done = whole;
  }
  b.loop(done, sizes.headDim, 1, [&](Value c) { copy(c, c); });
  Value end = b.mul(queryStride, atom.pack);
  Value zero = arith::ConstantOp::create(b, b.getZeroAttr(element));
  b.loop(sizes.headDim, end, 1,
         [&](Value c) { b.store(zero, to, element, c); });
}

Value SplitKVKernel::loadQuery(const Queries &queries, size_t i, Value c) {
  VectorType packs = VectorType::get({b.lanes}, atom.getPacked(b));
  return b.load(packs, queries.rows[i], atom.getNumber(b), c);
}

/// `count` keys from `key` on: where they lie, or copied: to f32 where a vector
/// cannot be loaded, as they are where they may lie in several pages.
SplitKVKernel::Rows SplitKVKernel::getKeyTile(Map &map, Value base, Value key,
                                              Value count) {
  const SpecOperand &operand = *map.k.spec;
  Value stride = map.k.stride(2);
  if (spec.isPaged())
    return getPagedTile(operand, base, key, count, sizes.headDim, b.lanes,
                        s.keyPanel);
  if (operand.hasUnitColumns())
    return {b.at(base, operand.element, b.mul(key, stride)),
            operand.element,
            stride,
            sizes.headDim,
            /*padded=*/false,
            getBytesAhead(map.k, sizes.headDim)};
  packRows(map.k.values, operand, base, key, count, sizes.headDim, queryStride,
           s.keyPanel);
  return {s.keyPanel, b.f32, queryStride, queryStride, /*padded=*/true};
}

Value SplitKVKernel::findGaps(Operand operand, Value columns) {
  if (!schedule.getPrefetchRows() || spec.isPaged() ||
      !operand->hasUnitColumns())
    return Value();
  Value hasGaps = b.less(columns, operand.stride(2));
  return KernelBuilder::known(hasGaps) == 0 ? Value() : hasGaps;
}

/// Into the second level of caches: where rows lie a power of two apart, few of
/// them have room in the first one.
void SplitKVKernel::prefetchApart(Operand operand, Value base, Value columns,
                                  Value first, Value count) {
  Value hasGaps = findGaps(operand, columns);
  if (!hasGaps)
    return;
  first = b.add(first, schedule.getPrefetchRows());
  // Keys that no query sees need no prefetch.
  Value isSeen = b.less(b.add(first, b.add(count, -1)), seenFromBegin);
  const int64_t bytes = operand->element.getIntOrFloatBitWidth() / 8;
  b.ifThen(b.both(hasGaps, isSeen), [&] {
    b.loop(count, [&](Value i) {
      Value row = b.at(base, operand->element,
                       b.mul(b.add(first, i), operand.stride(2)));
      Value end = b.mul(columns, bytes);
      auto ask = [&](Value byte) { b.prefetch(row, byte, /*level=*/2); };
      // A row that begins inside a line ends in one more.
      if (std::optional<int64_t> known = KernelBuilder::known(end))
        for (int64_t line = 0; line < *known; line += kLine)
          ask(b.index(line));
      else
        b.loop(b.index(0), end, kLine, ask);
      ask(b.add(end, -1));
    });
  });
}

Value SplitKVKernel::getBytesAhead(Operand operand, Value columns) {
  const int64_t bytes = operand->element.getIntOrFloatBitWidth() / 8;
  Value hasGaps = findGaps(operand, columns);
  if (!schedule.getPrefetchBytes() ||
      (hasGaps && KernelBuilder::known(hasGaps)))
    return Value();
  Value rowBytes = b.max(b.mul(columns, bytes), b.index(1));
  Value rowsAhead =
      b.max(b.div(b.index(schedule.getPrefetchBytes()), rowBytes), b.index(1));
  Value ahead = b.mul(b.mul(rowsAhead, operand.stride(2)), bytes);
  return hasGaps ? b.select(hasGaps, b.index(0), ahead) : ahead;
}

void SplitKVKernel::prefetchAhead(const Rows &rows, Value row, Value column,
                                  int64_t count) {
  if (!rows.ahead)
    return;
  const int64_t bytes = rows.element.getIntOrFloatBitWidth() / 8;
  // Once a line, where several steps are in one.
  if (std::optional<int64_t> known = KernelBuilder::known(column))
    if (*known * bytes % kLine)
      return;
  Value first = b.add(b.mul(column, bytes), rows.ahead);
  for (int64_t line = 0; line < count * bytes; line += kLine)
    b.prefetch(row, b.add(first, line));
}

void SplitKVKernel::prefetchNext(const Rows &rows, Value column, Value key,
                                 int64_t count) {
  if (!rows.next)
    return;
  const int64_t bytes = rows.nextElement.getIntOrFloatBitWidth() / 8;
  Value first = b.mul(
      b.add(b.mul(column, schedule.getPvKeys()), b.mul(key, count)), bytes);
  for (int64_t line = 0; line < count * bytes; line += kLine)
    b.prefetch(rows.next, b.add(first, line));
}

/// The products of a key's columns with those of each query, each summed to one
/// vector; the key is read once.
SmallVector<Value> SplitKVKernel::emitDot(const Rows &rows, Value row,
                                          const Queries &queries) {
  const int64_t width = queries.width;
  auto queryAt = [&](size_t i, Value c) {
    std::optional<int64_t> known = KernelBuilder::known(c);
    if (known && !queries.loaded.empty() && !rows.padded &&
        *known / width < static_cast<int64_t>(queries.loaded[i].size()))
      return queries.loaded[i][*known / width];
    return loadQuery(queries, i, c);
  };
  // One step of `vectors` vectors of columns; two are read as pairs.
  auto step = [&](Value c, int64_t vectors, Value mask, ValueRange sums) {
    prefetchAhead(rows, row, c, vectors * width);
    SmallVector<Value> key;
    if (vectors == 2)
      llvm::append_range(key, b.loadWidePairs(row, c));
    else
      key.push_back(atom.loadRow(b, row, rows.element, c, mask));
    SmallVector<Value> next(sums);
    for (auto [part, k] : llvm::enumerate(key))
      for (auto [i, sum] : llvm::enumerate(next)) {
        Value q = queryAt(i, b.add(c, part * width));
        sum = atom.multiplyAdd(b, k, q, sum);
      }
    return next;
  };
  SmallVector<Value> sums(queries.rows.size(), b.zero());
  // Whole steps from `first` on; gives where they end.
  auto forSteps = [&](Value first, int64_t vectors) {
    const int64_t size = vectors * width;
    Value end = b.mul(b.div(rows.columns, size), size);
    // Unrolled up to heads of 256, beyond which code would grow with the head.
    std::optional<int64_t> from = KernelBuilder::known(first),
                           to = KernelBuilder::known(end);
    if (from && to && *to <= 16 * width) {
      for (int64_t c = *from; c < *to; c += size)
        sums = step(b.index(c), vectors, Value(), sums);
    } else {
      sums = b.loop(first, end, size, sums, [&](Value c, ValueRange carried) {
        return step(c, vectors, Value(), carried);
      });
    }
    return end;
  };
  Value done = b.index(0);
  if (queries.paired)
    done = forSteps(done, 2);
  done = forSteps(done, 1);
  Value rest = b.sub(rows.columns, done);
  if (!rows.padded && KernelBuilder::known(rest) != 0)
    sums = step(done, 1, b.firstLanes(rest, width), sums);
  return sums;
}

/// The products of `lanes / queries` keys with each of the queries, in the
/// order [key][query]: each is a sum over lanes, and sums of neighbours are
/// folded into one vector as soon as there are two, so that keys are read in
/// the order of their addresses, on which the speed of memory depends. Past row
/// `last`, it is repeated.
Value SplitKVKernel::emitDots(const Rows &rows, Value last,
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
        folded.back() = {2 * size, fold(folded.back().second, y, size)};
      }
    }
  }
  return folded.front().second;
}

/// Folds two vectors of `count` sums each into one. A sum has its lanes in
/// every four lanes of a vector until there are four sums; from then on it has
/// every fourth lane in a run of them. So the first two folds, of which there
/// are most, move nothing over the borders of four lanes, which costs least.
Value SplitKVKernel::fold(Value x, Value y, int64_t count) {
  bool inside = count < 4;
  int64_t group = inside ? 4 : b.lanes, unit = inside ? 1 : 4;
  int64_t half = group / std::max<int64_t>(count, unit) / 2;
  SmallVector<int64_t> low, high;
  for (int64_t first = 0; first < b.lanes; first += group)
    for (int64_t from : {first, b.lanes + first})
      for (int64_t sum = 0; sum < count / unit; ++sum)
        for (int64_t i = 0; i < half * unit; ++i) {
          low.push_back(from + sum * 2 * half * unit + i);
          high.push_back(low.back() + half * unit);
        }
  return b.addf(vector::ShuffleOp::create(b, x, y, low),
                vector::ShuffleOp::create(b, x, y, high));
}

/// The scores of `count` rows from `row` on with all keys of a head.
void SplitKVKernel::scoreRows(Map &map, Value base, Value row, int64_t count) {
  int64_t perQuery = b.lanes / count;
  Queries queries = packQueries(map, row, count);
  auto score = [&](Value key, Value keys) {
    Rows tile = getKeyTile(map, base, key, keys);
    Value dots = emitDots(tile, b.add(keys, -1), queries);
    SmallVector<int64_t> order;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t k = 0; k < perQuery; ++k)
        order.push_back(k * count + i);
    if (count > 1)
      dots = vector::ShuffleOp::create(b, dots, dots, order);
    Value position = getPosition(map, key, perQuery);
    for (int64_t i = 0; i < count; ++i) {
      Value part = dots;
      if (count > 1)
        part = vector::ExtractStridedSliceOp::create(
            b, dots, ArrayRef<int64_t>{i * perQuery},
            ArrayRef<int64_t>{perQuery}, ArrayRef<int64_t>{1});
      b.store(part, getScores(map, b.add(row, i)), position);
    }
  };
  // Whole tiles apart: the fewer instructions a key takes, the further ahead
  // the CPU reads.
  Value whole = b.mul(b.div(n, perQuery), perQuery);
  b.loop(b.index(0), whole, perQuery, [&](Value key) {
    prefetchApart(map.k, base, sizes.headDim, key, b.index(perQuery));
    score(key, b.index(perQuery));
  });
  b.ifThen(b.less(whole, n), [&] { score(whole, b.sub(n, whole)); });
}

/// Softcap, bias, and -inf where a key is not seen; gives the maximum of each
/// row in all lanes.
SmallVector<Value> SplitKVKernel::editScores(Map &map,
                                             ArrayRef<ScoreRow> rows) {
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  Value never = arith::ConstantOp::create(b, b.getZeroAttr(b.mask));
  auto edit = [&](const ScoreRow &row, Value key, bool masked, Value maximum) {
    Value position = getPosition(map, key, b.lanes);
    Value score = b.load(b.vector, row.scores, position);
    if (!atom.scalesQueries && spec.editsEveryScore())
      score = b.mulf(score, b.splat(spec.scores.scale));
    if (spec.scores.softcap)
      score = emitSoftcap(b, score, *spec.scores.softcap);
    masks->loadLanes = [&](MaskOperand operand) {
      auto left = [&] { return b.min(b.sub(n, key), b.index(b.lanes)); };
      const SpecOperand &from = spec.mask(operand);
      if (spec.hasIntegers(operand, AxisRole::Query))
        return b.splat(v.integer(from, batch, row.query));
      if (spec.hasIntegers(operand, AxisRole::Key))
        return v.integers(from, batch, b.add(begin, key), left());
      Value stride = v.stride(spec.bias(), 3), at = b.mul(key, stride);
      Value count = left();
      if (spec.bias().element.isInteger(1))
        return b.loadFlags(row.bias, at, stride, count);
      return b.loadStrided(row.bias, spec.bias().element, at, stride, count);
    };
    if (masked || spec.addsBias())
      score = masks->maskElements(score, /*inPartialTile=*/masked);
    if (masked) {
      Value visible = b.firstLanes(b.sub(row.seen.high, key));
      if (KernelBuilder::known(row.seen.low) != 0)
        visible =
            b.select(b.firstLanes(b.sub(row.seen.low, key)), never, visible);
      score = b.select(visible, score, lowest);
    }
    if (masked || spec.editsEveryScore())
      b.store(score, row.scores, position);
    return emitMaximum(b, maximum, score);
  };
  // Without a mask, only the last vector has keys that are not seen.
  Value whole =
      spec.hasPositionMask() ? b.index(0) : b.mul(b.div(n, b.lanes), b.lanes);
  if (seesAll && !spec.hasPositionMask())
    whole = b.select(seesAll, whole, b.index(0));
  SmallVector<Value> maxima(rows.size(),
                            b.splat(-std::numeric_limits<float>::max()));
  for (bool masked : {false, true})
    maxima = b.loop(masked ? whole : b.index(0), masked ? n : whole, b.lanes,
                    maxima, [&](Value key, ValueRange carried) {
                      SmallVector<Value> next;
                      for (auto [row, maximum] : llvm::zip_equal(rows, carried))
                        next.push_back(edit(row, key, masked, maximum));
                      return next;
                    });
  for (Value &maximum : maxima)
    maximum = highest(maximum);
  return maxima;
}

/// The scores of `count` rows from `first` on of the group become exponentials:
/// together, so that they are met in the order of their addresses.
void SplitKVKernel::emitSoftmax(Map &map, Value first, int64_t count) {
  Value perNoise = b.div(map.heads, groups.noise);
  SmallVector<ScoreRow> rows;
  for (int64_t i = 0; i < count; ++i) {
    Value number = b.add(first, i);
    ScoreRow &row = rows.emplace_back();
    row.head = b.div(number, sizes.queries);
    row.query = b.rem(number, sizes.queries);
    row.scores = getScores(map, number);
    row.seen = getSeenKeys(row.query);
    if (spec.bias().present())
      row.bias = getBias(b.div(row.head, perNoise), row.query);
  }
  SmallVector<Value> maxima = editScores(map, rows);
  PolynomialMath math = lanes(valueAtom.exponentDegree);
  SmallVector<Value> sums(count, b.zero());
  sums =
      b.loop(b.index(0), n, b.lanes, sums, [&](Value key, ValueRange carried) {
        Value position = getPosition(map, key, b.lanes);
        SmallVector<Value> next;
        for (auto [row, maximum, sum] :
             llvm::zip_equal(rows, maxima, carried)) {
          Value score = b.load(b.vector, row.scores, position);
          Value e = emitWeight(math, score, maximum);
          b.store(e, row.scores, position);
          next.push_back(b.addf(sum, e));
        }
        return next;
      });
  Value heads = b.mul(group, map.heads);
  for (auto [row, maximum, sum] : llvm::zip_equal(rows, maxima, sums)) {
    Value head = b.add(heads, row.head);
    b.store(b.lane(maximum, 0),
            getHeader(map.maxima, map, batch, head, row.query), block);
    b.store(b.sum(sum), getHeader(map.sums, map, batch, head, row.query),
            block);
  }
}

void SplitKVKernel::scoreMap(Map &map) {
  Value perKeyHead = b.div(map.heads, map.keyHeads);
  Value rows = b.mul(perKeyHead, sizes.queries);
  b.loop(map.keyHeads, [&](Value keyHead) {
    Value number = b.add(b.mul(group, map.keyHeads), keyHead);
    Value base = spec.isPaged()
                     ? map.k.head(/*batch=*/b.index(0), number)
                     : b.at(map.k.head(batch, number), map.k->element,
                            b.mul(begin, map.k.stride(2)));
    Value before = b.mul(keyHead, rows);
    if (atom.usesTiles)
      return forTileRows(perKeyHead, [&](Value first, int64_t count) {
        scoreRowsByTiles(map, base, b.add(before, first), count);
      });
    forBlocks(rows, schedule.getQkRows(), [&](Value first, int64_t count) {
      scoreRows(map, base, b.add(before, first), count);
    });
  });
  forBlocks(map.rows, schedule.getQkRows(),
            [&](Value row, int64_t count) { emitSoftmax(map, row, count); });
}
