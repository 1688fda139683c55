//===- FloatOps.cpp - arithmetic and comparison of floats -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "FloatFunctions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

static double add(double a, double b) { return a + b; }
static double sub(double a, double b) { return a - b; }
static double mul(double a, double b) { return a * b; }
static double div(double a, double b) { return a / b; }
static double rem(double a, double b) { return std::fmod(a, b); }
static double maxNum(double a, double b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : maximum(a, b);
}
static double minNum(double a, double b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : minimum(a, b);
}

static bool runNegate(Machine &m, const Inst &inst) {
  m.scalars[inst.dst].f = -m.scalars[inst.a].f;
  return true;
}
static bool buildNegate(CodeBuilder &b, Operation *op) {
  return b.emitOp(runNegate, op);
}

static bool compare(arith::CmpFPredicate predicate, double a, double b) {
  using P = arith::CmpFPredicate;
  const bool unordered = std::isnan(a) || std::isnan(b);
  switch (predicate) {
  case P::AlwaysFalse:
    return false;
  case P::AlwaysTrue:
    return true;
  case P::OEQ:
    return a == b;
  case P::OGT:
    return a > b;
  case P::OGE:
    return a >= b;
  case P::OLT:
    return a < b;
  case P::OLE:
    return a <= b;
  case P::ONE:
    return !unordered && a != b;
  case P::ORD:
    return !unordered;
  case P::UEQ:
    return unordered || a == b;
  case P::UGT:
    return unordered || a > b;
  case P::UGE:
    return unordered || a >= b;
  case P::ULT:
    return unordered || a < b;
  case P::ULE:
    return unordered || a <= b;
  case P::UNE:
    return a != b;
  case P::UNO:
    return unordered;
  }
  return false;
}

static bool runCompare(Machine &m, const Inst &inst) {
  m.scalars[inst.dst].i =
      -int64_t(compare(static_cast<arith::CmpFPredicate>(inst.imm),
                       m.scalars[inst.a].f, m.scalars[inst.b].f));
  return true;
}
static bool buildCompare(CodeBuilder &b, Operation *op) {
  return b.emitOp(runCompare, op,
                  static_cast<int64_t>(cast<arith::CmpFOp>(op).getPredicate()));
}

void mlir::diffattn::interpreter::addFloatOps(OpTable &table) {
  table["arith.addf"] = BinaryOp<add>::build;
  table["arith.subf"] = BinaryOp<sub>::build;
  table["arith.mulf"] = BinaryOp<mul>::build;
  table["arith.divf"] = BinaryOp<div>::build;
  table["arith.remf"] = BinaryOp<rem>::build;
  table["arith.maximumf"] = BinaryOp<maximum>::build;
  table["arith.minimumf"] = BinaryOp<minimum>::build;
  table["arith.maxnumf"] = BinaryOp<maxNum>::build;
  table["arith.minnumf"] = BinaryOp<minNum>::build;
  table["arith.negf"] = buildNegate;
  table["arith.cmpf"] = buildCompare;
}
