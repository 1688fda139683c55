//===- BuildOperands.cpp - operands of the op -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionBuilder.h"

#include "Precision.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <cmath>

namespace mlir::diffattn::raise {

SmallVector<AtomId> inLayout(Layout layout, AtomId batch, AtomId head,
                             AtomId length, AtomId width) {
  if (layout == Layout::BHTD)
    return {batch, head, length, width};
  return {batch, length, head, width};
}

SmallVector<SmallVector<AtomId>> bothLayouts(ArrayRef<AtomId> loops) {
  return {inLayout(Layout::BHTD, loops[0], loops[1], loops[2], loops[3]),
          inLayout(Layout::BTHD, loops[0], loops[1], loops[2], loops[3])};
}

AtomId AttentionBuilder::groupLoop(int64_t shared) {
  if (shared == 1)
    return match.roles.head;
  return *graph.space.loop(*extent(match.roles.head).constant() / shared)
              .asAtom();
}

Expr AttentionBuilder::perGroup(Expr expr, int64_t shared, AtomId group) {
  if (shared == 1)
    return expr;
  return graph.substitute(
      expr, {{match.roles.head, IndexPoly(shared) * IndexPoly::atom(group)}});
}

int64_t AttentionBuilder::sharedHeads(ArrayRef<Expr> exprs, int64_t multiple) {
  int64_t heads = *extent(match.roles.head).constant();
  for (int64_t shared = heads; shared > multiple; --shared) {
    if (heads % shared != 0 || shared % multiple != 0)
      continue;
    IndexPoly group = graph.space.loop(heads / shared),
              member = graph.space.loop(shared);
    bool all = llvm::all_of(exprs, [&](Expr expr) {
      Expr split = graph.substitute(
          expr, {{match.roles.head, group * IndexPoly(shared) + member}});
      return !graph.mentions(split, *member.asAtom());
    });
    if (all)
      return shared;
  }
  return multiple;
}

Value AttentionBuilder::uncopied(Expr expr,
                                 ArrayRef<SmallVector<AtomId>> orders,
                                 unsigned &chosen) {
  if (expr->type == type)
    if (Value value = tensors.view(expr, orders, chosen))
      return value;
  return tensors.concatenated(expr, orders, type, chosen);
}

Value AttentionBuilder::headTensor(Expr expr, ArrayRef<AtomId> loops,
                                   Layout &layout) {
  auto orders = bothLayouts(loops);
  unsigned chosen = 0;
  Value value = uncopied(expr, orders, chosen);
  if (!value)
    value = tensors.generic(expr, orders[chosen], type);
  layout = chosen == 0 ? Layout::BHTD : Layout::BTHD;
  return value;
}

void AttentionBuilder::headTensors(Expr a, SmallVector<AtomId> loopsA, Expr b,
                                   SmallVector<AtomId> loopsB, Value &first,
                                   Value &second, Layout &layout) {
  auto ordersA = bothLayouts(loopsA), ordersB = bothLayouts(loopsB);
  unsigned chosen = 0, chosenB = 0;
  first = uncopied(a, ordersA, chosen);
  if (!first) {
    second = uncopied(b, ordersB, chosen);
    first = tensors.generic(a, ordersA[chosen], type);
  }
  layout = chosen == 0 ? Layout::BHTD : Layout::BTHD;
  if (second)
    return;
  // One key for both maps is one operand.
  if (loopsA.size() == loopsB.size() &&
      extent(loopsA[1]) == extent(loopsB[1])) {
    Expr renamed =
        graph.substitute(b, {{loopsB[1], IndexPoly::atom(loopsA[1])}});
    if (graph.equal(a, renamed)) {
      second = first;
      return;
    }
  }
  second = uncopied(b, {ordersB[chosen]}, chosenB);
  if (!second)
    second = tensors.generic(b, ordersB[chosen], type);
}

Value AttentionBuilder::product(ArrayRef<Expr> factors,
                                ArrayRef<AtomId> loops) {
  Expr all = nullptr;
  for (Expr factor : factors) {
    Expr wide = graph.make(Kind::Cast, f32(), {factor});
    all = all ? graph.make(Kind::Mul, f32(), {all, wide}) : wide;
  }
  return tensors.tensor(all, loops, f32());
}

Value AttentionBuilder::lambda(int64_t noiseShared, AtomId noise,
                               Activation &activation) {
  SmallVector<Expr> factors(match.lambdaFactors);
  activation = Activation::Identity;
  if (factors.size() == 1 && match.lambda == 1)
    if (Expr logits = logitsOf(graph, factors[0])) {
      activation = Activation::Sigmoid;
      factors[0] = logits;
    }
  if (factors.empty()) {
    auto scalar = RankedTensorType::get({}, f32());
    return arith::ConstantOp::create(
        builder, loc,
        DenseElementsAttr::get(scalar, static_cast<float>(match.lambda)));
  }
  if (match.lambda != 1)
    factors.push_back(graph.constant(match.lambda, f32()));
  const Roles &r = match.roles;
  auto depends = [&](AtomId loop) {
    return llvm::any_of(factors,
                        [&](Expr e) { return graph.mentions(e, loop); });
  };
  if (!depends(r.batch) && !depends(r.query)) {
    if (!depends(r.head))
      return product(factors, {});
    return product(factors, {r.head});
  }
  int64_t shared = sharedHeads(factors, 1);
  if (noiseShared > 1 && shared % noiseShared == 0) {
    for (Expr &factor : factors)
      factor = perGroup(factor, noiseShared, noise);
    return product(factors, {r.batch, r.query, noise});
  }
  return product(factors, {r.batch, r.query, r.head});
}

Value AttentionBuilder::bias(int64_t noiseShared, AtomId noise, Mask mask) {
  if (mask.visible.empty() && mask.bias.empty())
    return Value();
  Type boolean = builder.getI1Type();
  Expr seen = nullptr, sum = nullptr;
  for (Expr visible : mask.visible)
    seen = seen ? graph.make(Kind::And, boolean, {seen, visible}) : visible;
  Type sumType = f32();
  if (mask.bias.size() == 1 && !seen)
    if (Expr half = fromHalf(graph, mask.bias[0])) {
      mask.bias[0] = half;
      sumType = half->type;
    }
  for (Expr part : mask.bias) {
    Expr wide = graph.make(Kind::Cast, sumType, {part});
    sum = sum ? graph.make(Kind::Add, sumType, {sum, wide}) : wide;
  }
  if (seen && sum)
    sum = graph.make(Kind::Select, sumType,
                     {seen, sum, graph.constant(-INFINITY, sumType)});
  Expr element = perGroup(sum ? sum : seen, noiseShared, noise);
  const Roles &r = match.roles;
  SmallVector<AtomId> loops;
  for (AtomId loop : {r.batch, noiseShared > 1 ? noise : r.head, r.query})
    loops.push_back(
        graph.mentions(element, loop) ? loop : *graph.space.loop(1).asAtom());
  loops.push_back(r.key);
  return tensors.tensor(element, loops, sum ? sumType : boolean);
}

Value AttentionBuilder::gate(ArrayRef<AtomId> order) {
  Expr half = fromHalf(graph, epilogue.gate);
  return half ? tensors.tensor(half, order, half->type)
              : tensors.tensor(epilogue.gate, order, f32());
}

} // namespace mlir::diffattn::raise
