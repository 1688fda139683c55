//===- Precision.cpp - the element type of a raised op --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Precision.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

namespace mlir::diffattn::raise {

Expr narrowed(ExprGraph &graph, Expr expr, Type half) {
  if (expr->type == half)
    return expr;
  // Another 16-bit type does not hold all numbers of `half`.
  if (!isa_and_nonnull<Float32Type, Float64Type>(expr->type))
    return nullptr;
  switch (expr->kind) {
  case Kind::Const: {
    Expr number = graph.constant(expr->number, half);
    return number->number == expr->number ? number : nullptr;
  }
  case Kind::Load: {
    Expr opened = graph.expand(expr);
    return opened ? narrowed(graph, opened, half) : nullptr;
  }
  case Kind::Cast:
    return narrowed(graph, expr->operands[0], half);
  case Kind::Neg: {
    Expr operand = narrowed(graph, expr->operands[0], half);
    return operand ? graph.make(Kind::Neg, half, {operand}) : nullptr;
  }
  case Kind::Select: {
    Expr a = narrowed(graph, expr->operands[1], half);
    Expr b = a ? narrowed(graph, expr->operands[2], half) : nullptr;
    return b ? graph.make(Kind::Select, half, {expr->operands[0], a, b})
             : nullptr;
  }
  default:
    return nullptr;
  }
}

/// Whether `expr`, in a 16-bit type, is more than a choice of constants, which
/// have that type for no reason of the graph's.
static bool readsHalf(Expr expr) {
  switch (expr->kind) {
  case Kind::Const:
    return false;
  case Kind::Neg:
  case Kind::Select:
    return llvm::any_of(expr->operands, readsHalf);
  default:
    return isHalfFloat(expr->type);
  }
}

Expr fromHalf(ExprGraph &graph, Expr expr) {
  MLIRContext *context = graph.getContext();
  for (Type half :
       {Type(Float16Type::get(context)), Type(BFloat16Type::get(context))})
    if (Expr narrow = narrowed(graph, expr, half); narrow && readsHalf(narrow))
      return narrow;
  return nullptr;
}

/// Queries and keys, with the names that remarks give them.
static SmallVector<std::pair<Expr *, StringRef>, 5>
queriesAndKeys(Differential &match) {
  Scores &first = match.first;
  if (!match.second)
    return {{&first.query, "q"}, {&first.key, "k"}};
  return {{&first.query, "q1"},
          {&first.key, "k1"},
          {&match.second->query, "q2"},
          {&match.second->key, "k2"}};
}

StringRef findDouble(ExprGraph &graph, Differential &match) {
  Type single = Float32Type::get(graph.getContext());
  auto operands = queriesAndKeys(match);
  operands.push_back({&match.value, "v"});
  for (auto [operand, name] : operands)
    if (isa<Float64Type>((*operand)->type) &&
        !narrowed(graph, *operand, single) && !fromHalf(graph, *operand))
      return name;
  return "";
}

/// Whether `use` rounds its value to `half`. An op that only moves or
/// multiplies the value adds its result to `work`.
static bool rounds(OpOperand &use, Type half, llvm::SetVector<Value> &work) {
  Operation *user = use.getOwner();
  if (isa<tensor::DimOp>(user))
    return true;
  if (isa<arith::TruncFOp>(user))
    return getElementTypeOrSelf(user->getResult(0).getType()) == half;
  const bool scales = isa<arith::MulFOp, arith::NegFOp>(user) ||
                      (isa<arith::DivFOp>(user) && use.getOperandNumber() == 0);
  if (scales ||
      isa<tensor::CastOp, tensor::CollapseShapeOp, tensor::ExpandShapeOp,
          tensor::ExtractSliceOp, tensor::ConcatOp, tensor::ReshapeOp>(user)) {
    work.insert(user->getResult(0));
    return true;
  }
  if (auto linalgOp = dyn_cast<linalg::LinalgOp>(user)) {
    if (Value element = linalgOp.getMatchingBlockArgument(&use);
        !element.use_empty())
      work.insert(element);
    return true;
  }
  // The end of a body that adds nothing up.
  auto body = dyn_cast<linalg::LinalgOp>(user->getParentOp());
  if (!isa<linalg::YieldOp>(user) || !body || body.getNumReductionLoops() > 0)
    return false;
  work.insert(body->getResult(use.getOperandNumber()));
  return true;
}

/// Whether everything that reads `result` rounds it to `half`, perhaps after it
/// was multiplied.
static bool isRoundedBehind(Value result, Type half) {
  llvm::SetVector<Value> work;
  work.insert(result);
  for (unsigned next = 0; next < work.size(); ++next) {
    Value value = work[next];
    // A value without a reader is not known to be rounded.
    if (value.use_empty() ||
        !llvm::all_of(value.getUses(),
                      [&](OpOperand &use) { return rounds(use, half, work); }))
      return false;
  }
  return true;
}

Precision choosePrecision(ExprGraph &graph, Differential &match,
                          const Epilogue &epilogue) {
  MLIRContext *context = epilogue.result.getContext();
  Precision precision{Float32Type::get(context), ""};
  // A number on the values in a wider type moves after the sum.
  double factor = 1;
  Expr value = withoutConstantFactors(graph, match.value, factor);
  auto operands = queriesAndKeys(match);
  operands.push_back({&value, "v"});
  for (Type half :
       {Type(Float16Type::get(context)), Type(BFloat16Type::get(context))}) {
    SmallVector<Expr> narrow;
    std::string wide;
    for (auto [operand, name] : operands) {
      narrow.push_back(narrowed(graph, *operand, half));
      if (!narrow.back() && wide.empty())
        wide = name;
    }
    if (llvm::none_of(narrow, [](Expr expr) { return expr; }))
      continue;
    std::string type;
    llvm::raw_string_ostream(type) << half;
    if (!wide.empty()) {
      precision.f32Reason = wide + " is no exact widening of " + type;
      continue;
    }
    if (!match.roundedTo.contains(half) && !epilogue.roundedTo.contains(half) &&
        !isRoundedBehind(epilogue.result, half)) {
      precision.f32Reason =
          "neither the maps nor the result is rounded to " + type;
      continue;
    }
    for (auto [operand, expr] : llvm::zip(operands, narrow))
      *operand.first = expr;
    // A product that is rounded to `half` is a value as it is.
    if (Expr whole = narrowed(graph, match.value, half)) {
      match.value = whole;
    } else {
      match.value = value;
      match.outScale *= factor;
    }
    return {half, ""};
  }
  return precision;
}

} // namespace mlir::diffattn::raise
