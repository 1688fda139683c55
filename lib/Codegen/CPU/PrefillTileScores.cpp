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

/// `count` rows from `first` on, as rows of whole tiles with zeros behind the
/// last column and the last row.
void PrefillScoring::packTiles(const TileRows &rows, Value first, Value count) {
  Value stride = v.stride(rows.operand, 2);
  auto rowOf = [&](Value row) {
    return b.at(rows.base, atom.getNumber(b), b.mul(b.add(first, row), stride));
  };
  packTileRows(b, {rowOf, rows.columns, /*columnStride=*/Value()}, count,
               b.roundUp(rows.columns, kTileDepth), rows.panel);
}

void PrefillScoring::multiplyTileRows(const PrefillItem &item,
                                      const TileRows &rows,
                                      const KvBlock &kvBlock, Value queries,
                                      Value out, Value maxima) {
  Value depth = b.roundUp(rows.columns, kTileDepth);
  Value whole = b.mul(b.div(kvBlock.n, kTileRows), kTileRows);
  Value first, stride, tail;
  if (readsTiles(rows.known)) {
    stride = v.stride(rows.operand, 2);
    first = b.at(rows.base, atom.getNumber(b), b.mul(kvBlock.first, stride));
    tail = rows.panel;
    b.ifThen(b.less(whole, kvBlock.n), [&] {
      packTiles(rows, b.add(kvBlock.first, whole), b.sub(kvBlock.n, whole));
    });
  } else {
    packTiles(rows, kvBlock.first, kvBlock.n);
    first = rows.panel;
    stride = depth;
    tail = b.at(rows.panel, atom.getNumber(b), b.mul(whole, depth));
  }
  forVectors(item, [&](Value lane, int64_t width) {
    auto kernel =
        getTileScoresKernel(b, module, schedule, width, atom,
                            /*keepsMaximum=*/static_cast<bool>(maxima));
    Value scores = b.at(out, b.f32, lane);
    LLVM::CallOp::create(
        b, kernel,
        ValueRange{first, stride, b.at(queries, b.i32, lane), depth, kvBlock.n,
                   tail, scores, maxima ? b.at(maxima, b.f32, lane) : scores});
  });
}
