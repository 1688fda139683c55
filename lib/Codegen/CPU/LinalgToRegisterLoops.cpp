//===- LinalgToRegisterLoops.cpp - loops with sums in registers -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "LinalgBody.h"

#include "DiffAttn/Codegen/Passes.h"

#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTLINALGTOREGISTERLOOPSPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Number of leading parallel loops if every loop after them is a reduction and
/// no output is indexed by one.
std::optional<unsigned> getParallelPrefix(linalg::LinalgOp op) {
  SmallVector<utils::IteratorType> iterators = op.getIteratorTypesArray();
  unsigned parallel = 0;
  while (parallel < iterators.size() &&
         linalg::isParallelIterator(iterators[parallel]))
    ++parallel;
  if (parallel == iterators.size())
    return std::nullopt;
  for (unsigned i = parallel; i < iterators.size(); ++i) {
    if (!linalg::isReductionIterator(iterators[i]))
      return std::nullopt;
    for (OpOperand &init : op.getDpsInitsMutable())
      if (op.getMatchingIndexingMap(&init).isFunctionOfDim(i))
        return std::nullopt;
  }
  return parallel;
}

/// Loops whose sums lie in registers. Where they are long, a sum has parts with
/// sums of their own: in one chain over a million terms equal ones would all be
/// rounded alike, and the result be off in its third digit.
class RegisterLoops {
public:
  RegisterLoops(RewriterBase &rewriter, linalg::LinalgOp op, unsigned parallel)
      : rewriter(rewriter), op(op), loc(op.getLoc()), parallel(parallel) {}

  void emit() {
    for (Range range : op.createLoopRanges(rewriter, loc))
      sizes.push_back(
          getValueOrCreateConstantIndexOp(rewriter, loc, range.size));
    for (int64_t i = 0; i < op.getNumDpsInits(); ++i)
      isSum.push_back(isRelaxedSum(op, i));
    zero = arith::ConstantIndexOp::create(rewriter, loc, 0);
    one = arith::ConstantIndexOp::create(rewriter, loc, 1);
    emitParallel(0);
    rewriter.eraseOp(op);
  }

private:
  void emitParallel(unsigned depth) {
    if (depth < parallel) {
      auto loop = scf::ForOp::create(rewriter, loc, zero, sizes[depth], one);
      OpBuilder::InsertionGuard guard(rewriter);
      rewriter.setInsertionPoint(loop.getBody()->getTerminator());
      ivs.push_back(loop.getInductionVar());
      emitParallel(depth + 1);
      ivs.pop_back();
      return;
    }
    // Outputs depend on the parallel loops alone; any value stands in for the
    // rest.
    SmallVector<Value> padded(ivs);
    padded.resize(sizes.size(), zero);
    SmallVector<Value> initial;
    SmallVector<SmallVector<Value>> positions;
    for (OpOperand &init : op.getDpsInitsMutable()) {
      positions.push_back(getPosition(rewriter, op, &init, padded));
      initial.push_back(
          memref::LoadOp::create(rewriter, loc, init.get(), positions.back()));
    }
    SmallVector<Value> sums = emitReduction(depth, initial);
    for (auto [init, position, sum] :
         llvm::zip_equal(op.getDpsInits(), positions, sums))
      memref::StoreOp::create(rewriter, loc, sum, init, position);
  }

  /// Iterations of the parts of a long loop, and of the parts of those. LLVM
  /// keeps up to 64 sums of a loop: the least part has chains of 128 terms
  /// then, few enough to keep the digits, and is long enough to be as fast as
  /// one loop.
  static constexpr int64_t kParts[] = {1 << 19, 1 << 13};
  /// A loop inside of another one is a part from this many iterations on.
  static constexpr int64_t kLeastPart = 64;

  SmallVector<Value> emitReduction(unsigned depth, ValueRange carried) {
    if (depth == sizes.size())
      return emitBody(rewriter, op, ivs, carried);
    return emitLoops(depth, zero, sizes[depth], kParts, carried);
  }

  /// The iterations [lower, upper) of loop `depth`, in parts of at most
  /// `parts.front()`, and so on.
  SmallVector<Value> emitLoops(unsigned depth, Value lower, Value upper,
                               ArrayRef<int64_t> parts, ValueRange carried) {
    std::optional<int64_t> size = getConstantIntValue(sizes[depth]);
    while (!parts.empty() && size && parts.front() >= *size)
      parts = parts.drop_front();
    if (!llvm::is_contained(isSum, true))
      parts = {};
    if (parts.empty())
      return emitLoop(
          lower, upper, one, carried, [&](Value i, ValueRange carried) {
            ivs.push_back(i);
            SmallVector<Value> next = emitInside(depth + 1, carried);
            ivs.pop_back();
            return next;
          });
    auto length = arith::ConstantIndexOp::create(rewriter, loc, parts.front());
    return emitLoop(
        lower, upper, length, carried, [&](Value first, ValueRange carried) {
          Value last = arith::AddIOp::create(rewriter, loc, first, length);
          if (!size || *size % parts.front())
            last = arith::MinSIOp::create(rewriter, loc, last, upper);
          return emitPart(carried, [&](ValueRange initial) {
            return emitLoops(depth, first, last, parts.drop_front(), initial);
          });
        });
  }

  /// Loop `depth` inside of another one.
  SmallVector<Value> emitInside(unsigned depth, ValueRange carried) {
    auto whole = [&](ValueRange initial) {
      return emitReduction(depth, initial);
    };
    if (depth == sizes.size() || !llvm::is_contained(isSum, true) ||
        getConstantIntValue(sizes[depth]).value_or(kLeastPart) < kLeastPart)
      return whole(carried);
    return emitPart(carried, whole);
  }

  /// Sums of what `part` adds up, added to what is carried.
  SmallVector<Value>
  emitPart(ValueRange carried,
           function_ref<SmallVector<Value>(ValueRange)> part) {
    SmallVector<Value> initial(carried);
    for (auto [sums, value] : llvm::zip_equal(isSum, initial))
      if (sums)
        value = emitNeutral(rewriter, loc, value.getType());
    SmallVector<Value> results = part(initial);
    for (auto [i, result] : llvm::enumerate(results))
      if (isSum[i])
        result = arith::AddFOp::create(rewriter, loc, carried[i], result,
                                       arith::FastMathFlags::none);
    return results;
  }

  SmallVector<Value>
  emitLoop(Value lower, Value upper, Value step, ValueRange carried,
           function_ref<SmallVector<Value>(Value, ValueRange)> body) {
    auto loop = scf::ForOp::create(rewriter, loc, lower, upper, step, carried);
    OpBuilder::InsertionGuard guard(rewriter);
    rewriter.setInsertionPointToStart(loop.getBody());
    SmallVector<Value> next =
        body(loop.getInductionVar(), loop.getRegionIterArgs());
    scf::YieldOp::create(rewriter, loc, next);
    return loop.getResults();
  }

  RewriterBase &rewriter;
  linalg::LinalgOp op;
  Location loc;
  unsigned parallel;
  SmallVector<Value> sizes, ivs;
  /// For each output, isRelaxedSum.
  SmallVector<bool> isSum;
  Value zero, one;
};

struct ConvertLinalgToRegisterLoopsPass final
    : diffattn::impl::ConvertLinalgToRegisterLoopsPassBase<
          ConvertLinalgToRegisterLoopsPass> {
  void runOnOperation() override {
    SmallVector<linalg::LinalgOp> ops;
    getOperation()->walk([&](linalg::LinalgOp op) { ops.push_back(op); });
    IRRewriter rewriter(&getContext());
    SmallVector<Value> buffers;
    for (linalg::LinalgOp op : ops) {
      if (!op.hasPureBufferSemantics()) {
        op->emitOpError("expected operands that are buffers, but got tensors");
        return signalPassFailure();
      }
      rewriter.setInsertionPoint(op);
      if (std::optional<unsigned> parallel = getParallelPrefix(op)) {
        RegisterLoops(rewriter, op, *parallel).emit();
        continue;
      }
      if (emitColumnSums(rewriter, op, buffers))
        continue;
      if (failed(linalg::linalgOpToLoops(rewriter, op))) {
        op->emitOpError("expected an op that can be lowered to loops");
        return signalPassFailure();
      }
      rewriter.eraseOp(op);
    }
  }
};
} // namespace
