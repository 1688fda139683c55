//===- GatedBody.cpp - silu(g) * u in the body of an op -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GatedBody.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// A number before it is widened and rounded.
struct Number {
  Value value;
  /// Whether it was of the narrow type at some point, or is computed in it.
  bool isRounded = false;

  /// The op that computes it, if it is an `OpTy` that rounds once by IEEE 754.
  template <typename OpTy>
  OpTy as() const {
    auto op = value.getDefiningOp<OpTy>();
    if (!op || op.getFastmath() != arith::FastMathFlags::none)
      return {};
    return op;
  }
};

class BodyReader {
public:
  BodyReader(Block &body, Type narrow) : body(body), narrow(narrow) {}

  std::optional<GatedBody> read() {
    Value result = body.getTerminator()->getOperand(0);
    Number product = strip(result);
    auto multiply = product.as<arith::MulFOp>();
    // A number that was rounded, but not to the type of the result, is no sum
    // of f32.
    if (!hasKnownTypes() || !multiply ||
        (product.isRounded && result.getType() != narrow))
      return std::nullopt;
    for (auto [x, y] : getOrders(multiply)) {
      std::optional<unsigned> gate = readSilu(x), up = readSum(y);
      if (gate && up && *gate != *up && sumsAgree)
        return GatedBody{*gate, *up, rounded};
      rounded = GateRounding::None;
      sumsAreRounded.reset();
      sumsAgree = true;
    }
    return std::nullopt;
  }

private:
  bool hasKnownTypes() const {
    return llvm::all_of(body.without_terminator(), [&](Operation &op) {
      return llvm::all_of(op.getResultTypes(), [&](Type type) {
        return type.isF32() || type == narrow;
      });
    });
  }

  Number strip(Value value) const {
    Number number{value};
    while (true) {
      number.isRounded |= number.value.getType() == narrow;
      if (auto widen = number.value.getDefiningOp<arith::ExtFOp>())
        number.value = widen.getIn();
      else if (auto round = number.value.getDefiningOp<arith::TruncFOp>();
               round && !round.getRoundingmode())
        number.value = round.getIn();
      else
        return number;
    }
  }

  template <typename OpTy>
  static std::array<std::pair<Value, Value>, 2> getOrders(OpTy op) {
    return {std::pair(op.getLhs(), op.getRhs()),
            std::pair(op.getRhs(), op.getLhs())};
  }

  void note(GateRounding step, Number number) {
    if (number.isRounded)
      rounded = rounded | step;
  }

  /// The input that `value` is, perhaps rounded.
  std::optional<unsigned> readSum(Value value) { return readSum(strip(value)); }
  std::optional<unsigned> readSum(Number number) {
    auto argument = dyn_cast<BlockArgument>(number.value);
    if (!argument || argument.getOwner() != &body ||
        argument.getArgNumber() + 1 == body.getNumArguments())
      return std::nullopt;
    // All uses of both sums are rounded, or none is.
    sumsAgree &= sumsAreRounded.value_or(number.isRounded) == number.isRounded;
    sumsAreRounded = number.isRounded;
    note(GateRounding::Sums, number);
    return argument.getArgNumber();
  }

  /// The input g of g * (1 / (1 + exp(-g))).
  std::optional<unsigned> readSilu(Value value) {
    Number silu = strip(value);
    auto multiply = silu.as<arith::MulFOp>();
    if (!multiply)
      return std::nullopt;
    for (auto [x, y] : getOrders(multiply)) {
      Number sigmoid = strip(y);
      if (!sigmoid.as<arith::DivFOp>())
        continue;
      std::optional<unsigned> gate = readSum(x), inner = readSigmoid(sigmoid);
      if (!gate || gate != inner)
        return std::nullopt;
      note(GateRounding::Silu, silu);
      return gate;
    }
    return std::nullopt;
  }

  /// The input g of 1 / (1 + exp(-g)).
  std::optional<unsigned> readSigmoid(Number sigmoid) {
    auto divide = sigmoid.as<arith::DivFOp>();
    if (!matchPattern(divide.getLhs(), m_OneFloat()))
      return std::nullopt;
    Number denominator = strip(divide.getRhs());
    auto add = denominator.as<arith::AddFOp>();
    if (!add)
      return std::nullopt;
    for (auto [one, term] : getOrders(add)) {
      Number exponential = strip(term);
      auto exp = exponential.as<math::ExpOp>();
      if (!exp || !matchPattern(one, m_OneFloat()))
        continue;
      Number opposite = strip(exp.getOperand());
      auto negate = opposite.as<arith::NegFOp>();
      if (!negate)
        return std::nullopt;
      note(GateRounding::Exponential, exponential);
      note(GateRounding::Denominator, denominator);
      note(GateRounding::Sigmoid, sigmoid);
      // Rounding commutes with negation: if -g was rounded, so was g.
      Number sum = strip(negate.getOperand());
      sum.isRounded |= opposite.isRounded;
      return readSum(sum);
    }
    return std::nullopt;
  }

  Block &body;
  Type narrow;
  GateRounding rounded = GateRounding::None;
  std::optional<bool> sumsAreRounded;
  bool sumsAgree = true;
};
} // namespace

std::optional<GatedBody> mlir::diffattn::matchGatedBody(Block &body,
                                                        Type narrow) {
  return BodyReader(body, narrow).read();
}
