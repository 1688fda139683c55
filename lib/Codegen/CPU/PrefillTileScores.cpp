//===- PrefillTileScores.cpp - scores of a block by matrix tiles ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillScoring.h"
#include "TileBuilder.h"
#include "TileKernels.h"

using namespace mlir;
using namespace mlir::diffattn;

/// `count` keys from `first` on, as rows of whole tiles with zeros behind the
/// last column and the last key.
void PrefillScoring::packKeyTiles(const PrefillItem &item,
                                  const ScoringLayout &s, int map, Value base,
                                  Value first, Value count) {
  Value stride = v.stride(spec.keysOf(map), 2), columns = item.sizes.headDim;
  auto rowOf = [&](Value key) {
    return b.at(base, atom.getNumber(b), b.mul(b.add(first, key), stride));
  };
  packTileRows(b, {rowOf, columns, /*columnStride=*/Value()}, count,
               b.roundUp(columns, kTileDepth), s.keyPanel);
}

void PrefillScoring::scoreTiles(const PrefillItem &item, const ScoringLayout &s,
                                const KvBlock &kvBlock, Value base,
                                const MapScores &place) {
  const int map = place.map;
  Value depth = b.roundUp(item.sizes.headDim, kTileDepth);
  Value whole = b.mul(b.div(kvBlock.n, kTileRows), kTileRows);
  Value rows, stride, tail;
  if (readsKeyTiles(spec)) {
    stride = v.stride(spec.keysOf(map), 2);
    rows = b.at(base, atom.getNumber(b), b.mul(kvBlock.first, stride));
    tail = s.keyPanel;
    b.ifThen(b.less(whole, kvBlock.n), [&] {
      packKeyTiles(item, s, map, base, b.add(kvBlock.first, whole),
                   b.sub(kvBlock.n, whole));
    });
  } else {
    packKeyTiles(item, s, map, base, kvBlock.first, kvBlock.n);
    rows = s.keyPanel;
    stride = depth;
    tail = b.at(s.keyPanel, atom.getNumber(b), b.mul(whole, depth));
  }
  forVectors(item, [&](Value lane, int64_t width) {
    LLVM::CallOp::create(
        b, getTileScoresKernel(b, module, schedule, width, atom),
        ValueRange{rows, stride, b.at(s.queries[map], b.i32, lane), depth,
                   kvBlock.n, tail, b.at(place.scores, b.f32, lane),
                   b.at(s.newMaxima, b.f32, lane)});
  });
}
