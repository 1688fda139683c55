//===- ConvertAttention.cpp - convert-diffattn-to-vector ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PackedValues.h"

#include "DiffAttn/Analysis/OwnOps.h"
#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/IR/ScheduleCases.h"
#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/raw_ostream.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_CONVERTDIFFATTNTOVECTORPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {

/// Turns one op into a spec and the values that its context holds.
class SpecBuilder {
public:
  SpecBuilder(KernelBuilder &b, AttentionOp op) : b(b), op(op) {}

  LogicalResult build();

  AttentionSpec spec;
  SmallVector<Value> context;
  /// The sizes as values, for the caller's own arithmetic.
  Value value(const SpecSize &size) {
    return size.isStatic() ? b.index(size.value) : context[size.slot];
  }

private:
  SpecSize bind(int64_t fixed, Value dynamic);
  SpecSize bindDim(const OperandView &view, OperandView::Role role);
  LogicalResult bindOperand(const OperandView &view, SpecOperand &operand);

  KernelBuilder &b;
  AttentionOp op;
};

} // namespace

SpecSize SpecBuilder::bind(int64_t fixed, Value dynamic) {
  SpecSize size;
  if (!ShapedType::isDynamic(fixed)) {
    size.value = fixed;
    return size;
  }
  size.slot = context.size();
  context.push_back(
      dynamic.getType().isIndex()
          ? arith::IndexCastOp::create(b, b.i64, dynamic).getResult()
          : dynamic);
  return size;
}

SpecSize SpecBuilder::bindDim(const OperandView &view, OperandView::Role role) {
  int64_t axis = view.axes[role], fixed = view.getType().getDimSize(axis);
  Value dynamic;
  if (ShapedType::isDynamic(fixed))
    dynamic = memref::DimOp::create(b, view.value, axis);
  return bind(fixed, dynamic);
}

/// An axis that the memref does not have gets stride 0.
LogicalResult SpecBuilder::bindOperand(const OperandView &view,
                                       SpecOperand &operand) {
  Value memref = view.value;
  auto type = cast<MemRefType>(memref.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(type.getStridesAndOffset(strides, offset)))
    return op->emitOpError() << "expected strided memrefs, but got " << type;
  auto metadata = memref::ExtractStridedMetadataOp::create(b, memref);
  Value base = memref::ExtractAlignedPointerAsIndexOp::create(b, memref);
  Value address = arith::IndexCastOp::create(b, b.i64, base);
  if (offset != 0) {
    Value elements =
        ShapedType::isDynamic(offset)
            ? arith::IndexCastOp::create(b, b.i64, metadata.getOffset())
                  .getResult()
            : b.index(offset);
    int64_t bytes = std::max<int64_t>(1, type.getElementTypeBitWidth() / 8);
    address = b.add(address, b.mul(elements, bytes));
  }
  operand.element = type.getElementType();
  operand.slot = context.size();
  context.push_back(LLVM::IntToPtrOp::create(b, b.pointer, address));
  for (auto [i, axis] : llvm::enumerate(view.axes)) {
    const bool broadcasts = view.mayBroadcast[i];
    if (axis < 0 || (broadcasts && type.getDimSize(axis) == 1)) {
      operand.strides[i] = bind(0, Value());
      continue;
    }
    if (!broadcasts || !type.isDynamicDim(axis)) {
      operand.strides[i] = bind(strides[axis], metadata.getStrides()[axis]);
      continue;
    }
    // An axis that turns out to be 1 is broadcast.
    Value size = arith::IndexCastOp::create(
        b, b.i64, memref::DimOp::create(b, memref, axis));
    Value stride =
        ShapedType::isDynamic(strides[axis])
            ? arith::IndexCastOp::create(b, b.i64, metadata.getStrides()[axis])
                  .getResult()
            : b.index(strides[axis]);
    Value actual = b.select(b.equal(size, b.index(1)), b.index(0), stride);
    operand.strides[i] = bind(ShapedType::kDynamic, actual);
  }
  return success();
}

LogicalResult SpecBuilder::build() {
  spec.scores = getScoreRules(op);
  spec.epilogue = getEpilogueRules(op);
  AttentionOperands operands = getAttentionOperands(op);
  using View = OperandView;
  spec.batch = bindDim(operands.q1, View::Batch);
  spec.signalHeads = bindDim(operands.q1, View::Head);
  spec.noiseHeads = bindDim(operands.q2, View::Head);
  spec.key1Heads = bindDim(operands.k1, View::Head);
  spec.key2Heads = bindDim(operands.k2, View::Head);
  spec.valueHeads = bindDim(operands.v, View::Head);
  spec.queries = bindDim(operands.q1, View::Row);
  spec.keys = bindDim(operands.k1, View::Row);
  if (operands.blockTable) {
    spec.pageRows = spec.keys;
    SpecSize pages = bindDim(operands.blockTable, View::Row);
    Value keys = b.mul(value(pages), value(spec.pageRows));
    std::optional<int64_t> known = KernelBuilder::known(keys);
    spec.keys = bind(known.value_or(ShapedType::kDynamic), keys);
  }
  spec.headDim = bindDim(operands.q1, View::Column);
  spec.valueDim = bindDim(operands.v, View::Column);
  spec.lambdaHeads = operands.lambda.getType().getRank() == 3
                         ? bindDim(operands.lambda, View::Head)
                         : spec.signalHeads;

  const std::pair<const OperandView &, SpecOperand &> bound[] = {
      {operands.q1, spec.q1},         {operands.q2, spec.q2},
      {operands.k1, spec.k1},         {operands.k2, spec.k2},
      {operands.v, spec.v},           {operands.output, spec.output},
      {operands.lambda, spec.lambda}, {operands.normWeight, spec.normWeight},
      {operands.gate, spec.gate},     {operands.blockTable, spec.blockTable}};
  for (auto &[view, operand] : bound)
    if (view && failed(bindOperand(view, operand)))
      return failure();
  for (auto [view, operand] : llvm::zip_equal(operands.masks, spec.masks))
    if (view && failed(bindOperand(view, operand)))
      return failure();
  spec.slots = context.size();
  return success();
}

namespace {
/// What the code of a kernel is made for.
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
      });
}

/// A builder of the kernels of `schedule`, whose isa is known.
static KernelBuilder getBuilder(Location loc, ScheduleAttrInterface schedule) {
  KernelTarget made = getKernelTarget(schedule);
  return KernelBuilder(loc, *getCpuTarget(made.isa), made.lanes);
}

/// What two ops must have in common to share their functions.
static std::string getSignature(AttentionOp op) {
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

  StringRef get(AttentionOp op) {
    std::string &name = names[getSignature(op)];
    if (name.empty())
      name = getFreeName();
    return name;
  }

private:
  std::string getFreeName() {
    std::string name;
    do
      name = "diffattn_attention_" + std::to_string(nextNumber++);
    while (isTaken(name));
    return name;
  }

  /// Kernels of a family are several functions, and their names go on with what
  /// each is for: one that is there is another op's.
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

struct ConvertDiffAttnToVectorPass final
    : diffattn::impl::ConvertDiffAttnToVectorPassBase<
          ConvertDiffAttnToVectorPass> {
  using ConvertDiffAttnToVectorPassBase::ConvertDiffAttnToVectorPassBase;

  void runOnOperation() override {
    if (failed(verifyThreads(getOperation(), threads)))
      return signalPassFailure();
    SmallVector<std::pair<AttentionOp, SmallVector<ScheduleCase>>> ops;
    walkOwnOps(getOperation(), [&](Operation *inner) {
      auto op = dyn_cast<AttentionOp>(inner);
      if (!op)
        return WalkResult::advance();
      SmallVector<ScheduleCase> cases =
          getScheduleCases(op, ScheduleTarget::CPU);
      if (!cases.empty() && !isa<LinalgAttr>(cases.front().schedule) &&
          isa<MemRefType>(op.getInit().getType()))
        ops.push_back({op, cases});
      return WalkResult::advance();
    });
    KernelNames names(getOperation());
    for (auto &[op, cases] : ops)
      if (failed(convert(op, cases, names)))
        return signalPassFailure();
  }

  LogicalResult convert(AttentionOp op, ArrayRef<ScheduleCase> cases,
                        KernelNames &names) {
    if (failed(verifyScheduleCases(op, cases)))
      return failure();
    for (const ScheduleCase &choice : cases)
      if (StringRef isa = getKernelTarget(choice.schedule).isa;
          !getCpuTarget(isa))
        return op->emitOpError()
               << "expected the schedule's isa to be known, but got \"" << isa
               << "\"";
    KernelBuilder b = getBuilder(op.getLoc(), cases.front().schedule);
    b.setInsertionPoint(op);
    SpecBuilder spec(b, op);
    if (failed(spec.build()))
      return failure();
    Value context = packContext(b, op, spec.context);
    callCases(b, context, spec, names.get(op), cases);
    op.erase();
    return success();
  }

  /// Stores the context into memory of the calling function's frame.
  Value packContext(KernelBuilder &b, AttentionOp op, ArrayRef<Value> values) {
    Value context;
    {
      // At the function's entry, so that an op in a loop takes its memory once.
      OpBuilder::InsertionGuard guard(b);
      auto function = op->getParentOfType<FunctionOpInterface>();
      b.setInsertionPointToStart(&function.getFunctionBody().front());
      context = LLVM::AllocaOp::create(b, b.pointer, b.i64,
                                       b.index(values.size() + 1),
                                       /*alignment=*/8);
    }
    for (auto [slot, value] : llvm::enumerate(values))
      b.store(value, context, b.i64, b.index(slot));
    return context;
  }

  /// The first case that holds, from `number` on.
  void callCases(KernelBuilder &b, Value context, SpecBuilder &builder,
                 StringRef name, ArrayRef<ScheduleCase> cases,
                 size_t number = 0) {
    const ScheduleCase &first = cases[number];
    auto take = [&] {
      // A second kernel of a family has names of its own.
      bool isSecond = llvm::any_of(
          cases.take_front(number), [&](const ScheduleCase &before) {
            return before.schedule.getFamily() == first.schedule.getFamily();
          });
      std::string own = name.str();
      if (isSecond)
        own += "_" + std::to_string(number);
      callKernel(b, context, builder, own, first.schedule);
    };
    Value fails;
    if (first.maxQueries)
      fails = b.less(b.index(*first.maxQueries),
                     builder.value(builder.spec.queries));
    if (first.minKeys) {
      Value few =
          b.less(builder.value(builder.spec.keys), b.index(*first.minKeys));
      fails = fails ? arith::OrIOp::create(b, fails, few).getResult() : few;
    }
    if (!fails)
      return take();
    b.ifElse(
        fails, [&] { callCases(b, context, builder, name, cases, number + 1); },
        take);
  }

  void callKernel(KernelBuilder &outer, Value context, SpecBuilder &builder,
                  StringRef name, ScheduleAttrInterface schedule) {
    KernelBuilder b = getBuilder(outer.getLoc(), schedule);
    b.setInsertionPoint(outer.getInsertionBlock(), outer.getInsertionPoint());
    AttentionSpec &spec = builder.spec;
    spec.target = b.target;
    spec.product = getKernelTarget(schedule).product;
    spec.prefill = dyn_cast<CpuPrefillAttr>(schedule);
    spec.splitKV = dyn_cast<CpuSplitKVAttr>(schedule);
    if (spec.prefill)
      return callPrefillKernel(b, context, builder, name);
    callSplitKVKernel(b, context, builder, name);
  }

  static CallSizes getSizes(SpecBuilder &builder) {
    return getCallSizes(builder.spec, [&](const SpecSize &size) {
      return builder.value(size);
    });
  }

  LLVM::CallOp callRuntime(KernelBuilder &b, RuntimeFunction callee,
                           ValueRange arguments) {
    auto function = b.getRuntimeFunction(getOperation(), callee);
    return LLVM::CallOp::create(b, function, arguments);
  }

  /// `body` with memory of `bytes`, whose address is in the context.
  void withMemory(KernelBuilder &b, Value context, const AttentionSpec &spec,
                  Value bytes, function_ref<void()> body) {
    Value mark = callRuntime(b, RuntimeFunction::mark, {}).getResult();
    Value memory = callRuntime(b, RuntimeFunction::alloc, bytes).getResult();
    b.store(memory, context, b.i64, b.index(spec.slots));
    body();
    callRuntime(b, RuntimeFunction::release, mark);
  }

  void callSplitKVKernel(KernelBuilder &b, Value context, SpecBuilder &builder,
                         StringRef name) {
    const AttentionSpec &spec = builder.spec;
    SplitKVFunctions functions =
        emitSplitKVKernel(b, getOperation(), name, spec);
    SplitKVSizes needs = emitSplitKVSizes(b, spec, getSizes(builder));
    withMemory(b, context, spec, needs.stateBytes, [&] {
      callParallelFor(b, functions.scores, context, b.mul(needs.items, 2),
                      needs.scoresScratch);
      callParallelFor(b, functions.factors, context, needs.rows, b.index(0));
      callParallelFor(b, functions.values, context, needs.items,
                      needs.valuesScratch);
      callParallelFor(b, functions.merge, context, needs.rows,
                      needs.rowScratch);
    });
  }

  void callPrefillKernel(KernelBuilder &b, Value context, SpecBuilder &builder,
                         StringRef name) {
    const AttentionSpec spec =
        builder.spec.isPaged() ? builder.spec.withDenseRows() : builder.spec;
    LLVM::LLVMFuncOp body = emitPrefillKernel(b, getOperation(), name, spec);
    CallSizes sizes = getSizes(builder);
    Value blocks = b.ceilDiv(sizes.queries, spec.prefill.getQBlockSize());
    Value count = b.mul(b.mul(sizes.batch, sizes.signalHeads), blocks);
    Value scratch =
        emitPrefillScratch(b, spec, sizes.keys, sizes.headDim, sizes.valueDim);
    auto call = [&] { callParallelFor(b, body, context, count, scratch); };
    if (!mayPackValues(spec))
      return call();
    auto packByBlock = [&] {
      b.store(b.index(0), context, b.i64, b.index(spec.slots));
      call();
    };
    PackedValuesPlan plan = emitPackedValuesPlan(b, spec, sizes);
    if (KernelBuilder::known(plan.pays) == 0)
      return packByBlock();
    LLVM::LLVMFuncOp pack =
        emitPackValues(b, getOperation(), (name + "_pack").str(), spec);
    auto packOnce = [&] {
      withMemory(b, context, spec, plan.bytes, [&] {
        callParallelFor(b, pack, context, plan.items, b.index(0));
        call();
      });
    };
    b.ifElse(plan.pays, packOnce, packByBlock);
  }

  void callParallelFor(KernelBuilder &b, LLVM::LLVMFuncOp body, Value context,
                       Value count, Value scratch) {
    Value address = LLVM::AddressOfOp::create(b, body);
    Value arguments[] = {address, context, count, scratch, b.index(threads)};
    auto function =
        b.getRuntimeFunction(getOperation(), RuntimeFunction::parallel_for);
    LLVM::CallOp::create(b, function, arguments);
  }
};
} // namespace
