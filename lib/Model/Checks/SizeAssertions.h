//===- SizeAssertions.h - assertions about dynamic sizes --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_CHECKS_SIZEASSERTIONS_H
#define DIFFATTN_LIB_MODEL_CHECKS_SIZEASSERTIONS_H

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"
#include "DiffAttn/IR/SizeRelations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

namespace mlir::diffattn {

/// A size as a product: of axes of tensors or memrefs, and of numbers.
struct Size {
  SmallVector<OperandAxis> axes;
  SmallVector<OpFoldResult> numbers;

  static Size of(Value operand, int64_t axis) {
    return {{{operand, axis}}, {}};
  }
  static Size of(OpFoldResult number) { return {{}, {number}}; }
};

/// Writes assertions (`cf.assert`) about the sizes of one function, each fact
/// once: at the start of the function where it is one about the function's
/// arguments, else before the op. In the message of an assertion `{0}` and
/// `{1}` stand for the sides of the comparison that is its condition.
class SizeAssertions {
public:
  explicit SizeAssertions(FunctionOpInterface function)
      : function(function), graph(function, /*trusting=*/false) {}

  /// Before `op`, `a` and `b` are equal; `what` names their kind, where no axis
  /// does.
  void requireEqual(Operation *op, const Size &a, const Size &b,
                    StringRef what = "size");
  /// A rule of a verifier holds.
  void require(Operation *op, const SizeRelation &relation);
  /// `number`, called `what`, is not negative.
  void requireNotNegative(Operation *op, OpFoldResult number,
                          const Twine &what);
  /// `axis` is one of a shape of rank `rank`.
  void requireAxis(Operation *op, Value axis, int64_t rank);
  /// Every position that `expr` comes to while loop `i` runs through
  /// `extents[i]` is one of `axis`, if all loops run at all.
  void requireInside(Operation *op, AffineExpr expr, ArrayRef<Size> extents,
                     OperandAxis axis);
  /// Takes `condition`, which an assertion of the graph states, for true.
  void learn(Value condition);

private:
  /// Where messages find a size.
  struct Place {
    std::optional<unsigned> argument, operand;
    int64_t axis = 0;
    std::string onAxis() const;
  };
  using Sides = std::pair<Value, Value>;
  /// Makes the sides of a comparison of `got` and `expected`.
  using Compare =
      llvm::function_ref<Sides(OpBuilder &, Value got, Value expected)>;

  tensorexpr::IndexPoly polyOf(const Size &size);
  tensorexpr::IndexPoly polyOf(OperandAxis axis) {
    return graph.sizeOf(axis.operand, axis.axis);
  }
  Value valueOf(OpBuilder &builder, Location loc, const Size &size);
  Value valueOf(OpBuilder &builder, Location loc,
                const tensorexpr::IndexPoly &poly);
  bool isOfArguments(const tensorexpr::IndexPoly &poly);
  /// Whether the function always comes to `op`, or to a loop around it.
  bool isUnconditional(Operation *op) const;
  Place placeOf(Operation *op, const tensorexpr::IndexPoly &poly,
                const Size &size);
  std::string begin(Operation *op, const Place &place) const;
  /// Sets `builder` to where sizes `polys` are known and `op` is not yet
  /// reached; true if that is at the start of the function.
  bool setInsertionPoint(OpBuilder &builder, Operation *op,
                         ArrayRef<tensorexpr::IndexPoly> polys);
  void check(OpBuilder &builder, Location loc, arith::CmpIPredicate predicate,
             Value a, Value b, const Twine &message, bool early = false);

  FunctionOpInterface function;
  tensorexpr::ExprGraph graph;
  /// The last assertion at the start of the function: the next comes after it.
  Operation *lastEarly = nullptr;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_CHECKS_SIZEASSERTIONS_H
