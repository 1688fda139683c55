//===- ConvertAttention.cpp - convert-diffattn-to-vector ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BackwardKernel.h"
#include "KernelCaller.h"
#include "PackedValues.h"
#include "SpecBuilder.h"

#include "DiffAttn/Analysis/OwnOps.h"
#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/IR/ScheduleCases.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/raw_ostream.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTDIFFATTNTOVECTORPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// The instruction set, vector lanes and products of a kernel's code.
struct KernelTarget {
  StringRef isa;
  int64_t lanes;
  CpuProduct product;
};
} // namespace

static KernelTarget getKernelTarget(ScheduleAttrInterface schedule) {
  return llvm::TypeSwitch<Attribute, KernelTarget>(schedule)
      .Case<CpuPrefillAttr, CpuSplitKVAttr>([](auto cpu) {
        return KernelTarget{cpu.getIsa(), cpu.getLanes(), cpu.getProduct()};
      })
      .Case<CpuBackwardAttr>([](auto cpu) {
        return KernelTarget{cpu.getIsa(), cpu.getLanes(), CpuProduct::F32};
      });
}

static LogicalResult verifyIsa(Operation *op, ScheduleAttrInterface schedule) {
  StringRef isa = getKernelTarget(schedule).isa;
  if (getCpuTarget(isa))
    return success();
  return op->emitOpError()
         << "expected the schedule's isa to be known, but got \"" << isa
         << "\"";
}

/// A builder of the kernels of `schedule`, whose isa is known.
static KernelBuilder getBuilder(Location loc, ScheduleAttrInterface schedule) {
  KernelTarget target = getKernelTarget(schedule);
  return KernelBuilder(loc, *getCpuTarget(target.isa), target.lanes);
}

/// Types, attributes and absent operands of `op` as text: ops with equal text
/// share their functions.
template <typename Op>
static std::string getSignature(Op op) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << op->getOperandTypes() << op->getAttrDictionary();
  os << op.getProperties().getOperandSegmentSizes().size();
  for (int32_t n : op.getProperties().getOperandSegmentSizes())
    os << ',' << n;
  return text;
}

namespace {
/// The names of the kernels that are emitted into one module: ops of one
/// signature share theirs.
class KernelNames {
public:
  explicit KernelNames(ModuleOp module) : module(module) {}

  template <typename Op>
  StringRef get(Op op) {
    const StringRef kind = op->getName().stripDialect();
    std::string &name = names[kind.str() + getSignature(op)];
    if (name.empty())
      name = getFreeName(kind);
    return name;
  }

private:
  std::string getFreeName(StringRef kind) {
    std::string name;
    do
      name = ("diffattn_" + kind + "_" + Twine(nextNumber++)).str();
    while (isTaken(name));
    return name;
  }

  /// Whether another op's kernel has the name. A kernel is several functions,
  /// whose names begin with that of the kernel.
  bool isTaken(StringRef name) {
    return llvm::any_of(module.getOps<SymbolOpInterface>(),
                        [&](SymbolOpInterface op) {
                          StringRef symbol = op.getName();
                          return symbol.consume_front(name) &&
                                 (symbol.empty() || symbol.front() == '_');
                        });
  }

  ModuleOp module;
  llvm::StringMap<std::string> names;
  int64_t nextNumber = 0;
};

/// The call of an attention's kernels.
class AttentionCall {
public:
  AttentionCall(AttentionOp op, StringRef name, ModuleOp module,
                int64_t threads)
      : op(op), name(name), module(module), threads(threads) {}

  /// Emits it before the op, which stays.
  LogicalResult emit(ArrayRef<ScheduleCase> cases);

private:
  /// The first case that holds, from `number` on.
  void callCases(KernelBuilder &b, ArrayRef<ScheduleCase> cases,
                 size_t number = 0);
  void callKernel(KernelBuilder &outer, StringRef kernel,
                  ScheduleAttrInterface schedule);
  void callSplitKVKernel(KernelCaller &caller, StringRef kernel);
  void callPrefillKernel(KernelCaller &caller, StringRef kernel);
  CallSizes getSizes() {
    return getCallSizes(
        spec, [&](const SpecSize &size) { return builder->value(size); });
  }

  AttentionOp op;
  StringRef name;
  ModuleOp module;
  int64_t threads;
  AttentionSpec spec;
  SpecBuilder *builder = nullptr;
  Value context;
};
} // namespace

LogicalResult AttentionCall::emit(ArrayRef<ScheduleCase> cases) {
  if (failed(verifyScheduleCases(op, cases)))
    return failure();
  for (const ScheduleCase &choice : cases)
    if (failed(verifyIsa(op, choice.schedule)))
      return failure();
  KernelBuilder b = getBuilder(op.getLoc(), cases.front().schedule);
  b.setInsertionPoint(op);
  SpecBuilder specBuilder(b, op);
  builder = &specBuilder;
  spec.scores = getScoreRules(op);
  spec.epilogue = getEpilogueRules(op);
  if (failed(specBuilder.build(getAttentionOperands(op), spec)))
    return failure();
  context =
      KernelCaller(b, module, threads).packContext(op, specBuilder.context);
  callCases(b, cases);
  return success();
}

void AttentionCall::callCases(KernelBuilder &b, ArrayRef<ScheduleCase> cases,
                              size_t number) {
  const ScheduleCase &first = cases[number];
  auto take = [&] {
    // A second kernel of a family has names of its own.
    bool isSecond =
        llvm::any_of(cases.take_front(number), [&](const ScheduleCase &before) {
          return before.schedule.getFamily() == first.schedule.getFamily();
        });
    std::string own = name.str();
    if (isSecond)
      own += "_" + std::to_string(number);
    callKernel(b, own, first.schedule);
  };
  Value fails;
  if (first.maxQueries)
    fails = b.less(b.index(*first.maxQueries), builder->value(spec.queries));
  if (first.minKeys) {
    Value few = b.less(builder->value(spec.keys), b.index(*first.minKeys));
    fails = fails ? arith::OrIOp::create(b, fails, few).getResult() : few;
  }
  if (!fails)
    return take();
  b.ifElse(fails, [&] { callCases(b, cases, number + 1); }, take);
}

void AttentionCall::callKernel(KernelBuilder &outer, StringRef kernel,
                               ScheduleAttrInterface schedule) {
  KernelBuilder b = getBuilder(outer.getLoc(), schedule);
  b.setInsertionPoint(outer.getInsertionBlock(), outer.getInsertionPoint());
  spec.target = b.target;
  spec.product = getKernelTarget(schedule).product;
  spec.prefill = dyn_cast<CpuPrefillAttr>(schedule);
  spec.splitKV = dyn_cast<CpuSplitKVAttr>(schedule);
  KernelCaller caller(b, module, threads);
  if (spec.prefill)
    return callPrefillKernel(caller, kernel);
  callSplitKVKernel(caller, kernel);
}

void AttentionCall::callSplitKVKernel(KernelCaller &caller, StringRef kernel) {
  KernelBuilder &b = caller.b;
  SplitKVFunctions functions = emitSplitKVKernel(b, module, kernel, spec);
  SplitKVSizes needs = emitSplitKVSizes(b, spec, getSizes());
  caller.withMemory(context, spec.slots, needs.stateBytes, [&] {
    caller.parallelFor(functions.scores, context,
                       b.mul(needs.items, spec.maps().size()),
                       needs.scoresScratch);
    caller.parallelFor(functions.factors, context, needs.rows, b.index(0));
    caller.parallelFor(functions.values, context, needs.items,
                       needs.valuesScratch);
    caller.parallelFor(functions.merge, context, needs.rows, needs.rowScratch);
  });
}

void AttentionCall::callPrefillKernel(KernelCaller &caller, StringRef kernel) {
  KernelBuilder &b = caller.b;
  const AttentionSpec dense = spec.isPaged() ? spec.withDenseRows() : spec;
  LLVM::LLVMFuncOp body = emitPrefillKernel(b, module, kernel, dense);
  CallSizes sizes = getSizes();
  Value blocks = b.ceilDiv(sizes.queries, dense.prefill.getQBlockSize());
  Value count = b.mul(b.mul(sizes.batch, sizes.signalHeads), blocks);
  Value scratch =
      emitPrefillScratch(b, dense, sizes.keys, sizes.headDim, sizes.valueDim);
  auto call = [&] { caller.parallelFor(body, context, count, scratch); };
  if (!mayPackValues(dense))
    return call();
  auto packByBlock = [&] {
    b.store(b.index(0), context, b.i64, b.index(dense.slots));
    call();
  };
  PackedValuesPlan plan = emitPackedValuesPlan(b, dense, sizes);
  if (KernelBuilder::known(plan.pays) == 0)
    return packByBlock();
  LLVM::LLVMFuncOp pack =
      emitPackValues(b, module, (kernel + "_pack").str(), dense);
  auto packOnce = [&] {
    caller.withMemory(context, dense.slots, plan.bytes, [&] {
      caller.parallelFor(pack, context, plan.items, b.index(0));
      call();
    });
  };
  b.ifElse(plan.pays, packOnce, packByBlock);
}

namespace {
struct ConvertDiffAttnToVectorPass final
    : diffattn::impl::ConvertDiffAttnToVectorPassBase<
          ConvertDiffAttnToVectorPass> {
  using ConvertDiffAttnToVectorPassBase::ConvertDiffAttnToVectorPassBase;

  void runOnOperation() override {
    if (failed(verifyThreads(getOperation(), threads)))
      return signalPassFailure();
    SmallVector<AttentionOp> attentions;
    SmallVector<AttentionBackwardOp> gradients;
    walkOwnOps(getOperation(), [&](Operation *op) {
      if (auto attention = dyn_cast<AttentionOp>(op))
        attentions.push_back(attention);
      else if (auto backward = dyn_cast<AttentionBackwardOp>(op))
        gradients.push_back(backward);
      return WalkResult::advance();
    });
    KernelNames names(getOperation());
    for (AttentionOp op : attentions)
      if (failed(convert(op, names)))
        return signalPassFailure();
    for (AttentionBackwardOp op : gradients)
      if (failed(convert(op, names)))
        return signalPassFailure();
  }

  /// Replaces an op on memrefs that has schedules of kernels.
  LogicalResult convert(AttentionOp op, KernelNames &names) {
    SmallVector<ScheduleCase> cases = getScheduleCases(op, ScheduleTarget::CPU);
    if (cases.empty() || isa<LinalgAttr>(cases.front().schedule) ||
        !isa<MemRefType>(op.getInit().getType()))
      return success();
    AttentionCall call(op, names.get(op), getOperation(), threads);
    if (failed(call.emit(cases)))
      return failure();
    op.erase();
    return success();
  }

  LogicalResult convert(AttentionBackwardOp op, KernelNames &names) {
    auto schedule = dyn_cast_if_present<CpuBackwardAttr>(
        findSchedule(op, ScheduleTarget::CPU));
    if (!schedule || !isa<MemRefType>(op.getQ1().getType()))
      return success();
    if (failed(verifyIsa(op, schedule)))
      return failure();
    KernelBuilder b = getBuilder(op.getLoc(), schedule);
    b.setInsertionPoint(op);
    KernelCaller caller(b, getOperation(), threads);
    if (failed(callBackwardKernel(caller, op, schedule, names.get(op))))
      return failure();
    op.erase();
    return success();
  }
};
} // namespace
