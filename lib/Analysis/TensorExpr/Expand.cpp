//===- Expand.cpp - an element as its op computes it ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mlir::diffattn::tensorexpr {

bool isElementwise(linalg::LinalgOp op) {
  if (op.getNumLoops() != op.getNumParallelLoops())
    return false;
  return llvm::all_of(op.getDpsInitsMutable(), [&](OpOperand &init) {
    return op.getMatchingIndexingMap(&init).isPermutation();
  });
}

unsigned numberOfSums(linalg::LinalgOp op) {
  unsigned count = 0;
  for (auto [iterator, size] :
       llvm::zip(op.getIteratorTypesArray(), op.getStaticLoopRanges()))
    count += iterator == utils::IteratorType::reduction && size != 1;
  return count;
}

SmallVector<Value> readBy(linalg::LinalgOp op) {
  SmallVector<Value> read = op.getDpsInputs();
  op.getBlock()->walk(
      [&](tensor::ExtractOp extract) { read.push_back(extract.getTensor()); });
  return read;
}

/// The neutral element that a reduction has to start from. The ends of a type's
/// finite numbers count as its infinities: exporters start from either.
static bool isNeutral(Combiner combiner, Expr init) {
  if (init->kind == Kind::Index)
    return combiner == Combiner::Sum && init->index == IndexPoly(0);
  if (init->kind != Kind::Const)
    return false;
  auto type = isNumberOfF64(init->type) ? cast<FloatType>(init->type) : nullptr;
  double largest = type ? llvm::APFloat::getLargest(type.getFloatSemantics())
                              .convertToDouble()
                        : 0;
  switch (combiner) {
  case Combiner::Sum:
  case Combiner::Or:
    return init->number == 0;
  case Combiner::And:
    return init->number != 0;
  case Combiner::Max:
    return type && init->number <= -largest;
  case Combiner::Min:
    return type && init->number >= largest;
  }
  llvm_unreachable("unknown combiner");
}

/// Which reduction `value` makes of `accumulator` and what else it takes.
static std::optional<std::pair<Combiner, Value>>
matchCombiner(Value value, Value accumulator) {
  Operation *op = value.getDefiningOp();
  if (!op)
    return std::nullopt;
  std::optional<Combiner> combiner =
      TypeSwitch<Operation *, std::optional<Combiner>>(op)
          .Case<arith::AddFOp>([](auto) { return Combiner::Sum; })
          .Case([](arith::AddIOp add) {
            return isInteger(add.getType())
                       ? std::optional<Combiner>(Combiner::Sum)
                       : std::nullopt;
          })
          .Case<arith::MaximumFOp, arith::MaxNumFOp>(
              [](auto) { return Combiner::Max; })
          .Case<arith::MinimumFOp, arith::MinNumFOp>(
              [](auto) { return Combiner::Min; })
          // Truth values only: bits of a wider integer are not followed.
          .Case<arith::AndIOp, arith::MinUIOp, arith::MaxSIOp>([](auto both) {
            return isInteger(both.getType())
                       ? std::nullopt
                       : std::optional<Combiner>(Combiner::And);
          })
          .Case<arith::OrIOp, arith::MaxUIOp, arith::MinSIOp>([](auto either) {
            return isInteger(either.getType())
                       ? std::nullopt
                       : std::optional<Combiner>(Combiner::Or);
          })
          .Default([](Operation *) { return std::nullopt; });
  // select(a > b, a, b) is a maximum too.
  if (auto select = dyn_cast<arith::SelectOp>(op)) {
    auto compare = select.getCondition().getDefiningOp<arith::CmpFOp>();
    if (!compare || compare.getLhs() != select.getTrueValue() ||
        compare.getRhs() != select.getFalseValue())
      return std::nullopt;
    switch (compare.getPredicate()) {
    case arith::CmpFPredicate::OGT:
    case arith::CmpFPredicate::OGE:
    case arith::CmpFPredicate::UGT:
    case arith::CmpFPredicate::UGE:
      combiner = Combiner::Max;
      break;
    default:
      return std::nullopt;
    }
    Value a = select.getTrueValue(), b = select.getFalseValue();
    if (a == accumulator)
      return std::make_pair(*combiner, b);
    if (b == accumulator)
      return std::make_pair(*combiner, a);
    return std::nullopt;
  }
  if (!combiner)
    return std::nullopt;
  if (op->getOperand(0) == accumulator)
    return std::make_pair(*combiner, op->getOperand(1));
  if (op->getOperand(1) == accumulator)
    return std::make_pair(*combiner, op->getOperand(0));
  return std::nullopt;
}

Expr ExprGraph::expandLinalg(linalg::LinalgOp op, unsigned result,
                             ArrayRef<IndexPoly> indices) {
  if (!op.hasPureTensorSemantics())
    return nullptr;
  OpOperand *init = op.getDpsInitOperand(result);
  SmallVector<std::optional<IndexPoly>> positions(op.getNumLoops());
  AffineMap outMap = op.getMatchingIndexingMap(init);
  for (auto [expr, at] : llvm::zip(outMap.getResults(), indices)) {
    if (auto dim = dyn_cast<AffineDimExpr>(expr))
      positions[dim.getPosition()] = at;
    else if (!isa<AffineConstantExpr>(expr))
      return nullptr;
  }
  // Loops that the output does not name are reduced.
  SmallVector<AtomId, 1> bound;
  SmallVector<IndexPoly> loops;
  SmallVector<utils::IteratorType> iterators = op.getIteratorTypesArray();
  for (unsigned k = 0; k < positions.size(); ++k) {
    if (!positions[k]) {
      if (iterators[k] != utils::IteratorType::reduction)
        return nullptr;
      IndexPoly extent;
      bool known = false;
      for (OpOperand &operand : op->getOpOperands())
        for (auto [axis, expr] :
             llvm::enumerate(op.getMatchingIndexingMap(&operand).getResults()))
          if (auto dim = dyn_cast<AffineDimExpr>(expr);
              dim && dim.getPosition() == k && !known) {
            extent = sizeOf(operand.get(), axis);
            known = true;
          }
      if (!known)
        return nullptr;
      // One element needs no sum, beside others that do.
      if (extent == IndexPoly(1) && numberOfSums(op) > 0) {
        positions[k] = IndexPoly(0);
      } else {
        IndexPoly loop = space.loop(extent);
        bound.push_back(*loop.asAtom());
        positions[k] = loop;
      }
    } else if (iterators[k] == utils::IteratorType::reduction) {
      return nullptr;
    }
    loops.push_back(*positions[k]);
  }
  llvm::DenseMap<Value, Expr> known;
  for (OpOperand &operand : op->getOpOperands()) {
    BlockArgument argument = op.getMatchingBlockArgument(&operand);
    if (op.isDpsInit(&operand) && !bound.empty())
      continue; // an accumulator
    // An argument that is not read needs no element.
    if (argument.use_empty())
      continue;
    if (!isa<RankedTensorType>(operand.get().getType())) {
      known[argument] = scalar(operand.get());
      continue;
    }
    SmallVector<IndexPoly> at;
    for (AffineExpr expr : op.getMatchingIndexingMap(&operand).getResults())
      at.push_back(space.apply(expr, loops));
    known[argument] = load(operand.get(), at);
  }
  Value yielded = op.getBlock()->getTerminator()->getOperand(result);
  if (bound.empty())
    return bodyExpr(yielded, loops, known);

  Value accumulator = op.getMatchingBlockArgument(init);
  auto match = matchCombiner(yielded, accumulator);
  if (!match)
    return nullptr;
  Expr body = bodyExpr(match->second, loops, known);
  if (!body)
    return nullptr;
  Type type = elementType(init->get());
  Expr reduced = match->first == Combiner::Sum && bound.size() == 1
                     ? sumOf(body, bound[0], type)
                     : nullptr;
  if (!reduced) {
    Node node(Kind::Reduce, type);
    node.operands = {body};
    node.predicate = static_cast<int64_t>(match->first);
    node.bound = bound;
    reduced = add(std::move(node));
  }
  Expr start = load(init->get(), indices);
  if (isNeutral(match->first, start))
    return reduced;
  return match->first == Combiner::Sum ? make(Kind::Add, type, {start, reduced})
                                       : nullptr;
}

Expr ExprGraph::expandElementwise(Operation *op, ArrayRef<IndexPoly> indices) {
  SmallVector<Expr> operands;
  for (Value operand : op->getOperands())
    operands.push_back(isa<RankedTensorType>(operand.getType())
                           ? load(operand, indices)
                           : scalar(operand));
  return exprOf(op, operands);
}

Expr ExprGraph::expand(Expr expr) {
  if (expr->kind != Kind::Load)
    return nullptr;
  Operation *op = expr->value.getDefiningOp();
  if (!op)
    return nullptr;
  if (auto linalgOp = dyn_cast<linalg::LinalgOp>(op))
    return expandLinalg(linalgOp, cast<OpResult>(expr->value).getResultNumber(),
                        expr->indices);
  if (auto concat = dyn_cast<tensor::ConcatOp>(op)) {
    // Pieces that the position may lie in, chosen by comparison.
    int64_t along = concat.getDim();
    IndexPoly offset;
    SmallVector<std::pair<IndexPoly, Expr>> pieces;
    Type boolean = IntegerType::get(context, 1);
    for (Value input : concat.getInputs()) {
      SmallVector<IndexPoly> inner(expr->indices.begin(), expr->indices.end());
      inner[along] = space.within(inner[along] - offset, sizeOf(input, along));
      offset = offset + sizeOf(input, along);
      pieces.push_back({offset, load(input, inner)});
    }
    Expr chosen = pieces.pop_back_val().second;
    for (auto &[end, piece] : llvm::reverse(pieces)) {
      Expr before =
          make(Kind::CmpI, boolean, {index(expr->indices[along]), index(end)},
               static_cast<int64_t>(arith::CmpIPredicate::slt));
      chosen = choose(elementType(concat), before, piece, chosen);
    }
    return chosen;
  }
  if (op->hasTrait<OpTrait::Elementwise>() && op->getNumResults() == 1 &&
      isPure(op))
    return expandElementwise(op, expr->indices);
  return nullptr;
}

} // namespace mlir::diffattn::tensorexpr
