//===- ScalarBody.cpp - scalar ops and bodies as expressions --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Transforms/Raise/Expr.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/TypeSwitch.h"

#include <cmath>
#include <limits>
#include <utility>

namespace mlir::diffattn::raise {

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

/// The position in a tensor that an integer expression is.
static std::optional<IndexPoly> positionOf(ExprGraph &graph, Expr expr) {
  if (expr->kind == Kind::Index)
    return expr->index;
  // Broadcasting at run time: position 0 if the size is 1.
  if (expr->kind == Kind::Select) {
    std::optional<IndexPoly> a = positionOf(graph, expr->operands[1]),
                             b = positionOf(graph, expr->operands[2]);
    Expr condition = expr->operands[0];
    if (a && b && condition->kind == Kind::CmpI &&
        condition->operands[0]->kind == Kind::Index &&
        condition->operands[1]->kind == Kind::Index) {
      auto predicate = static_cast<arith::CmpIPredicate>(condition->predicate);
      bool equal = predicate == arith::CmpIPredicate::eq;
      if (!equal && predicate != arith::CmpIPredicate::ne)
        return std::nullopt;
      const IndexPoly &zero = equal ? *a : *b, &other = equal ? *b : *a;
      IndexPoly size = condition->operands[0]->index;
      if (size == IndexPoly(1))
        size = condition->operands[1]->index;
      else if (condition->operands[1]->index != IndexPoly(1))
        return std::nullopt;
      if (zero == IndexPoly(0))
        return graph.space.broadcast(other, size);
    }
  }
  return std::nullopt;
}

static Expr truthAsNumber(ExprGraph &graph, Expr truth, double one, Type type) {
  return graph.make(
      Kind::Select, type,
      {truth, graph.constant(one, type), graph.constant(0, type)});
}

Expr ExprGraph::exprOf(Operation *op, ArrayRef<Expr> o) {
  Type type = getElementTypeOrSelf(op->getResult(0).getType());
  auto unary = [&](Kind kind) { return make(kind, type, {o[0]}); };
  auto binary = [&](Kind kind) { return make(kind, type, {o[0], o[1]}); };
  auto opaque = [&]() { return operation(op, type, o); };
  return TypeSwitch<Operation *, Expr>(op)
      .Case<arith::AddFOp>([&](auto) { return binary(Kind::Add); })
      .Case<arith::SubFOp>([&](auto) { return binary(Kind::Sub); })
      .Case<arith::MulFOp>([&](auto) { return binary(Kind::Mul); })
      .Case<arith::DivFOp>([&](auto) { return binary(Kind::Div); })
      .Case<arith::NegFOp>([&](auto) { return unary(Kind::Neg); })
      .Case<arith::MaximumFOp, arith::MaxNumFOp>(
          [&](auto) { return binary(Kind::Max); })
      .Case<arith::MinimumFOp, arith::MinNumFOp>(
          [&](auto) { return binary(Kind::Min); })
      .Case<math::ExpOp>([&](auto) { return unary(Kind::Exp); })
      .Case<math::Exp2Op>([&](auto) { return unary(Kind::Exp2); })
      .Case<math::LogOp>([&](auto) { return unary(Kind::Log); })
      .Case<math::SqrtOp>([&](auto) { return unary(Kind::Sqrt); })
      .Case<math::RsqrtOp>([&](auto) { return unary(Kind::Rsqrt); })
      .Case<math::TanhOp>([&](auto) { return unary(Kind::Tanh); })
      .Case<math::AbsFOp>([&](auto) -> Expr {
        return o[0]->kind == Kind::Const
                   ? constant(std::fabs(o[0]->number), type)
                   : opaque();
      })
      .Case<math::FPowIOp>([&](auto) -> Expr {
        if (o[1]->kind == Kind::Index && o[1]->index == IndexPoly(2))
          return make(Kind::Mul, type, {o[0], o[0]});
        if (o[1]->kind == Kind::Index && o[1]->index == IndexPoly(-1))
          return make(Kind::Div, type, {constant(1, type), o[0]});
        return opaque();
      })
      .Case<math::PowFOp>([&](auto) -> Expr {
        if (o[1]->isConst(2))
          return make(Kind::Mul, type, {o[0], o[0]});
        if (o[1]->isConst(1))
          return o[0];
        if (o[1]->isConst(0.5))
          return make(Kind::Sqrt, type, {o[0]});
        if (o[1]->isConst(-0.5))
          return make(Kind::Rsqrt, type, {o[0]});
        if (o[1]->isConst(-1))
          return make(Kind::Div, type, {constant(1, type), o[0]});
        if (o[0]->isConst(2))
          return make(Kind::Exp2, type, {o[1]});
        return opaque();
      })
      .Case<arith::ExtFOp, arith::TruncFOp>(
          [&](auto) { return unary(Kind::Cast); })
      .Case<arith::SIToFPOp, arith::UIToFPOp>([&](auto) -> Expr {
        if (o[0]->type && o[0]->type.isInteger(1))
          return truthAsNumber(*this, o[0], isa<arith::SIToFPOp>(op) ? -1 : 1,
                               type);
        // A number without a sign is one with a sign where that is not set.
        bool isSigned =
            isa<arith::SIToFPOp>(op) ||
            (o[0]->kind == Kind::Index && isNeverNegative(o[0]->index));
        return isSigned ? unary(Kind::FromInt) : opaque();
      })
      .Case([&](arith::CmpFOp compare) {
        return make(Kind::CmpF, type, {o[0], o[1]},
                    static_cast<int64_t>(compare.getPredicate()));
      })
      .Case<arith::SelectOp>([&](auto) -> Expr {
        if (o[0]->kind == Kind::CmpI)
          if (type.isIntOrIndex() && !type.isInteger(1)) {
            Node node(Kind::Select, type);
            node.operands.assign(o.begin(), o.end());
            Expr select = add(std::move(node));
            if (std::optional<IndexPoly> at = positionOf(*this, select))
              return index(*at);
          }
        return make(Kind::Select, type, {o[0], o[1], o[2]});
      })
      .Default([&](Operation *) { return opaque(); });
}

Expr ExprGraph::operation(Operation *op, Type type, ArrayRef<Expr> operands) {
  if (Expr result = integerOp(op, operands))
    return result;
  Node node(Kind::Opaque, type);
  node.operands.assign(operands.begin(), operands.end());
  node.proto = op;
  return add(std::move(node));
}

Expr ExprGraph::scalar(Value value) {
  Type type = value.getType();
  Attribute attribute;
  if (matchPattern(value, m_Constant(&attribute))) {
    if (auto number = dyn_cast<FloatAttr>(attribute))
      return constant(number.getValueAsDouble(), type);
    if (auto number = dyn_cast<IntegerAttr>(attribute)) {
      if (type.isInteger(1))
        return constant(number.getValue().getBoolValue(), type);
      if (number.getValue().isSignedIntN(64))
        return index(number.getValue().getSExtValue());
    }
  }
  if (Operation *op = value.getDefiningOp()) {
    if (auto extract = dyn_cast<tensor::ExtractOp>(op)) {
      SmallVector<IndexPoly> indices;
      for (Value at : extract.getIndices())
        indices.push_back(polyOf(at));
      return load(extract.getTensor(), indices);
    }
    if (isInteger(type))
      return index(polyOf(value));
    if (op->getNumRegions() == 0 && op->getNumResults() == 1 && isPure(op) &&
        op->getNumOperands() > 0 &&
        isa<arith::ArithDialect, math::MathDialect>(op->getDialect())) {
      SmallVector<Expr> operands;
      for (Value operand : op->getOperands())
        operands.push_back(scalar(operand));
      return exprOf(op, operands);
    }
  }
  if (type.isIntOrIndex() && !type.isInteger(1))
    return index(polyOf(value));
  Node node(Kind::Scalar, type);
  node.value = value;
  return add(std::move(node));
}

Expr ExprGraph::choose(Type type, Expr condition, Expr a, Expr b) {
  // Two pieces of one tensor beside each other.
  if (a->kind == Kind::Load && b->kind == Kind::Load && a->value == b->value) {
    SmallVector<IndexPoly> first, second;
    for (auto [x, y] : llvm::zip(a->indices, b->indices)) {
      first.push_back(space.withoutBounds(x));
      second.push_back(space.withoutBounds(y));
    }
    if (first == second)
      return load(a->value, first);
  }
  return make(Kind::Select, type, {condition, a, b});
}

/// The element that one side of an `scf.if` yields, at positions that are read
/// on that side alone.
Expr ExprGraph::branchExpr(Region &side, unsigned result,
                           ArrayRef<IndexPoly> loops,
                           const llvm::DenseMap<Value, Expr> &known) {
  if (!side.hasOneBlock())
    return nullptr;
  llvm::DenseMap<Value, Expr> inner = known;
  bool outer = std::exchange(conditional, true);
  Expr element =
      bodyExpr(side.front().getTerminator()->getOperand(result), loops, inner);
  conditional = outer;
  return element;
}

Expr ExprGraph::bodyExpr(Value value, ArrayRef<IndexPoly> loops,
                         llvm::DenseMap<Value, Expr> &known) {
  auto it = known.find(value);
  if (it != known.end())
    return it->second;
  Operation *op = value.getDefiningOp();
  // Arguments of the body that are not known are accumulators.
  if (!op) {
    Operation *owner = cast<BlockArgument>(value).getOwner()->getParentOp();
    return isa<linalg::LinalgOp>(owner) ? nullptr : scalar(value);
  }
  if (!op->getParentOfType<linalg::LinalgOp>())
    return known[value] = scalar(value);
  Expr result = nullptr;
  if (auto position = dyn_cast<linalg::IndexOp>(op)) {
    result = index(loops[position.getDim()]);
  } else if (matchPattern(value, m_Constant())) {
    result = scalar(value);
  } else if (auto choice = dyn_cast<scf::IfOp>(op)) {
    unsigned k = cast<OpResult>(value).getResultNumber();
    Expr condition = bodyExpr(choice.getCondition(), loops, known);
    Expr a = branchExpr(choice.getThenRegion(), k, loops, known),
         b = branchExpr(choice.getElseRegion(), k, loops, known);
    if (condition && a && b)
      result = choose(value.getType(), condition, a, b);
  } else if (op->getNumRegions() == 0 && op->getNumResults() == 1) {
    SmallVector<Expr> operands;
    for (Value operand : op->getOperands()) {
      if (isa<ShapedType>(operand.getType()))
        continue;
      Expr expr = bodyExpr(operand, loops, known);
      if (!expr)
        return nullptr;
      operands.push_back(expr);
    }
    if (auto extract = dyn_cast<tensor::ExtractOp>(op)) {
      // What a body makes of its own elements is no tensor of the graph.
      Operation *source = extract.getTensor().getDefiningOp();
      if (source && source->getParentOfType<linalg::LinalgOp>() &&
          !source->hasTrait<OpTrait::ConstantLike>())
        return nullptr;
      SmallVector<IndexPoly> indices;
      for (Expr operand : operands) {
        std::optional<IndexPoly> at = positionOf(*this, operand);
        if (!at)
          return nullptr;
        IndexPoly size = sizeOf(extract.getTensor(), indices.size());
        indices.push_back(conditional ? space.within(*at, size) : *at);
      }
      result = load(extract.getTensor(), indices);
    } else if (isPure(op)) {
      result = exprOf(op, operands);
    }
  }
  return known[value] = result;
}

/// The neutral element that a reduction has to start from.
static bool isNeutral(Combiner combiner, Expr init) {
  constexpr double lowest = std::numeric_limits<float>::lowest();
  if (init->kind == Kind::Index)
    return combiner == Combiner::Sum && init->index == IndexPoly(0);
  if (init->kind != Kind::Const)
    return false;
  switch (combiner) {
  case Combiner::Sum:
  case Combiner::Or:
    return init->number == 0;
  case Combiner::And:
    return init->number != 0;
  case Combiner::Max:
    return init->number <= lowest;
  case Combiner::Min:
    return init->number >= -lowest;
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
          // Of truth values; bits of a wider integer are not followed.
          .Case([](arith::AndIOp both) {
            return isInteger(both.getType())
                       ? std::nullopt
                       : std::optional<Combiner>(Combiner::And);
          })
          .Case([](arith::OrIOp either) {
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
  SmallVector<std::optional<IndexPoly>> found(op.getNumLoops());
  AffineMap outMap = op.getMatchingIndexingMap(init);
  for (auto [expr, at] : llvm::zip(outMap.getResults(), indices)) {
    if (auto dim = dyn_cast<AffineDimExpr>(expr))
      found[dim.getPosition()] = at;
    else if (!isa<AffineConstantExpr>(expr))
      return nullptr;
  }
  // What the output does not name is reduced.
  SmallVector<AtomId, 1> bound;
  SmallVector<IndexPoly> loops;
  SmallVector<utils::IteratorType> iterators = op.getIteratorTypesArray();
  for (unsigned k = 0; k < found.size(); ++k) {
    if (!found[k]) {
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
        found[k] = IndexPoly(0);
      } else {
        IndexPoly loop = space.loop(extent);
        bound.push_back(*loop.asAtom());
        found[k] = loop;
      }
    } else if (iterators[k] == utils::IteratorType::reduction) {
      return nullptr;
    }
    loops.push_back(*found[k]);
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

} // namespace mlir::diffattn::raise
