//===- WidenReductions.cpp - sums of 16-bit numbers in f32 -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Dialect/Linalg/Utils/Utils.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_WIDENREDUCTIONSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
/// How a reduction adds to a result, multiplies it or compares it.
struct Accumulation {
  unsigned number;       // of the result
  Operation *combine;    // addf, mulf or an extreme
  arith::ExtFOp before;  // of what there is so far, or null: it is 16-bit
  arith::TruncFOp after; // of what there is then, likewise
};
} // namespace

static bool isNarrow(Type type) {
  return getElementTypeOrSelf(type).isF16() ||
         getElementTypeOrSelf(type).isBF16();
}

/// Whether `op` gives one of its two operands.
static bool isExtreme(Operation *op) {
  return isa_and_nonnull<arith::MaximumFOp, arith::MinimumFOp, arith::MaxNumFOp,
                         arith::MinNumFOp>(op);
}

/// Whether `op` is a convolution or a pool by its name, which adds up or
/// compares numbers of 16 bits.
static bool isNamedReduction(linalg::LinalgOp op) {
  if (isa<linalg::GenericOp>(op) || !isa<linalg::ConvolutionOpInterface>(*op) ||
      !op.hasPureTensorSemantics() || op->getNumResults() != 1 ||
      !isNarrow(op->getResult(0).getType()))
    return false;
  Operation *last =
      op.getBlock()->getTerminator()->getOperand(0).getDefiningOp();
  return isa_and_nonnull<arith::AddFOp>(last) || isExtreme(last);
}

static std::optional<Accumulation> matchAccumulation(linalg::GenericOp op,
                                                     unsigned number) {
  BlockArgument out = op.getRegionOutputArgs()[number];
  OpOperand &yielded = op.getBody()->getTerminator()->getOpOperand(number);
  if (!isNarrow(out.getType()) || !yielded.get().hasOneUse())
    return std::nullopt;
  // Other readers of an extreme get the same number in either type.
  if (Operation *extreme = yielded.get().getDefiningOp();
      isExtreme(extreme) && llvm::is_contained(extreme->getOperands(), out))
    return Accumulation{number, extreme, nullptr, nullptr};
  if (!out.hasOneUse())
    return std::nullopt;
  Operation *combine = yielded.get().getDefiningOp();
  Operation *user = *out.user_begin();
  auto after = dyn_cast_if_present<arith::TruncFOp>(combine);
  auto before = dyn_cast<arith::ExtFOp>(user);
  if (static_cast<bool>(after) != static_cast<bool>(before))
    return std::nullopt;
  if (after) {
    if (!before->hasOneUse() || !after.getIn().hasOneUse() ||
        !before.getType().isF32())
      return std::nullopt;
    combine = after.getIn().getDefiningOp();
    user = *before->user_begin();
  }
  if (!combine || combine != user || !isa<arith::AddFOp, arith::MulFOp>(user))
    return std::nullopt;
  return Accumulation{number, combine, before, after};
}

/// `tensor`, element by element, with elements of another type.
static Value
castElements(ImplicitLocOpBuilder &b, Value tensor, Type element,
             function_ref<Value(ImplicitLocOpBuilder &, Type, Value)> cast) {
  auto type = ::cast<RankedTensorType>(tensor.getType());
  Value empty = tensor::EmptyOp::create(
      b, tensor::getMixedSizes(b, b.getLoc(), tensor), element);
  AffineMap map = b.getMultiDimIdentityMap(type.getRank());
  SmallVector<utils::IteratorType> loops(type.getRank(),
                                         utils::IteratorType::parallel);
  auto body = [&](OpBuilder &inner, Location loc, ValueRange args) {
    ImplicitLocOpBuilder builder(loc, inner);
    linalg::YieldOp::create(inner, loc, cast(builder, element, args[0]));
  };
  return linalg::GenericOp::create(b, empty.getType(), tensor, empty,
                                   ArrayRef<AffineMap>{map, map}, loops, body)
      .getResult(0);
}

static Value extendTo(ImplicitLocOpBuilder &b, Type type, Value value) {
  return arith::ExtFOp::create(b, type, value);
}

static Value roundTo(ImplicitLocOpBuilder &b, Type type, Value value) {
  return arith::TruncFOp::create(b, type, value);
}

/// Narrows an f32 that was widened from `type`: instructions that round to bf16
/// may take subnormal numbers for 0.
static Value narrowAsItIs(ImplicitLocOpBuilder &b, Type type, Value value) {
  if (!type.isBF16())
    return roundTo(b, type, value);
  Value bits = arith::BitcastOp::create(b, b.getI32Type(), value);
  Value half = arith::ConstantIntOp::create(b, 16, 32);
  Value upper = arith::ShRUIOp::create(b, bits, half);
  return arith::BitcastOp::create(
      b, type, arith::TruncIOp::create(b, b.getI16Type(), upper));
}

/// Initial value `init` of a reduction, in f32.
static Value widen(ImplicitLocOpBuilder &b, Value init) {
  auto fill = init.getDefiningOp<linalg::FillOp>();
  if (!fill || !isNarrow(fill.getInputs()[0].getType()))
    return castElements(b, init, b.getF32Type(), extendTo);
  Value number = arith::ExtFOp::create(b, b.getF32Type(), fill.getInputs()[0]);
  Value empty = tensor::EmptyOp::create(
      b, tensor::getMixedSizes(b, b.getLoc(), init), b.getF32Type());
  return linalg::FillOp::create(b, number, empty).getResult(0);
}

/// A value of the body in f32: of products the factors, which are exact.
static Value widenInBody(ImplicitLocOpBuilder &b, Value value) {
  if (!isNarrow(value.getType()))
    return value;
  auto product = value.getDefiningOp<arith::MulFOp>();
  if (!product || !product->hasOneUse())
    return arith::ExtFOp::create(b, b.getF32Type(), value);
  Value left = arith::ExtFOp::create(b, b.getF32Type(), product.getLhs());
  Value right = product.getLhs() == product.getRhs()
                    ? left
                    : arith::ExtFOp::create(b, b.getF32Type(), product.getRhs())
                          .getResult();
  return arith::MulFOp::create(b, left, right);
}

static void widenReduction(linalg::GenericOp op,
                           ArrayRef<Accumulation> accumulations) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  SmallVector<Value> outs(op.getOutputs());
  SmallVector<Type> types(op->getResultTypes());
  for (Accumulation one : accumulations) {
    outs[one.number] = widen(b, outs[one.number]);
    types[one.number] = outs[one.number].getType();
  }
  auto made = linalg::GenericOp::create(
      b, types, op.getInputs(), outs, op.getIndexingMapsArray(),
      op.getIteratorTypesArray(), /*bodyBuild=*/nullptr,
      linalg::getPrunedAttributeList(op));
  made.getRegion().takeBody(op.getRegion());
  for (Accumulation one : accumulations) {
    BlockArgument out = made.getRegionOutputArgs()[one.number];
    ImplicitLocOpBuilder inner(one.combine->getLoc(), one.combine);
    Value soFar = out;
    if (one.before)
      soFar = one.before.getResult();
    for (OpOperand &operand : one.combine->getOpOperands())
      operand.set(operand.get() == soFar ? out
                                         : widenInBody(inner, operand.get()));
    out.setType(b.getF32Type());
    SmallVector<OpOperand *> others;
    for (OpOperand &use : out.getUses())
      if (isExtreme(one.combine) && use.getOwner() != one.combine)
        others.push_back(&use);
    if (!others.empty()) {
      ImplicitLocOpBuilder begin(op.getLoc(), made.getBody(),
                                 made.getBody()->begin());
      Value narrow = narrowAsItIs(
          begin, getElementTypeOrSelf(op->getResult(one.number)), out);
      for (OpOperand *use : others)
        use->set(narrow);
    }
    one.combine->getResult(0).setType(b.getF32Type());
    made.getBody()->getTerminator()->setOperand(one.number,
                                                one.combine->getResult(0));
    if (one.after)
      one.after->erase();
    if (one.before)
      one.before->erase();
  }
  b.setInsertionPointAfter(made);
  SmallVector<Value> results(made.getResults());
  for (Accumulation one : accumulations)
    results[one.number] =
        castElements(b, results[one.number],
                     getElementTypeOrSelf(op->getResult(one.number).getType()),
                     isExtreme(one.combine) ? narrowAsItIs : roundTo);
  op->replaceAllUsesWith(results);
  op->erase();
}

namespace {
struct WidenReductionsPass final
    : diffattn::impl::WidenReductionsPassBase<WidenReductionsPass> {
  void runOnOperation() override {
    SmallVector<linalg::LinalgOp> named;
    getOperation()->walk([&](linalg::LinalgOp op) {
      if (isNamedReduction(op))
        named.push_back(op);
    });
    IRRewriter rewriter(&getContext());
    for (linalg::LinalgOp op : named) {
      rewriter.setInsertionPoint(op);
      if (failed(linalg::generalizeNamedOp(rewriter, op)))
        return signalPassFailure();
    }
    SmallVector<linalg::GenericOp> reductions;
    getOperation()->walk([&](linalg::GenericOp op) {
      if (op.getNumReductionLoops() && op.hasPureTensorSemantics())
        reductions.push_back(op);
    });
    for (linalg::GenericOp op : reductions) {
      SmallVector<Accumulation> accumulations;
      for (unsigned i = 0, e = op.getNumDpsInits(); i < e; ++i)
        if (auto one = matchAccumulation(op, i))
          accumulations.push_back(*one);
      if (!accumulations.empty())
        widenReduction(op, accumulations);
    }
  }
};
} // namespace
