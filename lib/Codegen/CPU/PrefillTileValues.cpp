//===- PrefillTileValues.cpp - times the values, by matrix tiles ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PairedNumbers.h"
#include "PrefillValues.h"
#include "TileBuilder.h"
#include "TileKernels.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

void PrefillValues::combineTiles(const PrefillItem &item,
                                 const PrefillLayout &s,
                                 const Combination &maps, Value n) {
  if (spec.keepsWideExponentials) {
    // Pairs lie behind the tiles that are made from them.
    const int64_t plane = schedule.getKvBlockSize() * schedule.getQBlockSize();
    Value pairs = b.at(s.probabilities, b.i32, b.index(plane / 2));
    combineRegisters(item, maps, n, pairs);
    emitTileWeights(scoring, item, pairs, n, s.probabilities);
    return;
  }
  if (!maps.e2)
    return emitTileWeights(scoring, item, maps.e1, n, s.probabilities);
  auto kernel = getTileCombineKernel(b, module, schedule, atom);
  scoring.forEachVector(item, [&](Value lane) {
    Value plane = b.mul(lane, schedule.getKvBlockSize());
    LLVM::CallOp::create(
        b, kernel,
        ValueRange{b.at(maps.e1, b.i32, lane), b.at(maps.e2, b.i32, lane),
                   b.at(maps.factor1, b.f32, lane),
                   b.at(maps.factor2, b.f32, lane), n,
                   b.at(s.probabilities, atom.getNumber(b), plane)});
  });
}

void mlir::diffattn::emitTileWeights(PrefillScoring &scoring,
                                     const PrefillItem &item, Value pairs,
                                     Value n, Value tiles) {
  KernelBuilder &b = scoring.b;
  auto kernel =
      getTileWeightsKernel(b, scoring.module, scoring.schedule, scoring.atom);
  scoring.forEachVector(item, [&](Value lane) {
    Value plane = b.mul(lane, scoring.schedule.getKvBlockSize());
    LLVM::CallOp::create(
        b, kernel,
        ValueRange{b.at(pairs, b.i32, lane), n,
                   b.at(tiles, scoring.atom.getNumber(b), plane)});
  });
}

/// Values that are not finite count as 0 in the tiles, and are then added to
/// the rows that see them.
void PrefillValues::multiplyTilesCarefully(const PrefillItem &item,
                                           const PrefillLayout &s,
                                           const ValueBlock &block,
                                           const ValueProduct &product) {
  static_cast<const PairedNumbers &>(atom).packValues(
      v, spec.v, block.base, block.keys.first, block.keys.n, block.columns,
      s.valuePanel, s.valuePanelStride, /*finite=*/true);
  multiplyRows(item, block, product, s.valuePanel, s.valuePanelStride);
  Columns columns = cutColumns(b, spec.valueDim, block.columns);
  b.loop(block.keys.n, [&](Value key) {
    Value from = getRow(block, key);
    Value tile = b.mul(b.div(key, kTileDepth), kTileRows * kTileDepth);
    Value column = b.rem(key, b.index(kTileDepth));
    ValueBlock one = block;
    one.keys.n = b.index(1);
    one.keys.first = b.add(block.keys.first, key);
    b.ifThen(hasNonFinite(one), [&] {
      b.loop(item.rows, [&](Value row) {
        b.ifThen(isVisible(product, row, key), [&] {
          Value plane = b.mul(b.div(row, kTileRows),
                              kTileRows * schedule.getKvBlockSize());
          Value inTile = b.mul(b.rem(row, b.index(kTileRows)), kTileDepth);
          Value at = b.add(b.add(plane, tile), b.add(inTile, column));
          Value weight =
              b.splat(b.loadWideScalar(product.p, atom.getNumber(b), at));
          Value to = b.at(product.out, b.f32, b.mul(row, s.valuePanelStride));
          addNonFinite(b, columns, weight, to, [&](const ColumnVector &c) {
            return loadColumns(v, spec.v, from, c);
          });
        });
      });
    });
  });
}
