//===- FusedBodies.cpp - softmaxes inside of larger bodies ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Maps.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

namespace mlir::diffattn::raise {

/// `expr` with each softmax along one of `loops` as a node.
Expr Maps::withSoftmaxes(Expr expr, ArrayRef<IndexPoly> loops, Body &body) {
  switch (expr->kind) {
  case Kind::Const:
  case Kind::Index:
  case Kind::Load:
  case Kind::Scalar:
  case Kind::Reduce:
  case Kind::Softmax:
  case Kind::Opaque:
    return expr;
  case Kind::Div:
  case Kind::Mul:
  case Kind::Exp:
    if (std::optional<Softmax> softmax = matchSoftmax(graph, expr, loops)) {
      AtomId key = *loops[softmax->keyAxis].asAtom();
      IndexPoly bound = graph.space.loop(IndexPoly(graph.space.extent(key)));
      ++body.count;
      if (key == body.summed)
        body.role = Role::Attention;
      if (!softmax->flaw.empty())
        body.flaw = softmax->flaw;
      body.losesFarRows |= softmax->losesFarRows;
      return graph.softmax(graph.substitute(softmax->scores, {{key, bound}}),
                           *bound.asAtom(), IndexPoly::atom(key));
    }
    break;
  default:
    break;
  }
  SmallVector<Expr> operands;
  for (Expr operand : expr->operands)
    operands.push_back(withSoftmaxes(operand, loops, body));
  if (ArrayRef<Expr>(operands) == ArrayRef<Expr>(expr->operands))
    return expr;
  return graph.make(expr->kind, expr->type, operands, expr->predicate);
}

std::optional<Maps::Body> Maps::readBody(Value value) {
  auto op = dyn_cast<linalg::LinalgOp>(value.getDefiningOp());
  if (!op || !isa<FloatType>(elementType(value)))
    return std::nullopt;
  // At least a quotient, or a power, and what is made of it.
  bool divides = llvm::any_of(*op.getBlock(), [](Operation &inner) {
    return isa<arith::DivFOp, math::ExpOp>(inner);
  });
  if (!divides || llvm::hasNItemsOrLess(*op.getBlock(), 2))
    return std::nullopt;
  Body body;
  body.loops = graph.freshLoops(value);
  Expr element = graph.load(value, body.loops);
  if (element->kind != Kind::Load || element->value != value)
    return std::nullopt;
  element = graph.expand(element);
  if (!element)
    return std::nullopt;
  if (element->kind != Kind::Reduce) {
    body.element = withSoftmaxes(element, body.loops, body);
  } else if (element->combiner() == Combiner::Sum &&
             element->bound.size() == 1) {
    // Over the keys of a map, or over few maps.
    body.summed = element->bound[0];
    SmallVector<IndexPoly> loops(body.loops);
    loops.push_back(IndexPoly::atom(*body.summed));
    body.element = graph.withBody(
        element, withSoftmaxes(element->operands[0], loops, body));
  }
  return body.count ? std::optional<Body>(body) : std::nullopt;
}

/// One op further up, with softmaxes as nodes.
Expr Maps::open(Expr load) {
  auto it = bodies.find(load->value);
  if (it == bodies.end())
    return graph.expand(load);
  IndexSpace::Substitution at;
  for (auto [loop, index] : llvm::zip(it->second.loops, load->indices))
    at[*loop.asAtom()] = index;
  return graph.substitute(it->second.element, at);
}

} // namespace mlir::diffattn::raise
