//===- TileFewScores.cpp - scores of few queries by matrix tiles ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TileKernels.h"

#include "TileBuilder.h"
#include "Transpose.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Columns up to which each step has its own code; and how many tiles of
/// queries stay in tile registers, beside a tile of keys and one of sums.
static constexpr int64_t kUnrolledColumns = 256, kKeptTiles = 4;

namespace {
/// Emits the steps along a key's columns.
class RowScores {
public:
  RowScores(KernelBuilder &b, Type number, const FewScores &shape,
            ValueRange args)
      : b(b), number(number), shape(shape), tiles(b, number),
        keyStride(args[1]), queries(args[2]), ahead(args[5]), depth(args[3]) {
    if (!shape.columns)
      return;
    rest = *shape.columns % kTileDepth;
    whole = *shape.columns - rest;
    depth = b.index(whole);
    if (whole > kUnrolledColumns ||
        llvm::divideCeil(*shape.columns, kTileDepth) >
            static_cast<uint64_t>(kKeptTiles))
      return;
    for (int64_t c = 0; c < *shape.columns; c += kTileDepth)
      kept.push_back(loadQueries(b.index(c), widthAt(c)));
  }

  /// The sums of 16 keys from `rows` on.
  Value emit(Value rows) {
    Value sums = tiles.zeroSums(shape.rows);
    if (shape.columns && whole <= kUnrolledColumns) {
      for (int64_t c = 0; c < *shape.columns; c += kTileDepth)
        sums = step(rows, b.index(c), widthAt(c), sums,
                    kept.empty() ? Value() : kept[c / kTileDepth]);
      return sums;
    }
    sums = b.loop(b.index(0), depth, kTileDepth, sums,
                  [&](Value c, ValueRange carried) {
                    return SmallVector<Value>{
                        step(rows, c, kTileDepth, carried[0], Value())};
                  })[0];
    return rest ? step(rows, depth, rest, sums, Value()) : sums;
  }

private:
  int64_t widthAt(int64_t column) const {
    return column < whole ? kTileDepth : rest;
  }

  Value loadQueries(Value c, int64_t width) {
    Value pairs = b.at(queries, b.i32, b.mul(b.div(c, 2), shape.rows));
    return tiles.loadFactor(pairs, b.index(2 * shape.rows), width / 2,
                            2 * shape.rows);
  }

  Value step(Value rows, Value c, int64_t width, Value sums, Value kept) {
    Value from = b.at(rows, number, c);
    if (shape.prefetches)
      for (int64_t row = 0; row < kTileRows; ++row)
        b.prefetch(from, b.add(b.mul(keyStride, 2 * row), ahead));
    Value keys = tiles.loadFactor(from, keyStride, kTileRows, width);
    return tiles.multiplyAdd(keys, kept ? kept : loadQueries(c, width), sums);
  }

  KernelBuilder &b;
  const Type number;
  const FewScores &shape;
  TileBuilder tiles;
  Value keyStride, queries, ahead, depth;
  /// Columns in whole tiles, and those behind them.
  int64_t whole = 0, rest = 0;
  SmallVector<Value> kept;
};
} // namespace

LLVM::LLVMFuncOp
mlir::diffattn::getTileFewScoresKernel(KernelBuilder &b, ModuleOp module,
                                       const FewScores &shape,
                                       const ProductAtom &atom) {
  const Type number = atom.getNumber(b);
  std::string name =
      b.kernelName("tile_few_scores_" + Twine(shape.rows) + "x" +
                   (shape.columns ? Twine(*shape.columns) : Twine("n")) +
                   atom.suffix + (shape.prefetches ? "_ahead" : ""));
  Type p = b.pointer, i = b.i64;
  return b.getOrEmitFunction(
      module, name, {p, i, p, i, i, i, p, p, i}, [&](ValueRange args) {
        Value keys = args[0], n = args[4], scratch = args[6], scores = args[7],
              stride = args[8];
        // A column of sums is a row of scores already.
        const int64_t width = llvm::PowerOf2Ceil(shape.rows);
        auto scoresOf = [&](Value key) {
          return b.at(scores, b.f32, b.mul(b.div(key, kTileRows), stride));
        };
        RowScores rows(b, number, shape, args);
        TileBuilder tiles(b, number);
        b.loop(b.index(0), n, kTileRows, [&](Value key) {
          Value out = width == 1 ? scoresOf(key)
                                 : b.at(scratch, b.f32, b.mul(key, width));
          tiles.storeSums(rows.emit(b.at(keys, number, b.mul(key, args[1]))),
                          out, b.index(width));
        });
        if (width == 1)
          return;
        // Apart from the tiles, so that nothing waits for a tile that is being
        // stored.
        b.loop(b.index(0), n, kTileRows, [&](Value key) {
          Value from = b.at(scratch, b.f32, b.mul(key, width));
          SmallVector<Value> vectors;
          for (int64_t v = 0; v < width; ++v)
            vectors.push_back(b.load(b.vector, from, b.index(v * kTileLanes)));
          Value to = scoresOf(key);
          SmallVector<Value> lanes = emitTransposeRows(b, vectors);
          for (int64_t row = 0; row < shape.rows; ++row)
            b.store(lanes[row], to, b.index(row * kTileLanes));
        });
      });
}
