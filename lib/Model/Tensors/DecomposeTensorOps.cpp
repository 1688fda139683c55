//===- DecomposeTensorOps.cpp - ops without a lowering of their own -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"
#include "DiffAttn/Model/Patterns.h"

#include "mlir/Dialect/Linalg/IR/LinalgInterfaces.h"
#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/Transforms/Transforms.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_DECOMPOSETENSOROPSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
/// Decomposes `linalg.softmax` and the like into simpler ops by their
/// interface.
struct DecomposeAggregate final
    : OpInterfaceRewritePattern<linalg::AggregatedOpInterface> {
  using OpInterfaceRewritePattern::OpInterfaceRewritePattern;
  LogicalResult matchAndRewrite(linalg::AggregatedOpInterface op,
                                PatternRewriter &rewriter) const override {
    auto softmax = dyn_cast<linalg::SoftmaxOp>(op.getOperation());
    if (!softmax || !softmax.hasPureTensorSemantics())
      return rewriter.notifyMatchFailure(op, "not linalg.softmax of tensors");
    joinSizes(softmax, rewriter);
    Operation *before = op->getPrevNode();
    FailureOr<SmallVector<Value>> values = op.decomposeOperation(rewriter);
    if (failed(values))
      return rewriter.notifyMatchFailure(op, "cannot be decomposed");
    for (Operation *made = before ? before->getNextNode()
                                  : &op->getBlock()->front();
         made != op; made = made->getNextNode())
      if (auto reduction = dyn_cast<linalg::GenericOp>(made))
        letNaNThrough(reduction, rewriter);
    rewriter.replaceOp(op, *values);
    return success();
  }

private:
  /// Gives input and result each the static sizes of the other: upstream takes
  /// them for one type.
  static void joinSizes(linalg::SoftmaxOp op, PatternRewriter &rewriter) {
    auto source = cast<RankedTensorType>(op.getInput().getType());
    auto target = cast<RankedTensorType>(op.getOutput().getType());
    SmallVector<int64_t> shape(source.getShape());
    for (auto [size, other] : llvm::zip_equal(shape, target.getShape()))
      size = ShapedType::isDynamic(size) ? other : size;
    auto castTo = [&](Value value, Type type) -> Value {
      if (value.getType() == type)
        return value;
      return tensor::CastOp::create(rewriter, op.getLoc(), type, value);
    };
    Value input = castTo(op.getInput(), source.clone(shape));
    Value output = castTo(op.getOutput(), target.clone(shape));
    rewriter.modifyOpInPlace(op, [&] {
      op.getInputMutable().assign(input);
      op.getOutputMutable().assign(output);
      op->getResult(0).setType(output.getType());
    });
    if (output.getType() == target)
      return;
    rewriter.setInsertionPointAfter(op);
    Value result = castTo(op->getResult(0), target);
    rewriter.replaceAllUsesExcept(op->getResult(0), result,
                                  result.getDefiningOp());
    rewriter.setInsertionPoint(op);
  }

  /// Upstream's maximum of a row skips NaN and starts from it; the result is
  /// the same, since a NaN reaches its row by the sum, but only the maximum
  /// that starts from a number is computed in vectors.
  static void letNaNThrough(linalg::GenericOp reduction,
                            PatternRewriter &rewriter) {
    auto maximum = dyn_cast<arith::MaxNumFOp>(reduction.getBody()->front());
    auto fill = reduction.getNumDpsInits() == 1
                    ? reduction.getDpsInits()[0].getDefiningOp<linalg::FillOp>()
                    : linalg::FillOp();
    if (!maximum || !fill)
      return;
    OpBuilder::InsertionGuard guard(rewriter);
    rewriter.setInsertionPoint(fill);
    auto type = cast<FloatType>(fill.getInputs()[0].getType());
    Value lowest = arith::ConstantOp::create(
        rewriter, fill.getLoc(),
        rewriter.getFloatAttr(
            type, llvm::APFloat::getInf(type.getFloatSemantics(), true)));
    rewriter.modifyOpInPlace(fill,
                             [&] { fill.getInputsMutable().assign(lowest); });
    rewriter.setInsertionPoint(maximum);
    rewriter.replaceOpWithNewOp<arith::MaximumFOp>(maximum, maximum.getLhs(),
                                                   maximum.getRhs());
  }
};

/// `linalg.softmax` of buffers, which may be one, in f32 or wider:
/// e^(x - maximum) / sum, the power computed for the sum and for the result.
struct DecomposeSoftmaxOfBuffers final : OpRewritePattern<linalg::SoftmaxOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(linalg::SoftmaxOp op,
                                PatternRewriter &rewriter) const override {
    Value x = op.getInput(), y = op.getOutput();
    auto type = dyn_cast<MemRefType>(x.getType());
    auto number = type ? dyn_cast<FloatType>(type.getElementType()) : nullptr;
    if (!number)
      return rewriter.notifyMatchFailure(op, "not of buffers of floats");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    if (number.getWidth() < 32)
      number = b.getF32Type();
    const unsigned rank = type.getRank(), along = op.getDimension();
    const AffineMap all = b.getMultiDimIdentityMap(rank);
    const AffineMap row = all.dropResult(along);
    using Iterator = utils::IteratorType;
    SmallVector<Iterator> parallel(rank, Iterator::parallel),
        reducing(parallel);
    reducing[along] = Iterator::reduction;

    SmallVector<OpFoldResult> sizes;
    for (unsigned axis = 0; axis < rank; ++axis)
      if (axis != along)
        sizes.push_back(memref::getMixedSize(b, b.getLoc(), x, axis));
    SmallVector<int64_t> shape;
    SmallVector<Value> dynamic;
    std::tie(shape, dynamic) = decomposeMixedValues(sizes);
    auto makeRows = [&](double start) {
      Value rows = memref::AllocOp::create(b, MemRefType::get(shape, number),
                                           dynamic, b.getI64IntegerAttr(64));
      Value value = arith::ConstantOp::create(b, b.getFloatAttr(number, start));
      linalg::FillOp::create(b, value, rows);
      return rows;
    };
    auto compute =
        [&](ValueRange reads, Value writes, ArrayRef<AffineMap> maps,
            ArrayRef<Iterator> loops,
            llvm::function_ref<Value(ImplicitLocOpBuilder &, ValueRange)>
                element) {
          linalg::GenericOp::create(
              b, reads, writes, maps, loops,
              [&](OpBuilder &nested, Location loc, ValueRange given) {
                ImplicitLocOpBuilder body(loc, nested);
                SmallVector<Value> args(given);
                if (args[0].getType() != number)
                  args[0] = arith::ExtFOp::create(body, number, args[0]);
                linalg::YieldOp::create(body, element(body, args));
              });
        };
    auto power = [](ImplicitLocOpBuilder &body, ValueRange args) -> Value {
      Value below = arith::SubFOp::create(body, args[0], args[1]);
      return math::ExpOp::create(body, below);
    };
    Value maximum = makeRows(-std::numeric_limits<double>::infinity());
    compute(x, maximum, {all, row}, reducing,
            [](ImplicitLocOpBuilder &body, ValueRange args) -> Value {
              return arith::MaximumFOp::create(body, args[0], args[1]);
            });
    Value sum = makeRows(0.0);
    compute({x, maximum}, sum, {all, row, row}, reducing,
            [&](ImplicitLocOpBuilder &body, ValueRange args) -> Value {
              return arith::AddFOp::create(body, args[2], power(body, args));
            });
    compute({x, maximum, sum}, y, {all, row, row, all}, parallel,
            [&](ImplicitLocOpBuilder &body, ValueRange args) -> Value {
              Value result =
                  arith::DivFOp::create(body, power(body, args), args[2]);
              if (args[3].getType() != number)
                result =
                    arith::TruncFOp::create(body, args[3].getType(), result);
              return result;
            });
    memref::DeallocOp::create(b, maximum);
    memref::DeallocOp::create(b, sum);
    rewriter.eraseOp(op);
    return success();
  }
};

/// Named ops become generics, so that fusion sees one form. Contractions keep
/// their names: they become products of the library.
struct GeneralizeNamedOp final : OpInterfaceRewritePattern<linalg::LinalgOp> {
  using OpInterfaceRewritePattern::OpInterfaceRewritePattern;
  LogicalResult matchAndRewrite(linalg::LinalgOp op,
                                PatternRewriter &rewriter) const override {
    if (isa<linalg::GenericOp, linalg::FillOp>(op) ||
        linalg::isaContractionOpInterface(op) ||
        linalg::isaConvolutionOpInterface(op))
      return rewriter.notifyMatchFailure(op, "stays as it is");
    return linalg::generalizeNamedOp(rewriter, op);
  }
};

struct LowerPack final : OpRewritePattern<linalg::PackOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(linalg::PackOp op,
                                PatternRewriter &rewriter) const override {
    return linalg::lowerPack(rewriter, op);
  }
};

struct LowerUnpack final : OpRewritePattern<linalg::UnPackOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(linalg::UnPackOp op,
                                PatternRewriter &rewriter) const override {
    return linalg::lowerUnPack(rewriter, op);
  }
};

/// Coordinate `n` of the index tuple at `at`: `indices[at..., n]`, as an index.
static Value coordinate(OpBuilder &b, Location loc, Value indices,
                        ValueRange at, int64_t n) {
  SmallVector<Value> full(at);
  full.push_back(arith::ConstantIndexOp::create(b, loc, n));
  Value index = tensor::ExtractOp::create(b, loc, indices, full);
  if (index.getType().isIndex())
    return index;
  return arith::IndexCastOp::create(b, loc, b.getIndexType(), index);
}

/// `tensor.gather` reads one slice per index; as a generic over the result it
/// is a `tensor.extract` per element.
struct LowerGather final : OpRewritePattern<tensor::GatherOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(tensor::GatherOp op,
                                PatternRewriter &rewriter) const override {
    Location loc = op.getLoc();
    auto sourceType = cast<RankedTensorType>(op.getSource().getType());
    auto indicesType = cast<RankedTensorType>(op.getIndices().getType());
    auto resultType = cast<RankedTensorType>(op.getResult().getType());
    int64_t batchRank = indicesType.getRank() - 1;
    ArrayRef<int64_t> gathered = op.getGatherDims();
    bool dropsUnits = resultType.getRank() != batchRank + sourceType.getRank();

    SmallVector<OpFoldResult> sizes;
    SmallVector<int64_t>
        sliceDims; // source dimension of each trailing result dimension
    for (int64_t i = 0; i < batchRank; ++i)
      sizes.push_back(tensor::getMixedSize(rewriter, loc, op.getIndices(), i));
    for (int64_t i = 0; i < sourceType.getRank(); ++i) {
      bool isGathered = llvm::is_contained(gathered, i);
      if (isGathered && dropsUnits)
        continue;
      sliceDims.push_back(i);
      sizes.push_back(
          isGathered ? OpFoldResult(rewriter.getIndexAttr(1))
                     : tensor::getMixedSize(rewriter, loc, op.getSource(), i));
    }
    Value empty = tensor::EmptyOp::create(rewriter, loc, sizes,
                                          resultType.getElementType());
    int64_t rank = resultType.getRank();
    auto generic = linalg::GenericOp::create(
        rewriter, loc, TypeRange{empty.getType()}, ValueRange{},
        ValueRange{empty},
        ArrayRef<AffineMap>{rewriter.getMultiDimIdentityMap(rank)},
        SmallVector<utils::IteratorType>(rank, utils::IteratorType::parallel),
        [&](OpBuilder &b, Location l, ValueRange) {
          SmallVector<Value> at, position(sourceType.getRank());
          for (int64_t i = 0; i < batchRank; ++i)
            at.push_back(linalg::IndexOp::create(b, l, i));
          for (auto [n, dim] : llvm::enumerate(gathered))
            position[dim] = coordinate(b, l, op.getIndices(), at, n);
          for (auto [n, dim] : llvm::enumerate(sliceDims))
            if (!position[dim])
              position[dim] = linalg::IndexOp::create(b, l, batchRank + n);
          Value element =
              tensor::ExtractOp::create(b, l, op.getSource(), position);
          linalg::YieldOp::create(b, l, element);
        });
    Value result = generic.getResult(0);
    if (result.getType() != resultType)
      result = tensor::CastOp::create(rewriter, loc, resultType, result);
    rewriter.replaceOp(op, result);
    return success();
  }
};

/// `tensor.scatter` writes one slice per index, one after another.
struct LowerScatter final : OpRewritePattern<tensor::ScatterOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(tensor::ScatterOp op,
                                PatternRewriter &rewriter) const override {
    Location loc = op.getLoc();
    auto sourceType = cast<RankedTensorType>(op.getSource().getType());
    auto destType = cast<RankedTensorType>(op.getDest().getType());
    int64_t batchRank =
        cast<RankedTensorType>(op.getIndices().getType()).getRank() - 1;
    ArrayRef<int64_t> scattered = op.getScatterDims();
    bool dropsUnits = sourceType.getRank() != batchRank + destType.getRank();

    Value zero = arith::ConstantIndexOp::create(rewriter, loc, 0),
          one = arith::ConstantIndexOp::create(rewriter, loc, 1);
    SmallVector<Value> lower(batchRank, zero), upper, steps(batchRank, one);
    for (int64_t i = 0; i < batchRank; ++i)
      upper.push_back(getValueOrCreateConstantIndexOp(
          rewriter, loc,
          tensor::getMixedSize(rewriter, loc, op.getIndices(), i)));
    OpFoldResult unit = rewriter.getIndexAttr(1),
                 start = rewriter.getIndexAttr(0);
    // One slice in the source and in the destination.
    SmallVector<OpFoldResult> sizes, sourceSizes(batchRank, unit);
    SmallVector<int64_t> sliceShape;
    for (int64_t i = 0; i < destType.getRank(); ++i) {
      bool single = llvm::is_contained(scattered, i);
      sizes.push_back(
          single ? unit : tensor::getMixedSize(rewriter, loc, op.getDest(), i));
      if (single && dropsUnits)
        continue;
      sourceSizes.push_back(sizes.back());
      sliceShape.push_back(single ? 1 : destType.getDimSize(i));
    }
    auto sliceType =
        RankedTensorType::get(sliceShape, destType.getElementType());
    auto loops = scf::buildLoopNest(
        rewriter, loc, lower, upper, steps, ValueRange{op.getDest()},
        [&](OpBuilder &b, Location l, ValueRange at,
            ValueRange state) -> scf::ValueVector {
          SmallVector<OpFoldResult> offsets(destType.getRank(), start),
              from(sourceSizes.size(), start);
          for (auto [n, dim] : llvm::enumerate(scattered))
            offsets[dim] = coordinate(b, l, op.getIndices(), at, n);
          for (auto [i, position] : llvm::enumerate(at))
            from[i] = position;
          Value slice = tensor::ExtractSliceOp::create(
              b, l, sliceType, op.getSource(), from, sourceSizes,
              SmallVector<OpFoldResult>(from.size(), unit));
          return {tensor::InsertSliceOp::create(
              b, l, slice, state[0], offsets, sizes,
              SmallVector<OpFoldResult>(sizes.size(), unit))};
        });
    rewriter.replaceOp(op, loops.results);
    return success();
  }
};

/// Questions about a float that have no lowering, as comparisons of its
/// magnitude.
template <typename Op>
struct CompareMagnitude final : OpRewritePattern<Op> {
  using OpRewritePattern<Op>::OpRewritePattern;
  LogicalResult matchAndRewrite(Op op,
                                PatternRewriter &rewriter) const override {
    auto type = dyn_cast<FloatType>(op.getOperand().getType());
    if (!type)
      return rewriter.notifyMatchFailure(op, "not a scalar");
    Location loc = op.getLoc();
    const llvm::fltSemantics &semantics = type.getFloatSemantics();
    auto number = [&](const APFloat &value) {
      return arith::ConstantOp::create(rewriter, loc,
                                       rewriter.getFloatAttr(type, value));
    };
    Value size = math::AbsFOp::create(rewriter, loc, op.getOperand()),
          infinity = number(APFloat::getInf(semantics));
    if constexpr (std::is_same_v<Op, math::IsInfOp>) {
      rewriter.replaceOpWithNewOp<arith::CmpFOp>(op, arith::CmpFPredicate::OEQ,
                                                 size, infinity);
    } else {
      Value least = number(APFloat::getSmallestNormalized(semantics));
      Value below = arith::CmpFOp::create(
                rewriter, loc, arith::CmpFPredicate::OLT, size, infinity),
            above = arith::CmpFOp::create(
                rewriter, loc, arith::CmpFPredicate::OGE, size, least);
      rewriter.replaceOpWithNewOp<arith::AndIOp>(op, below, above);
    }
    return success();
  }
};

struct DecomposeTensorOpsPass final
    : diffattn::impl::DecomposeTensorOpsPassBase<DecomposeTensorOpsPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    mlir::diffattn::populateDecomposeTensorOpsPatterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

void mlir::diffattn::populateDecomposeTensorOpsPatterns(
    RewritePatternSet &patterns) {
  patterns
      .add<DecomposeAggregate, DecomposeSoftmaxOfBuffers, GeneralizeNamedOp,
           LowerPack, LowerUnpack, LowerGather, LowerScatter,
           CompareMagnitude<math::IsInfOp>, CompareMagnitude<math::IsNormalOp>>(
          patterns.getContext());
  linalg::populateElementwiseToLinalgConversionPatterns(patterns);
  linalg::populateDecomposePadPatterns(patterns);
  tensor::populateDecomposeTensorConcatPatterns(patterns);
}
