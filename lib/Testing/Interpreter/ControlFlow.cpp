//===- ControlFlow.cpp - calls, loops, branches, assertions ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CodeBuilder.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/SymbolTable.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;

// --- calls and assertions

namespace {
struct Call : Details {
  Operation *callee = nullptr;
  SmallVector<Register> arguments, results;
};
struct Message : Details {
  std::string text;
};
} // namespace

static bool runCall(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Call>();
  FunctionCode *code = m.getCode(details.callee);
  return code && m.call(inst, *code, details.arguments, details.results);
}

static bool buildCall(CodeBuilder &b, Operation *op) {
  auto call = cast<func::CallOp>(op);
  Operation *callee =
      SymbolTable::lookupNearestSymbolFrom(op, call.getCalleeAttr());
  if (!isa_and_nonnull<func::FuncOp>(callee))
    return b.unsupported(op, "expected a function '" + call.getCallee() +
                                 "' in the module");
  SmallVector<Register> results;
  if (!b.define(op->getResults(), &results))
    return false;
  auto &details = b.addDetails<Call>(b.emit(runCall, op));
  details.callee = callee;
  details.arguments = b.get(op->getOperands());
  details.results = std::move(results);
  return true;
}

static bool runAssert(Machine &m, const Inst &inst) {
  return m.scalars[inst.a].i ||
         m.fail(inst,
                "expected the assertion to hold: " + inst.as<Message>().text);
}
static bool buildAssert(CodeBuilder &b, Operation *op) {
  auto check = cast<cf::AssertOp>(op);
  Inst &inst = b.emit(runAssert, op);
  inst.a = b.scalar(check.getArg());
  b.addDetails<Message>(inst).text = check.getMsg().str();
  return true;
}

// --- regions that run once

namespace {
struct Branches : Details {
  SmallVector<int64_t> cases; ///< of an index_switch
  std::vector<Code> codes;    ///< with the default first
};
} // namespace

static bool runIf(Machine &m, const Inst &inst) {
  return m.run(inst.as<Branches>().codes[m.scalars[inst.a].i ? 0 : 1]);
}
static bool runOnce(Machine &m, const Inst &inst) {
  return m.run(inst.as<Branches>().codes[0]);
}
static bool runSwitch(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Branches>();
  const auto *it = llvm::find(details.cases, m.scalars[inst.a].i);
  const size_t at =
      it == details.cases.end() ? 0 : 1 + (it - details.cases.begin());
  return m.run(details.codes[at]);
}

/// The regions of `op`, which yield its results.
static bool buildBranches(CodeBuilder &b, Operation *op, Handler run) {
  SmallVector<Register> results;
  if (!b.define(op->getResults(), &results))
    return false;
  auto details = std::make_unique<Branches>();
  details->codes.resize(op->getNumRegions());
  for (auto [region, code] :
       llvm::zip_equal(op->getRegions(), details->codes)) {
    if (region.empty())
      continue; // no else
    if (!region.hasOneBlock())
      return b.unsupported(op, "expected regions of one block");
    auto terminate = [&](Operation *yield) {
      b.emitMoves(yield->getOperands(), results, yield);
      return true;
    };
    if (!b.buildBlock(region.front(), code, terminate))
      return false;
  }
  if (auto choice = dyn_cast<scf::IndexSwitchOp>(op))
    details->cases.assign(choice.getCases().begin(), choice.getCases().end());
  Inst &inst = b.emit(run, op);
  if (op->getNumOperands())
    inst.a = b.scalar(op->getOperand(0));
  b.keepDetails(inst, std::move(details));
  return true;
}
static bool buildIf(CodeBuilder &b, Operation *op) {
  return buildBranches(b, op, runIf);
}
static bool buildExecuteRegion(CodeBuilder &b, Operation *op) {
  return buildBranches(b, op, runOnce);
}
static bool buildSwitch(CodeBuilder &b, Operation *op) {
  return buildBranches(b, op, runSwitch);
}

// --- loops

namespace {
struct Loop : Details {
  Code before, body; ///< `before` of scf.while alone
  bool isUnsigned = false;
  int width = 64;
};
} // namespace

/// a, b and c are the bounds and the step, dst is the induction variable.
static bool runFor(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Loop>();
  const int64_t lower = m.scalars[inst.a].i, upper = m.scalars[inst.b].i,
                step = m.scalars[inst.c].i;
  if (step == 0 || (step < 0 && !details.isUnsigned))
    return m.fail(inst,
                  "expected a step of at least 1, but got " + Twine(step));
  // As unsigned numbers whose order is that of the bounds.
  const uint64_t bias = details.isUnsigned ? 0 : uint64_t(1) << 63;
  const uint64_t begin = static_cast<uint64_t>(lower) + bias,
                 end = static_cast<uint64_t>(upper) + bias;
  const auto stride = static_cast<uint64_t>(zeroExtend(step, details.width));
  for (uint64_t at = begin; at < end;) {
    m.scalars[inst.dst].i = static_cast<int64_t>(at - bias);
    // A body of nothing counts too, so that no loop is endless.
    if (!m.count(1, inst.op) || !m.run(details.body))
      return false;
    if (end - at <= stride)
      break;
    at += stride;
  }
  return true;
}

static bool buildFor(CodeBuilder &b, Operation *op) {
  auto loop = cast<scf::ForOp>(op);
  Register induction;
  SmallVector<Register> carried;
  if (!b.define(loop.getInductionVar(), induction) ||
      !b.define(loop.getRegionIterArgs(), &carried))
    return false;
  b.emitMoves(loop.getInitArgs(), carried, op);
  // The loop's results are the carried values.
  for (auto [result, register_] : llvm::zip_equal(op->getResults(), carried))
    b.alias(result, register_);
  auto details = std::make_unique<Loop>();
  auto terminate = [&](Operation *yield) {
    b.emitMoves(yield->getOperands(), carried, yield);
    return true;
  };
  if (!b.buildBlock(*loop.getBody(), details->body, terminate))
    return false;
  details->isUnsigned = op->hasAttr("unsignedCmp");
  details->width = getWidth(loop.getInductionVar().getType());
  Inst &inst = b.emit(runFor, op);
  inst.a = b.scalar(loop.getLowerBound());
  inst.b = b.scalar(loop.getUpperBound());
  inst.c = b.scalar(loop.getStep());
  inst.dst = induction.number;
  b.keepDetails(inst, std::move(details));
  return true;
}

static bool runWhile(Machine &m, const Inst &inst) {
  const auto &details = inst.as<Loop>();
  for (;;) {
    if (!m.count(1, inst.op) || !m.run(details.before))
      return false;
    if (!m.scalars[inst.a].i)
      return true;
    if (!m.run(details.body))
      return false;
  }
}

static bool runCopyScalar(Machine &m, const Inst &inst) {
  m.scalars[inst.dst] = m.scalars[inst.a];
  return true;
}

static bool buildWhile(CodeBuilder &b, Operation *op) {
  auto loop = cast<scf::WhileOp>(op);
  SmallVector<Register> carried, passed;
  if (!b.define(loop.getBeforeArguments(), &carried) ||
      !b.define(loop.getAfterArguments(), &passed))
    return false;
  b.emitMoves(loop.getInits(), carried, op);
  // The loop's results are the values that its condition passes on.
  for (auto [result, register_] : llvm::zip_equal(op->getResults(), passed))
    b.alias(result, register_);
  const int32_t goesOn = b.newScalar();
  auto details = std::make_unique<Loop>();
  auto decide = [&](Operation *terminator) {
    auto condition = cast<scf::ConditionOp>(terminator);
    Inst &inst = b.emit(runCopyScalar, terminator);
    inst.a = b.scalar(condition.getCondition());
    inst.dst = goesOn;
    b.emitMoves(condition.getArgs(), passed, terminator);
    return true;
  };
  auto repeat = [&](Operation *yield) {
    b.emitMoves(yield->getOperands(), carried, yield);
    return true;
  };
  if (!b.buildBlock(*loop.getBeforeBody(), details->before, decide) ||
      !b.buildBlock(*loop.getAfterBody(), details->body, repeat))
    return false;
  Inst &inst = b.emit(runWhile, op);
  inst.a = goesOn;
  b.keepDetails(inst, std::move(details));
  return true;
}

void mlir::diffattn::interpreter::addControlFlowOps(OpTable &table) {
  table["func.call"] = buildCall;
  table["cf.assert"] = buildAssert;
  table["scf.if"] = buildIf;
  table["scf.execute_region"] = buildExecuteRegion;
  table["scf.index_switch"] = buildSwitch;
  table["scf.for"] = buildFor;
  table["scf.while"] = buildWhile;
}
