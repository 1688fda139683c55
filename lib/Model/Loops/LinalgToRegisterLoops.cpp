//===- LinalgToRegisterLoops.cpp - loops with sums in registers -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "LinalgBody.h"
#include "ParallelLoops.h"

#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTLINALGTOREGISTERLOOPSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// The loops of `op`, with those first that are parallel, if sums may lie in
/// registers then: no output is indexed by the others. None if memory would be
/// read in pieces that are short.
std::optional<SmallVector<unsigned>> getLoopOrder(linalg::LinalgOp op) {
  SmallVector<unsigned> order, reductions;
  for (auto [loop, iterator] : llvm::enumerate(op.getIteratorTypesArray())) {
    if (linalg::isParallelIterator(iterator)) {
      order.push_back(loop);
      continue;
    }
    if (!linalg::isReductionIterator(iterator))
      return std::nullopt;
    reductions.push_back(loop);
    for (OpOperand &init : op.getDpsInitsMutable())
      if (op.getMatchingIndexingMap(&init).isFunctionOfDim(loop))
        return std::nullopt;
  }
  if (reductions.empty())
    return std::nullopt;
  const bool moves = !order.empty() && order.back() > reductions.front();
  order.append(reductions);
  if (!moves)
    return order;
  // The innermost loops, which read contiguous elements, stay innermost for at
  // least so many iterations.
  constexpr int64_t leastRun = 16;
  SmallVector<int64_t> sizes = op.getStaticLoopRanges();
  int64_t run = 1;
  for (int64_t loop = sizes.size(); loop-- > 0 && run < leastRun;) {
    if (!llvm::is_contained(reductions, loop))
      return std::nullopt;
    run *= ShapedType::isDynamic(sizes[loop]) ? leastRun : sizes[loop];
  }
  return order;
}

/// Loops whose sums lie in registers. Where they are long, a sum has parts with
/// sums of their own: in one chain over a million terms equal ones would all be
/// rounded alike, and the result be off in its third digit.
class RegisterLoops {
public:
  RegisterLoops(RewriterBase &rewriter, linalg::LinalgOp op,
                ArrayRef<unsigned> order)
      : rewriter(rewriter), op(op), loc(op.getLoc()), order(order) {}

  void emit() {
    for (Range range : op.createLoopRanges(rewriter, loc))
      sizes.push_back(
          getValueOrCreateConstantIndexOp(rewriter, loc, range.size));
    for (int64_t i = 0; i < op.getNumDpsInits(); ++i)
      isSum.push_back(isRelaxedSum(op, i));
    zero = arith::ConstantIndexOp::create(rewriter, loc, 0);
    one = arith::ConstantIndexOp::create(rewriter, loc, 1);
    // Any value stands in for the loops that outputs do not depend on.
    ivs.assign(sizes.size(), zero);
    emitParallel(0);
    rewriter.eraseOp(op);
  }

private:
  void emitParallel(unsigned depth) {
    if (linalg::isParallelIterator(op.getIteratorTypesArray()[order[depth]])) {
      auto loop =
          scf::ForOp::create(rewriter, loc, zero, sizes[order[depth]], one);
      OpBuilder::InsertionGuard guard(rewriter);
      rewriter.setInsertionPoint(loop.getBody()->getTerminator());
      ivs[order[depth]] = loop.getInductionVar();
      return emitParallel(depth + 1);
    }
    SmallVector<Value> initial;
    SmallVector<SmallVector<Value>> positions;
    for (OpOperand &init : op.getDpsInitsMutable()) {
      positions.push_back(getPosition(rewriter, op, &init, ivs));
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
  /// The loops inside of another one are a part from this many iterations on.
  static constexpr int64_t kMinPart = 64;

  SmallVector<Value> emitReduction(unsigned depth, ValueRange carried) {
    if (depth == order.size())
      return emitBody(rewriter, op, ivs, carried);
    return emitLoops(depth, zero, sizes[order[depth]], kParts, carried);
  }

  /// The iterations [lower, upper) of loop `depth` of the order, in parts of at
  /// most `parts.front()`, and so on.
  SmallVector<Value> emitLoops(unsigned depth, Value lower, Value upper,
                               ArrayRef<int64_t> parts, ValueRange carried) {
    std::optional<int64_t> size = getConstantIntValue(sizes[order[depth]]);
    while (!parts.empty() && size && parts.front() >= *size)
      parts = parts.drop_front();
    if (!llvm::is_contained(isSum, true))
      parts = {};
    if (parts.empty())
      return emitLoop(lower, upper, one, carried,
                      [&](Value i, ValueRange carried) {
                        ivs[order[depth]] = i;
                        return emitInside(depth + 1, carried);
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

  /// Loop `depth` of the order, inside of another one.
  SmallVector<Value> emitInside(unsigned depth, ValueRange carried) {
    auto whole = [&](ValueRange initial) {
      return emitReduction(depth, initial);
    };
    int64_t iterations = 1;
    for (unsigned loop : order.drop_front(depth))
      iterations = std::min(
          kMinPart,
          iterations * getConstantIntValue(sizes[loop]).value_or(kMinPart));
    if (depth == order.size() || !llvm::is_contained(isSum, true) ||
        iterations < kMinPart)
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
  ArrayRef<unsigned> order;
  SmallVector<Value> sizes, ivs;
  /// isRelaxedSum of each output.
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
      if (emitColumnSums(rewriter, op, buffers))
        continue;
      if (std::optional<ParallelLoops> loops = planParallelLoops(op)) {
        emitParallelLoops(rewriter, op, *loops);
        continue;
      }
      if (std::optional<SmallVector<unsigned>> order = getLoopOrder(op)) {
        RegisterLoops(rewriter, op, *order).emit();
        continue;
      }
      if (failed(linalg::linalgOpToLoops(rewriter, op))) {
        op->emitOpError("expected an op that can be lowered to loops");
        return signalPassFailure();
      }
      rewriter.eraseOp(op);
    }
  }
};
} // namespace
