//===- SoftmaxSteps.cpp - scores, masks and sums of one map ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SoftmaxSteps.h"

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

/// scale * Q * K^T, f32 [B,heads,Tq,Tk].
static Value buildProduct(StructuredBuilder &sb, const MapOperands &map,
                          const ScoreRules &rules) {
  int64_t qLength = AttentionOp::lengthAxis(rules.qLayout);
  int64_t kLength = AttentionOp::lengthAxis(rules.kLayout);
  Value out = sb.filled({sb.size(map.q, 0), map.heads, sb.size(map.q, qLength),
                         sb.size(map.k, kLength)},
                        0.0f);
  // Loops: batch, head, query, key, width.
  Axis keyHead(h, map.keyGroup);
  return sb.generic({{map.q, layoutAxes(rules.qLayout, b, h, i, x)},
                     {map.k, layoutAxes(rules.kLayout, b, keyHead, j, x)}},
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

/// Conjunction where a null side is true.
static Value both(ImplicitLocOpBuilder &b, Value lhs, Value rhs) {
  return lhs ? arith::AndIOp::create(b, lhs, rhs).getResult() : rhs;
}

namespace {
/// Elements of the optional operands inside the body; null where absent.
struct MaskElements {
  Value bias, kvLen, qOffset;
};
} // namespace

/// Whether query and key of the current loops see each other; null if always.
/// `qLength` and `kLength` are used for the default of q_offset.
static Value buildVisible(ImplicitLocOpBuilder &b, const ScoreRules &rules,
                          const MaskElements &elements, Value qLength,
                          Value kLength) {
  Value visible;
  auto require = [&](arith::CmpIPredicate predicate, Value lhs, Value rhs) {
    visible = both(b, visible, arith::CmpIOp::create(b, predicate, lhs, rhs));
  };
  auto constant = [&](int64_t value) -> Value {
    return arith::ConstantIntOp::create(b, value, 64);
  };
  bool windowed = rules.left >= 0 || rules.right >= 0;
  if (elements.kvLen || rules.causal || windowed) {
    Value key = position(b, 3);
    if (rules.keyOffset)
      key = arith::AddIOp::create(b, key, rules.keyOffset);
    if (elements.kvLen)
      require(arith::CmpIPredicate::slt, key, elements.kvLen);
    if (rules.causal || windowed) {
      Value offset = elements.qOffset;
      if (!offset)
        offset = saturatingSub(b, elements.kvLen ? elements.kvLen : kLength,
                               qLength);
      // Limits on `key - query` without the offset, so that no sum wraps.
      Value distance = arith::SubIOp::create(b, key, position(b, 2));
      if (rules.causal || rules.right >= 0) {
        int64_t right = rules.causal ? 0 : rules.right;
        require(arith::CmpIPredicate::sle, distance,
                saturatingAdd(b, offset, constant(right)));
      }
      if (rules.left >= 0)
        require(arith::CmpIPredicate::sge, distance,
                saturatingSub(b, offset, constant(rules.left)));
    }
  }
  if (elements.bias) {
    Value seen = elements.bias;
    if (!seen.getType().isInteger(1))
      seen = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                   widen(b, elements.bias), f32(b, -kInf));
    visible = both(b, visible, seen);
  }
  return visible;
}

Value diffattn::buildScores(StructuredBuilder &sb, const MapOperands &map,
                            const ScoreRules &rules) {
  Value product = buildProduct(sb, map, rules);
  Value qLength = sb.sizeAsI64(map.q, AttentionOp::lengthAxis(rules.qLayout));
  Value kLength = sb.sizeAsI64(map.k, AttentionOp::lengthAxis(rules.kLayout));
  SmallVector<StructuredInput> inputs;
  if (rules.bias) // A size of 1 is broadcast (attention_c12).
    inputs.push_back({rules.bias,
                      {Axis(b, {}, /*mayBroadcast=*/true),
                       Axis(h, map.biasGroup, /*mayBroadcast=*/true),
                       Axis(i, {}, /*mayBroadcast=*/true), j}});
  for (Value perBatch : {rules.kvLen, rules.qOffset})
    if (perBatch)
      inputs.push_back({perBatch, {b}});

  return sb.generic(
      inputs, product, {b, h, i, j}, {par, par, par, par},
      [&](ImplicitLocOpBuilder &b, ValueRange args) -> Value {
        MaskElements elements;
        unsigned next = 0;
        if (rules.bias)
          elements.bias = args[next++];
        if (rules.kvLen)
          elements.kvLen = args[next++];
        if (rules.qOffset)
          elements.qOffset = args[next++];
        Value score = arith::MulFOp::create(b, args[next], f32(b, rules.scale));
        if (rules.softcap) {
          Value cap = f32(b, *rules.softcap);
          Value tanh =
              math::TanhOp::create(b, arith::DivFOp::create(b, score, cap));
          score = arith::MulFOp::create(b, tanh, cap);
        }
        if (elements.bias && !elements.bias.getType().isInteger(1))
          score = arith::AddFOp::create(b, score, widen(b, elements.bias));
        Value visible = buildVisible(b, rules, elements, qLength, kLength);
        if (!visible)
          return score;
        return arith::SelectOp::create(b, visible, score, f32(b, -kInf));
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
                      // The select keeps -inf - (-inf) of an empty row out.
                      Value weight = math::ExpOp::create(
                          ib, arith::SubFOp::create(ib, args[0], args[1]));
                      return arith::SelectOp::create(ib, isHidden(ib, args[0]),
                                                     f32(ib, 0.0f), weight);
                    });
}

Value diffattn::buildRowSum(StructuredBuilder &sb, Value weights, Value init) {
  return sb.generic({{weights, {b, h, i, j}}}, init, {b, h, i},
                    {par, par, par, red},
                    [](ImplicitLocOpBuilder &ib, ValueRange args) -> Value {
                      return arith::AddFOp::create(ib, args[1], args[0]);
                    });
}
