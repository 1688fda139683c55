//===- NearMiss.cpp - differences of softmaxes that stay ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "NearMiss.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Interfaces/LoopLikeInterface.h"

#include <functional>

namespace mlir::diffattn::raise {

namespace {
/// The parts of softmaxes that one tensor is made of.
struct Parts {
  /// Numbers of parts. A slice of a softmax is a part of its own.
  llvm::SetVector<unsigned> numbers;
  /// Whether these were multiplied with values already.
  bool isProduct = false;
};

struct NearMissFinder {
  NearMissFinder(ExprGraph &graph, const Maps &maps)
      : graph(graph), maps(maps) {}

  void visit(Region &region);
  SmallVector<NearMiss> misses;

private:
  void visit(Operation *op);
  unsigned softmaxesIn(Value value);
  unsigned softmaxesIn(Expr element);
  bool sumsPowersOf(Expr divisor, Expr numerator);
  void collectPowers(Expr expr, llvm::SetVector<Value> &bases);
  unsigned newPart(Value softmax) {
    softmaxOf.push_back(softmax);
    return softmaxOf.size() - 1;
  }
  bool takesPart(Operation *op);
  void report(Operation *op, ArrayRef<Value> operands);

  ExprGraph &graph;
  const Maps &maps;
  llvm::DenseMap<Value, Parts> parts;
  SmallVector<Value> softmaxOf;
};
} // namespace

/// Adds what the exponents of the powers are computed from that `expr` is
/// linear in.
void NearMissFinder::collectPowers(Expr expr, llvm::SetVector<Value> &bases) {
  std::function<void(Expr)> collectLoads = [&](Expr e) {
    if (e->kind == Kind::Load)
      bases.insert(e->value);
    llvm::for_each(e->operands, collectLoads);
  };
  expr = graph.open(expr);
  switch (expr->kind) {
  case Kind::Exp:
  case Kind::Exp2:
    collectLoads(expr->operands[0]);
    break;
  case Kind::Mul:
    collectPowers(expr->operands[0], bases);
    collectPowers(expr->operands[1], bases);
    break;
  case Kind::Select:
    collectPowers(expr->operands[1], bases);
    collectPowers(expr->operands[2], bases);
    break;
  case Kind::Div:
    collectPowers(expr->operands[0], bases);
    break;
  case Kind::Opaque:
    if (isa<math::AbsFOp>(expr->proto))
      collectPowers(expr->operands[0], bases);
    break;
  default:
    break;
  }
}

/// True if `divisor` is a sum of powers like those in `numerator`, or such a
/// sum that is kept from zero.
bool NearMissFinder::sumsPowersOf(Expr divisor, Expr numerator) {
  divisor = graph.open(divisor);
  switch (divisor->kind) {
  case Kind::Add:
  case Kind::Max:
    return sumsPowersOf(divisor->operands[0], numerator) ||
           sumsPowersOf(divisor->operands[1], numerator);
  case Kind::Select:
    return sumsPowersOf(divisor->operands[1], numerator) ||
           sumsPowersOf(divisor->operands[2], numerator);
  case Kind::Reduce:
    break;
  default:
    return false;
  }
  if (divisor->combiner() != Combiner::Sum)
    return false;
  llvm::SetVector<Value> mine, theirs;
  collectPowers(numerator, mine);
  collectPowers(divisor->operands[0], theirs);
  return llvm::any_of(mine, [&](Value base) { return theirs.contains(base); });
}

/// How many quotients in `element` look like a softmax.
unsigned NearMissFinder::softmaxesIn(Expr element) {
  if (element->kind == Kind::Div &&
      sumsPowersOf(element->operands[1], element->operands[0]))
    return 1;
  if (element->kind == Kind::Mul)
    for (unsigned i : {0, 1}) {
      Expr reciprocal = graph.open(element->operands[i]);
      if (reciprocal->kind == Kind::Div &&
          sumsPowersOf(reciprocal->operands[1], element->operands[1 - i]))
        return 1;
    }
  unsigned count = 0;
  for (Expr operand : element->operands)
    count += softmaxesIn(operand);
  return count;
}

/// How many quotients in the body that makes `value` look like a softmax, at
/// most 2.
unsigned NearMissFinder::softmaxesIn(Value value) {
  Operation *op = value.getDefiningOp();
  if (maps.isSoftmax(value) || isa<linalg::SoftmaxOp>(op))
    return 1;
  if (!isa<linalg::LinalgOp>(op) && !op->hasTrait<OpTrait::Elementwise>())
    return 0;
  if (!isa<FloatType>(elementType(value)))
    return 0;
  Expr element = graph.load(value, graph.freshLoops(value));
  if (element->kind != Kind::Load || element->value != value)
    return 0;
  element = graph.expand(element);
  return element ? std::min(softmaxesIn(element), 2u) : 0;
}

/// A subtraction or an addition whose operands are made of different parts.
void NearMissFinder::report(Operation *op, ArrayRef<Value> operands) {
  bool subtracts = isa<arith::SubFOp>(op), adds = isa<arith::AddFOp>(op);
  op->walk([&](Operation *inner) {
    subtracts |= isa<arith::SubFOp>(inner);
    adds |= isa<arith::AddFOp>(inner);
  });
  // A sum adds in any case.
  auto linalgOp = dyn_cast<linalg::LinalgOp>(op);
  if (!subtracts &&
      (!adds || (linalgOp && linalgOp.getNumReductionLoops() > 0)))
    return;
  for (auto [k, a] : llvm::enumerate(operands))
    for (Value b : operands.drop_front(k + 1)) {
      Parts x = parts.lookup(a), y = parts.lookup(b);
      auto hasOther = [](const Parts &mine, const Parts &other) {
        return llvm::any_of(mine.numbers, [&](unsigned part) {
          return !other.numbers.contains(part);
        });
      };
      if (!hasOther(x, y) || !hasOther(y, x))
        continue;
      NearMiss miss;
      miss.op = op;
      for (const Parts &both : {x, y})
        for (unsigned part : both.numbers)
          miss.softmaxes.insert(softmaxOf[part]);
      // Halves of one softmax that are added are a sum over its heads.
      if (miss.softmaxes.size() < 2 && !subtracts)
        continue;
      for (Value softmax : miss.softmaxes)
        miss.recognized &=
            maps.isSoftmax(softmax) || maps.softmaxesInside(softmax) > 0;
      misses.push_back(miss);
      return;
    }
}

/// Whether `op` is a slice of what has parts, or gathers elements of it, as
/// ONNX takes halves.
bool NearMissFinder::takesPart(Operation *op) {
  if (isa<tensor::ExtractSliceOp, tensor::GatherOp>(op))
    return true;
  return isa<linalg::LinalgOp>(op) &&
         op->walk([&](tensor::ExtractOp element) {
             return parts.lookup(element.getTensor()).numbers.empty()
                        ? WalkResult::advance()
                        : WalkResult::interrupt();
           }).wasInterrupted();
}

void NearMissFinder::visit(Operation *op) {
  if (isa<AttentionOp, tensor::EmptyOp>(op))
    return;
  auto linalgOp = dyn_cast<linalg::LinalgOp>(op);
  SmallVector<Value> operands;
  if (linalgOp)
    operands = readBy(linalgOp);
  else
    llvm::append_range(operands, op->getOperands());
  // Values that a branch or a loop yields.
  for (Region &region : op->getRegions())
    for (Block &block : region)
      if (!linalgOp && block.mightHaveTerminator())
        llvm::append_range(operands, block.getTerminator()->getOperands());
  Parts all;
  for (Value operand : operands) {
    Parts some = parts.lookup(operand);
    all.numbers.insert(some.numbers.begin(), some.numbers.end());
    all.isProduct |= some.isProduct;
  }
  bool multiplies =
      linalgOp && linalgOp.getNumReductionLoops() > 0 && operands.size() > 1;
  for (Value result : op->getResults()) {
    unsigned inside =
        isa<RankedTensorType>(result.getType()) ? softmaxesIn(result) : 0;
    if (inside == 0)
      continue;
    // Bodies that were fused hold the difference too.
    if (inside > 1) {
      NearMiss miss;
      miss.op = op;
      miss.softmaxes.insert(result);
      miss.recognized = maps.softmaxesInside(result) > 1;
      misses.push_back(miss);
    }
    parts[result].numbers.insert(newPart(result));
    parts[result].isProduct = multiplies;
    return;
  }
  if (all.numbers.empty())
    return;
  if (linalgOp || op->hasTrait<OpTrait::Elementwise>())
    report(op, operands);
  if (multiplies) {
    // A projection after the values leads out of the attention.
    if (all.isProduct)
      return;
    all.isProduct = !maps.combinesFewMaps(linalgOp);
  }
  if (takesPart(op)) {
    llvm::SetVector<unsigned> slices;
    for (unsigned part : all.numbers)
      slices.insert(newPart(softmaxOf[part]));
    all.numbers = slices;
  }
  for (Value result : op->getResults())
    if (isa<RankedTensorType>(result.getType()))
      parts[result] = all;
}

void NearMissFinder::visit(Region &region) {
  for (Block &block : region)
    for (Operation &op : block) {
      if (auto loop = dyn_cast<LoopLikeOpInterface>(op))
        for (auto [argument, init] :
             llvm::zip(loop.getRegionIterArgs(), loop.getInits()))
          parts[argument] = parts.lookup(init);
      if (!isa<linalg::LinalgOp>(op))
        for (Region &inner : op.getRegions())
          visit(inner);
      visit(&op);
    }
}

SmallVector<NearMiss> findNearMisses(ExprGraph &graph, const Maps &maps,
                                     Operation *function) {
  NearMissFinder finder(graph, maps);
  for (Region &region : function->getRegions())
    finder.visit(region);
  return finder.misses;
}

} // namespace mlir::diffattn::raise
