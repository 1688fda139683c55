//===- Expr.h - an element of a tensor as an expression ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The nodes that ExprGraph.h makes. A node is one scalar operation; its
// operands are nodes. Nodes belong to their graph, are never changed, and may
// be operands of many others: an expression is a directed graph, read as a
// tree.
//
// A node says which number it is for every choice of positions, and no more:
// sums have no order, the sign of a zero is not kept, a maximum that starts
// from the least finite number starts from nothing, and the greater or smaller
// one of NaN and a number is not defined (`arith.maximumf` and `arith.maxnumf`
// are one kind).
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_ANALYSIS_TENSOREXPR_EXPR_H
#define DIFFATTN_ANALYSIS_TENSOREXPR_EXPR_H

#include "DiffAttn/Analysis/TensorExpr/IndexPoly.h"

#include "mlir/IR/Operation.h"

namespace mlir::diffattn::tensorexpr {

enum class Kind {
  Const,  ///< `number`: of a float type, or a truth value, which is 0 or 1
  Index,  ///< the integer `index`, extended by its sign; has no type
  Load,   ///< the element of the tensor `value` at `indices`
  Scalar, ///< `value`, which is not looked into
  Add,    ///< floats, or integers that wrap around in `type`; also Sub, Mul
  Sub,
  Mul,
  Div, ///< floats, as all up to Cast
  Neg,
  Max,
  Min,
  Exp,
  Exp2,
  Log,
  Sqrt,
  Rsqrt,
  Tanh,
  Cast,    ///< between float types, to the nearest number
  FromInt, ///< integer with a sign to float
  CmpF,    ///< by `predicate`, an arith::CmpFPredicate
  CmpI,    ///< by `predicate`, an arith::CmpIPredicate
  Select,  ///< operand 0 chooses operand 1 or 2
  And,     ///< of truth values, or of the bits of integers; also Or, Xor
  Or,
  Xor,
  Reduce,  ///< `combiner()` of operand 0 over all of the loops `bound`
  Softmax, ///< operand 0 over `bound[0]`, taken at `index`; made by users only
  Opaque,  ///< what the scalar op `proto` makes of the operands
};

enum class Combiner { Sum, Max, Min, And, Or };

/// One operation. The kind says which members it has.
struct Node {
  Node(Kind kind, Type type) : kind(kind), type(type) {}

  Kind kind;
  Type type;
  SmallVector<const Node *, 3> operands;
  double number = 0;
  int64_t predicate = 0; ///< of a comparison; the combiner of a reduction
  IndexPoly index;
  Value value;
  SmallVector<IndexPoly, 4> indices;
  SmallVector<AtomId, 1> bound;
  Operation *proto = nullptr;
  /// The number of nodes, written out as a tree; at most 2^30.
  unsigned size = 1;

  Combiner combiner() const { return static_cast<Combiner>(predicate); }
  bool isConst(double value) const {
    return kind == Kind::Const && number == value;
  }
};
using Expr = const Node *;

} // namespace mlir::diffattn::tensorexpr

#endif // DIFFATTN_ANALYSIS_TENSOREXPR_EXPR_H
