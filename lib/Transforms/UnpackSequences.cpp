//===- UnpackSequences.cpp - diffattn-unpack-sequences --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ShapedBuilder.h"

#include "DiffAttn/Transforms/Passes.h"
#include "DiffAttn/Transforms/Patterns.h"

#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Transforms/WalkPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_UNPACKSEQUENCESPASS
#include "DiffAttn/Transforms/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Offsets and sizes of a slice with unit strides.
struct SliceOf {
  SmallVector<OpFoldResult> offsets, sizes, strides;

  Value extract(ShapedBuilder &b, Value source) const {
    if (b.onTensors)
      return tensor::ExtractSliceOp::create(b, source, offsets, sizes, strides);
    return memref::SubViewOp::create(b, source, offsets, sizes, strides);
  }
};

/// Where the rows of one sequence begin, and how many there are.
struct Rows {
  Value first, count;
};
} // namespace

static Rows loadRows(ShapedBuilder &b, Value bounds, Value sequence) {
  Value first = b.asIndex(b.load(bounds, sequence));
  Value next = arith::AddIOp::create(b, sequence, b.constant(1));
  Value end = b.asIndex(b.load(bounds, next));
  return {first, arith::SubIOp::create(b, end, first)};
}

namespace {
/// Cuts the operands of an attention to one sequence.
struct SequenceSlicer {
  SequenceSlicer(ShapedBuilder &b, AttentionOp op, Value sequence)
      : b(b), op(op), sequence(sequence),
        queries(loadRows(b, op.getCuSeqlensQ(), sequence)) {
    if (op.getCuSeqlensK())
      keys = loadRows(b, op.getCuSeqlensK(), sequence);
  }

  /// What is the sequence's of operand `number`; none if all of it is.
  std::optional<SliceOf> getSlice(unsigned number);

private:
  /// The rows or the number along an axis; none: all of it.
  std::optional<Rows> getRows(unsigned number, const AxisRole &role);

  ShapedBuilder &b;
  AttentionOp op;
  Value sequence;
  Rows queries, keys;
};
} // namespace

std::optional<Rows> SequenceSlicer::getRows(unsigned number,
                                            const AxisRole &role) {
  if (role.kind == AxisRole::Query)
    return queries;
  if (role.kind == AxisRole::Key && keys.count)
    return keys;
  // These have one number or row for each sequence.
  if (role.kind == AxisRole::Batch &&
      llvm::is_contained({op.getKvLen(), op.getQOffset(), op.getBlockTable()},
                         op->getOperand(number)))
    return Rows{sequence, Value()};
  return std::nullopt;
}

std::optional<SliceOf> SequenceSlicer::getSlice(unsigned number) {
  SliceOf slice;
  bool isPart = false;
  for (auto [axis, role] : llvm::enumerate(op.getAxisRoles(number))) {
    OpFoldResult offset = b.getIndexAttr(0), size;
    if (std::optional<Rows> rows = getRows(number, role)) {
      isPart = true;
      offset = rows->first;
      size = rows->count ? OpFoldResult(rows->count) : b.getIndexAttr(1);
    } else {
      size = b.size(op->getOperand(number), axis);
    }
    slice.offsets.push_back(offset);
    slice.sizes.push_back(size);
    slice.strides.push_back(b.getIndexAttr(1));
  }
  return isPart ? std::optional(slice) : std::nullopt;
}

/// Attention on the sequence `sequence` of `op`, of which `init` holds the
/// results so far; returns what holds them then.
static Value buildSequence(ShapedBuilder &b, AttentionOp op, Value sequence,
                           Value init) {
  SequenceSlicer slicer(b, op, sequence);
  const unsigned initNumber = op.getInitMutable().getOperandNumber();
  const SliceOf ofInit = *slicer.getSlice(initNumber);
  SmallVector<Value> operands(op->getOperands());
  for (auto [number, operand] : llvm::enumerate(operands))
    if (number == initNumber)
      operand = ofInit.extract(b, init);
    else if (std::optional<SliceOf> slice = slicer.getSlice(number))
      operand = slice->extract(b, operand);
  // Keys of both maps that are one operand are read once.
  if (op.getK1() == op.getK2())
    operands[op.getK2Mutable()[0].getOperandNumber()] =
        operands[op.getK1Mutable().getOperandNumber()];
  SmallVector<Type> results;
  if (b.onTensors)
    results.push_back(operands[initNumber].getType());
  auto one = mlir::clone(b, op, results, operands);
  one.getCuSeqlensQMutable().clear();
  one.getCuSeqlensKMutable().clear();
  if (!b.onTensors)
    return init;
  return tensor::InsertSliceOp::create(b, one.getResult(), init, ofInit.offsets,
                                       ofInit.sizes, ofInit.strides);
}

static void unpack(RewriterBase &rewriter, AttentionOp op) {
  ShapedBuilder b(rewriter, op);
  Value ends = getValueOrCreateConstantIndexOp(b, b.getLoc(),
                                               b.size(op.getCuSeqlensQ(), 0));
  Value count = arith::SubIOp::create(b, ends, b.constant(1));
  SmallVector<Value> carried;
  if (b.onTensors)
    carried.push_back(op.getInit());
  auto loop = scf::ForOp::create(
      b, b.constant(0), count, b.constant(1), carried,
      [&](OpBuilder &nested, Location loc, Value sequence, ValueRange args) {
        ShapedBuilder body(loc, nested, b.onTensors);
        Value result = buildSequence(body, op, sequence,
                                     b.onTensors ? args[0] : op.getInit());
        SmallVector<Value> yielded;
        if (b.onTensors)
          yielded.push_back(result);
        scf::YieldOp::create(body, yielded);
      });
  rewriter.replaceOp(op, loop.getResults());
}

namespace {
struct Unpack final : OpRewritePattern<AttentionOp> {
  Unpack(MLIRContext *context, std::function<bool(AttentionOp)> shouldUnpack)
      : OpRewritePattern(context), shouldUnpack(std::move(shouldUnpack)) {}

  LogicalResult matchAndRewrite(AttentionOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.isPacked() || !shouldUnpack(op))
      return rewriter.notifyMatchFailure(op, "has no packed sequences");
    unpack(rewriter, op);
    return success();
  }

  std::function<bool(AttentionOp)> shouldUnpack;
};

struct UnpackSequencesPass final
    : diffattn::impl::UnpackSequencesPassBase<UnpackSequencesPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    populateUnpackSequencesPatterns(patterns, [](AttentionOp) { return true; });
    walkAndApplyPatterns(getOperation(), std::move(patterns));
  }
};
} // namespace

void diffattn::populateUnpackSequencesPatterns(
    RewritePatternSet &patterns,
    std::function<bool(AttentionOp)> shouldUnpack) {
  patterns.add<Unpack>(patterns.getContext(), std::move(shouldUnpack));
}
