//===- PrefillTiles.cpp - a block of queries by matrix tiles --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PairedNumbers.h"
#include "PrefillKernel.h"
#include "TileBuilder.h"
#include "TileKernels.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

bool PrefillKernel::readsKeyTiles(const AttentionSpec &spec) {
  return spec.headDim.isStatic() && spec.headDim.value % kTileDepth == 0;
}

/// `count` keys from `first` on, as rows of whole tiles with zeros behind the
/// last column and the last key.
void PrefillKernel::packKeyTiles(int map, Value first, Value count) {
  Value stride = v.stride(map ? spec.k2 : spec.k1, 2);
  auto rowOf = [&](Value key) {
    return b.at(keyBase[map], atom.getNumber(b),
                b.mul(b.add(first, key), stride));
  };
  packTileRows(b, {rowOf, headDim, /*columnStride=*/Value()}, count,
               b.roundUp(headDim, kTileDepth), s.keyPanel);
}

void PrefillKernel::scoreTiles(int map, const KvBlock &kvBlock, Value scores) {
  Value depth = b.roundUp(headDim, kTileDepth);
  Value whole = b.mul(b.div(kvBlock.n, kTileRows), kTileRows);
  Value rows, stride, tail;
  if (readsKeyTiles(spec)) {
    stride = v.stride(map ? spec.k2 : spec.k1, 2);
    rows = b.at(keyBase[map], atom.getNumber(b), b.mul(kvBlock.first, stride));
    tail = s.keyPanel;
    b.ifThen(b.less(whole, kvBlock.n), [&] {
      packKeyTiles(map, b.add(kvBlock.first, whole), b.sub(kvBlock.n, whole));
    });
  } else {
    packKeyTiles(map, kvBlock.first, kvBlock.n);
    rows = s.keyPanel;
    stride = depth;
    tail = b.at(s.keyPanel, atom.getNumber(b), b.mul(whole, depth));
  }
  forVectors([&](Value lane, int64_t width) {
    LLVM::CallOp::create(
        b, getTileScoresKernel(b, module, schedule, width, atom),
        ValueRange{rows, stride, b.at(s.queries[map], b.i32, lane), depth,
                   kvBlock.n, tail, b.at(scores, b.f32, lane),
                   b.at(s.newMaxima, b.f32, lane)});
  });
}

void PrefillKernel::combineTiles(Value e1, Value e2, Value factor1,
                                 Value factor2, Value n) {
  auto kernel = getTileCombineKernel(b, module, schedule, atom);
  forEachVector([&](Value lane) {
    Value plane = b.mul(lane, schedule.getKvBlockSize());
    LLVM::CallOp::create(
        b, kernel,
        ValueRange{b.at(e1, b.i32, lane), b.at(e2, b.i32, lane),
                   b.at(factor1, b.f32, lane), b.at(factor2, b.f32, lane), n,
                   b.at(s.probabilities, atom.getNumber(b), plane)});
  });
}

void PrefillKernel::multiplyByTiles(Value p, Value n, Value first, Value out,
                                    bool finite) {
  Value values = s.valuePanel;
  if (finite)
    static_cast<const PairedNumbers &>(atom).packValues(
        v, valueBase, first, n, valueDim, values, s.valuePanelStride, finite);
  else
    values = getValueRows(first, n).first;
  RowRange range = getRowRange(n, first);
  auto call = [&](int64_t tiles, Value begin, Value end) {
    LLVM::CallOp::create(
        b, getTileProductKernel(b, module, schedule, tiles, atom),
        ValueRange{p, values, s.valuePanelStride, out, s.valuePanelStride,
                   begin, end, s.valuePanelStride, n, range.low, range.lowSlope,
                   range.high, range.highSlope});
  };
  const int64_t tiles = schedule.getPv().height / kTileRows;
  Value end = b.mul(vectors, kTileRows);
  Value whole = b.mul(b.div(vectors, tiles), schedule.getPv().height);
  call(tiles, b.index(0), whole);
  if (tiles > 1)
    call(1, whole, end);
}

/// What is not finite counts as 0 in the tiles, and is then added to the rows
/// that see it.
void PrefillKernel::multiplyTilesCarefully(Value p, Value n, Value first,
                                           Value out,
                                           ArrayRef<Value> evidence) {
  multiplyByTiles(p, n, first, out, /*finite=*/true);
  Value whole = b.mul(b.div(valueDim, b.lanes), b.lanes);
  Value rest = b.sub(valueDim, whole);
  Value mask = b.firstLanes(rest);
  b.loop(n, [&](Value key) {
    Value from = b.at(valueBase, spec.v.element,
                      b.mul(b.add(first, key), v.stride(spec.v, 2)));
    Value tile = b.mul(b.div(key, kTileDepth), kTileRows * kTileDepth);
    Value column = b.rem(key, b.index(kTileDepth));
    b.ifThen(hasNonFinite(b.index(1), b.add(first, key)), [&] {
      b.loop(rows, [&](Value row) {
        b.ifThen(isVisible(evidence, row, key), [&] {
          Value plane = b.mul(b.div(row, kTileRows),
                              kTileRows * schedule.getKvBlockSize());
          Value inTile = b.mul(b.rem(row, b.index(kTileRows)), kTileDepth);
          Value at = b.add(b.add(plane, tile), b.add(inTile, column));
          Value weight = b.splat(b.loadWideScalar(p, atom.getNumber(b), at));
          Value to = b.at(out, b.f32, b.mul(row, s.valuePanelStride));
          auto add = [&](Value c, Value mask, Value count) {
            Value x = loadValues(from, c, mask, count);
            Value before = b.load(b.vector, to, c);
            Value nothing = b.mulf(x, b.zero());
            Value isFinite = arith::CmpFOp::create(b, arith::CmpFPredicate::ORD,
                                                   nothing, nothing);
            b.store(b.select(isFinite, before, b.fma(weight, x, before)), to,
                    c);
          };
          b.loop(b.index(0), whole, b.lanes,
                 [&](Value c) { add(c, Value(), b.index(b.lanes)); });
          if (!spec.valueDim.isStatic() || spec.valueDim.value % b.lanes)
            b.ifThen(b.less(b.index(0), rest), [&] { add(whole, mask, rest); });
        });
      });
    });
  });
}
