//===- PrefillValues.cpp - both maps combined, times the values -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PrefillValues.h"

#include "PackedValues.h"
#include "RowSums.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

ValueHead mlir::diffattn::findValueHead(KernelValues &v,
                                        const PrefillItem &item,
                                        Value valueDim) {
  const AttentionSpec &spec = v.spec;
  return {findHead(v, item, spec.v, spec.pages[2], item.heads.value), valueDim};
}

//===----------------------------------------------------------------------===//
// A KV block
//===----------------------------------------------------------------------===//

void PrefillValues::clear(const PrefillLayout &s) {
  Value count = b.mul(s.valuePanelStride, productPanelRows(schedule));
  for (Value panel : s.output)
    if (panel)
      b.loop(b.index(0), count, b.lanes,
             [&](Value i) { b.store(b.zero(), panel, i); });
}

void PrefillValues::combine(const PrefillItem &item, const PrefillLayout &s,
                            const Combination &maps, Value n) {
  if (atom.usesTiles)
    combineTiles(item, s, maps, n);
  else
    combineRegisters(item, maps, n, s.probabilities);
}

void PrefillValues::combineRegisters(const PrefillItem &item,
                                     const Combination &maps, Value n,
                                     Value out) {
  scoring.forVectors(item, [&](Value lane, int64_t width) {
    auto kernel = maps.e2
                      ? getCombineKernel(b, module, schedule, width, atom)
                      : getPackWeightsKernel(b, module, schedule, width, atom);
    SmallVector<Value> arguments = {b.at(maps.e1, b.f32, lane)};
    if (maps.e2)
      arguments.append({b.at(maps.e2, b.f32, lane),
                        b.at(maps.factor1, b.f32, lane),
                        b.at(maps.factor2, b.f32, lane)});
    arguments.append({n, b.at(out, b.f32, lane)});
    LLVM::CallOp::create(b, kernel, arguments);
  });
}

ValueBlock PrefillValues::getValueBlock(const PrefillItem &item,
                                        const PrefillLayout &s,
                                        const ValueHead &head,
                                        const KvBlock &keys) {
  Value base = head.base;
  if (spec.isPaged())
    base = copyPages(v, item, spec.pages[2], base, keys, head.columns,
                     s.pagedValues);
  return {keys, base, head.columns};
}

void PrefillValues::combineKvBlock(const PrefillItem &item,
                                   const PrefillLayout &s,
                                   const ValueHead &head,
                                   const KeyPartition &keys, Value number) {
  KvBlock kvBlock = scoring.getKvBlock(s, keys, number);
  scoring.updateFactors(item, s, number, s.sums);
  Value position = b.sub(kvBlock.first, keys.visible.low);
  Value e1 = scoring.getMapScores(s, 0, position).weights, e2 = e1,
        factor2 = s.newMaxima;
  if (spec.hasSecondMap()) {
    e2 = scoring.getMapScores(s, 1, position).weights;
    factor2 = s.factors[1];
  } else {
    scoring.forEachVector(
        item, [&](Value lane) { b.store(b.zero(), factor2, lane); });
  }
  combine(item, s, {e1, e2, s.factors[0], factor2}, kvBlock.n);
  ValueBlock block = getValueBlock(item, s, head, kvBlock);
  multiply(item, s, block, {s.probabilities, s.output[0], {e1, e2}});
}

void PrefillValues::rescaleOutput(const PrefillItem &item,
                                  const PrefillLayout &s, int map) {
  b.loop(item.rows, [&](Value row) {
    Value factor = b.splat(b.load(b.f32, s.factors[map], row));
    Value out = b.at(s.output[map], b.f32, b.mul(row, s.valuePanelStride));
    b.loop(b.index(0), s.valuePanelStride, b.lanes, [&](Value c) {
      b.store(b.mulf(b.load(b.vector, out, c), factor), out, c);
    });
  });
}

/// The exponentials of a map as they are, in packs.
Value PrefillValues::packWeights(const PrefillItem &item,
                                 const PrefillLayout &s, int map, Value n) {
  Value weights = s.scores[map];
  if (atom.pack == 1)
    return weights;
  if (!spec.hasSecondMap()) {
    combine(item, s, {weights, {}, {}, {}}, n);
    return s.probabilities;
  }
  scoring.forEachVector(item, [&](Value lane) {
    b.store(b.splat(1.0f), s.newMaxima, lane);
    b.store(b.zero(), s.factors[map], lane);
  });
  combine(item, s, {weights, weights, s.newMaxima, s.factors[map]}, n);
  return s.probabilities;
}

void PrefillValues::mergeKvBlock(const PrefillItem &item,
                                 const PrefillLayout &s, const ValueHead &head,
                                 const KeyPartition &keys, Value number) {
  KvBlock kvBlock = scoring.getKvBlock(s, keys, number);
  ValueBlock block = getValueBlock(item, s, head, kvBlock);
  for (int map : spec.maps()) {
    rescaleOutput(item, s, map);
    Value p = packWeights(item, s, map, kvBlock.n);
    multiply(item, s, block, {p, s.output[map], {s.scores[map]}});
  }
}

//===----------------------------------------------------------------------===//
// Values in memory
//===----------------------------------------------------------------------===//

Value PrefillValues::getRow(const ValueBlock &block, Value key) {
  return b.at(block.base, spec.v.element,
              b.mul(b.add(block.keys.first, key), v.stride(spec.v, 2)));
}

std::pair<Value, Value> PrefillValues::getValueRows(const PrefillItem &item,
                                                    const PrefillLayout &s,
                                                    const ValueBlock &block) {
  auto [first, n, partial] = block.keys;
  Value stride = v.stride(spec.v, 2);
  if (atom.readsValues(b, spec.v))
    return {b.at(block.base, atom.getNumber(b), b.mul(first, stride)), stride};
  auto pack = [&, first = first, n = n] {
    atom.packValues(v, spec.v, block.base, first, n, block.columns,
                    s.valuePanel, s.valuePanelStride);
    return s.valuePanel;
  };
  Value packed = context && mayPackValues(spec)
                     ? findPackedValues(v, context, item.batch,
                                        item.heads.value, first, n, pack)
                     : pack();
  return {packed, s.valuePanelStride};
}

Value PrefillValues::hasNonFinite(const ValueBlock &block) {
  return emitHasNonFinite(v,
                          {spec.v, block.base, block.keys.first, block.keys.n},
                          cutColumns(b, spec.valueDim, block.columns));
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// A hidden key has probability 0, but 0 times Inf or NaN would reach rows that
/// do not see it: where some rows see a key and others not, and its values are
/// not finite, only those are added that a row sees.
void PrefillValues::multiply(const PrefillItem &item, const PrefillLayout &s,
                             const ValueBlock &block,
                             const ValueProduct &product) {
  auto plainly = [&] {
    auto [rows, stride] = getValueRows(item, s, block);
    multiplyRows(item, block, product, rows, stride);
  };
  if (!spec.hasPartialTiles() && !spec.addsBias())
    return plainly();
  ValueBlock suspects = block;
  if (!spec.addsBias())
    suspects.keys.n = b.select(block.keys.partial, block.keys.n, b.index(0));
  Value suspect = hasNonFinite(suspects);
  auto carefully = [&] {
    if (atom.usesTiles)
      multiplyTilesCarefully(item, s, block, product);
    else
      multiplyRegistersCarefully(item, s, block, product);
  };
  b.ifElse(suspect, carefully, plainly);
}

void PrefillValues::multiplyRows(const PrefillItem &item,
                                 const ValueBlock &block,
                                 const ValueProduct &product, Value rows,
                                 Value stride) {
  emitQueryProduct(b, module, schedule, atom,
                   {product.p,
                    {rows, stride, block.columns, spec.valueDim,
                     /*padded=*/!atom.readsValues(b, spec.v)},
                    product.out,
                    b.roundUp(block.columns, b.lanes),
                    item.rows,
                    block.keys.n},
                   scoring.getRowRange(item, block.keys));
}

/// Whether the exponentials at `exponentials` give `key` weight in a row.
Value PrefillValues::givesWeight(Value exponentials, Value row, Value key) {
  if (spec.pairsExponentials()) {
    Type i16 = b.getI16Type();
    Value pair = b.add(b.mul(b.div(key, 2), schedule.getQBlockSize()), row);
    Value bits = b.load(i16, exponentials, i16,
                        b.add(b.mul(pair, 2), b.rem(key, b.index(2))));
    Value hidden = arith::ConstantOp::create(b, b.getI16IntegerAttr(0));
    return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, bits, hidden);
  }
  Value at = b.add(b.mul(key, schedule.getQBlockSize()), row);
  return arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                               b.load(b.f32, exponentials, at),
                               emitConstant(b, b.f32, 0.0f));
}

Value PrefillValues::isVisible(const ValueProduct &product, Value row,
                               Value key) {
  Value isVisible = givesWeight(product.evidence.front(), row, key);
  for (Value other : ArrayRef<Value>(product.evidence).drop_front())
    isVisible =
        arith::OrIOp::create(b, isVisible, givesWeight(other, row, key));
  return isVisible;
}

/// `sum` and the products of a pack of keys, of which those count that the row
/// sees.
Value PrefillValues::addVisiblePack(const ValueBlock &block,
                                    const ValueProduct &product, Value row,
                                    Value key, const ColumnVector &columns,
                                    Value sum) {
  const int64_t rowsOfBlock = schedule.getQBlockSize();
  Value n = block.keys.n, any;
  SmallVector<Value> parts;
  for (int64_t i = 0; i < atom.pack; ++i) {
    // A pack that reaches beyond the last key has that key again, hidden.
    Value at = i ? b.min(b.add(key, i), b.add(n, -1)) : key;
    Value sees = isVisible(product, row, at);
    if (i)
      sees = b.both(b.less(b.add(key, i), n), sees);
    any = any ? Value(arith::OrIOp::create(b, any, sees)) : sees;
    Value from = getRow(block, at);
    parts.push_back(
        b.select(sees, loadColumns(v, spec.v, from, columns), b.zero()));
  }
  Value pack = b.div(key, atom.pack);
  Value weight = b.splat(
      atom.loadScalar(b, product.p, b.add(b.mul(pack, rowsOfBlock), row)));
  return b.select(
      any, atom.multiplyAdd(b, weight, atom.makePack(b, parts), sum), sum);
}

/// Adds only keys that a row sees: those of which an exponential is not 0. Each
/// pack of keys is one multiply-add, and the sum of the KV block is added to
/// the output, as in the tiles, so that a row that sees no such value is the
/// same number for number.
void PrefillValues::multiplyRegistersCarefully(const PrefillItem &item,
                                               const PrefillLayout &s,
                                               const ValueBlock &block,
                                               const ValueProduct &product) {
  Columns columns = cutColumns(b, spec.valueDim, block.columns);
  b.loop(item.rows, [&](Value row) {
    Value to = b.at(product.out, b.f32, b.mul(row, s.valuePanelStride));
    forColumns(b, columns, [&](const ColumnVector &c) {
      auto add = [&](Value key, ValueRange sum) {
        return SmallVector<Value>{
            addVisiblePack(block, product, row, key, c, sum[0])};
      };
      Value sum = b.loop(b.index(0), block.keys.n, atom.pack, b.zero(), add)[0];
      b.addTo(to, c.first, sum);
    });
  });
}

//===----------------------------------------------------------------------===//
// After the keys
//===----------------------------------------------------------------------===//

void PrefillValues::finishSums(const PrefillItem &item,
                               const PrefillLayout &s) {
  for (int map : spec.maps()) {
    scoring.forEachVector(item, [&](Value lane) {
      auto loadMaximum = [&] { return b.load(b.vector, s.maxima[map], lane); };
      const FinishedSums sums =
          finishRowSums(v, map, item.heads,
                        {b.load(b.vector, s.sums[map], lane), loadMaximum});
      Value numerator = map ? b.load(b.vector, s.lambda, lane) : b.splat(1.0f);
      if (sums.factor)
        numerator = b.mulf(numerator, sums.factor);
      PolynomialMath math = scoring.lanes();
      b.store(emitPerSum(math, numerator, sums.sum), s.sums[map], lane);
      if (sums.logarithm)
        b.store(sums.logarithm, s.newMaxima, lane);
    });
    ifStoresLogarithms(v, map, item.heads, [&] {
      b.loop(item.rows, [&](Value row) {
        storeLogarithm(v, map, item.batch, item.heads,
                       b.add(item.firstRow, row),
                       b.load(b.f32, s.newMaxima, row));
      });
    });
  }
}

void PrefillValues::finishOnline(const PrefillItem &item,
                                 const PrefillLayout &s) {
  b.loop(item.rows, [&](Value row) {
    Value weights[2], outputs[2];
    for (int map : spec.maps())
      weights[map] = b.splat(b.load(b.f32, s.sums[map], row));
    Value offset = b.mul(row, s.valuePanelStride);
    for (int map : spec.maps())
      outputs[map] = b.at(s.output[map], b.f32, offset);
    b.loop(b.index(0), s.valuePanelStride, b.lanes, [&](Value c) {
      auto weigh = [&](int map) {
        return b.mulf(b.load(b.vector, outputs[map], c), weights[map]);
      };
      Value x = weigh(0);
      if (spec.hasSecondMap())
        x = b.subf(x, weigh(1));
      b.store(x, outputs[0], c);
    });
  });
}

void PrefillValues::finishRows(const PrefillItem &item,
                               const PrefillLayout &s) {
  b.loop(item.rows, [&](Value row) {
    Value x = b.at(s.output[0], b.f32, b.mul(row, s.valuePanelStride));
    emitFinishRow(v, x, item.batch, item.heads.signal,
                  b.add(item.firstRow, row));
  });
}
