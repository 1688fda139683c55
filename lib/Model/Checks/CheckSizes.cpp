//===- CheckSizes.cpp - assertions that dynamic sizes fit -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "SequenceTables.h"
#include "SizeAssertions.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CHECKSIZESPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

/// The type of a tensor or memref of known rank.
static ShapedType shapeOf(Value value) {
  auto type = dyn_cast<ShapedType>(value.getType());
  return type && type.hasRank() && isa<TensorType, MemRefType>(type)
             ? type
             : ShapedType();
}

static Size allAxes(Value value) {
  Size size;
  for (int64_t axis = 0; axis < shapeOf(value).getRank(); ++axis)
    size.axes.push_back({value, axis});
  return size;
}

namespace {
struct SizeChecker {
  SizeChecker(FunctionOpInterface function, bool onDevice)
      : assertions(function), function(function), onDevice(onDevice) {}

  void check(Operation *op);

private:
  void checkLoops(linalg::LinalgOp op);
  /// `to` has the sizes of `from`.
  void checkSameShape(Operation *op, Value from, Value to);
  /// `source`, which is copied into `slice`, has the slice's sizes.
  void checkCopied(OffsetSizeAndStrideOpInterface slice, Value source,
                   const llvm::SmallBitVector &dropped);
  void checkPadding(tensor::PadOp op);
  void checkReshape(tensor::ReshapeOp op);
  void checkExpand(Operation *op, Value source,
                   ArrayRef<ReassociationIndices> groups,
                   ArrayRef<OpFoldResult> sizes);
  void checkConcat(tensor::ConcatOp op);
  void checkDim(Operation *op, Value source, Value axis);

  SizeAssertions assertions;
  FunctionOpInterface function;
  /// Whether what tensors hold is not known to the host.
  bool onDevice;
};
} // namespace

void SizeChecker::checkLoops(linalg::LinalgOp op) {
  SmallVector<std::optional<OperandAxis>> loops(op.getNumLoops());
  struct Reach {
    AffineExpr expr;
    OperandAxis axis;
  };
  SmallVector<Reach> others;
  for (OpOperand &operand : op->getOpOperands()) {
    if (!shapeOf(operand.get()))
      continue;
    AffineMap map = op.getMatchingIndexingMap(&operand);
    for (auto [i, expr] : llvm::enumerate(map.getResults())) {
      OperandAxis axis{operand.get(), static_cast<int64_t>(i)};
      auto dim = dyn_cast<AffineDimExpr>(expr);
      if (!dim) {
        others.push_back({expr, axis});
        continue;
      }
      auto &loop = loops[dim.getPosition()];
      if (loop)
        assertions.requireEqual(op, {{axis}, {}}, {{*loop}, {}});
      else
        loop = axis;
    }
  }
  if (llvm::any_of(loops, [](auto &loop) { return !loop; }))
    return; // such an op has no lowering
  SmallVector<Size> extents;
  for (auto &loop : loops)
    extents.push_back({{*loop}, {}});
  for (Reach reach : others)
    assertions.requireInside(op, reach.expr, extents, reach.axis);
}

void SizeChecker::checkSameShape(Operation *op, Value from, Value to) {
  ShapedType type = shapeOf(to);
  if (!type || !shapeOf(from) || shapeOf(from).getRank() != type.getRank())
    return;
  for (int64_t axis = 0; axis < type.getRank(); ++axis)
    assertions.requireEqual(op, Size::of(from, axis), Size::of(to, axis));
}

void SizeChecker::checkCopied(OffsetSizeAndStrideOpInterface slice,
                              Value source,
                              const llvm::SmallBitVector &dropped) {
  int64_t axis = 0;
  for (auto [i, size] : llvm::enumerate(slice.getMixedSizes()))
    if (!dropped.test(i))
      assertions.requireEqual(slice, Size::of(source, axis++), Size::of(size));
}

void SizeChecker::checkPadding(tensor::PadOp op) {
  for (auto [name, numbers] : {std::pair("low", op.getMixedLowPad()),
                               std::pair("high", op.getMixedHighPad())})
    for (auto [axis, number] : llvm::enumerate(numbers))
      assertions.requireNotNegative(
          op, number, "a " + Twine(name) + " padding of axis " + Twine(axis));
}

/// A reshape keeps the number of elements.
void SizeChecker::checkReshape(tensor::ReshapeOp op) {
  auto type = dyn_cast<RankedTensorType>(op.getResult().getType());
  auto shape = op.getShape().getDefiningOp<tensor::FromElementsOp>();
  if (!type || !shapeOf(op.getSource()))
    return;
  Size after;
  OpBuilder builder(op);
  for (int64_t axis = 0; axis < type.getRank(); ++axis) {
    Value given;
    if (shape) {
      given = shape.getElements()[axis];
    } else {
      Value at = arith::ConstantIndexOp::create(builder, op.getLoc(), axis);
      given =
          tensor::ExtractOp::create(builder, op.getLoc(), op.getShape(), at);
    }
    if (type.isDynamicDim(axis)) {
      assertions.requireNotNegative(op, given, "a size of axis " + Twine(axis));
      after.numbers.push_back(given);
      continue;
    }
    OpFoldResult known = builder.getIndexAttr(type.getDimSize(axis));
    assertions.requireEqual(op, Size::of(given), Size::of(known));
    after.numbers.push_back(known);
  }
  assertions.requireEqual(op, allAxes(op.getSource()), after,
                          "a number of elements of");
}

void SizeChecker::checkExpand(Operation *op, Value source,
                              ArrayRef<ReassociationIndices> groups,
                              ArrayRef<OpFoldResult> sizes) {
  for (auto [axis, group] : llvm::enumerate(groups)) {
    Size product;
    for (int64_t k : group) {
      assertions.requireNotNegative(op, sizes[k], "a size of axis " + Twine(k));
      product.numbers.push_back(sizes[k]);
    }
    assertions.requireEqual(op, Size::of(source, axis), product);
  }
}

void SizeChecker::checkConcat(tensor::ConcatOp op) {
  for (Value input : op.getInputs().drop_front())
    for (int64_t axis = 0; axis < op.getRank(); ++axis)
      if (axis != static_cast<int64_t>(op.getDim()))
        assertions.requireEqual(op, Size::of(input, axis),
                                Size::of(op.getInputs()[0], axis));
}

/// The verifier lets an axis pass that the tensor does not have; nothing after
/// this pass meets one.
void SizeChecker::checkDim(Operation *op, Value source, Value axis) {
  ShapedType type = shapeOf(source);
  if (!type)
    return;
  assertions.requireAxis(op, axis, type.getRank());
  std::optional<int64_t> known = getConstantIntValue(axis);
  if (!known || (*known >= 0 && *known < type.getRank()))
    return;
  OpBuilder builder(op);
  Value none = arith::ConstantIndexOp::create(builder, op->getLoc(), 0);
  op->getResult(0).replaceAllUsesWith(none);
}

void SizeChecker::check(Operation *op) {
  for (const SizeRelation &relation : getDynamicSizeRelations(op))
    assertions.require(op, relation);
  llvm::TypeSwitch<Operation *>(op)
      .Case([&](linalg::LinalgOp typed) { checkLoops(typed); })
      .Case<AttentionOp, AttentionBackwardOp>([&](auto typed) {
        OpBuilder builder(typed);
        if (!onDevice)
          assertSequenceTables(builder, typed);
      })
      .Case([&](linalg::SoftmaxOp typed) {
        checkSameShape(op, typed.getInput(), typed.getOutput());
      })
      .Case([&](tensor::PadOp typed) { checkPadding(typed); })
      .Case([&](tensor::ReshapeOp typed) { checkReshape(typed); })
      .Case<tensor::ExpandShapeOp, memref::ExpandShapeOp>([&](auto typed) {
        checkExpand(op, typed.getSrc(), typed.getReassociationIndices(),
                    typed.getMixedOutputShape());
      })
      .Case<tensor::InsertSliceOp, tensor::ParallelInsertSliceOp>(
          [&](auto typed) {
            checkCopied(typed, typed.getSource(), typed.getDroppedDims());
          })
      .Case([&](tensor::ConcatOp typed) { checkConcat(typed); })
      .Case([&](memref::CopyOp typed) {
        checkSameShape(op, typed.getSource(), typed.getTarget());
      })
      .Case<tensor::DimOp, memref::DimOp>([&](auto typed) {
        checkDim(op, typed.getSource(), typed.getIndex());
      })
      .Case([&](cf::AssertOp typed) {
        if (op->getParentOp() == function)
          assertions.learn(typed.getArg());
      })
      .Default([&](Operation *) {
        if (!isa<tensor::CastOp, memref::CastOp>(op) &&
            !op->hasTrait<OpTrait::Elementwise>())
          return;
        ShapedType type = shapeOf(op->getResult(0));
        if (!type)
          return;
        // The condition of a selection may be a number.
        SmallVector<Value> shaped = llvm::to_vector(
            llvm::make_filter_range(op->getOperands(), shapeOf));
        for (Value from : shaped)
          for (int64_t axis = 0; axis < type.getRank(); ++axis)
            if (!type.isDynamicDim(axis))
              assertions.requireEqual(
                  op, Size::of(from, axis),
                  Size::of(OpBuilder(op).getIndexAttr(type.getDimSize(axis))));
            else if (from != shaped.front())
              assertions.requireEqual(op, Size::of(from, axis),
                                      Size::of(shaped.front(), axis));
      });
}

namespace {
struct CheckSizesPass final
    : diffattn::impl::CheckSizesPassBase<CheckSizesPass> {
  using CheckSizesPassBase::CheckSizesPassBase;

  void runOnOperation() override {
    auto function = getOperation();
    if (function.isExternal())
      return;
    SmallVector<Operation *> ops;
    // Bodies of linalg ops and their like run once for each element.
    function->walk<WalkOrder::PreOrder>([&](Operation *op) {
      ops.push_back(op);
      return isa<linalg::LinalgOp, tensor::PadOp, tensor::GenerateOp>(op)
                 ? WalkResult::skip()
                 : WalkResult::advance();
    });
    if (llvm::any_of(ops, hasEncodedTensor))
      return signalPassFailure();
    SizeChecker checker(function, device);
    for (Operation *op : ops)
      checker.check(op);
  }

private:
  /// Whether the op takes or gives a tensor whose layout its type says, which
  /// is an error: whatever comes later takes all elements to lie side by side.
  static bool hasEncodedTensor(Operation *op) {
    SmallVector<Type> types(op->getOperandTypes());
    llvm::append_range(types, op->getResultTypes());
    if (auto function = dyn_cast<FunctionOpInterface>(op))
      llvm::append_range(types, function.getArgumentTypes());
    for (Type type : types)
      if (auto tensor = dyn_cast<RankedTensorType>(type);
          tensor && tensor.getEncoding()) {
        op->emitError("expected tensors without an encoding, but got ")
            << tensor;
        return true;
      }
    return false;
  }
};
} // namespace
