//===- AffineOps.cpp - affine maps of indices, and the index dialect ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AffineValue.h"
#include "CodeBuilder.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

bool mlir::diffattn::interpreter::evaluate(AffineExpr expr,
                                           ArrayRef<int64_t> dims,
                                           ArrayRef<int64_t> symbols,
                                           int64_t &value) {
  if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
    value = dims[dim.getPosition()];
    return true;
  }
  if (auto symbol = dyn_cast<AffineSymbolExpr>(expr)) {
    value = symbols[symbol.getPosition()];
    return true;
  }
  if (auto constant = dyn_cast<AffineConstantExpr>(expr)) {
    value = constant.getValue();
    return true;
  }
  auto binary = cast<AffineBinaryOpExpr>(expr);
  int64_t a, b;
  if (!evaluate(binary.getLHS(), dims, symbols, a) ||
      !evaluate(binary.getRHS(), dims, symbols, b))
    return false;
  if (expr.getKind() == AffineExprKind::Add) {
    value = static_cast<int64_t>(static_cast<uint64_t>(a) +
                                 static_cast<uint64_t>(b));
    return true;
  }
  if (expr.getKind() == AffineExprKind::Mul) {
    value = static_cast<int64_t>(static_cast<uint64_t>(a) *
                                 static_cast<uint64_t>(b));
    return true;
  }
  if (b <= 0)
    return false;
  if (expr.getKind() == AffineExprKind::FloorDiv)
    value = llvm::divideFloorSigned(a, b);
  else if (expr.getKind() == AffineExprKind::CeilDiv)
    value = llvm::divideCeilSigned(a, b);
  else
    value = llvm::mod(a, b);
  return true;
}

namespace {
struct Mapped : Details {
  AffineMap map;
  SmallVector<int32_t> operands;
};
enum class Choice { Only, Least, Most };
} // namespace

template <Choice choice>
static bool runMap(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Mapped>();
  SmallVector<int64_t> values = llvm::map_to_vector(
      details.operands, [&](int32_t number) { return m.scalars[number].i; });
  ArrayRef<int64_t> all = values;
  ArrayRef<int64_t> dims = all.take_front(details.map.getNumDims()),
                    symbols = all.drop_front(details.map.getNumDims());
  std::optional<int64_t> result;
  for (AffineExpr expr : details.map.getResults()) {
    int64_t value;
    if (!evaluate(expr, dims, symbols, value))
      return m.fail(inst, "expected a divisor of at least 1 in the map");
    if (!result || (choice == Choice::Least && value < *result) ||
        (choice == Choice::Most && value > *result))
      result = value;
  }
  m.scalars[inst.dst].i = *result;
  return true;
}

template <Choice choice>
static bool buildMap(CodeBuilder &b, Operation *op) {
  Register result;
  if (!b.define(op->getResult(0), result))
    return false;
  Inst &inst = b.emit(runMap<choice>, op);
  inst.dst = result.number;
  auto &details = b.addDetails<Mapped>(inst);
  details.map = op->getAttrOfType<AffineMapAttr>("map").getValue();
  for (Value operand : op->getOperands())
    details.operands.push_back(b.scalar(operand));
  return true;
}

void mlir::diffattn::interpreter::addAffineOps(OpTable &table) {
  table["affine.apply"] = buildMap<Choice::Only>;
  table["affine.min"] = buildMap<Choice::Least>;
  table["affine.max"] = buildMap<Choice::Most>;
}
