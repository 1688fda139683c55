//===- Expr.h - one element of a tensor as an expression --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What an element of a tensor value is, as an expression over elements of
// other values. Every op that only moves elements (transposes, reshapes,
// slices, broadcasts, gathers by constants, bodies that only yield) disappears
// into the position at which a base value is read, so two spellings of one
// access are one expression. Element-wise bodies and reductions are opened one
// level at a time, when a recogniser asks for it.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_ANALYSIS_TENSOREXPR_EXPR_H
#define DIFFATTN_ANALYSIS_TENSOREXPR_EXPR_H

#include "DiffAttn/Analysis/TensorExpr/IndexPoly.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"

#include <deque>

namespace mlir::diffattn::tensorexpr {

enum class Kind {
  Const,
  Index, ///< an integer that is a polynomial of positions
  Load,
  Scalar,
  Add,
  Sub,
  Mul,
  Div,
  Neg,
  Max,
  Min,
  Exp,
  Exp2,
  Log,
  Sqrt,
  Rsqrt,
  Tanh,
  Cast,    ///< between float types
  FromInt, ///< integer to float
  CmpF,
  CmpI,
  Select,
  And,
  Or,
  Xor,
  Reduce,
  Softmax, ///< operand 0 over `bound[0]`, taken at key `index`
  Opaque,  ///< any other scalar op, kept by `proto`
};

enum class Combiner { Sum, Max, Min, And, Or };

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

  Combiner combiner() const { return static_cast<Combiner>(predicate); }
  bool isConst(double value) const {
    return kind == Kind::Const && number == value;
  }
};
using Expr = const Node *;

/// Expressions over the tensors of one function.
class ExprGraph {
public:
  /// Sizes of `function` that ops state to be equal are one size, unless
  /// `trusting` is false: then only those that are so by how they are made.
  explicit ExprGraph(Operation *function, bool trusting = true)
      : context(function->getContext()) {
    joinSizes(function, trusting);
  }

  IndexSpace space;
  MLIRContext *getContext() const { return context; }

  // Building; constants fold, positions that compare provably are decided.
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
  /// Element of `tensor` at `indices`, seen through all that moves elements.
  Expr load(Value tensor, ArrayRef<IndexPoly> indices);
  /// A scalar that is computed outside of any tensor op.
  Expr scalar(Value value);

  /// The element behind a load, one op further up; null where there is none.
  Expr expand(Expr load);
  /// `expr`, opened as far as it takes to see that `loop` does not matter, as
  /// after a broadcast; `expr` itself where it does.
  Expr withoutLoop(Expr expr, AtomId loop);
  /// Takes casts off, also those that are ops of their own.
  Expr peelCasts(Expr expr);
  /// Opens element-wise ops and casts until something else is on top.
  Expr open(Expr expr);
  Expr substitute(Expr expr, const IndexSpace::Substitution &map);
  bool mentions(Expr expr, AtomId id);
  /// Equal as written, or after opening the element-wise ops of either side.
  bool equal(Expr a, Expr b);
  /// The expression with every load opened down to constants, or null.
  Expr close(Expr expr);
  std::optional<double> evaluate(Expr expr,
                                 const llvm::DenseMap<AtomId, int64_t> &at);
  /// The same of an integer, exactly; a truth value is 0 or 1.
  std::optional<int64_t>
  evaluateInteger(Expr expr, const llvm::DenseMap<AtomId, int64_t> &at);
  /// The number that `expr` is, if it is one.
  std::optional<double> constantValue(Expr expr);

  IndexPoly sizeOf(Value tensor, int64_t axis);
  /// The value of an integer as a polynomial; what would grow too large stands
  /// for itself.
  IndexPoly polyOf(Value integer);
  IndexPoly polyOf(OpFoldResult integer);
  /// What a comparison of integers comes to, if that is known.
  std::optional<bool> truthOf(Value condition);
  /// True if differences of `poly` to another such do not wrap around.
  bool isBounded(const IndexPoly &poly) const;
  SmallVector<IndexPoly> freshLoops(Value tensor);
  Expr stripCasts(Expr expr) const {
    while (expr->kind == Kind::Cast)
      expr = expr->operands[0];
    return expr;
  }

private:
  Expr add(Node node) {
    nodes.push_back(std::move(node));
    return &nodes.back();
  }

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
  /// What `op` makes of integers; null where it stays as it is.
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

  bool equalNodes(Expr a, Expr b, unsigned depth);

  MLIRContext *context;
  std::deque<Node> nodes;
  /// Of the call of polyOf that is under way.
  unsigned polyDepth = 0, polySteps = 0;
  /// Whether what bodyExpr reads is read under a condition.
  bool conditional = false;
};

/// The neutral scalar type of `tensor`.
inline Type elementType(Value tensor) {
  return cast<ShapedType>(tensor.getType()).getElementType();
}

/// True for integers other than truth values.
bool isInteger(Type type);

/// What an integer op makes of numbers that are extended by their sign; none
/// where that is not defined.
std::optional<int64_t> evaluateInteger(Operation *op,
                                       ArrayRef<int64_t> operands);

/// True for floats whose numbers are numbers of f64 too.
inline bool isNumberOfF64(Type type) {
  auto real = dyn_cast_or_null<FloatType>(type);
  return real && real.getWidth() <= 64;
}

/// `number` as a value of `type` holds it.
double roundTo(double number, Type type);

/// An ordered or unordered comparison, or one of integers extended by sign.
bool compareF(int64_t predicate, double a, double b);
bool compareI(int64_t predicate, int64_t a, int64_t b);

/// The axis that `dim` reads, if it is a constant and the operand has it.
std::optional<int64_t> knownAxis(tensor::DimOp dim);
std::optional<int64_t> knownAxis(memref::DimOp dim);

/// The number that `integer` is, if it is a constant that fits into 64 bits.
std::optional<int64_t> constantInteger(Value integer);

/// What `condition` comes to if the values that `isFinite` names are finite
/// numbers, none where that depends on the numbers. Sets `testsNan` if a value
/// is asked whether it is NaN.
std::optional<bool> truthIfFinite(ExprGraph &graph, Expr condition,
                                  llvm::function_ref<bool(Expr)> isFinite,
                                  bool &testsNan);

/// max(value, bound), or min where not `isLower`; spelled as either, or as a
/// choice after a comparison.
struct Clamp {
  Expr value;
  double bound;
  bool isLower;
};
std::optional<Clamp> matchClamp(ExprGraph &graph, Expr expr);

/// True if every loop is parallel and each output position is one loop.
bool isElementwise(linalg::LinalgOp op);

/// The reduction loops of `op` that are not known to run once.
unsigned numberOfSums(linalg::LinalgOp op);

/// What `op` reads: its inputs, and what its body extracts from.
SmallVector<Value> readBy(linalg::LinalgOp op);

/// Element `position` (row-major) of a constant, if it can be read.
std::optional<double> constantAt(Attribute elements, int64_t position);
/// The same of integers, exactly.
std::optional<int64_t> integerAt(Attribute elements, int64_t position);

} // namespace mlir::diffattn::tensorexpr

#endif // DIFFATTN_ANALYSIS_TENSOREXPR_EXPR_H
