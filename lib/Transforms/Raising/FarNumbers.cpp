//===- FarNumbers.cpp - numbers that masks hide keys with -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "FarNumbers.h"

#include <cmath>

namespace mlir::diffattn::raise {

/// Parts of a value that are looked at. A term that convolutions computed has
/// millions: each read of an element that a loop moves is one of its own.
static constexpr unsigned kMaxParts = 1 << 14;

/// True if `operand` of a maximum or minimum leaves the other one as it is.
static bool isNeutral(ExprGraph &graph, Kind kind, Expr operand) {
  return (kind == Kind::Max && graph.constantValue(operand) == -INFINITY) ||
         (kind == Kind::Min && graph.constantValue(operand) == INFINITY);
}

bool readsFarNumber(ExprGraph &graph, Expr expr, FarNumbers which) {
  llvm::SetVector<Expr> seen;
  seen.insert(expr);
  for (unsigned next = 0; next < seen.size(); ++next) {
    if (next == kMaxParts)
      return true;
    Expr part = seen[next];
    if (part->kind == Kind::Load) {
      if (Expr opened = graph.expand(part))
        seen.insert(opened);
      continue;
    }
    if (part->kind == Kind::Reduce && !which.insideReductions)
      continue;
    if (part->kind == Kind::Const && std::fabs(part->number) >= kFarNumber &&
        (which.infinite || !std::isinf(part->number)))
      return true;
    for (Expr operand : part->operands)
      if (isa_and_nonnull<FloatType>(operand->type) &&
          !isNeutral(graph, part->kind, operand))
        seen.insert(operand);
  }
  return false;
}

} // namespace mlir::diffattn::raise
