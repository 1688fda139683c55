//===- ExprGraph.h - reading the elements of tensors ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What an element of a tensor is, as an expression over elements of other
// tensors. This library only reads: it makes no ops and changes none.
//
// Of
//
//     %y = linalg.transpose ins(%x : tensor<4x8xf32>) ... permutation = [1, 0]
//     %z = math.exp %y : tensor<8x4xf32>
//
// the following reads what %z is:
//
//     ExprGraph graph(function);
//     Position at = graph.freshLoops(z);      // [i, j], a loop for each axis
//     Expr element = graph.load(z, at);       // Load z [i, j]
//     Expr opened = graph.expand(element);    // Exp(Load x [j, i])
//
// A *position* (IndexPoly.h) has one polynomial of loops and sizes for each
// axis. Ops that only move elements (transposes, reshapes, slices, broadcasts,
// gathers by constants, bodies that only yield) are seen through by `load`:
// they vanish into the position at which a base tensor is read, so that two
// spellings of one access are one expression. What computes is opened one op at
// a time, by `expand`, when a caller asks for it: a body, an element-wise op or
// a reduction becomes an expression over the elements that the op reads. Where
// an op is not understood the load of its result stays, and `expand` is null;
// nothing is an error.
//
// What is read holds wherever the program has a defined result. Sizes known
// only at run time count as at least 1 and less than 2^31, products of sizes
// and positions as at most 2^40.
//
// Cost. An expression has at most 2^14 nodes, written out as a tree; a body or
// a chain of scalars beyond that is not read (a tensor stays a load, a scalar
// stands for itself), and `close` is null. A polynomial has at most 64 terms of
// at most 16 factors, and is read from at most 500 ops. So no call takes longer
// than these allow, however a graph shares its values.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_ANALYSIS_TENSOREXPR_EXPRGRAPH_H
#define DIFFATTN_ANALYSIS_TENSOREXPR_EXPRGRAPH_H

#include "DiffAttn/Analysis/TensorExpr/Expr.h"
#include "DiffAttn/Analysis/TensorExpr/LinalgOps.h"
#include "DiffAttn/Analysis/TensorExpr/Numbers.h"

#include "llvm/ADT/DenseMap.h"

#include <deque>

namespace mlir::diffattn::tensorexpr {

/// The largest expression that is read, in nodes of its tree.
constexpr unsigned kMaxNodes = 1u << 14;

/// Expressions over the tensors of one function. Owns their nodes. The function
/// may not change in what was read.
class ExprGraph {
public:
  /// Sizes of `function` that ops state to be equal are one size, unless
  /// `trusting` is false: then only those that are so by how they are made.
  explicit ExprGraph(Operation *function, bool trusting = true)
      : context(function->getContext()) {
    joinSizes(function, trusting);
  }

  /// The loops, sizes and integers that positions are made of.
  IndexSpace space;
  MLIRContext *getContext() const { return context; }

  //===--------------------------------------------------------------------===//
  // Reading
  //===--------------------------------------------------------------------===//

  /// A new loop along each axis of `tensor`.
  Position freshLoops(Value tensor);
  /// The element of `tensor` at `indices`, seen through all that moves
  /// elements.
  Expr load(Value tensor, ArrayRef<IndexPoly> indices);
  /// A scalar that is computed outside of any tensor op.
  Expr scalar(Value value);
  /// The element that `load` reads in terms of the op that computes it; null
  /// where that op is not understood, and for other kinds than loads.
  Expr expand(Expr load);
  /// Takes casts off and expands, until something else than a load is on top or
  /// nothing is left to expand.
  Expr open(Expr expr);

  /// The size of an axis: a number, a size known at run time, or what it was
  /// computed from.
  IndexPoly sizeOf(Value tensor, int64_t axis);
  /// An integer as a polynomial, extended by its sign. Only what provably does
  /// not wrap around in the integer's type is looked into: the rest stands for
  /// itself (IndexSpace::opaque).
  IndexPoly polyOf(Value integer);
  IndexPoly polyOf(OpFoldResult integer);
  /// The result of a comparison of integers, if it is known.
  std::optional<bool> truthOf(Value condition);
  /// True if differences of `poly` to another such do not wrap around.
  bool isBounded(const IndexPoly &poly) const;

  //===--------------------------------------------------------------------===//
  // Making. Constants fold, comparisons that are proven become truth values.
  //===--------------------------------------------------------------------===//

  Expr constant(double number, Type type);
  Expr index(const IndexPoly &poly);
  Expr make(Kind kind, Type type, ArrayRef<Expr> operands,
            int64_t predicate = 0);
  Expr notOf(Expr condition);
  /// `a` where `condition` holds, else `b`.
  Expr choose(Type type, Expr condition, Expr a, Expr b);
  Expr softmax(Expr scores, AtomId key, const IndexPoly &at);
  /// The reduction `reduce`, of `body` instead.
  Expr withBody(Expr reduce, Expr body);
  /// `expr` with other polynomials in the place of loops.
  Expr substitute(Expr expr, const IndexSpace::Substitution &map);

  //===--------------------------------------------------------------------===//
  // Asking
  //===--------------------------------------------------------------------===//

  /// Whether `expr` depends on the atom `id`, as it is written.
  bool mentions(Expr expr, AtomId id);
  /// `expr`, opened as far as it takes to see that `loop` does not matter, as
  /// after a broadcast; `expr` itself where it does.
  Expr withoutLoop(Expr expr, AtomId loop);
  /// The operand of casts on top, and with `peelCasts` also of those that are
  /// ops of their own.
  Expr stripCasts(Expr expr) const {
    while (expr->kind == Kind::Cast)
      expr = expr->operands[0];
    return expr;
  }
  Expr peelCasts(Expr expr);
  /// True if both are the same for all positions, as written or opened up to
  /// eight ops deep; false where that is not seen.
  bool equal(Expr a, Expr b);

  //===--------------------------------------------------------------------===//
  // Evaluating
  //===--------------------------------------------------------------------===//

  /// `expr` with every load opened down to constants and positions; null where
  /// it depends on an argument, or on what is not understood.
  Expr close(Expr expr);
  /// The number that a closed expression is where loops (and sizes) stand `at`;
  /// none where it has no defined value. Rounded as its ops round.
  std::optional<double> evaluate(Expr expr,
                                 const llvm::DenseMap<AtomId, int64_t> &at);
  /// The value of an integer expression, exactly; a truth value is 0 or 1.
  std::optional<int64_t>
  evaluateInteger(Expr expr, const llvm::DenseMap<AtomId, int64_t> &at);
  /// The number that `expr` is at every position, if it is one.
  std::optional<double> constantValue(Expr expr);

private:
  Expr add(Node node);

  // Sizes.cpp
  void joinSizes(Operation *function, bool trusting);
  void joinSizesOf(Operation *op, bool trusting);
  IndexPoly readPoly(Value integer);

  // Integers.cpp
  bool holds(Type type, const IndexPoly &poly) const;
  bool isAtLeast(const IndexPoly &poly, int64_t least) const;
  bool isNeverNegative(const IndexPoly &poly) const {
    return isAtLeast(poly, 0);
  }
  bool isNegative(const IndexPoly &poly) const {
    return isLess(poly, IndexPoly(0)).value_or(false);
  }
  std::optional<bool> isLess(const IndexPoly &a, const IndexPoly &b) const;
  std::optional<IndexPoly> polyOf(Operation *op, ArrayRef<IndexPoly> operands);
  Expr compareUnsigned(Expr a, Expr b);
  Expr compareIndices(Expr a, Expr b, int64_t predicate);
  Expr truthOp(Operation *op, ArrayRef<Expr> operands);
  Expr castTruth(Operation *op, Expr truth);
  /// The result of `op` on integers; null where the op stays as it is.
  Expr integerOp(Operation *op, ArrayRef<Expr> operands);

  // Sums.cpp
  std::optional<IndexPoly> countOf(Expr condition, AtomId loop);
  /// The sum of `body` over `loop`, or null.
  Expr sumOf(Expr body, AtomId loop, Type type);

  // Fold.cpp
  std::optional<double> fold(Kind kind, ArrayRef<double> operands) const;
  Expr simplifyChosenNumbers(Kind compare, ArrayRef<Expr> operands,
                             int64_t predicate);
  bool sameWhereChosen(Expr condition, const IndexPoly &a, const IndexPoly &b);
  Expr simplify(Kind kind, ArrayRef<Expr> operands, int64_t predicate);

  // Access.cpp
  Expr seeThrough(Value tensor, ArrayRef<IndexPoly> indices);
  Expr seeThroughBody(Value tensor, ArrayRef<IndexPoly> indices);
  Expr constantElement(Value tensor, ArrayRef<IndexPoly> indices);

  // ScalarOps.cpp
  Expr exprOf(Operation *op, ArrayRef<Expr> operands);
  /// The position in a tensor that an integer expression is.
  std::optional<IndexPoly> positionOf(Expr expr);
  /// `op` of integers or of integers and numbers, folded where it can be.
  Expr operation(Operation *op, Type type, ArrayRef<Expr> operands);

  // ScalarBody.cpp
  Expr bodyExpr(Value value, ArrayRef<IndexPoly> loops,
                llvm::DenseMap<Value, Expr> &known);
  Expr branchExpr(Region &side, unsigned result, ArrayRef<IndexPoly> loops,
                  const llvm::DenseMap<Value, Expr> &known);

  // Expand.cpp
  Expr expandLinalg(linalg::LinalgOp op, unsigned result,
                    ArrayRef<IndexPoly> indices);
  Expr expandElementwise(Operation *op, ArrayRef<IndexPoly> indices);

  bool equalNodes(Expr a, Expr b, unsigned depth, unsigned &steps);
  Expr close(Expr expr, unsigned &steps);
  Expr readScalar(Value value);
  /// Whether positions cost little enough to be worked on.
  bool isSmall(const IndexPoly &poly) const;

  MLIRContext *context;
  std::deque<Node> nodes;
  /// Elements that were read through the body that makes a tensor, by position
  /// and by whether they were read under a condition.
  using Place = std::pair<bool, std::vector<std::map<Monomial, int64_t>>>;
  llvm::DenseMap<Value, std::map<Place, Expr>> gathered;
  /// Depth and steps of the outermost call of polyOf, and of scalar, that is
  /// under way.
  unsigned polyDepth = 0, polySteps = 0, scalarDepth = 0, scalarSteps = 0;
  /// Whether what bodyExpr reads is read under a condition.
  bool conditional = false;
};

} // namespace mlir::diffattn::tensorexpr

#endif // DIFFATTN_ANALYSIS_TENSOREXPR_EXPRGRAPH_H
