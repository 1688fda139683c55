//===- LinalgToRegisterLoops.cpp - loops with sums in registers -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/Passes.h"

#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTLINALGTOREGISTERLOOPSPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

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

/// The element of `operand` that the loops `ivs` touch.
SmallVector<Value> getPosition(OpBuilder &b, Location loc, linalg::LinalgOp op,
                               OpOperand *operand, ArrayRef<Value> ivs) {
  AffineMap map = op.getMatchingIndexingMap(operand);
  SmallVector<Value> position;
  for (AffineExpr expr : map.getResults())
    position.push_back(affine::makeComposedAffineApply(
        b, loc, AffineMap::get(map.getNumDims(), 0, expr),
        SmallVector<OpFoldResult>(ivs)));
  return position;
}

class RegisterLoops {
public:
  RegisterLoops(RewriterBase &rewriter, linalg::LinalgOp op, unsigned parallel)
      : rewriter(rewriter), op(op), loc(op.getLoc()), parallel(parallel) {}

  void emit() {
    for (Range range : op.createLoopRanges(rewriter, loc))
      sizes.push_back(
          getValueOrCreateConstantIndexOp(rewriter, loc, range.size));
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
      positions.push_back(getPosition(rewriter, loc, op, &init, padded));
      initial.push_back(
          memref::LoadOp::create(rewriter, loc, init.get(), positions.back()));
    }
    SmallVector<Value> sums = emitReduction(depth, initial);
    for (auto [init, position, sum] :
         llvm::zip_equal(op.getDpsInits(), positions, sums))
      memref::StoreOp::create(rewriter, loc, sum, init, position);
  }

  SmallVector<Value> emitReduction(unsigned depth, ValueRange carried) {
    if (depth == sizes.size())
      return emitBody(carried);
    auto loop =
        scf::ForOp::create(rewriter, loc, zero, sizes[depth], one, carried);
    OpBuilder::InsertionGuard guard(rewriter);
    rewriter.setInsertionPointToStart(loop.getBody());
    ivs.push_back(loop.getInductionVar());
    SmallVector<Value> next =
        emitReduction(depth + 1, loop.getRegionIterArgs());
    ivs.pop_back();
    scf::YieldOp::create(rewriter, loc, next);
    return loop.getResults();
  }

  SmallVector<Value> emitBody(ValueRange carried) {
    IRMapping mapping;
    for (OpOperand *input : op.getDpsInputOperands()) {
      Value value = input->get();
      if (isa<MemRefType>(value.getType()))
        value = memref::LoadOp::create(
            rewriter, loc, value, getPosition(rewriter, loc, op, input, ivs));
      mapping.map(op.getMatchingBlockArgument(input), value);
    }
    mapping.map(op.getRegionOutputArgs(), carried);
    Block *body = op.getBlock();
    for (Operation &inner : body->without_terminator()) {
      if (auto index = dyn_cast<linalg::IndexOp>(inner))
        mapping.map(index.getResult(), ivs[index.getDim()]);
      else
        rewriter.clone(inner, mapping);
    }
    return llvm::map_to_vector(
        body->getTerminator()->getOperands(),
        [&](Value value) { return mapping.lookupOrDefault(value); });
  }

  RewriterBase &rewriter;
  linalg::LinalgOp op;
  Location loc;
  unsigned parallel;
  SmallVector<Value> sizes, ivs;
  Value zero, one;
};

struct ConvertLinalgToRegisterLoopsPass final
    : diffattn::impl::ConvertLinalgToRegisterLoopsPassBase<
          ConvertLinalgToRegisterLoopsPass> {
  void runOnOperation() override {
    SmallVector<linalg::LinalgOp> ops;
    getOperation()->walk([&](linalg::LinalgOp op) { ops.push_back(op); });
    IRRewriter rewriter(&getContext());
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
      if (failed(linalg::linalgOpToLoops(rewriter, op))) {
        op->emitOpError("expected an op that can be lowered to loops");
        return signalPassFailure();
      }
      rewriter.eraseOp(op);
    }
  }
};
} // namespace
