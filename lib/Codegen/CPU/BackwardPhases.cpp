//===- BackwardPhases.cpp - gradients of a block of keys ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BackwardPhases.h"

#include "BackwardMicroKernels.h"
#include "MicroKernels.h"
#include "PairedNumbers.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

void BackwardPhases::byHidden(const KvBlock &kvBlock,
                              function_ref<void(bool hidden)> emit) {
  if (attention.editsEveryScore())
    emit(/*hidden=*/true);
  else if (attention.hasPartialTiles())
    b.ifElse(
        kvBlock.partial, [&] { emit(/*hidden=*/true); },
        [&] { emit(/*hidden=*/false); });
  else
    emit(/*hidden=*/false);
}

SmallVector<Value> BackwardPhases::updateFactors(const PrefillItem &item,
                                                 const BackwardLayout &s,
                                                 Value number) {
  scoring.updateFactors(item, s, number, s.inverses);
  return getMapValues(s.factors);
}

//===----------------------------------------------------------------------===//
// Between products
//===----------------------------------------------------------------------===//

void BackwardPhases::multiplyValues(const PrefillItem &item,
                                    const BackwardLayout &s,
                                    const ValueHead &head,
                                    const KvBlock &kvBlock, Value position) {
  const SpecOperand &operand = attention.v;
  if (scoring.atom.usesTiles)
    return scoring.multiplyTileRows(
        item,
        {operand, head.base, head.columns, attention.valueDim, s.tiledValues},
        kvBlock, s.laneGradients, getProducts(s, position),
        /*maxima=*/Value());
  Value rows, stride = v.stride(operand, 2);
  if (scoring.atom.readsRows(b, operand))
    rows = b.at(head.base, operand.element, b.mul(kvBlock.first, stride));
  else
    std::tie(rows, stride) =
        values.getValueRows(item, s, {kvBlock, head.base, head.columns});
  Value products = getProducts(s, position);
  scoring.forVectors(item, [&](Value lane, int64_t width) {
    auto kernel = getScoresKernel(b, module, schedule, width, scoring.atom,
                                  /*keepsMaximum=*/false);
    Value out = b.at(products, b.f32, lane);
    LLVM::CallOp::create(
        b, kernel,
        ValueRange{rows, stride, b.at(s.laneGradients, b.f32, lane),
                   sizes.valueDim, kvBlock.n, out, /*maxima=*/out});
  });
}

void BackwardPhases::addRowSums(const PrefillItem &item,
                                const BackwardLayout &s, const KvBlock &kvBlock,
                                Value position, ArrayRef<Value> factors) {
  SmallVector<Value> planes;
  for (int map : attention.maps())
    planes.push_back(scoring.getMapScores(s, map, position).weights);
  planes.push_back(getProducts(s, position));
  llvm::append_range(planes, factors);
  byHidden(kvBlock, [&](bool hidden) {
    scoring.forVectors(item, [&](Value lane, int64_t width) {
      SmallVector<Value> arguments;
      for (Value plane : planes)
        arguments.push_back(b.at(plane, b.f32, lane));
      arguments.push_back(kvBlock.n);
      for (Value sums : getMapValues(s.rowSums))
        arguments.push_back(b.at(sums, b.f32, lane));
      LLVM::CallOp::create(b,
                           getRowSumsKernel(b, module, schedule, width,
                                            attention.maps().size(), hidden),
                           arguments);
    });
  });
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

Value BackwardPhases::hasNonFinite(Value panel, Value rows, Value stride) {
  Value sums = b.loop(b.index(0), b.mul(rows, stride), b.lanes, b.zero(),
                      [&](Value i, ValueRange carried) {
                        return SmallVector<Value>{b.fma(
                            b.load(b.vector, panel, i), b.zero(), carried[0])};
                      })[0];
  Value sum = b.sum(sums);
  return arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, sum, sum);
}

Value BackwardPhases::findSuspects(const PrefillItem &item,
                                   const BackwardLayout &s) {
  if (!mayHide())
    return {};
  Value hasAny = hasNonFinite(s.rowGradients, item.rows, sizes.paddedValueDim);
  for (int map : attention.maps()) {
    Value inQueries;
    if (scoring.atom.scalesQueries) {
      inQueries =
          hasNonFinite(s.queryRows[map], item.rows, sizes.paddedHeadDim);
    } else {
      const SpecOperand &operand = attention.queriesOf(map);
      Value base = v.head(operand, item.batch,
                          map ? item.heads.noise : item.heads.signal);
      inQueries = emitHasNonFinite(v, {operand, base, item.firstRow, item.rows},
                                   cutHead());
    }
    hasAny = arith::OrIOp::create(b, hasAny, inQueries);
  }
  return hasAny;
}

std::pair<Value, Value>
BackwardPhases::getContractedKeys(const PrefillItem &item,
                                  const BackwardLayout &s, int map, Value base,
                                  const KvBlock &kvBlock, bool finite) {
  if (scoring.atom.pack == 1)
    return scoring.getKeyRows(item, s, map, base, kvBlock);
  static_cast<const PairedNumbers &>(scoring.atom)
      .packValues(v, attention.keysOf(map), base, kvBlock.first, kvBlock.n,
                  sizes.headDim, s.packedKeys, sizes.paddedHeadDim, finite);
  return {s.packedKeys, sizes.paddedHeadDim};
}

void BackwardPhases::addLeftOut(const LeftOut &rows, bool areKeys,
                                const Columns &columns, Value coefficients,
                                Value others, Value out, Value stride) {
  Type number = scoring.atom.getNumber(b);
  b.loop(rows.count, [&](Value row) {
    b.ifThen(rows.hasNonFinite(row), [&] {
      b.loop(others, [&](Value other) {
        Value key = areKeys ? row : other, lane = areKeys ? other : row;
        Value weight =
            b.loadWideScalar(coefficients, number,
                             b.add(b.mul(key, schedule.getQBlockSize()), lane));
        Value counts = arith::CmpFOp::create(
            b, arith::CmpFPredicate::UNE, weight, emitConstant(b, b.f32, 0.0f));
        b.ifThen(counts, [&] {
          addNonFinite(
              b, columns, b.splat(weight),
              b.at(out, b.f32, b.mul(other, stride)),
              [&](const ColumnVector &c) { return rows.load(row, c); });
        });
      });
    });
  });
}

void BackwardPhases::addLeftOut(const OperandRows &rows, bool areKeys,
                                Value coefficients, Value others, Value out) {
  const Columns columns = cutHead();
  auto hasNonFinite = [&](Value row) {
    return emitHasNonFinite(
        v, {rows.operand, rows.base, b.add(rows.first, row), b.index(1)},
        columns);
  };
  auto load = [&](Value row, const ColumnVector &c) {
    Value at = b.mul(b.add(rows.first, row), v.stride(rows.operand, 2));
    return loadColumns(v, rows.operand,
                       b.at(rows.base, rows.operand.element, at), c);
  };
  addLeftOut({rows.n, hasNonFinite, load}, areKeys, columns, coefficients,
             others, out, sizes.paddedHeadDim);
}

void BackwardPhases::addProducts(const PrefillItem &item,
                                 const BackwardLayout &s, const KeyHeads &heads,
                                 const KvBlock &kvBlock, Value position,
                                 const BlockSums &sums, bool careful) {
  const ProductAtom &atom = scoring.atom;
  const bool packed = atom.pack > 1;
  const bool leavesOut = careful && atom.usesTiles;
  careful &= !atom.usesTiles;
  auto toKeys = [&](Value sums, Value stride) {
    return b.at(sums, b.f32, b.mul(kvBlock.first, stride));
  };
  auto addToKeys = [&](Value p, Value rows, Value stride, Value columns,
                       const SpecSize &known, Value out) {
    if (!out)
      return;
    emitKeyProduct(b, module, schedule, atom,
                   {p,
                    {rows, stride, columns, known, /*padded=*/true},
                    toKeys(out, stride),
                    stride,
                    item.rows,
                    kvBlock.n},
                   careful);
  };
  addToKeys(packed ? s.roundedRows[0] : getProducts(s, position),
            s.packedGradients, sizes.paddedValueDim, sizes.valueDim,
            attention.valueDim, sums.values);
  if (leavesOut && sums.values) {
    Value stride = sizes.paddedValueDim;
    auto rowOf = [&](Value row) {
      return b.at(s.rowGradients, b.f32, b.mul(row, stride));
    };
    auto isSuspect = [&](Value row) {
      return hasNonFinite(rowOf(row), b.index(1), stride);
    };
    auto load = [&](Value row, const ColumnVector &c) {
      return b.load(b.vector, rowOf(row), c.first);
    };
    addLeftOut({item.rows, isSuspect, load}, /*areKeys=*/false, cutValues(),
               s.roundedRows[0], kvBlock.n, toKeys(sums.values, stride),
               stride);
  }
  for (int map : attention.maps()) {
    Value gradients = scoring.getMapScores(s, map, position).weights;
    addToKeys(packed ? s.roundedRows[1 + map] : gradients, s.queryRows[map],
              sizes.paddedHeadDim, sizes.headDim, attention.headDim,
              sums.keys[map]);
    if (leavesOut && sums.keys[map]) {
      const SpecOperand &operand = attention.queriesOf(map);
      Value base = v.head(operand, item.batch,
                          map ? item.heads.noise : item.heads.signal);
      addLeftOut({operand, base, item.firstRow, item.rows}, /*areKeys=*/false,
                 s.roundedRows[1 + map], kvBlock.n,
                 toKeys(sums.keys[map], sizes.paddedHeadDim));
    }
    if (!spec.dQ[map].present())
      continue;
    auto [keys, stride] = getContractedKeys(item, s, map, heads.base[map],
                                            kvBlock, /*finite=*/leavesOut);
    if (packed)
      gradients = s.roundedPairs[map];
    if (atom.usesTiles) {
      // The panel of weights is free: the output has been made.
      emitTileWeights(scoring, item, gradients, kvBlock.n, s.probabilities);
      gradients = s.probabilities;
    }
    emitQueryProduct(
        b, module, schedule, atom,
        {gradients,
         {keys, stride, sizes.headDim, attention.headDim, /*padded=*/packed},
         s.queryGradients[map],
         sizes.paddedHeadDim,
         item.rows,
         kvBlock.n},
        scoring.getRowRange(item, kvBlock), careful);
    if (leavesOut)
      addLeftOut(
          {attention.keysOf(map), heads.base[map], kvBlock.first, kvBlock.n},
          /*areKeys=*/true, s.roundedRows[1 + map], item.rows,
          s.queryGradients[map]);
  }
}

/// The gradient of a hidden score is 0, but 0 times Inf or NaN is not: where
/// some scores are hidden, and keys, queries or dX are not finite, products of
/// 0 are left out. Matrix tiles cannot do so: they have 0 in place of numbers
/// that are not finite, of queries and dX in every KV block, and the products
/// of those numbers are added afterwards.
void BackwardPhases::addGradients(const PrefillItem &item,
                                  const BackwardLayout &s,
                                  const KeyHeads &heads, const KvBlock &kvBlock,
                                  Value position, ArrayRef<Value> factors,
                                  const BlockSums &sums, Value suspect) {
  const bool capped = attention.keepsSoftcapSlopes;
  SmallVector<Value> planes, slopes;
  for (int map : attention.maps()) {
    const MapScores place = scoring.getMapScores(s, map, position);
    planes.push_back(place.weights);
    slopes.push_back(capped ? place.slopes : place.weights);
  }
  Value products = getProducts(s, position);
  byHidden(kvBlock, [&](bool hidden) {
    scoring.forVectors(item, [&](Value lane, int64_t width) {
      auto at = [&](Value base) { return b.at(base, b.f32, lane); };
      SmallVector<Value> arguments;
      for (Value plane : planes)
        arguments.push_back(at(plane));
      arguments.push_back(at(products));
      for (Value factor : factors)
        arguments.push_back(at(factor));
      if (attention.hasSecondMap())
        arguments.push_back(at(s.lambda));
      for (Value sums : getMapValues(s.rowSums))
        arguments.push_back(at(sums));
      arguments.push_back(kvBlock.n);
      for (Value slope : slopes)
        arguments.push_back(at(slope));
      if (scoring.atom.pack > 1) {
        arguments.push_back(
            b.at(s.roundedRows[0], scoring.atom.getNumber(b), lane));
        for (int map : attention.maps())
          arguments.push_back(
              b.at(s.roundedRows[1 + map], scoring.atom.getNumber(b), lane));
        for (Value pairs : getMapValues(s.roundedPairs))
          arguments.push_back(at(pairs));
      }
      LLVM::CallOp::create(b,
                           getScoreGradientsKernel(b, module, schedule, width,
                                                   attention.maps().size(),
                                                   scoring.atom, hidden,
                                                   capped),
                           arguments);
    });
  });
  auto add = [&](bool careful) {
    addProducts(item, s, heads, kvBlock, position, sums, careful);
  };
  if (!mayHide())
    return add(/*careful=*/false);
  Value n = kvBlock.n, none = b.index(0);
  if (!attention.addsBias()) {
    n = b.select(kvBlock.partial, n, none);
    if (!scoring.atom.usesTiles)
      suspect = b.both(suspect, kvBlock.partial);
  }
  for (int map : attention.maps())
    suspect = arith::OrIOp::create(
        b, suspect,
        emitHasNonFinite(
            v, {attention.keysOf(map), heads.base[map], kvBlock.first, n},
            cutHead()));
  b.ifElse(
      suspect, [&] { add(/*careful=*/true); }, [&] { add(/*careful=*/false); });
}

void BackwardPhases::clear(Value panel, Value rows, Value stride) {
  b.loop(b.index(0), b.mul(rows, stride), b.lanes,
         [&](Value i) { b.store(b.zero(), panel, i); });
}
