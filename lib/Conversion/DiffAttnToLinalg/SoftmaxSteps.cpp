//===- SoftmaxSteps.cpp - scores, masks and sums of one map ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SoftmaxSteps.h"
#include "BodyMath.h"

#include "DiffAttn/Semantics/EmittedMasks.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;
using utils::IteratorType;

static constexpr IteratorType par = IteratorType::parallel;
static constexpr IteratorType red = IteratorType::reduction;
// Loops of the generics below, in their order: batch, head, query, key, width.
static constexpr int64_t b = 0, h = 1, i = 2, j = 3, x = 4;
static constexpr float kInf = std::numeric_limits<float>::infinity();

SmallVector<Axis> diffattn::layoutAxes(Layout layout, Axis batch, Axis head,
                                       Axis length, Axis width) {
  return layout == Layout::BHTD ? SmallVector<Axis>{batch, head, length, width}
                                : SmallVector<Axis>{batch, length, head, width};
}

Value diffattn::widen(ImplicitLocOpBuilder &b, Value element) {
  if (element.getType().isF32())
    return element;
  return arith::ExtFOp::create(b, b.getF32Type(), element);
}

Value diffattn::f32(ImplicitLocOpBuilder &b, float value) {
  return arith::ConstantOp::create(b, b.getF32FloatAttr(value));
}

Value diffattn::isHidden(ImplicitLocOpBuilder &b, Value score) {
  return arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, score,
                               f32(b, -kInf));
}

ScoreInputs diffattn::getScoreInputs(DifferentialMapsOpInterface op) {
  ScoreInputs inputs;
  inputs.rules = getScoreRules(op);
  for (MaskOperand operand : kMaskOperands) {
    OpOperand *use = op.findMaskOperand(operand);
    if (!use)
      continue;
    inputs.masked.push_back({operand, use->get()});
    inputs.maskedAxes.push_back(op.getAxisRoles(use->getOperandNumber()));
  }
  inputs.qLayout = op.getQLayout();
  inputs.kLayout = op.getKLayout();
  return inputs;
}

Value diffattn::buildProduct(StructuredBuilder &sb, const MapOperands &map,
                             const ScoreInputs &inputs) {
  int64_t qLength = AttentionOp::lengthAxis(inputs.qLayout);
  int64_t kLength = AttentionOp::lengthAxis(inputs.kLayout);
  Value out = sb.filled({sb.size(map.q, 0), map.heads, sb.size(map.q, qLength),
                         sb.size(map.k, kLength)},
                        0.0f);
  // Loops: batch, head, query, key, width.
  Axis keyHead(h, map.keyGroup);
  return sb.generic({{map.q, layoutAxes(inputs.qLayout, b, h, i, x)},
                     {map.k, layoutAxes(inputs.kLayout, b, keyHead, j, x)}},
                    out, {b, h, i, j}, {par, par, par, par, red},
                    [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      Value product = arith::MulFOp::create(
                          ib, widen(ib, args[0]), widen(ib, args[1]));
                      return arith::AddFOp::create(ib, args[2], product);
                    });
}

/// The i64 position of loop `loop` in a generic's body.
static Value position(ImplicitLocOpBuilder &b, int64_t loop) {
  Value index = linalg::IndexOp::create(b, loop);
  return arith::IndexCastOp::create(b, b.getI64Type(), index);
}

/// `value + shift` and `value - shift` for a `shift` that is not negative,
/// which stop at the ends of i64 instead of wrapping.
static Value saturatingAdd(ImplicitLocOpBuilder &b, Value value, Value shift) {
  Value highest = arith::ConstantIntOp::create(b, INT64_MAX, 64);
  Value limit = b.createOrFold<arith::SubIOp>(highest, shift);
  value = b.createOrFold<arith::MinSIOp>(value, limit);
  return b.createOrFold<arith::AddIOp>(value, shift);
}
static Value saturatingSub(ImplicitLocOpBuilder &b, Value value, Value shift) {
  Value lowest = arith::ConstantIntOp::create(b, INT64_MIN, 64);
  Value limit = b.createOrFold<arith::AddIOp>(lowest, shift);
  value = b.createOrFold<arith::MaxSIOp>(value, limit);
  return b.createOrFold<arith::SubIOp>(value, shift);
}

namespace {
/// Masks as scalars of one generic's body, at its loops.
class BodyMasks final : public EmittedMasks {
public:
  /// `elements`: of the operands that masks read. `qLength` and `kLength` are
  /// used for the default of q_offset.
  BodyMasks(ImplicitLocOpBuilder &b,
            const llvm::SmallDenseMap<MaskOperand, Value> &elements,
            Value qLength, Value kLength)
      : b(b), elements(elements), qLength(qLength), kLength(kLength) {}

  MaskValue min(MaskValue x, MaskValue y) override {
    return wrap(arith::MinSIOp::create(b, unwrap(x), unwrap(y)));
  }
  MaskValue max(MaskValue x, MaskValue y) override {
    return wrap(arith::MaxSIOp::create(b, unwrap(x), unwrap(y)));
  }
  MaskValue less(MaskValue x, MaskValue y) override {
    return compare(arith::CmpIPredicate::slt, unwrap(x), unwrap(y));
  }
  MaskValue equal(MaskValue x, MaskValue y) override {
    return compare(arith::CmpIPredicate::eq, unwrap(x), unwrap(y));
  }
  MaskValue either(MaskValue x, MaskValue y) override {
    return wrap(arith::OrIOp::create(b, unwrap(x), unwrap(y)));
  }
  MaskValue both(MaskValue x, MaskValue y) override {
    return wrap(arith::AndIOp::create(b, unwrap(x), unwrap(y)));
  }
  MaskValue load(MaskOperand operand, const MaskPoint &point) override {
    Value element = elements.lookup(operand);
    return wrap(isa<FloatType>(element.getType()) ? widen(b, element)
                                                  : element);
  }
  MaskValue isNotMinusInfinity(MaskValue element) override {
    return wrap(arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                      unwrap(element), f32(b, -kInf)));
  }
  MaskValue length() override {
    Value given = elements.lookup(MaskOperand::KvLen);
    return wrap(given ? given : kLength);
  }
  MaskValue keyBefore(MaskValue query, int64_t left) override {
    return wrap(saturatingAdd(b, lowestDistance(left), unwrap(query)));
  }
  MaskValue endAfter(MaskValue query, int64_t right) override {
    Value last = saturatingAdd(b, highestDistance(right), unwrap(query));
    return wrap(saturatingAdd(b, last, constant(1)));
  }
  MaskValue isWithinLeft(const MaskPoint &point, int64_t left) override {
    return compare(arith::CmpIPredicate::sge, distance(point),
                   lowestDistance(left));
  }
  MaskValue isWithinRight(const MaskPoint &point, int64_t right) override {
    return compare(arith::CmpIPredicate::sle, distance(point),
                   highestDistance(right));
  }

protected:
  Value addToScore(Value score, Value term) override {
    return arith::AddFOp::create(b, score, term);
  }
  Value hideScore(Value visible, Value score) override {
    return arith::SelectOp::create(b, visible, score, f32(b, -kInf));
  }

private:
  Value constant(int64_t value) {
    return arith::ConstantIntOp::create(b, value, 64);
  }
  MaskValue compare(arith::CmpIPredicate predicate, Value x, Value y) {
    return wrap(arith::CmpIOp::create(b, predicate, x, y));
  }
  /// Limits on `key - query` without the query, so that no sum wraps.
  Value distance(const MaskPoint &point) {
    return arith::SubIOp::create(b, unwrap(point.key), unwrap(point.query));
  }
  Value lowestDistance(int64_t left) {
    return saturatingSub(b, offset(), constant(left));
  }
  Value highestDistance(int64_t right) {
    return saturatingAdd(b, offset(), constant(right));
  }
  Value offset() {
    Value given = elements.lookup(MaskOperand::QOffset);
    return given ? given : saturatingSub(b, unwrap(length()), qLength);
  }

  ImplicitLocOpBuilder &b;
  const llvm::SmallDenseMap<MaskOperand, Value> &elements;
  Value qLength, kLength;
};
} // namespace

/// Where the loops batch, head, query and key read an operand of a mask.
static SmallVector<Axis> maskAxes(ArrayRef<AxisRole> roles,
                                  OpFoldResult headGroup) {
  SmallVector<Axis> axes;
  for (const AxisRole &role : roles)
    switch (role.kind) {
    case AxisRole::Batch:
      axes.push_back(Axis(b, {}, role.mayBroadcast));
      break;
    case AxisRole::Head:
      axes.push_back(Axis(h, headGroup, role.mayBroadcast));
      break;
    case AxisRole::Query:
      axes.push_back(Axis(i, {}, role.mayBroadcast));
      break;
    case AxisRole::Key:
      axes.push_back(Axis(j, {}, role.mayBroadcast));
      break;
    case AxisRole::Width:
    case AxisRole::Range:
    case AxisRole::Page:
    case AxisRole::Sequence:
      llvm_unreachable("a mask has no width, ranges, pages or sequences");
    }
  return axes;
}

/// Overwrites `out` by what the masks make of the scores that `scoreOf` gives
/// for its elements.
static Value
buildMasked(StructuredBuilder &sb, const MapOperands &map,
            const ScoreInputs &inputs, Value out,
            llvm::function_ref<Value(ImplicitLocOpBuilder &, Value)> scoreOf) {
  const ScoreRules &rules = inputs.rules;
  Value qLength = sb.sizeAsI64(map.q, AttentionOp::lengthAxis(inputs.qLayout));
  Value kLength = sb.sizeAsI64(map.k, AttentionOp::lengthAxis(inputs.kLayout));
  SmallVector<StructuredInput> read;
  for (auto [masked, axes] : llvm::zip_equal(inputs.masked, inputs.maskedAxes))
    read.push_back({masked.second, maskAxes(axes, map.biasGroup)});

  return sb.generic(read, out, {b, h, i, j}, {par, par, par, par},
                    [&](ImplicitLocOpBuilder &b, ValueRange args) -> Value {
                      llvm::SmallDenseMap<MaskOperand, Value> elements;
                      for (auto [masked, element] :
                           llvm::zip(inputs.masked, args))
                        elements[masked.first] = element;
                      Value score = scoreOf(b, args.back());
                      MaskPoint point;
                      if (llvm::any_of(rules.masks, [](MaskAttrInterface mask) {
                            return mask.isInterval();
                          })) {
                        Value key = position(b, 3);
                        if (inputs.keyOffset)
                          key = arith::AddIOp::create(b, key, inputs.keyOffset);
                        point.key = EmittedMasks::wrap(key);
                      }
                      if (rules.reach)
                        point.query = EmittedMasks::wrap(position(b, 2));
                      BodyMasks masks(b, elements, qLength, kLength);
                      return masks.maskScore(rules.masks, point, score);
                    });
}

Value diffattn::buildScores(StructuredBuilder &sb, const MapOperands &map,
                            const ScoreInputs &inputs) {
  const ScoreRules &rules = inputs.rules;
  return buildMasked(sb, map, inputs, buildProduct(sb, map, inputs),
                     [&](ImplicitLocOpBuilder &b, Value product) -> Value {
                       Value score = arith::MulFOp::create(b, product,
                                                           f32(b, rules.scale));
                       if (!rules.softcap)
                         return score;
                       Value cap = f32(b, *rules.softcap);
                       BodyMath math(b);
                       return emitCapped(math, math.divide(score, cap), cap);
                     });
}

Value diffattn::buildVisibility(StructuredBuilder &sb, const MapOperands &map,
                                const ScoreInputs &inputs, Value out) {
  return buildMasked(sb, map, inputs, out, [](ImplicitLocOpBuilder &b, Value) {
    return f32(b, 0.0f);
  });
}

Value diffattn::buildRowMax(StructuredBuilder &sb, Value scores, Value init) {
  return sb.generic({{scores, {b, h, i, j}}}, init, {b, h, i},
                    {par, par, par, red},
                    [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      return arith::MaximumFOp::create(ib, args[0], args[1]);
                    });
}

Value diffattn::buildExp(StructuredBuilder &sb, Value scores, Value max,
                         Value out) {
  return sb.generic({{scores, {b, h, i, j}}, {max, {b, h, i}}}, out,
                    {b, h, i, j}, {par, par, par, par},
                    [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      BodyMath math(ib);
                      return emitWeight(math, args[0], args[1]);
                    });
}

Value diffattn::buildRowSum(StructuredBuilder &sb, Value weights, Value init) {
  return sb.generic({{weights, {b, h, i, j}}}, init, {b, h, i},
                    {par, par, par, red},
                    [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      return arith::AddFOp::create(ib, args[1], args[0]);
                    });
}

SoftmaxMap diffattn::buildSoftmax(StructuredBuilder &sb, const MapOperands &map,
                                  const ScoreInputs &inputs, Value sink) {
  SoftmaxMap result;
  result.scores = buildScores(sb, map, inputs);
  SmallVector<OpFoldResult> sizes = sb.sizes(result.scores);
  ArrayRef<OpFoldResult> row = ArrayRef(sizes).drop_back();
  result.scoreMax = buildRowMax(sb, result.scores, sb.filled(row, -kInf));
  result.max = result.scoreMax;
  auto withSink =
      [&](Value max,
          function_ref<Value(ImplicitLocOpBuilder &, Value, Value)> body) {
        return sb.generic(
            {{max, {b, h, i}}, {sink, {h}}}, sb.empty(row), {b, h, i},
            {par, par, par},
            [&](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
              return body(ib, args[0], widen(ib, args[1]));
            });
      };
  if (sink)
    result.max =
        withSink(result.scoreMax,
                 [](ImplicitLocOpBuilder &ib, Value max, Value sink) -> Value {
                   return arith::MaximumFOp::create(ib, max, sink);
                 });
  result.weights = buildExp(sb, result.scores, result.max, sb.empty(sizes));
  Value sum = sink ? withSink(result.max,
                              [](ImplicitLocOpBuilder &ib, Value max,
                                 Value sink) -> Value {
                                BodyMath math(ib);
                                return emitWeight(math, sink, max);
                              })
                   : sb.filled(row, 0.0f);
  result.sum = buildRowSum(sb, result.weights, sum);
  return result;
}

Value diffattn::buildLogSum(StructuredBuilder &sb, const SoftmaxMap &map,
                            Value out) {
  return sb.generic(
      {{map.scoreMax, {b, h, i}}, {map.max, {b, h, i}}, {map.sum, {b, h, i}}},
      out, {b, h, i}, {par, par, par},
      [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
        Value logSum = arith::AddFOp::create(ib, args[1],
                                             math::LogOp::create(ib, args[2]));
        return arith::SelectOp::create(ib, isHidden(ib, args[0]),
                                       f32(ib, -kInf), logSum);
      });
}
