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
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "mlir/IR/TypeUtilities.h"
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
/// Cuts the operands of an op to one sequence.
struct SequenceSlicer {
  SequenceSlicer(ShapedBuilder &b, DifferentialMapsOpInterface op,
                 Value sequence)
      : b(b), op(op), sequence(sequence),
        queries(loadRows(b, op.getCuSeqlensQ(), sequence)) {
    if (op.getCuSeqlensK())
      keys = loadRows(b, op.getCuSeqlensK(), sequence);
  }

  /// The slice of operand `number` for the sequence; none if it is all of it.
  std::optional<SliceOf> getSlice(unsigned number);

private:
  /// The rows or the number along an axis; none: all of it.
  std::optional<Rows> getRows(unsigned number, const AxisRole &role);

  ShapedBuilder &b;
  DifferentialMapsOpInterface op;
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

namespace {
/// A destination of an op on packed sequences, of which each has its rows; or
/// none has, and it is the sum over all of them.
struct Destination {
  OpOperand *operand;
  bool isSum;
  /// A place for the part of one sequence, where the destination is a sum.
  Value part;

  Value get() const { return operand->get(); }
  bool isF32() const { return getElementTypeOrSelf(get().getType()).isF32(); }
};

/// An op on packed sequences as a loop over them.
class Unpacking {
public:
  Unpacking(RewriterBase &rewriter, DifferentialMapsOpInterface op);
  void run();

private:
  /// The op on the sequence `sequence`; `held` are the destinations with what
  /// the sequences before it wrote. Returns them with its own.
  SmallVector<Value> buildSequence(ShapedBuilder &body, Value sequence,
                                   ValueRange held);
  /// A place for f32 of the shape of `like`.
  Value makeSum(Value like);
  /// Rounds a sum to its destination.
  Value storeSum(Value sum, Value destination);

  RewriterBase &rewriter;
  DifferentialMapsOpInterface op;
  ShapedBuilder b;
  SmallVector<Destination> destinations;
  SmallVector<Value> temporaries;
};
} // namespace

Unpacking::Unpacking(RewriterBase &rewriter, DifferentialMapsOpInterface op)
    : rewriter(rewriter), op(op), b(rewriter, op) {
  auto dps = cast<DestinationStyleOpInterface>(op.getOperation());
  for (OpOperand &init : dps.getDpsInitsMutable()) {
    bool hasRows = llvm::any_of(
        op.getAxisRoles(init.getOperandNumber()), [](const AxisRole &role) {
          return role.kind == AxisRole::Query || role.kind == AxisRole::Key;
        });
    destinations.push_back({&init, !hasRows, Value()});
  }
}

Value Unpacking::makeSum(Value like) {
  SmallVector<OpFoldResult> sizes;
  for (int64_t axis = 0, rank = op.getShaped(like).getRank(); axis < rank;
       ++axis)
    sizes.push_back(b.size(like, axis));
  if (b.onTensors)
    return tensor::EmptyOp::create(b, sizes, b.getF32Type());
  auto [shape, dynamic] = decomposeMixedValues(sizes);
  temporaries.push_back(memref::AllocOp::create(
      b, MemRefType::get(shape, b.getF32Type()), dynamic));
  return temporaries.back();
}

Value Unpacking::storeSum(Value sum, Value destination) {
  const int64_t rank = op.getShaped(sum).getRank();
  SmallVector<AffineMap> maps(2, b.getMultiDimIdentityMap(rank));
  SmallVector<utils::IteratorType> loops(rank, utils::IteratorType::parallel);
  Type element = getElementTypeOrSelf(destination.getType());
  auto body = [&](OpBuilder &nested, Location loc, ValueRange args) {
    Value rounded = arith::TruncFOp::create(nested, loc, element, args[0]);
    linalg::YieldOp::create(nested, loc, rounded);
  };
  if (!b.onTensors) {
    linalg::GenericOp::create(b, sum, destination, maps, loops, body);
    return destination;
  }
  return linalg::GenericOp::create(b, destination.getType(), sum, destination,
                                   maps, loops, body)
      .getResult(0);
}

SmallVector<Value> Unpacking::buildSequence(ShapedBuilder &body, Value sequence,
                                            ValueRange held) {
  SequenceSlicer slicer(body, op, sequence);
  SmallVector<Value> operands(op->getOperands());
  const unsigned first = destinations.front().operand->getOperandNumber();
  for (unsigned number = 0; number < first; ++number)
    if (std::optional<SliceOf> slice = slicer.getSlice(number))
      operands[number] = slice->extract(body, operands[number]);
  SmallVector<std::optional<SliceOf>> slices;
  for (auto [destination, before] : llvm::zip_equal(destinations, held)) {
    const unsigned number = destination.operand->getOperandNumber();
    if (destination.isSum) {
      slices.push_back(std::nullopt);
      operands[number] = destination.part;
      continue;
    }
    slices.push_back(slicer.getSlice(number));
    operands[number] = slices.back()->extract(body, before);
  }
  // Keys of both maps that are one operand are read once.
  if (op.hasSecondMap() && op.getK1() == op.getK2())
    operands[op.getK2Mutable()[0].getOperandNumber()] =
        operands[op.getK1Mutable().getOperandNumber()];
  SmallVector<Type> results;
  if (body.onTensors)
    for (const Destination &destination : destinations)
      results.push_back(
          operands[destination.operand->getOperandNumber()].getType());
  Operation *cloned = mlir::clone(body, op.getOperation(), results, operands);
  auto one = cast<DifferentialMapsOpInterface>(cloned);
  one.getCuSeqlensQMutable().clear();
  one.getCuSeqlensKMutable().clear();

  SmallVector<Value> after;
  for (auto [i, destination] : llvm::enumerate(destinations)) {
    Value before = held[i];
    Value part = body.onTensors ? cloned->getResult(i) : destination.part;
    if (destination.isSum) {
      auto add = linalg::AddOp::create(
          body, body.onTensors ? TypeRange(before.getType()) : TypeRange(),
          ValueRange{before, part}, before);
      after.push_back(body.onTensors ? add.getResult(0) : before);
    } else if (body.onTensors) {
      const SliceOf &slice = *slices[i];
      after.push_back(tensor::InsertSliceOp::create(
          body, part, before, slice.offsets, slice.sizes, slice.strides));
    } else {
      after.push_back(before);
    }
  }
  return after;
}

void Unpacking::run() {
  Value ends = getValueOrCreateConstantIndexOp(b, b.getLoc(),
                                               b.size(op.getCuSeqlensQ(), 0));
  Value count = arith::SubIOp::create(b, ends, b.constant(1));
  SmallVector<Value> begin;
  for (Destination &destination : destinations) {
    if (!destination.isSum) {
      begin.push_back(destination.get());
      continue;
    }
    destination.part = makeSum(destination.get());
    Value sum =
        destination.isF32() ? destination.get() : makeSum(destination.get());
    Value zero = arith::ConstantOp::create(b, b.getF32FloatAttr(0.0f));
    auto filled = linalg::FillOp::create(b, zero, sum);
    begin.push_back(b.onTensors ? filled.getResult(0) : sum);
  }
  auto loop = scf::ForOp::create(
      b, b.constant(0), count, b.constant(1),
      b.onTensors ? ValueRange(begin) : ValueRange(),
      [&](OpBuilder &nested, Location loc, Value sequence, ValueRange args) {
        ShapedBuilder body(loc, nested, b.onTensors);
        SmallVector<Value> after = buildSequence(
            body, sequence, b.onTensors ? args : ValueRange(begin));
        scf::YieldOp::create(body,
                             b.onTensors ? ValueRange(after) : ValueRange());
      });
  SmallVector<Value> held =
      b.onTensors ? SmallVector<Value>(loop.getResults()) : begin;
  for (auto [destination, value] : llvm::zip_equal(destinations, held))
    if (destination.isSum && !destination.isF32())
      value = storeSum(value, destination.get());
  for (Value temporary : temporaries)
    memref::DeallocOp::create(b, temporary);
  if (b.onTensors)
    rewriter.replaceOp(op, held);
  else
    rewriter.eraseOp(op);
}

namespace {
struct Unpack final : OpInterfaceRewritePattern<DifferentialMapsOpInterface> {
  Unpack(MLIRContext *context, std::function<bool(Operation *)> shouldUnpack)
      : OpInterfaceRewritePattern(context),
        shouldUnpack(std::move(shouldUnpack)) {}

  LogicalResult matchAndRewrite(DifferentialMapsOpInterface op,
                                PatternRewriter &rewriter) const override {
    if (!isa<AttentionOp, AttentionBackwardOp>(op.getOperation()))
      return rewriter.notifyMatchFailure(op, "is on states");
    if (!op.isPacked() || !shouldUnpack(op))
      return rewriter.notifyMatchFailure(op, "has no packed sequences");
    Unpacking(rewriter, op).run();
    return success();
  }

  std::function<bool(Operation *)> shouldUnpack;
};

struct UnpackSequencesPass final
    : diffattn::impl::UnpackSequencesPassBase<UnpackSequencesPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    populateUnpackSequencesPatterns(patterns, [](Operation *) { return true; });
    walkAndApplyPatterns(getOperation(), std::move(patterns));
  }
};
} // namespace

void diffattn::populateUnpackSequencesPatterns(
    RewritePatternSet &patterns,
    std::function<bool(Operation *)> shouldUnpack) {
  patterns.add<Unpack>(patterns.getContext(), std::move(shouldUnpack));
}
