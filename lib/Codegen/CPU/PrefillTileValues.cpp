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
  auto kernel = maps.e2 ? getTileCombineKernel(b, module, schedule, atom)
                        : getTileWeightsKernel(b, module, schedule, atom);
  scoring.forEachVector(item, [&](Value lane) {
    Value plane = b.mul(lane, schedule.getKvBlockSize());
    SmallVector<Value> arguments = {b.at(maps.e1, b.i32, lane)};
    if (maps.e2)
      arguments.append({b.at(maps.e2, b.i32, lane),
                        b.at(maps.factor1, b.f32, lane),
                        b.at(maps.factor2, b.f32, lane)});
    arguments.append({n, b.at(s.probabilities, atom.getNumber(b), plane)});
    LLVM::CallOp::create(b, kernel, arguments);
  });
}

void PrefillValues::callTileProducts(const PrefillItem &item,
                                     const PrefillLayout &s,
                                     const ValueBlock &block,
                                     const ValueProduct &product,
                                     Value values) {
  RowRange range = scoring.getRowRange(item, block.keys);
  auto call = [&](int64_t tiles, Value begin, Value end) {
    LLVM::CallOp::create(
        b, getTileProductKernel(b, module, schedule, tiles, atom),
        ValueRange{product.p, values, s.valuePanelStride, product.out,
                   s.valuePanelStride, begin, end, s.valuePanelStride,
                   block.keys.n, range.low, range.lowSlope, range.high,
                   range.highSlope});
  };
  const int64_t tiles = schedule.getPv().height / kTileRows;
  Value end = b.mul(item.vectors, kTileRows);
  Value whole = b.mul(b.div(item.vectors, tiles), schedule.getPv().height);
  call(tiles, b.index(0), whole);
  if (tiles > 1)
    call(1, whole, end);
}

void PrefillValues::multiplyTiles(const PrefillItem &item,
                                  const PrefillLayout &s,
                                  const ValueBlock &block,
                                  const ValueProduct &product) {
  Value values = getValueRows(item, s, block).first;
  callTileProducts(item, s, block, product, values);
}

/// Adds `weight` times the values at `from` that are not finite to the row at
/// `to`.
void PrefillValues::addNonFinite(const Columns &columns, Value weight,
                                 Value from, Value to) {
  forColumns(b, columns, [&](const ColumnVector &c) {
    Value x = loadColumns(v, spec.v, from, c);
    Value before = b.load(b.vector, to, c.first);
    Value nothing = b.mulf(x, b.zero());
    Value isFinite =
        arith::CmpFOp::create(b, arith::CmpFPredicate::ORD, nothing, nothing);
    b.store(b.select(isFinite, before, b.fma(weight, x, before)), to, c.first);
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
  callTileProducts(item, s, block, product, s.valuePanel);
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
          addNonFinite(columns, weight, from, to);
        });
      });
    });
  });
}
