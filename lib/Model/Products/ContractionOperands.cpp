//===- ContractionOperands.cpp - values that a contraction reads ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ContractionOperands.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace mlir::diffattn;

bool mlir::diffattn::isGemmFloat(Type type) {
  return type.isF32() || type.isF16() || type.isBF16() || type.isF64();
}

/// The argument of the body that `value` is, through widening.
static BlockArgument getWidenedArgument(Value value) {
  while (auto extend = value.getDefiningOp<arith::ExtFOp>())
    value = extend.getIn();
  return dyn_cast<BlockArgument>(value);
}

FailureOr<std::pair<BlockArgument, BlockArgument>>
mlir::diffattn::matchMultiplyAdd(linalg::LinalgOp op) {
  Block *body = op.getBlock();
  BlockArgument out = op.getRegionOutputArgs()[0];
  auto add =
      body->getTerminator()->getOperand(0).getDefiningOp<arith::AddFOp>();
  if (!add)
    return failure();
  Value product = add.getLhs() == out ? add.getRhs() : add.getLhs();
  if (add.getLhs() != out && add.getRhs() != out)
    return failure();
  // A product in half precision that is widened was rounded before: not ours.
  auto multiply = product.getDefiningOp<arith::MulFOp>();
  if (!multiply)
    return failure();
  BlockArgument x = getWidenedArgument(multiply.getLhs());
  BlockArgument y = getWidenedArgument(multiply.getRhs());
  if (!x || !y || x == y || x == out || y == out)
    return failure();
  // Nothing else may happen in the body.
  int64_t extensions =
      llvm::count_if(body->without_terminator(),
                     [](Operation &o) { return isa<arith::ExtFOp>(o); });
  if (body->getOperations().size() != static_cast<size_t>(extensions) + 3)
    return failure();
  return std::pair(x, y);
}

namespace {
/// The loop along an axis; none where the index is no loop's, as on an axis of
/// one element.
using AxisLoop = std::optional<unsigned>;

struct View {
  Value value;
  SmallVector<AxisLoop> axes;
};
} // namespace

/// True if `op` gives each element of its one input, at most widened.
static bool isCopy(linalg::LinalgOp op) {
  if (op.getNumDpsInputs() != 1 || op.getNumDpsInits() != 1 ||
      !op.hasPureTensorSemantics() ||
      op.getNumParallelLoops() != op.getNumLoops())
    return false;
  Value yielded = op.getBlock()->getTerminator()->getOperand(0);
  while (auto extend = yielded.getDefiningOp<arith::ExtFOp>())
    yielded = extend.getIn();
  return yielded == op.getBlock()->getArgument(0);
}

/// The input of a copy, where `view` is its result.
static std::optional<View> lookThroughCopy(linalg::LinalgOp op,
                                           const View &view) {
  AffineMap in = op.getMatchingIndexingMap(op.getDpsInputOperand(0)),
            out = op.getMatchingIndexingMap(op.getDpsInitOperand(0));
  if (!out.isPermutation())
    return std::nullopt;
  SmallVector<AxisLoop> loops(op.getNumLoops());
  for (auto [axis, expr] : llvm::enumerate(out.getResults()))
    loops[cast<AffineDimExpr>(expr).getPosition()] = view.axes[axis];
  View source{op.getDpsInputs()[0], {}};
  for (AffineExpr expr : in.getResults()) {
    auto dim = dyn_cast<AffineDimExpr>(expr);
    if (!dim && !isa<AffineConstantExpr>(expr))
      return std::nullopt;
    source.axes.push_back(dim ? loops[dim.getPosition()] : std::nullopt);
  }
  return source;
}

/// True if all axes of `type` in `axes` but at most `kept` of them have one
/// element; `at` is the one that may have more.
static bool findKeptAxis(RankedTensorType type, ArrayRef<int64_t> axes,
                         int64_t &at) {
  at = axes.front();
  int64_t larger = 0;
  for (int64_t axis : axes)
    if (type.getDimSize(axis) != 1) {
      at = axis;
      ++larger;
    }
  return larger <= 1;
}

/// The source of an expansion that adds unit axes.
static std::optional<View> lookThroughExpand(tensor::ExpandShapeOp op,
                                             const View &view) {
  View source{op.getSrc(), {}};
  for (const ReassociationIndices &group : op.getReassociationIndices()) {
    int64_t kept;
    if (!findKeptAxis(op.getResultType(), group, kept))
      return std::nullopt;
    source.axes.push_back(view.axes[kept]);
  }
  return source;
}

/// The source of a collapse: an axis that is made of several has no loop for
/// each, which is well if a broadcast made them.
static View lookThroughCollapse(tensor::CollapseShapeOp op, const View &view) {
  View source{op.getSrc(), {}};
  source.axes.resize(op.getSrcType().getRank());
  for (auto [axis, group] : llvm::enumerate(op.getReassociationIndices())) {
    int64_t kept;
    if (findKeptAxis(op.getSrcType(), group, kept))
      source.axes[kept] = view.axes[axis];
  }
  return source;
}

static std::optional<View> lookThrough(const View &view) {
  Operation *op = view.value.getDefiningOp();
  if (auto cast = dyn_cast_or_null<tensor::CastOp>(op);
      cast && isa<RankedTensorType>(cast.getSource().getType()))
    return View{cast.getSource(), view.axes};
  if (auto expand = dyn_cast_or_null<tensor::ExpandShapeOp>(op))
    return lookThroughExpand(expand, view);
  if (auto collapse = dyn_cast_or_null<tensor::CollapseShapeOp>(op))
    return lookThroughCollapse(collapse, view);
  if (auto copy = dyn_cast_or_null<linalg::LinalgOp>(op); copy && isCopy(copy))
    return lookThroughCopy(copy, view);
  return std::nullopt;
}

SmallVector<ContractionOperand>
mlir::diffattn::findSources(linalg::LinalgOp op, OpOperand *operand) {
  View view{operand->get(), {}};
  for (AffineExpr expr : op.getMatchingIndexingMap(operand).getResults()) {
    auto dim = dyn_cast<AffineDimExpr>(expr);
    if (!dim)
      return {};
    view.axes.push_back(dim.getPosition());
  }
  SmallVector<ContractionOperand> sources;
  for (std::optional<View> next = view; next; next = lookThrough(*next)) {
    // Only what has a loop for each axis can be read without another view.
    if (!llvm::all_of(next->axes, [](AxisLoop loop) { return loop; }))
      continue;
    ContractionOperand &source = sources.emplace_back();
    source.value = next->value;
    for (AxisLoop loop : next->axes)
      source.loops.push_back(*loop);
  }
  return sources;
}

/// True if `loops` are those of `parts`, one after the other.
static bool isSequence(ArrayRef<unsigned> loops,
                       std::initializer_list<ArrayRef<unsigned>> parts) {
  for (ArrayRef<unsigned> part : parts) {
    if (loops.take_front(part.size()) != part)
      return false;
    loops = loops.drop_front(part.size());
  }
  return loops.empty();
}

std::optional<MatrixRoles>
mlir::diffattn::matchMatrixRoles(const ContractionOperand &a,
                                 const ContractionOperand &b,
                                 const ContractionOperand &c) {
  auto has = [](const ContractionOperand &operand, unsigned loop) {
    return llvm::is_contained(operand.loops, loop);
  };
  // c's loops in three pieces: of both operands, then of one and of the other.
  ArrayRef<unsigned> rest = c.loops;
  auto take = [&](bool ofA, bool ofB) {
    ArrayRef<unsigned> piece = rest.take_while([&](unsigned loop) {
      return has(a, loop) == ofA && has(b, loop) == ofB;
    });
    rest = rest.drop_front(piece.size());
    return SmallVector<unsigned>(piece);
  };
  MatrixRoles roles;
  roles.batches = take(true, true);
  SmallVector<unsigned> ofA = take(true, false), ofB = take(false, true);
  if (ofA.empty() && !ofB.empty()) {
    ofA = take(true, false);
    // Loops of B around those of A: a batch with one A.
    SmallVector<unsigned> columns = take(false, true);
    roles.sharedA = !ofA.empty() && !columns.empty() && roles.batches.empty();
    if (roles.sharedA) {
      roles.batches = std::move(ofB);
      ofB = std::move(columns);
    } else {
      roles.swapped = !ofA.empty();
    }
  }
  if (!rest.empty() || (ofA.empty() && ofB.empty()))
    return std::nullopt;
  // A vector is one row.
  roles.swapped |= ofB.empty();
  const ContractionOperand &left = roles.swapped ? b : a,
                           &right = roles.swapped ? a : b;
  roles.rows = roles.swapped ? ofB : ofA;
  roles.columns = roles.swapped ? ofA : ofB;
  for (unsigned loop : left.loops)
    if (has(right, loop) && !has(c, loop))
      roles.inner.push_back(loop);
  ArrayRef<unsigned> none;
  roles.transposeB =
      isSequence(right.loops, {roles.batches, roles.columns, roles.inner});
  bool fits =
      !roles.inner.empty() &&
      isSequence(left.loops, {roles.sharedA ? none : roles.batches, roles.rows,
                              roles.inner}) &&
      (roles.transposeB ||
       isSequence(right.loops, {roles.batches, roles.inner, roles.columns}));
  return fits ? std::optional(std::move(roles)) : std::nullopt;
}
