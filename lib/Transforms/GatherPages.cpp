//===- GatherPages.cpp - diffattn-gather-pages ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapedBuilder.h"

#include "DiffAttn/Transforms/Passes.h"
#include "DiffAttn/Transforms/Patterns.h"

#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Transforms/WalkPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_GATHERPAGESPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

/// `pages` [P, ...] with S rows along `rows`, copied in the order of `table`
/// [B, M]: [B, ...] with M * S rows. Entries that no length covers may be any
/// number, and are brought into range.
static Value gatherPages(ShapedBuilder &b, Value pages, int64_t rows,
                         Value table) {
  auto type = cast<ShapedType>(pages.getType());
  SmallVector<OpFoldResult> sizes;
  for (int64_t axis = 0; axis < 4; ++axis)
    sizes.push_back(b.size(pages, axis));
  Value last = getValueOrCreateConstantIndexOp(b, b.getLoc(), sizes[0]);
  last = arith::SubIOp::create(b, last, b.constant(1));
  sizes[0] = b.size(table, 0);
  sizes.insert(sizes.begin() + rows, b.size(table, 1));
  auto [shape, dynamic] = decomposeMixedValues(sizes);
  Value empty;
  if (b.onTensors)
    empty = tensor::EmptyOp::create(b, sizes, type.getElementType());
  else
    empty = memref::AllocOp::create(
        b, MemRefType::get(shape, type.getElementType()), dynamic,
        b.getI64IntegerAttr(64));
  const auto all = AffineMap::getMultiDimIdentityMap(5, b.getContext());
  const auto entry = AffineMap::get(
      5, 0, {b.getAffineDimExpr(0), b.getAffineDimExpr(rows)}, b.getContext());
  SmallVector<Type> results;
  if (b.onTensors)
    results.push_back(empty.getType());
  auto generic = linalg::GenericOp::create(
      b, results, table, empty, ArrayRef<AffineMap>{entry, all},
      SmallVector<utils::IteratorType>(5, utils::IteratorType::parallel),
      [&](OpBuilder &nested, Location loc, ValueRange args) {
        ShapedBuilder body(loc, nested, b.onTensors);
        Value page = arith::MinSIOp::create(body, body.asIndex(args[0]), last);
        page = arith::MaxSIOp::create(body, page, body.constant(0));
        SmallVector<Value> indices = {page};
        for (int64_t axis = 1; axis < 5; ++axis)
          if (axis != rows)
            indices.push_back(linalg::IndexOp::create(body, axis));
        linalg::YieldOp::create(body, body.load(pages, indices));
      });
  SmallVector<ReassociationIndices> groups;
  for (int64_t axis = 0; axis < 5; ++axis)
    if (axis == rows + 1)
      groups.back().push_back(axis);
    else
      groups.push_back({axis});
  if (b.onTensors)
    return tensor::CollapseShapeOp::create(b, generic.getResult(0), groups);
  return memref::CollapseShapeOp::create(b, empty, groups);
}

static void gather(RewriterBase &rewriter, AttentionOp op) {
  ShapedBuilder b(rewriter, op);
  SmallVector<Value> copies;
  // One copy of what is one operand: kernels read it once.
  auto dense = [&](Value pages, Layout layout) {
    copies.push_back(gatherPages(b, pages, AttentionOp::lengthAxis(layout),
                                 op.getBlockTable()));
    return copies.back();
  };
  Value k1 = dense(op.getK1(), op.getKLayout()), k2;
  if (op.hasSecondMap())
    k2 = op.getK1() == op.getK2() ? k1 : dense(op.getK2(), op.getKLayout());
  Value v = dense(op.getV(), op.getVLayout());
  rewriter.modifyOpInPlace(op, [&] {
    op.getK1Mutable().assign(k1);
    if (k2)
      op.getK2Mutable().assign(k2);
    op.getVMutable().assign(v);
    op.getBlockTableMutable().clear();
  });
  if (b.onTensors)
    return;
  b.setInsertionPointAfter(op);
  for (Value copy : copies)
    memref::DeallocOp::create(
        b, copy.getDefiningOp<memref::CollapseShapeOp>().getSrc());
}

namespace {
struct Gather final : OpRewritePattern<AttentionOp> {
  Gather(MLIRContext *context, std::function<bool(AttentionOp)> shouldGather)
      : OpRewritePattern(context), shouldGather(std::move(shouldGather)) {}

  LogicalResult matchAndRewrite(AttentionOp op,
                                PatternRewriter &rewriter) const override {
    // Rows of the table of packed sequences are no batches.
    if (!op.isPaged() || op.isPacked() || !shouldGather(op))
      return rewriter.notifyMatchFailure(op, "has no pages to gather");
    gather(rewriter, op);
    return success();
  }

  std::function<bool(AttentionOp)> shouldGather;
};

struct GatherPagesPass final
    : diffattn::impl::GatherPagesPassBase<GatherPagesPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    populateGatherPagesPatterns(patterns, [](AttentionOp) { return true; });
    walkAndApplyPatterns(getOperation(), std::move(patterns));
  }
};
} // namespace

void diffattn::populateGatherPagesPatterns(
    RewritePatternSet &patterns,
    std::function<bool(AttentionOp)> shouldGather) {
  patterns.add<Gather>(patterns.getContext(), std::move(shouldGather));
}
