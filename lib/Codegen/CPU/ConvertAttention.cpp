//===- ConvertAttention.cpp - convert-diffattn-to-vector ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "NestValues.h"

#include "DiffAttn/Codegen/Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
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

  NestSpec spec;
  SmallVector<Value> context;
  /// The sizes as values, for the caller's own arithmetic.
  Value value(const NestSize &size) {
    return size.isStatic() ? b.index(size.value) : context[size.slot];
  }

private:
  NestSize bind(int64_t fixed, Value dynamic);
  NestSize bindDim(Value memref, int64_t axis);
  LogicalResult bindOperand(Value memref, NestOperand &operand,
                            ArrayRef<int64_t> axes, bool broadcasts = false);

  KernelBuilder &b;
  AttentionOp op;
};

} // namespace

NestSize SpecBuilder::bind(int64_t fixed, Value dynamic) {
  NestSize size;
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

NestSize SpecBuilder::bindDim(Value memref, int64_t axis) {
  int64_t fixed = cast<MemRefType>(memref.getType()).getDimSize(axis);
  Value dynamic;
  if (ShapedType::isDynamic(fixed))
    dynamic = memref::DimOp::create(b, memref, axis);
  return bind(fixed, dynamic);
}

/// `axes` has, for each of the operand's four strides, the axis of the memref
/// (-1: none, stride 0).
LogicalResult SpecBuilder::bindOperand(Value memref, NestOperand &operand,
                                       ArrayRef<int64_t> axes,
                                       bool broadcasts) {
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
  for (auto [i, axis] : llvm::enumerate(axes)) {
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
  ScheduleAttr schedule = *op.getSchedule();
  std::optional<CpuTarget> target = getCpuTarget(schedule.getIsa());
  if (!target)
    return op->emitOpError()
           << "expected the schedule's isa to be known, but got \""
           << schedule.getIsa() << "\"";
  spec.target = *target;
  spec.schedule = getNestSchedule(schedule);

  auto axes = [](Layout layout) {
    return SmallVector<int64_t>{0, AttentionOp::headAxis(layout),
                                AttentionOp::lengthAxis(layout), 3};
  };
  auto qAxes = axes(op.getQLayout()), kAxes = axes(op.getKLayout()),
       vAxes = axes(op.getVLayout()), oAxes = axes(op.getOLayout());
  spec.batch = bindDim(op.getQ1(), 0);
  spec.signalHeads = bindDim(op.getQ1(), qAxes[1]);
  spec.noiseHeads = bindDim(op.getQ2(), qAxes[1]);
  spec.key1Heads = bindDim(op.getK1(), kAxes[1]);
  spec.key2Heads = bindDim(op.getK2(), kAxes[1]);
  spec.valueHeads = bindDim(op.getV(), vAxes[1]);
  spec.queries = bindDim(op.getQ1(), qAxes[2]);
  spec.keys = bindDim(op.getK1(), kAxes[2]);
  spec.headDim = bindDim(op.getQ1(), 3);
  spec.valueDim = bindDim(op.getV(), 3);

  auto lambdaType = cast<MemRefType>(op.getLambda().getType());
  SmallVector<int64_t> lambdaAxes = {-1, -1, -1, -1};
  if (lambdaType.getRank() == 1)
    lambdaAxes = {-1, 0, -1, -1};
  else if (lambdaType.getRank() == 3)
    lambdaAxes = {0, 2, 1, -1};
  spec.lambdaHeads =
      lambdaType.getRank() == 3 ? bindDim(op.getLambda(), 2) : spec.signalHeads;
  spec.lambdaSigmoid = op.getLambdaAct() == Activation::Sigmoid;

  if (failed(bindOperand(op.getQ1(), spec.q1, qAxes)) ||
      failed(bindOperand(op.getQ2(), spec.q2, qAxes)) ||
      failed(bindOperand(op.getK1(), spec.k1, kAxes)) ||
      failed(bindOperand(op.getK2(), spec.k2, kAxes)) ||
      failed(bindOperand(op.getV(), spec.v, vAxes)) ||
      failed(bindOperand(op.getInit(), spec.output, oAxes)) ||
      failed(bindOperand(op.getLambda(), spec.lambda, lambdaAxes)))
    return failure();
  if (Value bias = op.getBias())
    if (failed(bindOperand(bias, spec.bias, {0, 1, 2, 3}, /*broadcasts=*/true)))
      return failure();
  if (Value weight = op.getNormWeight())
    if (failed(bindOperand(weight, spec.normWeight, {-1, -1, -1, 0})))
      return failure();
  if (Value gate = op.getGate())
    if (failed(bindOperand(gate, spec.gate, oAxes)))
      return failure();
  if (Value length = op.getKvLen())
    if (failed(bindOperand(length, spec.kvLen, {0, -1, -1, -1})))
      return failure();
  if (Value offset = op.getQOffset())
    if (failed(bindOperand(offset, spec.qOffset, {0, -1, -1, -1})))
      return failure();

  spec.causal = op.getIsCausal();
  if (std::optional<ArrayRef<int64_t>> window = op.getWindow()) {
    spec.windowLeft = (*window)[0];
    spec.windowRight = (*window)[1];
  }
  if (op.getSoftcap())
    spec.softcap = op.getSoftcap()->convertToFloat();
  spec.scale = op.getScale().convertToFloat();
  spec.rmsNorm = op.getNorm() == Norm::RMS;
  spec.epsOutside = op.getNormEpsMode() == EpsMode::Outside;
  spec.eps = op.getNormEps().convertToFloat();
  spec.outScale = op.getOutScale().convertToFloat();
  spec.slots = context.size();
  return success();
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
struct ConvertDiffAttnToVectorPass final
    : diffattn::impl::ConvertDiffAttnToVectorPassBase<
          ConvertDiffAttnToVectorPass> {
  using ConvertDiffAttnToVectorPassBase::ConvertDiffAttnToVectorPassBase;

  void runOnOperation() override {
    SmallVector<AttentionOp> ops;
    getOperation()->walk([&](AttentionOp op) {
      std::optional<ScheduleAttr> schedule = op.getSchedule();
      if (schedule && schedule->getPath() == SchedulePath::Nest &&
          isa<MemRefType>(op.getInit().getType()))
        ops.push_back(op);
    });
    for (AttentionOp op : ops)
      if (failed(convert(op)))
        return signalPassFailure();
  }

  LogicalResult convert(AttentionOp op) {
    std::optional<CpuTarget> target = getCpuTarget(op.getSchedule()->getIsa());
    KernelBuilder b(op.getLoc(), target.value_or(CpuTarget()),
                    op.getSchedule()->getLanes());
    b.setInsertionPoint(op);
    SpecBuilder spec(b, op);
    if (failed(spec.build()))
      return failure();
    Value context = packContext(b, op, spec.context);
    std::string &name = names[getSignature(op)];
    if (name.empty())
      name = freshName();
    callNest(b, context, spec, name);
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

  /// Few queries split the keys over threads, many are cut into blocks; both
  /// are emitted where the number is not known. Few keys are not worth
  /// splitting then, and a short sequence that attends to itself is cut as a
  /// long one is: its rows are the same when it is padded.
  void callNest(KernelBuilder &b, Value context, SpecBuilder &builder,
                StringRef name) {
    const NestSpec &spec = builder.spec;
    auto split = [&] { callSplitNest(b, context, builder, name); };
    auto block = [&] { callBlockNest(b, context, builder, name); };
    int64_t splitRows = spec.schedule.splitRows;
    if (splitRows == 0)
      return block();
    if (spec.queries.isStatic())
      return spec.queries.value <= splitRows ? split() : block();
    Value queries = builder.value(spec.queries);
    Value keys = builder.value(spec.keys);
    Value many = b.less(b.index(splitRows), queries),
          alone = b.less(keys, b.index(splitRows + 1));
    b.ifElse(arith::OrIOp::create(b, many, alone), block, split);
  }

  void callSplitNest(KernelBuilder &b, Value context, SpecBuilder &builder,
                     StringRef name) {
    const NestSpec &spec = builder.spec;
    SplitNestFunctions functions = emitSplitNest(b, getOperation(), name, spec);
    NestCallSizes sizes;
    sizes.batch = builder.value(spec.batch);
    sizes.signalHeads = builder.value(spec.signalHeads);
    sizes.noiseHeads = builder.value(spec.noiseHeads);
    sizes.key1Heads = builder.value(spec.key1Heads);
    sizes.key2Heads = builder.value(spec.key2Heads);
    sizes.valueHeads = builder.value(spec.valueHeads);
    sizes.queries = builder.value(spec.queries);
    sizes.keys = builder.value(spec.keys);
    sizes.headDim = builder.value(spec.headDim);
    sizes.valueDim = builder.value(spec.valueDim);
    SplitNestSizes needs = emitSplitNestSizes(b, spec, sizes);
    auto call = [&](RuntimeFunction callee, ValueRange arguments) {
      auto function = b.getRuntimeFunction(getOperation(), callee);
      return LLVM::CallOp::create(b, function, arguments);
    };
    Value mark = call(RuntimeFunction::mark, {}).getResult();
    Value states = call(RuntimeFunction::alloc, needs.stateBytes).getResult();
    b.store(states, context, b.i64, b.index(spec.slots));
    callParallelFor(b, functions.scores, context, b.mul(needs.items, 2),
                    needs.scoresScratch);
    callParallelFor(b, functions.factors, context, needs.rows, b.index(0));
    callParallelFor(b, functions.values, context, needs.items,
                    needs.valuesScratch);
    callParallelFor(b, functions.merge, context, needs.rows, needs.rowScratch);
    call(RuntimeFunction::release, mark);
  }

  void callBlockNest(KernelBuilder &b, Value context, SpecBuilder &builder,
                     StringRef name) {
    const NestSpec &spec = builder.spec;
    LLVM::LLVMFuncOp body = emitBlockNest(b, getOperation(), name, spec);
    Value blocks = b.ceilDiv(builder.value(spec.queries), spec.schedule.rows);
    Value count =
        b.mul(b.mul(builder.value(spec.batch), builder.value(spec.signalHeads)),
              blocks);
    Value scratch = emitBlockNestScratch(b, spec, builder.value(spec.keys),
                                         builder.value(spec.headDim),
                                         builder.value(spec.valueDim));
    callParallelFor(b, body, context, count, scratch);
  }

  void callParallelFor(KernelBuilder &b, LLVM::LLVMFuncOp body, Value context,
                       Value count, Value scratch) {
    Value address = LLVM::AddressOfOp::create(b, body);
    Value arguments[] = {address, context, count, scratch, b.index(threads)};
    auto function =
        b.getRuntimeFunction(getOperation(), RuntimeFunction::parallel_for);
    LLVM::CallOp::create(b, function, arguments);
  }

  std::string freshName() {
    std::string name;
    do
      name = "diffattn_attention_" + std::to_string(counter++);
    while (getOperation().lookupSymbol(name));
    return name;
  }

  llvm::StringMap<std::string> names;
  int64_t counter = 0;
};
} // namespace
