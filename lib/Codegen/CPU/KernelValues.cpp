//===- KernelValues.cpp - heads, positions, panels and the end of a row ---===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KernelValues.h"

#include "RowColumns.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

HeadIndices mlir::diffattn::getHeadIndices(KernelValues &v, Value signal) {
  KernelBuilder &b = v.b;
  const AttentionSpec &spec = v.spec;
  // Head x of many uses head x / (many / few) of few.
  auto shared = [&](Value head, const SpecSize &many, const SpecSize &few) {
    return b.div(head, b.div(v.size(many), v.size(few)));
  };
  HeadIndices heads;
  heads.signal = signal;
  heads.noise = shared(signal, spec.signalHeads, spec.noiseHeads);
  heads.key1 = shared(signal, spec.signalHeads, spec.key1Heads);
  heads.key2 = shared(heads.noise, spec.noiseHeads, spec.key2Heads);
  heads.value = shared(signal, spec.signalHeads, spec.valueHeads);
  return heads;
}

/// Beyond every number of queries or keys, and far from the ends of i64.
static constexpr int64_t kFarAway = int64_t(1) << 60;

KernelMasks::KernelMasks(KernelValues &v, Value batch)
    : b(v.b), values(v), rules(v.spec.scores), batch(batch) {
  const AttentionSpec &spec = v.spec;
  auto perBatch = [&](const SpecOperand &operand) {
    return b.load(b.i64, v.address(operand), b.i64,
                  b.mul(batch, v.stride(operand, 0)));
  };
  Value valid = v.size(spec.keys), keys = valid;
  if (const SpecOperand &given = spec.mask(MaskOperand::KvLen); given.present())
    valid = perBatch(given);
  keyCount = b.max(b.min(valid, keys), b.index(0));
  if (!rules.reach)
    return;
  // By default the last query is at the last valid key, also where kv_len is
  // beyond the keys in memory.
  const SpecOperand &given = spec.mask(MaskOperand::QOffset);
  Value offset = given.present() ? perBatch(given)
                                 : b.sub(b.max(valid, b.index(-kFarAway)),
                                         v.size(spec.queries));
  // Clamped before the sum, which then neither wraps nor leaves the range.
  if (std::optional<int64_t> left = rules.reach.left) {
    Value first =
        b.sub(b.max(offset, b.index(*left - kFarAway)), b.index(*left));
    low = b.min(first, b.index(kFarAway));
  }
  if (std::optional<int64_t> right = rules.reach.right) {
    Value last = b.add(b.min(offset, b.index(kFarAway - *right)), *right);
    high = b.add(b.max(last, b.index(-kFarAway)), 1);
  }
}

//===----------------------------------------------------------------------===//
// Integers of queries and keys
//===----------------------------------------------------------------------===//

/// i32 or i64, or a vector of these, as i64.
static Value widenInteger(KernelBuilder &b, Value value) {
  Type wide = b.i64;
  if (auto vector = dyn_cast<VectorType>(value.getType()))
    wide = vector.clone(b.i64);
  return value.getType() == wide ? value
                                 : arith::ExtSIOp::create(b, wide, value);
}

/// The address of the integer of row 0.
static Value integerBase(KernelValues &v, const SpecOperand &operand,
                         Value batch) {
  return v.b.at(v.address(operand), operand.element,
                v.b.mul(batch, v.stride(operand, 0)));
}

Value KernelValues::integer(const SpecOperand &operand, Value batch,
                            Value row) {
  Value at = b.mul(row, stride(operand, 2));
  return widenInteger(b, b.load(operand.element,
                                integerBase(*this, operand, batch),
                                operand.element, at));
}

Value KernelValues::integers(const SpecOperand &operand, Value batch, Value row,
                             Value count) {
  VectorType type = VectorType::get({b.lanes}, operand.element);
  if (operand.hasUnitRows())
    return widenInteger(b,
                        b.loadMasked(type, integerBase(*this, operand, batch),
                                     row, b.firstLanes(count)));
  Value result = arith::ConstantOp::create(
      b, b.getZeroAttr(VectorType::get({b.lanes}, b.i64)));
  for (int64_t i = 0; i < b.lanes; ++i) {
    // Past the end, the last one is read again.
    Value last = b.sub(count, b.index(1));
    Value at = b.add(row, b.min(b.index(i), last));
    result =
        vector::InsertOp::create(b, integer(operand, batch, at), result, i);
  }
  return result;
}

//===----------------------------------------------------------------------===//
// Pages
//===----------------------------------------------------------------------===//

Value KernelValues::pagedRow(const SpecOperand &pages, Value base, Value batch,
                             Value key) {
  Value rows = size(spec.pageRows);
  Value page = integer(spec.blockTable, batch, b.div(key, rows));
  return b.at(base, pages.element,
              b.add(b.mul(page, stride(pages, 0)),
                    b.mul(b.rem(key, rows), stride(pages, 2))));
}

void KernelValues::copyPagedRows(const SpecOperand &pages, Value base,
                                 Value batch, Value first, Value n,
                                 Value columns, Value to) {
  // As bits, which keep every NaN.
  Type bits = b.getIntegerType(pages.element.getIntOrFloatBitWidth());
  VectorType vector = VectorType::get({b.lanes}, bits);
  Value step = stride(pages, 3);
  b.loop(n, [&](Value row) {
    Value from = pagedRow(pages, base, batch, b.add(first, row));
    Value target = b.at(to, bits, b.mul(row, columns));
    Value done = b.index(0);
    if (pages.hasUnitColumns()) {
      done = b.mul(b.div(columns, b.lanes), b.lanes);
      b.loop(b.index(0), done, b.lanes, [&](Value c) {
        b.store(b.load(vector, from, bits, c), target, bits, c);
      });
    }
    b.loop(done, columns, 1, [&](Value c) {
      b.store(b.load(bits, from, bits, b.mul(c, step)), target, bits, c);
    });
  });
}

//===----------------------------------------------------------------------===//
// Masks
//===----------------------------------------------------------------------===//

/// Scans by vectors where the integers lie side by side.
std::pair<Value, Value> KernelMasks::scan(MaskOperand operand,
                                          const MaskTile &tile) {
  Scanned &known = scanned[static_cast<size_t>(operand)];
  if (known.lowest && known.tile.first == tile.first &&
      known.tile.last == tile.last)
    return {known.lowest, known.highest};
  const SpecOperand &from = values.spec.mask(operand);
  Value first = unwrap(tile.first), end = b.add(unwrap(tile.last), 1);
  SmallVector<Value> extrema = {b.index(std::numeric_limits<int64_t>::max()),
                                b.index(std::numeric_limits<int64_t>::min())};
  if (from.hasUnitRows()) {
    VectorType type = VectorType::get({b.lanes}, from.element);
    Value base = integerBase(values, from, batch);
    Value whole =
        b.add(first, b.mul(b.div(b.max(b.sub(end, first), b.index(0)), b.lanes),
                           b.lanes));
    SmallVector<Value> lanes = b.loop(
        first, whole, b.lanes, {b.splat(extrema[0]), b.splat(extrema[1])},
        [&](Value row, ValueRange carried) -> SmallVector<Value> {
          Value x = widenInteger(b, b.load(type, base, from.element, row));
          return {arith::MinSIOp::create(b, carried[0], x),
                  arith::MaxSIOp::create(b, carried[1], x)};
        });
    extrema = {
        vector::ReductionOp::create(b, vector::CombiningKind::MINSI, lanes[0]),
        vector::ReductionOp::create(b, vector::CombiningKind::MAXSI, lanes[1])};
    first = whole;
  }
  extrema = b.loop(first, end, 1, extrema,
                   [&](Value row, ValueRange carried) -> SmallVector<Value> {
                     Value x = values.integer(from, batch, row);
                     return {b.min(carried[0], x), b.max(carried[1], x)};
                   });
  known = {tile, extrema[0], extrema[1]};
  return {known.lowest, known.highest};
}

void KernelMasks::beginRows(Value first, Value last) {
  rows = {wrap(first), wrap(last)};
  for (MaskOperand operand : kMaskOperands)
    if (values.spec.hasIntegers(operand, AxisRole::Query))
      scan(operand, rows);
}

TileRelation KernelMasks::getTileRelation(Value firstKey, Value lastKey) {
  return diffattn::getTileRelation(*this, rules.masks, rows,
                                   {wrap(firstKey), wrap(lastKey)});
}

MaskValue KernelMasks::either(MaskValue x, MaskValue y) {
  return wrap(arith::OrIOp::create(b, unwrap(x), unwrap(y)));
}

MaskValue KernelMasks::isNotMinusInfinity(MaskValue element) {
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  return wrap(arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                    unwrap(element), lowest));
}

// The nearest limits of all masks are the ones that count.
MaskValue KernelMasks::keyBefore(MaskValue query, int64_t left) {
  return wrap(b.add(low, unwrap(query)));
}
MaskValue KernelMasks::endAfter(MaskValue query, int64_t right) {
  return wrap(b.add(high, unwrap(query)));
}

// Kernels keep to the ranges of keys.
MaskValue KernelMasks::isWithinLeft(const MaskPoint &point, int64_t left) {
  llvm_unreachable("a mask of positions is an interval");
}
MaskValue KernelMasks::isWithinRight(const MaskPoint &point, int64_t right) {
  llvm_unreachable("a mask of positions is an interval");
}

Value KernelMasks::hideScore(Value visible, Value score) {
  Value lowest = b.splat(-std::numeric_limits<float>::infinity());
  return arith::SelectOp::create(b, visible, score, lowest);
}

Value KernelMasks::maskElements(Value score, bool inPartialTile) {
  SmallVector<MaskAttrInterface> elements;
  for (MaskAttrInterface mask : rules.masks)
    if (!mask.isInterval() && (inPartialTile || !mask.hasTileRelation()))
      elements.push_back(mask);
  return maskScore(elements, MaskPoint(), score);
}

TileKeys KernelMasks::getTileKeys(Value first, Value last) {
  VisibleRange range;
  range.end = range.wholeEnd = length();
  for (MaskAttrInterface mask : rules.masks)
    if (mask.isInterval())
      range = intersect(*this, range,
                        mask.getVisibleRange(*this, {wrap(first), wrap(last)}));
  // Within the keys, and none where a range would end before it begins.
  auto begin = [&](MaskValue key) {
    Value from = key ? b.max(unwrap(key), b.index(0)) : b.index(0);
    return b.min(from, keyCount);
  };
  TileKeys keys;
  keys.some.low = begin(range.begin);
  if (first == last) {
    keys.some.high = b.max(unwrap(range.end), keys.some.low);
    keys.all = keys.some;
    return keys;
  }
  keys.all.low = begin(range.wholeBegin);
  keys.some.high = b.max(unwrap(range.end), keys.all.low);
  keys.all.high = b.max(unwrap(range.wholeEnd), keys.some.low);
  return keys;
}

Value mlir::diffattn::emitLambdaScalar(KernelValues &v, Value batch,
                                       const HeadIndices &heads, Value row) {
  KernelBuilder &b = v.b;
  const AttentionSpec &spec = v.spec;
  Value head = b.div(heads.signal,
                     b.div(v.size(spec.signalHeads), v.size(spec.lambdaHeads)));
  Value offset = b.add(b.mul(batch, v.stride(spec.lambda, 0)),
                       b.add(b.mul(head, v.stride(spec.lambda, 1)),
                             b.mul(row, v.stride(spec.lambda, 2))));
  return b.load(b.f32, v.address(spec.lambda), b.f32, offset);
}

void mlir::diffattn::packRows(KernelValues &v, const SpecOperand &operand,
                              Value base, Value first, Value n, Value columns,
                              Value paddedColumns, Value panel) {
  KernelBuilder &b = v.b;
  Value rowStride = v.stride(operand, 2), columnStride = v.stride(operand, 3);
  Value whole = b.mul(b.div(columns, b.lanes), b.lanes);
  b.loop(n, [&](Value key) {
    Value from =
        b.at(base, operand.element, b.mul(b.add(first, key), rowStride));
    Value to = b.at(panel, b.f32, b.mul(key, paddedColumns));
    if (!operand.hasUnitColumns()) {
      b.loop(columns, [&](Value c) {
        b.store(b.loadWideScalar(from, operand.element, b.mul(c, columnStride)),
                to, c);
      });
      b.loop(columns, paddedColumns, 1,
             [&](Value c) { b.store(emitConstant(b, b.f32, 0.0f), to, c); });
      return;
    }
    b.loop(b.index(0), whole, b.lanes, [&](Value c) {
      b.store(b.loadWide(from, operand.element, c), to, c);
    });
    b.loop(whole, columns, 1, [&](Value c) {
      b.store(b.loadWideScalar(from, operand.element, c), to, c);
    });
    b.loop(columns, paddedColumns, 1,
           [&](Value c) { b.store(emitConstant(b, b.f32, 0.0f), to, c); });
  });
}

void mlir::diffattn::emitFinishRow(KernelValues &v, Value x, Value batch,
                                   Value signalHead, Value row) {
  KernelBuilder &b = v.b;
  const AttentionSpec &spec = v.spec;
  Value columns = v.size(spec.valueDim);
  const Columns cut = cutColumns(b, spec.valueDim, columns);
  auto rowOf = [&](const SpecOperand &operand) {
    return b.at(v.head(operand, batch, signalHead), operand.element,
                b.mul(row, v.stride(operand, 2)));
  };
  auto loadX = [&](const ColumnVector &c) {
    return b.load(b.vector, x, c.first);
  };
  if (spec.x.present())
    storeColumns(v, spec.x, rowOf(spec.x), cut, x, loadX);

  Value factor;
  if (spec.epilogue.rmsNorm) {
    Value squares = b.zero();
    squares =
        b.loop(b.index(0), columns, b.lanes, squares,
               [&](Value c, ValueRange carried) {
                 Value value = b.load(b.vector, x, c);
                 return SmallVector<Value>{b.fma(value, value, carried[0])};
               })[0];
    Value count = arith::SIToFPOp::create(b, b.f32, columns);
    Value mean = b.divf(b.sum(squares), count);
    Value eps = emitConstant(b, b.f32, spec.epilogue.eps);
    PolynomialMath scalars(b, b.f32);
    Value inverse =
        emitInverseRms(scalars, mean, eps, spec.epilogue.epsOutside);
    factor = b.splat(emitUnlessZeros(scalars, inverse, mean));
  }

  Value out = rowOf(spec.output), gate;
  if (spec.gate.present())
    gate = rowOf(spec.gate);
  Value weight =
      spec.normWeight.present() ? v.address(spec.normWeight) : Value();

  storeColumns(v, spec.output, out, cut, x, [&](const ColumnVector &c) {
    PolynomialMath lanes(b, b.vector);
    Value outScale;
    if (spec.epilogue.outScale != 1.0f)
      outScale = b.splat(spec.epilogue.outScale);
    auto readWeight = [&] {
      return loadColumns(v, spec.normWeight, weight, c);
    };
    auto readGate = [&] { return loadColumns(v, spec.gate, gate, c); };
    RowEnd end{factor, outScale, nullptr, nullptr};
    if (weight)
      end.normWeight = readWeight;
    if (gate)
      end.gate = readGate;
    return emitRowEnd(lanes, loadX(c), end);
  });
}

CallSizes
mlir::diffattn::getCallSizes(const AttentionSpec &spec,
                             function_ref<Value(const SpecSize &)> read) {
  CallSizes sizes;
  sizes.batch = read(spec.batch);
  sizes.signalHeads = read(spec.signalHeads);
  sizes.noiseHeads = read(spec.noiseHeads);
  sizes.key1Heads = read(spec.key1Heads);
  sizes.key2Heads = read(spec.key2Heads);
  sizes.valueHeads = read(spec.valueHeads);
  sizes.queries = read(spec.queries);
  sizes.keys = read(spec.keys);
  sizes.headDim = read(spec.headDim);
  sizes.valueDim = read(spec.valueDim);
  return sizes;
}
