//===- Im2Col.cpp - convolutions as contractions -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a filter meets at each place of the output is copied side by side, so
// that a convolution is one product of matrices: the filter as it lies, and
// the copies.
//
//===----------------------------------------------------------------------===//
#include "Im2Col.h"

#include "ContractionOperands.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/SCF/Transforms/TileUsingInterface.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

/// Bytes of copies at a time: they are read again at once, from a cache.
static constexpr uint64_t kTileBytes = 4 << 20;
/// Bytes of copies of one row of an image beyond which the copies are not worth
/// their memory.
static constexpr uint64_t kMaxRowBytes = 256 << 20;

namespace {
/// The loops of a convolution.
struct Convolution {
  linalg::ConvolutionDimensions dims;
  SmallVector<int64_t> sizes;
  /// Loops of the copies, from the outermost in.
  SmallVector<unsigned> copied;
  /// The result has the filter's channels before the axes of the image.
  bool filterFirst = false;
  /// Bytes of copies of one batch and one row of the outermost axis of the
  /// image.
  uint64_t rowBytes = 0;
};
} // namespace

static bool isReduction(linalg::LinalgOp op, unsigned loop) {
  return op.getIteratorTypesArray()[loop] == utils::IteratorType::reduction;
}

/// Whether a convolution in groups is one product for each of them: of few
/// channels, those of the filter would be rows that are too few for a product.
static bool isWorthProducts(linalg::LinalgOp op,
                            const linalg::ConvolutionDimensions &dims) {
  constexpr int64_t kFewRows = 8, kSmallWindow = 64;
  SmallVector<int64_t> sizes = op.getStaticLoopRanges();
  int64_t window = 1;
  for (ArrayRef<unsigned> loops :
       {ArrayRef(dims.inputChannel), ArrayRef(dims.filterLoop)})
    for (unsigned loop : loops)
      window = llvm::SaturatingMultiply<uint64_t>(window, sizes[loop]);
  return sizes[dims.outputChannel.front()] >= kFewRows || window > kSmallWindow;
}

/// A convolution whose filter and result are matrices as they lie: the result
/// has its channels after the batches or last of all. In groups it is one for
/// each of them, whose channels lie after the batches.
static std::optional<Convolution> matchConvolution(linalg::LinalgOp op) {
  if (op.getNumDpsInputs() != 2 || op.getNumDpsInits() != 1 ||
      !op.hasPureTensorSemantics() || !linalg::isaConvolutionOpInterface(op) ||
      failed(matchMultiplyAdd(op)))
    return std::nullopt;
  Type summed = getElementTypeOrSelf(op->getResult(0));
  for (Value operand : op->getOperands())
    if (Type type = getElementTypeOrSelf(operand);
        !isGemmFloat(type) || type.isF64() != summed.isF64())
      return std::nullopt;
  FailureOr<linalg::ConvolutionDimensions> dims =
      linalg::inferConvolutionDims(op);
  SmallVector<ContractionOperand> filters =
                                      findSources(op, op.getDpsInputOperand(1)),
                                  results =
                                      findSources(op, op.getDpsInitOperand(0));
  if (failed(dims) || dims->depth.size() > 1 ||
      dims->outputChannel.size() != 1 || filters.empty() || results.empty())
    return std::nullopt;
  ArrayRef<unsigned> filter = filters.front().loops,
                     result = results.front().loops;
  const bool hasGroups = !dims->depth.empty();
  if (hasGroups) {
    // A group's is the next matrix of the filter.
    if (filter.front() != dims->depth.front())
      return std::nullopt;
    filter = filter.drop_front();
  }
  Convolution convolution;
  convolution.dims = *dims;
  convolution.sizes = op.getStaticLoopRanges();
  for (unsigned loop = 0, end = op.getNumLoops(); loop < end; ++loop)
    if (ShapedType::isDynamic(convolution.sizes[loop]) &&
        !llvm::is_contained(dims->batch, loop))
      return std::nullopt;
  // Batches, the image's axes, and the channels before or after these.
  const unsigned channel = dims->outputChannel.front();
  const bool isLast = result.back() == channel;
  SmallVector<unsigned> batches, image, inner;
  for (unsigned loop : result)
    if (llvm::is_contained(dims->batch, loop))
      batches.push_back(loop);
    else if (llvm::is_contained(dims->outputImage, loop))
      image.push_back(loop);
  for (unsigned loop : filter)
    if (isReduction(op, loop))
      inner.push_back(loop);
  SmallVector<unsigned> expected(batches);
  expected.append(dims->depth);
  if (!isLast)
    expected.push_back(channel);
  expected.append(image);
  if (isLast)
    expected.push_back(channel);
  if (result != ArrayRef<unsigned>(expected) ||
      inner.size() + 1 != filter.size() ||
      (filter.front() != channel && (filter.back() != channel || !isLast)) ||
      (hasGroups && (isLast || !isWorthProducts(op, *dims))))
    return std::nullopt;
  convolution.dims.outputImage.assign(image.begin(), image.end());
  convolution.filterFirst = !isLast;
  convolution.copied = batches;
  convolution.copied.append(isLast ? image : inner);
  convolution.copied.append(isLast ? inner : image);
  convolution.rowBytes =
      getElementTypeOrSelf(op->getOperand(0)).getIntOrFloatBitWidth() / 8;
  for (unsigned loop : convolution.copied)
    if (!llvm::is_contained(batches, loop) && loop != image.front())
      convolution.rowBytes = llvm::SaturatingMultiply<uint64_t>(
          convolution.rowBytes, convolution.sizes[loop]);
  if (convolution.rowBytes > kMaxRowBytes)
    return std::nullopt;
  return convolution;
}

/// The loops of tiles of which each has few copies: one batch, one group, and
/// as many rows of its image as divide it. Empty if there is but one.
static SmallVector<int64_t> getTiles(const Convolution &convolution) {
  SmallVector<int64_t> tiles(convolution.sizes.size(), 0);
  for (ArrayRef<unsigned> loops :
       {ArrayRef(convolution.dims.batch), ArrayRef(convolution.dims.depth)})
    for (unsigned loop : loops)
      tiles[loop] = convolution.sizes[loop] != 1;
  const unsigned rows = convolution.dims.outputImage.front();
  const int64_t size = convolution.sizes[rows];
  const uint64_t rowBytes = std::max<uint64_t>(convolution.rowBytes, 1);
  if (static_cast<uint64_t>(size) > kTileBytes / rowBytes) {
    int64_t count = std::max<int64_t>(kTileBytes / rowBytes, 1);
    while (size % count)
      --count;
    tiles[rows] = count == size ? 0 : count;
  }
  if (llvm::all_of(tiles, [](int64_t tile) { return tile == 0; }))
    return {};
  return tiles;
}

/// The input where nothing needs to be copied: a filter of one element meets
/// each of it once.
static Value expandInput(OpBuilder &b, linalg::LinalgOp op,
                         const Convolution &convolution,
                         RankedTensorType type) {
  Value input = op.getDpsInputs()[0];
  auto isFilter = [&](unsigned loop) {
    return llvm::is_contained(convolution.dims.filterLoop, loop);
  };
  // The loop of each axis of the input, but for those of the filter.
  AffineMap map = op.getMatchingIndexingMap(op.getDpsInputOperand(0));
  SmallVector<unsigned> left, axes;
  for (AffineExpr expr : map.getResults())
    for (unsigned loop = 0, end = op.getNumLoops(); loop < end; ++loop)
      if (expr.isFunctionOfDim(loop) && !isFilter(loop))
        axes.push_back(loop);
  SmallVector<int64_t> sizes;
  SmallVector<ReassociationIndices> groups;
  ReassociationIndices group;
  for (auto [axis, loop] : llvm::enumerate(convolution.copied)) {
    group.push_back(axis);
    if (isFilter(loop)) {
      if (convolution.sizes[loop] != 1)
        return {};
      continue;
    }
    left.push_back(loop);
    sizes.push_back(convolution.sizes[loop]);
    groups.push_back(std::exchange(group, {}));
  }
  if (groups.empty() || left != axes ||
      cast<RankedTensorType>(input.getType()).getShape() !=
          ArrayRef<int64_t>(sizes))
    return {};
  groups.back().append(group);
  return tensor::ExpandShapeOp::create(b, op.getLoc(), type, input, groups);
}

static Value copyInput(OpBuilder &b, linalg::LinalgOp op,
                       const Convolution &convolution, RankedTensorType type) {
  Location loc = op.getLoc();
  const size_t rank = convolution.copied.size();
  SmallVector<AffineExpr> loops(op.getNumLoops(), b.getAffineConstantExpr(0));
  for (auto [axis, loop] : llvm::enumerate(convolution.copied))
    loops[loop] = b.getAffineDimExpr(axis);
  AffineMap from = op.getMatchingIndexingMap(op.getDpsInputOperand(0))
                       .replaceDimsAndSymbols(loops, {}, rank, 0);
  Value empty =
      tensor::EmptyOp::create(b, loc, type.getShape(), type.getElementType());
  return linalg::GenericOp::create(
             b, loc, type, op.getDpsInputs()[0], empty,
             ArrayRef<AffineMap>{from, b.getMultiDimIdentityMap(rank)},
             SmallVector<utils::IteratorType>(rank,
                                              utils::IteratorType::parallel),
             [](OpBuilder &body, Location loc, ValueRange args) {
               linalg::YieldOp::create(body, loc, args[0]);
             })
      .getResult(0);
}

namespace {
struct ConvolutionToContraction final
    : OpInterfaceRewritePattern<linalg::LinalgOp> {
  using OpInterfaceRewritePattern::OpInterfaceRewritePattern;
  LogicalResult matchAndRewrite(linalg::LinalgOp op,
                                PatternRewriter &rewriter) const override {
    std::optional<Convolution> convolution = matchConvolution(op);
    if (!convolution)
      return rewriter.notifyMatchFailure(op, "no convolution of matrices");
    if (SmallVector<int64_t> tiles = getTiles(*convolution); !tiles.empty()) {
      scf::SCFTilingOptions options;
      options.setTileSizes(getAsIndexOpFoldResult(op.getContext(), tiles));
      FailureOr<scf::SCFTilingResult> tiled = scf::tileUsingSCF(
          rewriter, cast<TilingInterface>(op.getOperation()), options);
      if (failed(tiled))
        return failure();
      rewriter.replaceOp(op, tiled->replacements);
      return success();
    }
    SmallVector<int64_t> shape;
    for (unsigned loop : convolution->copied)
      shape.push_back(convolution->sizes[loop]);
    auto type =
        RankedTensorType::get(shape, getElementTypeOrSelf(op->getOperand(0)));
    Value copies = expandInput(rewriter, op, *convolution, type);
    if (!copies)
      copies = copyInput(rewriter, op, *convolution, type);
    SmallVector<AffineExpr> loops;
    for (unsigned loop : convolution->copied)
      loops.push_back(rewriter.getAffineDimExpr(loop));
    AffineMap ofCopies =
        AffineMap::get(op.getNumLoops(), 0, loops, op.getContext());
    SmallVector<AffineMap> maps = op.getIndexingMapsArray();
    SmallVector<utils::IteratorType> iterators = op.getIteratorTypesArray();
    SmallVector<Value> factors{copies, op.getDpsInputs()[1]};
    Value init = op.getDpsInits()[0];
    maps[0] = ofCopies;
    // The axis of a group has one element.
    SmallVector<ReassociationIndices> ofInit;
    if (!convolution->dims.depth.empty()) {
      const unsigned group = convolution->dims.depth.front();
      auto merge = [&](Value value, AffineMap &map) {
        SmallVector<ReassociationIndices> axes;
        for (auto [axis, expr] : llvm::enumerate(map.getResults())) {
          if (axis == 0 ||
              map.getResult(axis - 1) != rewriter.getAffineDimExpr(group))
            axes.emplace_back();
          axes.back().push_back(axis);
        }
        map = map.dropResult(
            *map.getResultPosition(rewriter.getAffineDimExpr(group)));
        ofInit = axes;
        return tensor::CollapseShapeOp::create(rewriter, op.getLoc(), value,
                                               axes)
            .getResult();
      };
      factors[1] = merge(factors[1], maps[1]);
      init = merge(init, maps[2]);
      maps = compressUnusedDims(maps);
      iterators.erase(iterators.begin() + group);
    }
    // Rows of the product are those of its first factor.
    if (convolution->filterFirst) {
      std::swap(factors[0], factors[1]);
      std::swap(maps[0], maps[1]);
    }
    auto body = [&](OpBuilder &b, Location, ValueRange args) {
      IRMapping mapping;
      mapping.map(op.getBlock()->getArguments(), args);
      if (convolution->filterFirst) {
        mapping.map(op.getBlock()->getArgument(0), args[1]);
        mapping.map(op.getBlock()->getArgument(1), args[0]);
      }
      for (Operation &inner : *op.getBlock())
        b.clone(inner, mapping);
    };
    Value result =
        linalg::GenericOp::create(rewriter, op.getLoc(), init.getType(),
                                  factors, init, maps, iterators, body)
            .getResult(0);
    if (!ofInit.empty())
      result = tensor::ExpandShapeOp::create(
          rewriter, op.getLoc(), op->getResultTypes()[0], result, ofInit,
          tensor::getMixedSizes(rewriter, op.getLoc(), op.getDpsInits()[0]));
    rewriter.replaceOp(op, result);
    return success();
  }
};
} // namespace

void mlir::diffattn::populateIm2ColPatterns(RewritePatternSet &patterns) {
  patterns.add<ConvolutionToContraction>(patterns.getContext());
}
