//===- HostLaunch.cpp - launches of kernels -------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HostLaunch.h"

#include "DiffAttn/Codegen/Attention/AttentionRules.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "llvm/Support/ErrorHandling.h"

#include <algorithm>
#include <limits>
#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;

static constexpr double kLog2E = 1.44269504088896340736;

GpuKernelSpec mlir::diffattn::getGpuKernelSpec(AttentionOp op,
                                               ScheduleAttrInterface schedule,
                                               bool elementwise) {
  auto elementType = [&](Value value) {
    return value ? cast<ShapedType>(value.getType()).getElementType() : Type();
  };
  GpuKernelSpec spec;
  if (isa_and_nonnull<GpuSplitKVAttr>(schedule))
    spec.kind = GpuKernelKind::Decode;
  spec.elementType = elementType(op.getQ1());
  spec.resultType = elementType(op.getInit());
  spec.headDim = op.getHeadDim();
  spec.valueDim = op.getValueDim();
  spec.schedule = schedule;
  spec.elementwise = elementwise;
  spec.sharedKeys = op.getK1() == op.getK2();
  ScoreRules scores = getScoreRules(op);
  spec.masks = getGpuKernelMasks(op.getContext(), scores.masks);
  for (MaskAttrInterface mask : spec.masks)
    for (MaskOperand operand : mask.getMaskOperands())
      if (getGpuMaskParams(operand))
        spec.maskTypes[static_cast<size_t>(operand)] =
            elementType(op.findMaskOperand(operand)->get());
  spec.normWeightType = elementType(op.getNormWeight());
  spec.gateType = elementType(op.getGate());
  spec.softcap = scores.softcap.has_value();
  // A maximum of products is a maximum of scores only if the scale is positive.
  // A large scale is multiplied after the maximum is subtracted: products with
  // it are rounded to numbers whose difference is no longer near 0.
  spec.scaleFirst = scores.scale <= 0.0f || scores.scale > 16.0f;
  return spec;
}

namespace {
class LaunchBuilder {
public:
  LaunchBuilder(RewriterBase &rewriter, AttentionOp op, gpu::GPUModuleOp module)
      : b(op.getLoc(), rewriter), op(op), operands(getAttentionOperands(op)),
        module(module), arguments(static_cast<size_t>(GpuParam::Count)) {}
  void emit(ArrayRef<ScheduleCase> cases);

private:
  using Emit = function_ref<void()>;
  /// scf.if; without it where `condition` is a constant.
  void choose(Value condition, Emit then, Emit otherwise = nullptr);
  void launch(const GpuKernelSpec &spec);
  void launchDecode(const GpuKernelSpec &spec);
  /// How operands are copied, as far as branches around a launch tell.
  enum class Copies { NotAsked, Chunks, Elements };
  /// The first of `cases` that holds.
  void launchCases(ArrayRef<ScheduleCase> cases, Copies copies);
  /// The kernel of `schedule`, or one of two by whether 16 bytes can be copied.
  void launchSchedule(ScheduleAttrInterface schedule, Copies copies);
  /// Whether all copies and stores of 16 bytes are aligned and contiguous.
  Value canCopyChunks();
  /// Signal heads that a block of decode takes.
  Value decodeGroup();

  Value index(int64_t value) {
    return arith::ConstantIndexOp::create(b, value);
  }
  template <typename Op>
  Value compute(Value x, Value y) {
    return b.createOrFold<Op>(x, y);
  }
  Value compare(arith::CmpIPredicate predicate, Value x, int64_t y) {
    return b.createOrFold<arith::CmpIOp>(predicate, x, index(y));
  }
  Value i64(Value value) {
    return arith::IndexCastOp::create(b, b.getI64Type(), value);
  }
  Value i32(Value value) {
    return arith::IndexCastOp::create(b, b.getI32Type(), value);
  }
  Value i32(int64_t value) {
    return arith::ConstantIntOp::create(b, value, 32);
  }
  /// The nearest finite number.
  Value f32(double value) {
    constexpr double highest = std::numeric_limits<float>::max();
    return arith::ConstantOp::create(
        b, b.getF32FloatAttr(
               static_cast<float>(std::clamp(value, -highest, highest))));
  }
  Value size(const OperandView &view, OperandView::Role role) {
    int64_t axis = view.axes[role];
    if (!view.getType().isDynamicDim(axis))
      return index(view.getType().getDimSize(axis));
    return memref::DimOp::create(b, view.value, axis);
  }
  /// How many heads of `many` share one of `few`.
  Value sharing(const OperandView &many, const OperandView &few) {
    Value quotient = compute<arith::DivUIOp>(size(many, OperandView::Head),
                                             size(few, OperandView::Head));
    return b.createOrFold<arith::IndexCastOp>(b.getI32Type(), quotient);
  }
  /// A stride, or the offset, as a constant where the type tells it. An operand
  /// that does not vary with `role` has stride 0.
  Value stride(const OperandView &view, OperandView::Role role);
  /// The same, 0 for an axis that turns out to be broadcast.
  Value usedStride(const OperandView &view, OperandView::Role role);
  Value offset(Value memref);
  /// Address of the first element, as an index.
  Value address(Value memref);
  Value ceilDiv(Value a, int64_t by) {
    return arith::DivUIOp::create(b, arith::AddIOp::create(b, a, index(by - 1)),
                                  index(by));
  }

  Value &argument(GpuParam param) {
    return arguments[static_cast<size_t>(param)];
  }
  void setPointer(GpuParam param, Value memref);
  /// The pointer of `view`, and its strides along `roles` as the parameters
  /// that follow; null where the op has no such operand.
  void setOperand(GpuParam pointer, const OperandView &view,
                  ArrayRef<OperandView::Role> roles);
  void fillArguments();
  /// Whether neighbours along the keys can be read in pairs.
  Value biasInPairs();
  void fillNumbers();
  void launchKernel(const GpuKernelSpec &spec, std::array<Value, 3> blocks);
  /// What the table of parameters gives the kernel, in order.
  SmallVector<Value> argumentsOf(const GpuKernelSpec &spec);

  ImplicitLocOpBuilder b;
  AttentionOp op;
  AttentionOperands operands;
  gpu::GPUModuleOp module;
  /// By the number of the parameter; null where no kernel of the op reads it.
  SmallVector<Value> arguments;
  DenseMap<Value, memref::ExtractStridedMetadataOp> metadata;
  Value batches, signalHeads, queries, keys, chunksAllowed;
};
} // namespace

Value LaunchBuilder::stride(const OperandView &view, OperandView::Role role) {
  int64_t axis = view.axes[role];
  if (axis < 0)
    return index(0);
  auto [strides, offset] =
      cast<MemRefType>(view.getType()).getStridesAndOffset();
  if (!ShapedType::isDynamic(strides[axis]))
    return index(strides[axis]);
  auto &known = metadata[view.value];
  if (!known)
    known = memref::ExtractStridedMetadataOp::create(b, view.value);
  return known.getStrides()[axis];
}

Value LaunchBuilder::usedStride(const OperandView &view,
                                OperandView::Role role) {
  Value step = stride(view, role);
  if (!view.mayBroadcast || view.axes[role] < 0)
    return step;
  return b.createOrFold<arith::SelectOp>(
      compare(arith::CmpIPredicate::eq, size(view, role), 1), index(0), step);
}

Value LaunchBuilder::offset(Value memref) {
  auto [strides, offset] =
      cast<MemRefType>(memref.getType()).getStridesAndOffset();
  if (!ShapedType::isDynamic(offset))
    return index(offset);
  auto &known = metadata[memref];
  if (!known)
    known = memref::ExtractStridedMetadataOp::create(b, memref);
  return known.getOffset();
}

/// Bytes of an element in memory; an i1 takes a byte.
static int64_t elementBytes(Value memref) {
  Type element = cast<MemRefType>(memref.getType()).getElementType();
  return std::max<int64_t>(1, element.getIntOrFloatBitWidth() / 8);
}

Value LaunchBuilder::address(Value memref) {
  Value base = memref::ExtractAlignedPointerAsIndexOp::create(b, memref);
  return arith::AddIOp::create(
      b, base,
      arith::MulIOp::create(b, offset(memref), index(elementBytes(memref))));
}

void LaunchBuilder::setPointer(GpuParam param, Value memref) {
  argument(param) = LLVM::IntToPtrOp::create(
      b, LLVM::LLVMPointerType::get(b.getContext(), 1), i64(address(memref)));
}

void LaunchBuilder::setOperand(GpuParam pointer, const OperandView &view,
                               ArrayRef<OperandView::Role> roles) {
  if (view)
    setPointer(pointer, view.value);
  else
    argument(pointer) =
        LLVM::ZeroOp::create(b, LLVM::LLVMPointerType::get(b.getContext(), 1));
  for (auto [i, role] : llvm::enumerate(roles))
    argument(getGpuStride(pointer, i)) =
        i64(view ? usedStride(view, role) : index(0));
}

void LaunchBuilder::fillArguments() {
  using P = GpuParam;
  using View = OperandView;
  const std::pair<P, const View &> tensors[] = {
      {P::Q1, operands.q1},    {P::Q2, operands.q2}, {P::K1, operands.k1},
      {P::K2, operands.k2},    {P::V, operands.v},   {P::O, operands.output},
      {P::Gate, operands.gate}};
  for (auto [param, view] : tensors)
    if (view)
      setOperand(param, view,
                 {View::Batch, View::Head, View::Row, View::Column});
  for (MaskOperand operand : kMaskOperands) {
    const View &view = operands.mask(operand);
    std::optional<GpuMaskParams> params = getGpuMaskParams(operand);
    if (!view || !params)
      continue;
    SmallVector<View::Role> roles;
    if (params->batch)
      roles.push_back(View::Batch);
    if (params->head)
      roles.push_back(View::Head);
    if (params->query)
      roles.push_back(View::Row);
    if (params->key)
      roles.push_back(params->query ? View::Column : View::Row);
    setOperand(params->pointer, view, roles);
  }
  setOperand(P::Lambda, operands.lambda, {View::Batch, View::Row, View::Head});
  if (operands.normWeight)
    setOperand(P::NormWeight, operands.normWeight, {View::Column});
  setOperand(P::KvLen, operands.mask(MaskOperand::KvLen), {View::Batch});
  setOperand(P::QOffset, operands.mask(MaskOperand::QOffset), {View::Batch});
  fillNumbers();
}

Value LaunchBuilder::biasInPairs() {
  using View = OperandView;
  const View &bias = operands.mask(MaskOperand::Bias);
  int64_t bytes = elementBytes(bias.value);
  // Bits that must be 0; the stride of an axis of size 1 is not used, and may
  // still forbid pairs.
  Value bits = address(bias.value);
  for (View::Role role : {View::Batch, View::Head, View::Row})
    bits = compute<arith::OrIOp>(
        bits, compute<arith::MulIOp>(stride(bias, role), index(bytes)));
  bits =
      compute<arith::OrIOp>(bits, compute<arith::MulIOp>(keys, index(bytes)));
  bits = compute<arith::AndIOp>(bits, index(2 * bytes - 1));
  Value apart = compute<arith::SubIOp>(stride(bias, View::Column), index(1));
  return compare(arith::CmpIPredicate::eq, compute<arith::OrIOp>(bits, apart),
                 0);
}

void LaunchBuilder::fillNumbers() {
  using P = GpuParam;
  argument(P::Queries) = i32(queries);
  argument(P::Keys) = i32(keys);
  const OperandView &signal = operands.q1, &noise = operands.q2;
  argument(P::SignalPerNoise) = sharing(signal, noise);
  argument(P::SignalPerKey1) = sharing(signal, operands.k1);
  argument(P::SignalPerValue) = sharing(signal, operands.v);
  argument(P::NoisePerKey2) = sharing(noise, operands.k2);
  // A lambda without heads is the same for all of them.
  bool hasHeads = operands.lambda.axes[OperandView::Head] >= 0;
  argument(P::SignalPerLambda) =
      hasHeads ? sharing(signal, operands.lambda) : i32(1);
  ScoreRules scores = getScoreRules(op);
  EpilogueRules epilogue = getEpilogueRules(op);
  int64_t left = scores.reach.left.value_or(-1),
          right = scores.reach.right.value_or(-1);
  auto near = [](int64_t limit) {
    return limit < 0 ? kGpuUnlimited : std::min(limit, kGpuUnlimited);
  };
  argument(P::LeftLimit) = i64(index(left));
  argument(P::RightLimit) = i64(index(right));
  argument(P::WindowLeft) = i32(near(left));
  argument(P::WindowRight) = i32(near(right));
  int64_t flags = (epilogue.rmsNorm ? GpuFlagNorm : 0) |
                  (epilogue.epsOutside ? GpuFlagEpsOutside : 0) |
                  (epilogue.lambdaSigmoid ? GpuFlagLambdaSigmoid : 0);
  argument(P::Flags) = i32(flags);
  if (operands.mask(MaskOperand::Bias))
    argument(P::Flags) = b.createOrFold<arith::SelectOp>(
        biasInPairs(), i32(flags | GpuFlagBiasPairs), i32(flags));

  double scale = scores.scale, cap = scores.softcap.value_or(0.0f);
  bool scaled = getGpuKernelSpec(op, {}, /*elementwise=*/false).scaledScores();
  double factor = scores.softcap ? 2.0 * kLog2E * scale / cap
                  : scaled       ? scale
                                 : scale * kLog2E;
  // A cap near 0 makes the factor infinite, and 0 * inf NaN: the largest number
  // takes every score but 0 to the cap as well.
  argument(P::ScoreScale) = f32(factor);
  // 8 units of log2, in the unit of the scores whose maximum is taken; finite,
  // so that a first maximum of minus infinity stays that.
  argument(P::RescaleMargin) = f32(scaled ? 8.0 / kLog2E : 8.0 / factor);
  argument(P::ExponentScale) = f32(scaled ? kLog2E : factor);
  argument(P::Softcap) = f32(cap);
  argument(P::NormEps) = f32(epilogue.eps);
  argument(P::OutScale) = f32(epilogue.outScale);
}

Value LaunchBuilder::canCopyChunks() {
  // The bits that must be 0 of everything that is added to an address, in
  // bytes.
  Value all = index(0);
  using View = OperandView;
  for (const View *view : {&operands.q1, &operands.k1, &operands.q2,
                           &operands.k2, &operands.v, &operands.output}) {
    Value bits = address(view->value);
    Value bytes = index(elementBytes(view->value));
    for (View::Role role : {View::Batch, View::Head, View::Row})
      bits = compute<arith::OrIOp>(
          bits, compute<arith::MulIOp>(stride(*view, role), bytes));
    bits = compute<arith::AndIOp>(bits, index(15));
    // An innermost stride other than 1 counts as a bit.
    Value apart = compute<arith::SubIOp>(stride(*view, View::Column), index(1));
    all = compute<arith::OrIOp>(all, compute<arith::OrIOp>(bits, apart));
  }
  return compare(arith::CmpIPredicate::eq, all, 0);
}

SmallVector<Value> LaunchBuilder::argumentsOf(const GpuKernelSpec &spec) {
  SmallVector<Value> chosen;
  for (GpuParam param : getGpuParams(spec)) {
    if (!argument(param))
      llvm::report_fatal_error("nothing gives " + getGpuParam(param).name +
                               " to kernel " + spec.getName());
    chosen.push_back(argument(param));
  }
  return chosen;
}

void LaunchBuilder::launchKernel(const GpuKernelSpec &spec,
                                 std::array<Value, 3> blocks) {
  LLVM::LLVMFuncOp kernel = getOrEmitGpuKernel(module, spec);
  auto symbol = SymbolRefAttr::get(module.getNameAttr(),
                                   {FlatSymbolRefAttr::get(kernel)});
  Value one = index(1);
  gpu::LaunchFuncOp::create(
      b, symbol, gpu::KernelDim3{blocks[0], blocks[1], blocks[2]},
      gpu::KernelDim3{index(spec.getThreads()), one, one},
      i32(spec.getSharedLayout().total), argumentsOf(spec));
}

Value LaunchBuilder::decodeGroup() {
  GpuAttentionShape shape = getGpuAttentionShape(op);
  if (!ShapedType::isDynamic(shape.queries))
    return index(shape.group);
  // The largest part of the group whose rows fit.
  Value group = index(1);
  for (int64_t part = 2; part <= kGpuDecodeRows; ++part)
    if (shape.group % part == 0)
      group = arith::SelectOp::create(
          b, compare(arith::CmpIPredicate::ule, queries, kGpuDecodeRows / part),
          index(part), group);
  return group;
}

void LaunchBuilder::launchDecode(const GpuKernelSpec &spec) {
  // A block for each block of keys, also where there is none: the merge of
  // their states, in order, takes what it finds.
  Value group = decodeGroup();
  Value splits = compute<arith::MaxUIOp>(
      ceilDiv(keys, spec.getTiles().splitKeys), index(1));
  Value heads = compute<arith::DivUIOp>(signalHeads, group);
  argument(GpuParam::Group) = i32(group);
  argument(GpuParam::Splits) = i32(splits);
  Value states =
      compute<arith::MulIOp>(compute<arith::MulIOp>(batches, heads), splits);
  Value numbers = compute<arith::MulIOp>(states, index(spec.getStateSize()));
  auto type = MemRefType::get({ShapedType::kDynamic}, b.getF32Type());
  Value workspace = gpu::AllocOp::create(b, type, Type(), ValueRange(),
                                         ValueRange{numbers}, ValueRange())
                        .getMemref();
  setPointer(GpuParam::Workspace, workspace);
  launchKernel(spec, {splits, heads, batches});
  GpuKernelSpec merge = spec;
  merge.kind = GpuKernelKind::Merge;
  launchKernel(merge, {queries, signalHeads, batches});
  gpu::DeallocOp::create(b, TypeRange(), ValueRange(), workspace);
}

void LaunchBuilder::launch(const GpuKernelSpec &spec) {
  if (spec.kind == GpuKernelKind::Forward)
    return launchKernel(
        spec, {ceilDiv(queries, spec.getRows()), signalHeads, batches});
  // What is computed for one launch must not be an argument of another, which
  // may stand in another branch.
  launchDecode(spec);
  for (unsigned i = 0; i < arguments.size(); ++i)
    if (getGpuParam(static_cast<GpuParam>(i)).filler == GpuParamFiller::Launch)
      arguments[i] = Value();
}

void LaunchBuilder::choose(Value condition, Emit then, Emit otherwise) {
  if (std::optional<int64_t> known = getConstantIntValue(condition)) {
    if (*known)
      then();
    else if (otherwise)
      otherwise();
    return;
  }
  auto choice =
      scf::IfOp::create(b, condition, /*withElseRegion=*/bool(otherwise));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(choice.thenBlock());
  then();
  if (!otherwise)
    return;
  b.setInsertionPointToStart(choice.elseBlock());
  otherwise();
}

void LaunchBuilder::launchSchedule(ScheduleAttrInterface schedule,
                                   Copies copies) {
  auto launchCopying = [&](bool elementwise) {
    launch(getGpuKernelSpec(op, schedule, elementwise));
  };
  if (!chunksAllowed || copies == Copies::Elements)
    return launchCopying(/*elementwise=*/true);
  if (copies == Copies::Chunks)
    return launchCopying(/*elementwise=*/false);
  choose(
      chunksAllowed, [&] { launchCopying(/*elementwise=*/false); },
      [&] { launchCopying(/*elementwise=*/true); });
}

void LaunchBuilder::launchCases(ArrayRef<ScheduleCase> cases, Copies copies) {
  const ScheduleCase &first = cases.front();
  ArrayRef<ScheduleCase> others = cases.drop_front();
  if (first.unaligned && copies == Copies::NotAsked)
    return choose(
        chunksAllowed, [&] { launchCases(cases, Copies::Chunks); },
        [&] { launchCases(cases, Copies::Elements); });
  if (first.unaligned && copies == Copies::Chunks)
    return launchCases(others, copies);
  Value holds;
  if (first.maxQueries)
    holds = compare(arith::CmpIPredicate::ule, queries, *first.maxQueries);
  if (first.minKeys) {
    Value enough = compare(arith::CmpIPredicate::uge, keys, *first.minKeys);
    holds = holds ? compute<arith::AndIOp>(holds, enough) : enough;
  }
  if (!holds)
    return launchSchedule(first.schedule, copies);
  choose(
      holds, [&] { launchSchedule(first.schedule, copies); },
      [&] { launchCases(others, copies); });
}

void LaunchBuilder::emit(ArrayRef<ScheduleCase> cases) {
  batches = size(operands.output, OperandView::Batch);
  queries = size(operands.output, OperandView::Row);
  keys = size(operands.v, OperandView::Row);
  signalHeads = size(operands.q1, OperandView::Head);
  Value rows = compute<arith::MulIOp>(batches, queries);
  choose(compare(arith::CmpIPredicate::ne, rows, 0), [&] {
    fillArguments();
    bool plain = isa<GpuPlainAttr>(cases.front().schedule);
    if (!plain && op.getHeadDim() % 8 == 0 && op.getValueDim() % 8 == 0)
      chunksAllowed = canCopyChunks();
    launchCases(cases, Copies::NotAsked);
  });
}

void mlir::diffattn::replaceByLaunch(RewriterBase &rewriter, AttentionOp op,
                                     gpu::GPUModuleOp module,
                                     ArrayRef<ScheduleCase> cases) {
  OpBuilder::InsertionGuard guard(rewriter);
  rewriter.setInsertionPoint(op);
  LaunchBuilder(rewriter, op, module).emit(cases);
  rewriter.eraseOp(op);
}
