//===- Scores.cpp - the scores of a softmax -------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Scores.h"

#include "FarNumbers.h"
#include "HalfFloats.h"
#include "Softmax.h"

#include "DiffAttn/Analysis/TensorExpr/Conditions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <cmath>

namespace mlir::diffattn::raise {

bool ScoreReader::leadsToProduct(Value value) {
  auto it = products.find(value);
  if (it != products.end())
    return it->second;
  products[value] = false;
  Operation *op = value.getDefiningOp();
  if (!op)
    return false;
  bool leads = false;
  if (auto linalgOp = dyn_cast<linalg::LinalgOp>(op)) {
    if (linalgOp.getNumReductionLoops() > 0)
      leads = readBy(linalgOp).size() >= 2;
    else
      leads = llvm::any_of(readBy(linalgOp),
                           [&](Value input) { return leadsToProduct(input); });
  } else if (op->hasTrait<OpTrait::Elementwise>() ||
             isa<tensor::ConcatOp>(op)) {
    leads = llvm::any_of(op->getOperands(),
                         [&](Value input) { return leadsToProduct(input); });
  } else if (isa<tensor::CastOp, tensor::CollapseShapeOp, tensor::ExpandShapeOp,
                 tensor::ExtractSliceOp, tensor::ReshapeOp>(op)) {
    leads = leadsToProduct(op->getOperand(0));
  }
  return products[value] = leads;
}

bool ScoreReader::leadsToProduct(Expr expr) {
  if (expr->kind == Kind::Reduce)
    return isa<FloatType>(expr->type);
  if (expr->kind == Kind::Load)
    return isa<FloatType>(expr->type) && graph.mentions(expr, key) &&
           leadsToProduct(expr->value);
  return llvm::any_of(expr->operands,
                      [&](Expr operand) { return leadsToProduct(operand); });
}

Expr withoutConstantFactors(ExprGraph &graph, Expr expr, double &scale) {
  while (true) {
    Expr opened = expr->kind == Kind::Load ? graph.expand(expr) : expr;
    if (!opened)
      return expr;
    switch (opened->kind) {
    case Kind::Mul:
    case Kind::Div: {
      Expr next = nullptr;
      for (unsigned i : {1, 0}) {
        if (i == 0 && opened->kind == Kind::Div)
          continue;
        if (auto number = graph.constantValue(opened->operands[i])) {
          scale = opened->kind == Kind::Div ? scale / *number : scale * *number;
          next = opened->operands[1 - i];
          break;
        }
      }
      if (!next)
        return expr;
      expr = next;
      break;
    }
    case Kind::Cast:
      // A product in a wider type than its operands: read the operands.
      if (opened->operands[0]->type.getIntOrFloatBitWidth() >=
          opened->type.getIntOrFloatBitWidth())
        return expr;
      expr = opened->operands[0];
      break;
    default:
      return expr;
    }
  }
}

std::optional<Scores> ScoreReader::readProduct(Expr reduce) {
  if (reduce->combiner() != Combiner::Sum || reduce->bound.size() != 1)
    return std::nullopt;
  Scores scores;
  scores.width = reduce->bound[0];
  SmallVector<Expr> factors;
  SmallVector<Expr> work{reduce->operands[0]};
  while (!work.empty()) {
    Expr expr = graph.stripCasts(work.pop_back_val());
    if (expr->kind == Kind::Mul)
      work.append({expr->operands[1], expr->operands[0]});
    else
      factors.push_back(expr);
  }
  for (Expr factor : factors) {
    if (factor->kind == Kind::Const) {
      scores.scale *= factor->number;
    } else if (!graph.mentions(factor, scores.width)) {
      scores.factors.push_back(factor);
    } else {
      Expr &slot = graph.mentions(factor, key) ? scores.key : scores.query;
      if (slot)
        return std::nullopt;
      slot = withoutConstantFactors(graph, factor, scores.scale);
    }
  }
  if (!scores.key || !scores.query)
    return std::nullopt;
  return scores;
}

/// Multiplies what is already known by a number or by a run-time factor.
static bool scaleBy(ExprGraph &graph, Scores &scores, AtomId key, Expr factor,
                    bool divide, std::string &reason) {
  std::optional<double> number = graph.constantValue(factor);
  if (number && divide)
    number = 1.0 / *number;
  if (number) {
    if (*number <= 0 && !scores.mask.empty()) {
      reason = "masked scores are scaled by a number that is not positive";
      return false;
    }
    if (*number <= 0 && scores.softcap) {
      reason = "capped scores are scaled by a number that is not positive";
      return false;
    }
    scores.scale *= *number;
    // a c tanh(s / c) = (a c) tanh(a s / (a c))
    if (scores.softcap)
      *scores.softcap *= *number;
    for (MaskPart &part : scores.mask) {
      part.fill *= *number;
      if (part.bias) {
        // ln 2 in 16 bits would be another number.
        Type type = part.bias->type;
        if (isHalfFloat(type) && !isHalfFloat(factor->type)) {
          type = factor->type;
          part.bias = graph.make(Kind::Cast, type, {part.bias});
        }
        part.bias = graph.make(Kind::Mul, type,
                               {part.bias, graph.constant(*number, type)});
      }
    }
    return true;
  }
  factor = graph.withoutLoop(factor, key);
  if (graph.mentions(factor, key)) {
    reason = "the scores are multiplied by something that depends on the key";
    return false;
  }
  if (!scores.mask.empty() || scores.softcap) {
    reason = "masked scores are scaled by a value known only at run time";
    return false;
  }
  scores.factors.push_back(
      divide ? graph.make(Kind::Div, factor->type,
                          {graph.constant(1, factor->type), factor})
             : factor);
  return true;
}

std::optional<Scores> ScoreReader::readScaled(Expr expr) {
  for (unsigned i : {0, 1}) {
    if (i == 1 && expr->kind == Kind::Div)
      break;
    Expr product = expr->operands[i], factor = expr->operands[1 - i];
    if (!leadsToProduct(product))
      continue;
    // softcap: cap * tanh(scores / cap)
    Expr inner = graph.stripCasts(product);
    if (inner->kind == Kind::Load)
      if (Expr opened = graph.expand(inner))
        inner = graph.stripCasts(opened);
    if (inner->kind == Kind::Tanh && expr->kind == Kind::Mul) {
      std::optional<double> cap = graph.constantValue(factor);
      std::optional<Scores> scores = read(inner->operands[0]);
      if (!cap || *cap <= 0 || !scores || !scores->mask.empty() ||
          scores->softcap)
        return std::nullopt;
      scores->softcap = *cap;
      scores->scale *= *cap;
      return scores;
    }
    std::optional<Scores> scores = read(product);
    if (!scores)
      continue;
    if (!scaleBy(graph, *scores, key, factor, expr->kind == Kind::Div, reason))
      return std::nullopt;
    return scores;
  }
  return std::nullopt;
}

bool ScoreReader::isUnmaskedScore(Expr expr) {
  if (!leadsToProduct(expr))
    return false;
  std::string unused;
  std::optional<Scores> scores = ScoreReader(graph, key, unused).read(expr);
  return scores && scores->mask.empty();
}

std::optional<Scores> ScoreReader::readSelect(Expr expr) {
  Expr condition = expr->operands[0];
  for (unsigned i : {1, 2}) {
    Expr inner = expr->operands[i], other = expr->operands[3 - i];
    if (!leadsToProduct(inner))
      continue;
    std::optional<double> fill = graph.constantValue(other);
    if (!fill) {
      reason = "masked scores are replaced by something that is not a number";
      return std::nullopt;
    }
    std::optional<Scores> scores = read(inner);
    if (!scores)
      return std::nullopt;
    // nan_to_num: for finite scores nothing changes.
    bool testsNan = false;
    std::optional<bool> truth = truthIfFinite(
        graph, condition, [&](Expr e) { return isUnmaskedScore(e); }, testsNan);
    if (truth && *truth == (i == 1) && scores->mask.empty()) {
      scores->droppedNanToNum = true;
      return scores;
    }
    if (leadsToProduct(condition)) {
      reason = matchClamp(graph, expr)
                   ? "the scores are clamped"
                   : "scores are masked by a condition on the scores";
      return std::nullopt;
    }
    // A finite fill hides a key only from scores that are near zero.
    if (std::isfinite(*fill) &&
        llvm::any_of(scores->mask, [&](const MaskPart &part) {
          return part.bias && !graph.mentions(part.bias, key) &&
                 hidesRows(graph, part.bias);
        })) {
      reason = "a finite number replaces scores that are far from zero";
      return std::nullopt;
    }
    scores->mask.push_back(
        {i == 1 ? condition : graph.notOf(condition), *fill, nullptr});
    return scores;
  }
  return std::nullopt;
}

std::optional<Scores> ScoreReader::read(Expr expr) {
  expr = graph.stripCasts(expr);
  switch (expr->kind) {
  case Kind::Load: {
    if (!leadsToProduct(expr))
      return std::nullopt;
    Expr opened = graph.expand(expr);
    std::optional<Scores> scores = opened ? read(opened) : std::nullopt;
    if (scores && !scores->product)
      scores->product = expr->value;
    return scores;
  }
  case Kind::Reduce:
    return readProduct(expr);
  case Kind::Mul:
  case Kind::Div:
    return readScaled(expr);
  case Kind::Neg: {
    std::optional<Scores> scores = read(expr->operands[0]);
    if (!scores || !scores->mask.empty() || scores->softcap)
      return std::nullopt;
    scores->scale = -scores->scale;
    return scores;
  }
  case Kind::Add:
  case Kind::Sub:
    for (unsigned i : {0, 1}) {
      if (i == 1 && expr->kind == Kind::Sub)
        break;
      if (!leadsToProduct(expr->operands[i]))
        continue;
      std::optional<Scores> scores = read(expr->operands[i]);
      if (!scores)
        continue;
      Expr bias = expr->operands[1 - i];
      if (expr->kind == Kind::Sub)
        bias = graph.make(Kind::Neg, bias->type, {bias});
      scores->mask.push_back({nullptr, 0, bias});
      return scores;
    }
    return std::nullopt;
  case Kind::Select:
    return readSelect(expr);
  case Kind::Max:
  case Kind::Min:
    if (matchClamp(graph, expr))
      reason = "the scores are clamped";
    return std::nullopt;
  default:
    return std::nullopt;
  }
}

} // namespace mlir::diffattn::raise
