//===- SplitKVTiles.cpp - scores of few queries by matrix tiles -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SplitKVKernel.h"
#include "TileBuilder.h"
#include "TileKernels.h"

#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;

/// Numbers of rows of a head of keys that are multiplied with a tile of keys,
/// largest first. Each is compiled by itself, and one query should take one.
static SmallVector<int64_t> getRowCounts(std::optional<int64_t> rows,
                                         std::optional<int64_t> perQuery) {
  SmallVector<int64_t> counts;
  if (rows) {
    if (*rows >= kTileLanes)
      counts.push_back(kTileLanes);
    if (*rows % kTileLanes)
      counts.push_back(*rows % kTileLanes);
    return counts;
  }
  const int64_t unit = perQuery && *perQuery <= kTileLanes ? *perQuery : 1;
  for (int64_t units = kTileLanes / unit;;
       units = std::max<int64_t>(units / 4, 1)) {
    counts.push_back(units * unit);
    if (units == 1)
      return counts;
  }
}

/// `body` for the rows of `heads` heads of queries, up to 16 at a time.
void SplitKVKernel::forTileRows(Value heads,
                                function_ref<void(Value, int64_t)> body) {
  Value rows = b.mul(heads, sizes.queries), done = b.index(0);
  for (int64_t count :
       getRowCounts(KernelBuilder::known(rows), KernelBuilder::known(heads))) {
    Value whole = b.mul(b.div(b.sub(rows, done), count), count);
    Value end = b.add(done, whole);
    b.loop(done, end, count, [&](Value first) { body(first, count); });
    done = end;
  }
}

void SplitKVKernel::packTileQueries(Map &map, Value row, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    atom.packQuery(b, {getQuery(map, b.add(row, i)), map.q->element,
                       map.q.stride(3), sizes.headDim,
                       b.at(s.queries, b.i32, b.index(i)), count,
                       /*scale=*/1.0f});
}

/// The number of contiguous keys that tiles can read in place: 0 if each must
/// be copied, a negative number for all keys of an item.
int64_t SplitKVKernel::getKeysInPlace(const SpecOperand &keys) const {
  // Tiles hold pairs of columns, and nothing behind a row may be read.
  if (!keys.hasUnitColumns() || !spec.headDim.isStatic() ||
      spec.headDim.value % 2)
    return 0;
  // An item begins with a multiple of as many keys.
  return spec.isPaged() ? getPageTile(std::lcm(kTileRows, schedule.getPvKeys()))
                        : -1;
}

/// The scores of `count` rows from `row` on with all keys of a head, by tiles
/// of 16 keys. Keys that fill no tile, and those that tiles cannot read, are
/// copied and padded with zeros.
void SplitKVKernel::scoreRowsByTiles(Map &map, Value base, Value row,
                                     int64_t count) {
  packTileQueries(map, row, count);
  const SpecOperand &keys = *map.k.spec;
  Value stride = map.k.stride(2), depth = b.roundUp(sizes.headDim, kTileDepth);
  auto rowOf = [&](Value key) {
    if (spec.isPaged())
      return v.pagedRow(keys, base, batch, b.add(begin, key));
    return b.at(base, keys.element, b.mul(key, stride));
  };
  FewScores shape;
  shape.rows = count;
  if (spec.headDim.isStatic())
    shape.columns = llvm::alignTo(spec.headDim.value, 2);
  Value ahead;
  if (!spec.isPaged())
    ahead = getBytesAhead(map.k, sizes.headDim);
  shape.prefetches = static_cast<bool>(ahead);
  LLVM::LLVMFuncOp kernel = getTileFewScoresKernel(b, module, shape, atom);
  // `count` keys from `key` on, which lie from `from` on.
  auto score = [&](Value from, Value keyStride, Value key, Value count,
                   Value ahead) {
    Value to =
        b.at(getScores(map, row), b.f32, getPosition(map, key, kTileRows));
    LLVM::CallOp::create(b, kernel,
                         ValueRange{from, keyStride, s.queries, depth, count,
                                    ahead, s.tileSums, to,
                                    b.mul(map.rows, b.lanes)});
  };
  const int64_t inPlace = getKeysInPlace(keys);
  Value done = b.index(0), whole = b.mul(b.div(n, kTileRows), kTileRows);
  if (inPlace > 0)
    b.loop(done, whole, inPlace, [&](Value key) {
      score(rowOf(key), stride, key, b.min(b.sub(whole, key), b.index(inPlace)),
            b.index(0));
    });
  else if (inPlace < 0) {
    auto all = [&] {
      score(rowOf(done), stride, done, whole, ahead ? ahead : b.index(0));
    };
    auto inParts = [&] {
      const int64_t part = llvm::alignTo(schedule.getPrefetchRows(), kTileRows);
      b.loop(done, whole, part, [&](Value key) {
        Value count = b.min(b.sub(whole, key), b.index(part));
        prefetchApart(map.k, base, sizes.headDim, key, count);
        score(rowOf(key), stride, key, count, b.index(0));
      });
    };
    Value hasGaps = findGaps(map.k, sizes.headDim);
    if (!hasGaps)
      all();
    else if (KernelBuilder::known(hasGaps))
      inParts();
    else
      b.ifElse(hasGaps, inParts, all);
  }
  if (inPlace)
    done = whole;
  b.loop(done, n, kTileRows, [&](Value first) {
    auto keyOf = [&](Value key) { return rowOf(b.add(first, key)); };
    Value step = keys.hasUnitColumns() ? Value() : map.k.stride(3);
    packTileRows(b, {keyOf, sizes.headDim, step},
                 b.min(b.sub(n, first), b.index(kTileRows)), depth, s.keyPanel);
    score(s.keyPanel, depth, first, b.index(kTileRows), b.index(0));
  });
}
