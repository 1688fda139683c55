//===- CheckSizes.cpp - assertions that dynamic sizes fit -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Passes.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Transforms/Raise/Materialize.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CHECKSIZESPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::raise;

namespace {
/// A size as a product: of axes of tensors, and of numbers.
struct Size {
  SmallVector<std::pair<Value, int64_t>> axes;
  SmallVector<OpFoldResult> numbers;
};

struct SizeChecker {
  SizeChecker(FunctionOpInterface function)
      : function(function), graph(function, /*trusting=*/false) {}

  void check(Operation *op);

private:
  void checkLoops(linalg::LinalgOp op);
  void checkAttention(AttentionOp op);
  void checkReshape(tensor::ReshapeOp op);
  void checkSlice(OffsetSizeAndStrideOpInterface slice, Value whole);
  /// Before `op`, `a` and `b` have to be equal.
  void require(Operation *op, const Size &a, const Size &b);
  void requireSame(Operation *op, Value a, int64_t i, Value b, int64_t k) {
    require(op, {{{a, i}}, {}}, {{{b, k}}, {}});
  }
  IndexPoly polyOf(const Size &size);
  Value valueOf(OpBuilder &builder, Location loc, const Size &size);
  bool isOfArguments(const IndexPoly &poly);
  void assertThat(Operation *op, arith::CmpIPredicate predicate,
                  const IndexPoly &a, const IndexPoly &b,
                  llvm::function_ref<std::pair<Value, Value>(OpBuilder &)> here,
                  const Twine &fact);
  std::string name(const IndexPoly &poly);

  FunctionOpInterface function;
  ExprGraph graph;
};
} // namespace

IndexPoly SizeChecker::polyOf(const Size &size) {
  IndexPoly product = 1;
  for (auto [tensor, axis] : size.axes)
    product = product * graph.sizeOf(tensor, axis);
  for (OpFoldResult number : size.numbers)
    product = product * graph.polyOf(number);
  return product;
}

Value SizeChecker::valueOf(OpBuilder &builder, Location loc, const Size &size) {
  SmallVector<OpFoldResult> factors(size.numbers);
  for (auto [tensor, axis] : size.axes)
    factors.push_back(tensor::getMixedSize(builder, loc, tensor, axis));
  Value product;
  for (OpFoldResult factor : factors) {
    Value number = getValueOrCreateCastToIndexLike(
        builder, loc, builder.getIndexType(),
        getValueOrCreateConstantIndexOp(builder, loc, factor));
    product =
        product
            ? arith::MulIOp::create(builder, loc, product, number).getResult()
            : number;
  }
  return product;
}

/// True if only sizes of the function's arguments are in `poly`.
bool SizeChecker::isOfArguments(const IndexPoly &poly) {
  bool all = true;
  graph.space.visit(poly, [&](AtomId id) {
    const IndexSpace::Atom &atom = graph.space[id];
    all &= atom.kind == IndexSpace::Atom::FloorDiv ||
           (atom.kind == IndexSpace::Atom::Size &&
            llvm::is_contained(function.getArguments(), atom.value));
  });
  return all;
}

std::string SizeChecker::name(const IndexPoly &poly) {
  if (std::optional<int64_t> number = poly.constant())
    return std::to_string(*number);
  std::optional<AtomId> atom = poly.asAtom();
  if (!atom || graph.space[*atom].kind != IndexSpace::Atom::Size)
    return "a computed size";
  auto argument = dyn_cast<BlockArgument>(graph.space[*atom].value);
  if (!argument)
    return "a computed size";
  return "axis " + std::to_string(graph.space[*atom].axis) + " of argument " +
         std::to_string(argument.getArgNumber() + 1);
}

void SizeChecker::assertThat(
    Operation *op, arith::CmpIPredicate predicate, const IndexPoly &a,
    const IndexPoly &b,
    llvm::function_ref<std::pair<Value, Value>(OpBuilder &)> here,
    const Twine &fact) {
  Location loc = op->getLoc();
  bool early = isOfArguments(a) && isOfArguments(b);
  OpBuilder builder(op);
  std::pair<Value, Value> sides;
  if (early) {
    builder.setInsertionPointToStart(&function.getFunctionBody().front());
    Materializer sizes(graph, builder, loc);
    sides = {sizes.index(a), sizes.index(b)};
  } else {
    sides = here(builder);
  }
  Value fits =
      arith::CmpIOp::create(builder, loc, predicate, sides.first, sides.second);
  // Without its dialect: who looks for an op's full name finds ops only.
  cf::AssertOp::create(
      builder, loc, fits,
      (op->getName().stripDialect() + ": expected " + fact).str());
}

void SizeChecker::require(Operation *op, const Size &a, const Size &b) {
  IndexPoly x = polyOf(a), y = polyOf(b);
  if (x == y)
    return;
  assertThat(
      op, arith::CmpIPredicate::eq, x, y,
      [&](OpBuilder &builder) {
        return std::pair(valueOf(builder, op->getLoc(), a),
                         valueOf(builder, op->getLoc(), b));
      },
      "equal sizes, but " + name(x) + " and " + name(y) + " differ");
  graph.space.join(x, y);
}

void SizeChecker::checkLoops(linalg::LinalgOp op) {
  if (!op.hasPureTensorSemantics())
    return;
  SmallVector<std::optional<std::pair<Value, int64_t>>> loops(op.getNumLoops());
  for (OpOperand &operand : op->getOpOperands()) {
    if (!isa<RankedTensorType>(operand.get().getType()))
      continue;
    AffineMap map = op.getMatchingIndexingMap(&operand);
    for (auto [axis, expr] : llvm::enumerate(map.getResults()))
      if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
        auto &loop = loops[dim.getPosition()];
        if (loop)
          requireSame(op, operand.get(), axis, loop->first, loop->second);
        else
          loop = {operand.get(), axis};
      }
  }
}

void SizeChecker::checkAttention(AttentionOp op) {
  int64_t q = AttentionOp::lengthAxis(op.getQLayout()),
          k = AttentionOp::lengthAxis(op.getKLayout()),
          v = AttentionOp::lengthAxis(op.getVLayout()),
          o = AttentionOp::lengthAxis(op.getOLayout());
  Value q1 = op.getQ1(), k1 = op.getK1();
  if (!isa<RankedTensorType>(q1.getType()))
    return;
  for (auto [operand, axis] : {std::pair<Value, int64_t>(op.getQ2(), q),
                               {op.getInit(), o},
                               {op.getGate(), o}})
    if (operand)
      requireSame(op, operand, axis, q1, q);
  requireSame(op, op.getK2(), k, k1, k);
  requireSame(op, op.getV(), v, k1, k);
  if (op.getBias())
    requireSame(op, op.getBias(), 3, k1, k);
  for (Value operand : {k1, op.getQ2(), op.getK2(), op.getV(), op.getInit(),
                        op.getGate(), op.getKvLen(), op.getQOffset()})
    if (operand)
      requireSame(op, operand, 0, q1, 0);
  if (cast<ShapedType>(op.getLambda().getType()).getRank() == 3) {
    requireSame(op, op.getLambda(), 0, q1, 0);
    requireSame(op, op.getLambda(), 1, q1, q);
  }
}

static SmallVector<std::pair<Value, int64_t>> allAxes(Value tensor) {
  SmallVector<std::pair<Value, int64_t>> axes;
  for (int64_t k = 0; k < cast<ShapedType>(tensor.getType()).getRank(); ++k)
    axes.push_back({tensor, k});
  return axes;
}

/// A reshape keeps the number of elements.
void SizeChecker::checkReshape(tensor::ReshapeOp op) {
  auto type = dyn_cast<RankedTensorType>(op.getResult().getType());
  auto shape = op.getShape().getDefiningOp<tensor::FromElementsOp>();
  if (!type || !isa<RankedTensorType>(op.getSource().getType()))
    return;
  Size before{allAxes(op.getSource()), {}}, after;
  OpBuilder builder(op);
  for (int64_t k = 0; k < type.getRank(); ++k) {
    if (!type.isDynamicDim(k)) {
      after.numbers.push_back(builder.getIndexAttr(type.getDimSize(k)));
    } else if (shape) {
      after.numbers.push_back(shape.getElements()[k]);
    } else {
      Value at = arith::ConstantIndexOp::create(builder, op.getLoc(), k);
      after.numbers.push_back(
          tensor::ExtractOp::create(builder, op.getLoc(), op.getShape(), at)
              .getResult());
    }
  }
  require(op, before, after);
}

/// A slice begins and ends inside.
void SizeChecker::checkSlice(OffsetSizeAndStrideOpInterface slice,
                             Value whole) {
  for (auto [axis, offset, size, stride] :
       llvm::enumerate(slice.getMixedOffsets(), slice.getMixedSizes(),
                       slice.getMixedStrides())) {
    IndexPoly start = graph.polyOf(offset), count = graph.polyOf(size),
              step = graph.polyOf(stride),
              end = start + (count - IndexPoly(1)) * step + IndexPoly(1),
              length = graph.sizeOf(whole, axis);
    if (step.constant() != 1 || graph.space.provablyNonNegative(length - end))
      continue;
    assertThat(
        slice, arith::CmpIPredicate::sle, end, length,
        [&, axis = axis, offset = offset, size = size](OpBuilder &builder) {
          Location loc = slice.getLoc();
          Value last = arith::AddIOp::create(
              builder, loc,
              getValueOrCreateConstantIndexOp(builder, loc, offset),
              getValueOrCreateConstantIndexOp(builder, loc, size));
          return std::pair(last, valueOf(builder, loc, {{{whole, axis}}, {}}));
        },
        "a slice inside of its tensor, but it ends behind axis " + Twine(axis));
  }
}

void SizeChecker::check(Operation *op) {
  if (auto linalgOp = dyn_cast<linalg::LinalgOp>(op))
    return checkLoops(linalgOp);
  if (auto attention = dyn_cast<AttentionOp>(op))
    return checkAttention(attention);
  if (auto reshape = dyn_cast<tensor::ReshapeOp>(op))
    return checkReshape(reshape);
  if (auto slice = dyn_cast<tensor::ExtractSliceOp>(op))
    return checkSlice(slice, slice.getSource());
  if (auto insert = dyn_cast<tensor::InsertSliceOp>(op))
    return checkSlice(insert, insert.getDest());
  if (auto expand = dyn_cast<tensor::ExpandShapeOp>(op)) {
    SmallVector<OpFoldResult> sizes = expand.getMixedOutputShape();
    for (auto [axis, group] :
         llvm::enumerate(expand.getReassociationIndices())) {
      Size product;
      for (int64_t k : group)
        product.numbers.push_back(sizes[k]);
      require(op, {{{expand.getSrc(), axis}}, {}}, product);
    }
  } else if (auto compare = dyn_cast<cf::AssertOp>(op)) {
    auto equal = compare.getArg().getDefiningOp<arith::CmpIOp>();
    if (equal && equal.getPredicate() == arith::CmpIPredicate::eq)
      graph.space.join(graph.polyOf(equal.getLhs()),
                       graph.polyOf(equal.getRhs()));
  } else if (auto concat = dyn_cast<tensor::ConcatOp>(op)) {
    for (Value input : concat.getInputs().drop_front())
      for (int64_t k = 0; k < concat.getRank(); ++k)
        if (k != static_cast<int64_t>(concat.getDim()))
          requireSame(op, input, k, concat.getInputs()[0], k);
  } else if (isa<tensor::CastOp>(op) || op->hasTrait<OpTrait::Elementwise>()) {
    Value to = op->getResult(0);
    auto type = dyn_cast<RankedTensorType>(to.getType());
    for (Value from : op->getOperands())
      for (int64_t k = 0;
           type && isa<RankedTensorType>(from.getType()) && k < type.getRank();
           ++k)
        if (!type.isDynamicDim(k))
          require(op, {{{from, k}}, {}},
                  {{}, {OpBuilder(op).getIndexAttr(type.getDimSize(k))}});
        else if (from != op->getOperand(0))
          requireSame(op, from, k, op->getOperand(0), k);
  }
}

namespace {
struct CheckSizesPass final
    : diffattn::impl::CheckSizesPassBase<CheckSizesPass> {
  void runOnOperation() override {
    auto function = getOperation();
    if (function.isExternal())
      return;
    SmallVector<Operation *> ops;
    // Bodies of linalg ops and their like run once for each element.
    function->walk<WalkOrder::PreOrder>([&](Operation *op) {
      ops.push_back(op);
      return op == function || isa<LoopLikeOpInterface, scf::IfOp>(op)
                 ? WalkResult::advance()
                 : WalkResult::skip();
    });
    SizeChecker checker(function);
    for (Operation *op : ops)
      checker.check(op);
  }
};
} // namespace
