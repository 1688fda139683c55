//===- Precision.h - the element type of a raised op ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_PRECISION_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_PRECISION_H

#include "Epilogue.h"

namespace mlir::diffattn::raise {

/// `expr` in `half` (f16, bf16, or f32 for what is f64) where it is an exact
/// widening of numbers of that type, or has it already; null elsewhere.
Expr narrowed(ExprGraph &graph, Expr expr, Type half);

/// `expr` in the 16-bit type that it reads and widens; null where there is
/// none.
Expr fromHalf(ExprGraph &graph, Expr expr);

/// The name of a query, key or value of f64 that is no exact widening of a
/// narrower type, so that the op's f32 would lose digits; empty if none is.
StringRef findDouble(ExprGraph &graph, Differential &match);

struct Precision {
  /// Element type of queries, keys and values.
  Type elements;
  /// Why 16-bit operands are computed in f32; empty where they are not.
  std::string f32Reason;
};

/// A 16-bit type T where queries, keys and values are exact widenings of it,
/// and the graph rounds the maps or the result to it: T's arithmetic is then
/// the graph's own. Else f32. With T the operands of `match` are expressed in
/// it.
Precision choosePrecision(ExprGraph &graph, Differential &match,
                          const Epilogue &epilogue);

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_PRECISION_H
