//===- ParallelLoops.cpp - loops over elements ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ParallelLoops.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Utils/Utils.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Linalg/Utils/Utils.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Interfaces/ViewLikeInterface.h"
#include "llvm/ADT/SmallBitVector.h"

using namespace mlir;
using namespace mlir::diffattn;

/// The largest window that is unrolled, the most rows of an operand that it may
/// read at once, and the most ops that it may make.
static constexpr int64_t kMaxWindow = 64;
static constexpr int64_t kMaxRows = 16;
static constexpr int64_t kMaxOps = 1024;
/// Tile of a transposition: rows that are read or written at a time, few enough
/// for the ways of a cache, and elements of each, which fill lines.
static constexpr int64_t kTileRows = 8;
static constexpr int64_t kTileColumns = 32;

static bool isParallel(linalg::LinalgOp op, unsigned loop) {
  return linalg::isParallelIterator(op.getIteratorTypesArray()[loop]);
}

/// The loop that counts along the last axis of an operand, one element a time,
/// if no other axis depends on it.
static std::optional<unsigned> getInnerLoop(linalg::LinalgOp op,
                                            OpOperand &operand) {
  AffineMap map = op.getMatchingIndexingMap(&operand);
  auto type = dyn_cast<MemRefType>(operand.get().getType());
  if (!type || map.getNumResults() == 0 || !type.isLastDimUnitStride())
    return std::nullopt;
  auto dim = dyn_cast<AffineDimExpr>(map.getResults().back());
  if (!dim)
    return std::nullopt;
  for (AffineExpr expr : map.getResults().drop_back())
    if (expr.isFunctionOfDim(dim.getPosition()))
      return std::nullopt;
  return dim.getPosition();
}

/// Whether neighbours in `loop` read elements of `operand` that lie side by
/// side or a few elements apart, or one element.
static bool isAlongRows(linalg::LinalgOp op, OpOperand &operand,
                        unsigned loop) {
  AffineMap map = op.getMatchingIndexingMap(&operand);
  if (!map.isFunctionOfDim(loop))
    return true;
  auto type = dyn_cast<MemRefType>(operand.get().getType());
  if (!type || !type.isLastDimUnitStride())
    return false;
  return llvm::none_of(map.getResults().drop_back(), [&](AffineExpr expr) {
    return expr.isFunctionOfDim(loop);
  });
}

/// The loop whose neighbours lie side by side in all operands that it counts
/// along, and among these in all outputs.
static std::optional<unsigned> findLanes(linalg::LinalgOp op) {
  std::optional<unsigned> lanes;
  for (OpOperand &init : op.getDpsInitsMutable()) {
    std::optional<unsigned> loop = getInnerLoop(op, init);
    if (!loop || !isParallel(op, *loop) || (lanes && loop != lanes))
      return std::nullopt;
    lanes = loop;
  }
  if (!lanes || op.getStaticLoopRanges()[*lanes] == 1)
    return std::nullopt;
  for (OpOperand *input : op.getDpsInputOperands())
    if (!isAlongRows(op, *input, *lanes))
      return std::nullopt;
  return lanes;
}

static std::optional<ParallelLoops> planReduction(linalg::LinalgOp op) {
  std::optional<unsigned> lanes = findLanes(op);
  if (!lanes)
    return std::nullopt;
  SmallVector<int64_t> sizes = op.getStaticLoopRanges();
  const int64_t ops =
      std::distance(op.getBlock()->begin(), op.getBlock()->end());
  int64_t window = 1;
  ParallelLoops plan;
  plan.tiles.assign(op.getNumLoops(), 0);
  SmallVector<unsigned> reductions;
  for (unsigned loop = 0, end = op.getNumLoops(); loop < end; ++loop) {
    if (isParallel(op, loop)) {
      if (loop != *lanes)
        plan.order.push_back(loop);
      continue;
    }
    for (OpOperand &init : op.getDpsInitsMutable())
      if (op.getMatchingIndexingMap(&init).isFunctionOfDim(loop))
        return std::nullopt;
    reductions.push_back(loop);
    const bool fits = !ShapedType::isDynamic(sizes[loop]) && sizes[loop] != 0 &&
                      sizes[loop] <= kMaxWindow;
    window =
        fits ? std::min(window * sizes[loop], kMaxWindow + 1) : kMaxWindow + 1;
  }
  for (OpOperand *input : op.getDpsInputOperands()) {
    AffineMap map = op.getMatchingIndexingMap(input);
    if (window > kMaxWindow || !map.isFunctionOfDim(*lanes))
      continue;
    int64_t rows = 1;
    for (unsigned loop : reductions)
      if (llvm::any_of(map.getResults().drop_back(), [&](AffineExpr expr) {
            return expr.isFunctionOfDim(loop);
          }))
        rows *= sizes[loop];
    if (rows > kMaxRows)
      window = kMaxWindow + 1;
  }
  // Reductions over more than a window are added up in rows in memory, unless
  // one of their loops could itself read along rows.
  if (window > kMaxWindow || window * ops > kMaxOps) {
    for (OpOperand *input : op.getDpsInputOperands())
      if (std::optional<unsigned> loop = getInnerLoop(op, *input);
          loop && !isParallel(op, *loop) &&
          op.getMatchingIndexingMap(input).isFunctionOfDim(*lanes))
        return std::nullopt;
    plan.order.append(reductions);
  }
  plan.order.push_back(*lanes);
  return plan;
}

/// Tiles where neighbours in the innermost loop lie in different rows of an
/// operand, so that a line of it would be read or written again for each
/// element.
static SmallVector<int64_t> getTiles(linalg::LinalgOp op) {
  SmallVector<int64_t> tiles(op.getNumLoops(), 0);
  if (op.getNumLoops() < 2)
    return tiles;
  const unsigned inner = op.getNumLoops() - 1;
  SmallVector<int64_t> sizes = op.getStaticLoopRanges();
  auto isLong = [&](unsigned loop, int64_t tile) {
    return ShapedType::isDynamic(sizes[loop]) || sizes[loop] >= 2 * tile;
  };
  for (OpOperand &operand : op->getOpOperands()) {
    if (!isa<MemRefType>(operand.get().getType()) ||
        !op.getMatchingIndexingMap(&operand).isFunctionOfDim(inner))
      continue;
    std::optional<unsigned> across = getInnerLoop(op, operand);
    if (!across || *across == inner || !isLong(inner, kTileRows) ||
        !isLong(*across, kTileRows))
      continue;
    tiles[inner] = kTileRows;
    tiles[*across] = kTileColumns;
    return tiles;
  }
  return tiles;
}

std::optional<ParallelLoops>
mlir::diffattn::planParallelLoops(linalg::LinalgOp op) {
  if (op.getNumLoops() == 0)
    return std::nullopt;
  if (op.getNumParallelLoops() != op.getNumLoops())
    return planReduction(op);
  ParallelLoops plan;
  llvm::append_range(plan.order, llvm::seq<unsigned>(0, op.getNumLoops()));
  plan.tiles = getTiles(op);
  return plan;
}

namespace {
using Loops = llvm::SmallBitVector;

/// One iteration of the reductions.
struct Iteration {
  SmallVector<int64_t> places;
  IRMapping mapping;
  llvm::SmallPtrSet<Operation *, 16> emitted;
};

class Emitter {
public:
  Emitter(RewriterBase &rewriter, linalg::LinalgOp op,
          const ParallelLoops &plan)
      : rewriter(rewriter), op(op), plan(plan), loc(op.getLoc()),
        entered(op.getNumLoops()) {}

  void emit() {
    for (Range range : op.createLoopRanges(rewriter, loc))
      sizes.push_back(
          getValueOrCreateConstantIndexOp(rewriter, loc, range.size));
    statics = op.getStaticLoopRanges();
    ivs.resize(op.getNumLoops());
    zero = arith::ConstantIndexOp::create(rewriter, loc, 0);
    one = arith::ConstantIndexOp::create(rewriter, loc, 1);
    addIterations();
    for (unsigned loop : plan.order)
      if (plan.tiles[loop])
        nest.push_back({loop, true});
    for (unsigned loop : plan.order)
      nest.push_back({loop, false});
    emitStage(0);
    emitLoops(0);
    rewriter.eraseOp(op);
  }

private:
  void addIterations() {
    SmallVector<int64_t> places(op.getNumLoops(), 0);
    while (true) {
      iterations.emplace_back();
      iterations.back().places = places;
      int64_t loop = op.getNumLoops() - 1;
      for (; loop >= 0; --loop) {
        if (llvm::is_contained(plan.order, loop))
          continue;
        if (++places[loop] < statics[loop])
          break;
        places[loop] = 0;
      }
      if (loop < 0)
        return;
    }
  }

  void emitLoops(unsigned depth) {
    if (depth == nest.size())
      return;
    auto [loop, isTile] = nest[depth];
    Value lower = zero, upper = sizes[loop], step = one;
    const int64_t tile = plan.tiles[loop];
    if (isTile) {
      step = arith::ConstantIndexOp::create(rewriter, loc, tile);
    } else if (tile) {
      lower = ivs[loop];
      Value length = arith::ConstantIndexOp::create(rewriter, loc, tile);
      upper = arith::AddIOp::create(rewriter, loc, lower, length);
      if (ShapedType::isDynamic(statics[loop]) || statics[loop] % tile)
        upper = arith::MinSIOp::create(rewriter, loc, upper, sizes[loop]);
    }
    auto made = scf::ForOp::create(rewriter, loc, lower, upper, step);
    OpBuilder::InsertionGuard guard(rewriter);
    rewriter.setInsertionPoint(made.getBody()->getTerminator());
    ivs[loop] = made.getInductionVar();
    if (!isTile) {
      entered.set(loop);
      emitStage(depth + 1);
    }
    emitLoops(depth + 1);
    if (!isTile)
      entered.reset(loop);
  }

  bool isInnermost(unsigned depth) const { return depth == nest.size(); }

  /// Whether the loops from `depth` on have turns whatever the sizes are.
  bool alwaysTurn(unsigned depth) const {
    return llvm::all_of(ArrayRef(nest).drop_front(depth), [&](auto entry) {
      return !ShapedType::isDynamic(statics[entry.first]) &&
             statics[entry.first] > 0;
    });
  }

  Value getPosition(AffineExpr expr, ArrayRef<int64_t> places) {
    SmallVector<OpFoldResult> operands;
    for (auto [loop, iv] : llvm::enumerate(ivs))
      operands.push_back(entered.test(loop)
                             ? OpFoldResult(iv)
                             : rewriter.getIndexAttr(places[loop]));
    OpFoldResult position = affine::makeComposedFoldedAffineApply(
        rewriter, loc, AffineMap::get(ivs.size(), 0, expr), operands);
    return getValueOrCreateConstantIndexOp(rewriter, loc, position);
  }

  SmallVector<Value> getPositions(OpOperand &operand,
                                  ArrayRef<int64_t> places) {
    return llvm::map_to_vector(
        op.getMatchingIndexingMap(&operand).getResults(),
        [&](AffineExpr expr) { return getPosition(expr, places); });
  }

  bool isWaiting(unsigned loop) const {
    return !entered.test(loop) && llvm::is_contained(plan.order, loop);
  }

  bool isReady(OpOperand &operand) {
    AffineMap map = op.getMatchingIndexingMap(&operand);
    for (unsigned loop = 0, end = op.getNumLoops(); loop < end; ++loop)
      if (isWaiting(loop) && map.isFunctionOfDim(loop))
        return false;
    return true;
  }

  static Value getBuffer(Value value) {
    while (auto view = value.getDefiningOp<ViewLikeOpInterface>())
      value = view.getViewSource();
    return value;
  }

  /// Whether the op may write to `buffer` between two reads.
  bool isWritten(Value buffer) {
    return llvm::any_of(op.getDpsInits(), [&](Value init) {
      return getBuffer(init) == getBuffer(buffer);
    });
  }

  /// Whether an op of the body, whose operands are there, may stand here, and
  /// not in the innermost loop.
  bool mayStandOutside(Operation &inner, unsigned depth) {
    if (isa<cf::AssertOp>(inner))
      return alwaysTurn(depth);
    if (auto load = dyn_cast<memref::LoadOp>(inner))
      return alwaysTurn(depth) && !isWritten(load.getMemRef());
    return isMemoryEffectFree(&inner) &&
           (isSpeculatable(&inner) || alwaysTurn(depth));
  }

  /// Emits what depends on the loops that were entered, and nothing else.
  void emitStage(unsigned depth) {
    const bool last = isInnermost(depth);
    SmallVector<Value> carried;
    SmallVector<SmallVector<Value>> places;
    if (last)
      for (OpOperand &init : op.getDpsInitsMutable()) {
        places.push_back(getPositions(init, iterations.front().places));
        carried.push_back(op.payloadUsesValueFromOperand(&init)
                              ? memref::LoadOp::create(
                                    rewriter, loc, init.get(), places.back())
                                    .getResult()
                              : Value());
      }
    for (Iteration &iteration : iterations) {
      emitLoads(iteration, last);
      if (last)
        for (auto [argument, value] :
             llvm::zip_equal(op.getRegionOutputArgs(), carried))
          if (value)
            iteration.mapping.map(argument, value);
      for (Operation &inner : op.getBlock()->without_terminator())
        emitOp(iteration, inner, depth);
      if (last)
        for (auto [value, next] : llvm::zip_equal(
                 carried, op.getBlock()->getTerminator()->getOperands()))
          value = iteration.mapping.lookupOrDefault(next);
    }
    if (last)
      for (auto [init, position, value] :
           llvm::zip_equal(op.getDpsInits(), places, carried))
        memref::StoreOp::create(rewriter, loc, value, init, position);
  }

  void emitLoads(Iteration &iteration, bool last) {
    for (OpOperand *input : op.getDpsInputOperands()) {
      BlockArgument argument = op.getMatchingBlockArgument(input);
      if (iteration.mapping.contains(argument) || !isReady(*input) ||
          (!last && (argument.use_empty() || isWritten(input->get()))))
        continue;
      Value value = input->get();
      if (isa<MemRefType>(value.getType()))
        value = memref::LoadOp::create(rewriter, loc, value,
                                       getPositions(*input, iteration.places));
      iteration.mapping.map(argument, value);
    }
  }

  void emitOp(Iteration &iteration, Operation &inner, unsigned depth) {
    if (iteration.emitted.contains(&inner))
      return;
    if (auto index = dyn_cast<linalg::IndexOp>(inner)) {
      const unsigned loop = index.getDim();
      if (isWaiting(loop))
        return;
      iteration.mapping.map(
          index.getResult(),
          getPosition(rewriter.getAffineDimExpr(loop), iteration.places));
      iteration.emitted.insert(&inner);
      return;
    }
    if (!isInnermost(depth)) {
      bool ready = mayStandOutside(inner, depth);
      inner.walk([&](Operation *nested) {
        for (Value operand : nested->getOperands())
          if (operand.getParentBlock() == op.getBlock() &&
              !iteration.mapping.contains(operand))
            ready = false;
      });
      if (!ready)
        return;
    }
    Operation *made = rewriter.clone(inner, iteration.mapping);
    iteration.emitted.insert(&inner);
    // Each element adds up in the order of the window, wherever it lies.
    auto math = dyn_cast<arith::ArithFastMathInterface>(made);
    if (!math || iterations.size() == 1 || !math.getFastMathFlagsAttr())
      return;
    auto flags = bitEnumClear(math.getFastMathFlagsAttr().getValue(),
                              arith::FastMathFlags::reassoc);
    made->setAttr(math.getFastMathAttrName(),
                  arith::FastMathFlagsAttr::get(rewriter.getContext(), flags));
  }

  RewriterBase &rewriter;
  linalg::LinalgOp op;
  const ParallelLoops &plan;
  Location loc;
  /// The loops, and whether each goes over tiles.
  SmallVector<std::pair<unsigned, bool>> nest;
  Loops entered;
  SmallVector<Value> sizes, ivs;
  SmallVector<int64_t> statics;
  std::vector<Iteration> iterations;
  Value zero, one;
};
} // namespace

void mlir::diffattn::emitParallelLoops(RewriterBase &rewriter,
                                       linalg::LinalgOp op,
                                       const ParallelLoops &loops) {
  Emitter(rewriter, op, loops).emit();
}
