//===- LaunchBuilder.cpp - host code around launches ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "LaunchBuilder.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "llvm/Support/ErrorHandling.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

Value LaunchBuilder::f32(double value) {
  constexpr double highest = std::numeric_limits<float>::max();
  return arith::ConstantOp::create(
      b, b.getF32FloatAttr(
             static_cast<float>(std::clamp(value, -highest, highest))));
}

Value LaunchBuilder::size(Value memref, int64_t axis) {
  auto type = cast<ShapedType>(memref.getType());
  if (!type.isDynamicDim(axis))
    return index(type.getDimSize(axis));
  return memref::DimOp::create(b, memref, axis);
}

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
  if (!view.mayBroadcast[role] || view.axes[role] < 0)
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

int64_t LaunchBuilder::elementBytes(Value memref) {
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

void LaunchBuilder::setTensor(GpuParam pointer, const OperandView &view) {
  using View = OperandView;
  if (view)
    setOperand(pointer, view,
               {View::Batch, View::Head, View::Row, View::Column});
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
  Value keys = size(operands.v, View::Row);
  bits =
      compute<arith::OrIOp>(bits, compute<arith::MulIOp>(keys, index(bytes)));
  bits = compute<arith::AndIOp>(bits, index(2 * bytes - 1));
  Value apart = compute<arith::SubIOp>(stride(bias, View::Column), index(1));
  return compare(arith::CmpIPredicate::eq, compute<arith::OrIOp>(bits, apart),
                 0);
}

Value LaunchBuilder::keyCount() {
  Value keys = size(operands.v, OperandView::Row);
  if (!operands.blockTable)
    return keys;
  return compute<arith::MulIOp>(size(operands.blockTable, OperandView::Row),
                                keys);
}

Value LaunchBuilder::hasRows(Value batches, Value queries) {
  Value rows = compute<arith::MulIOp>(batches, queries);
  // Without sequences there is no bound behind the first one to read.
  if (operands.queryBounds)
    rows = compute<arith::MulIOp>(rows, sequenceCount());
  return compare(arith::CmpIPredicate::ne, rows, 0);
}

Value LaunchBuilder::hasAtMost(Value queries, int64_t most) {
  Value limit = index(most);
  if (operands.queryBounds)
    limit = compute<arith::MulIOp>(limit, sequenceCount());
  return b.createOrFold<arith::CmpIOp>(arith::CmpIPredicate::ule, queries,
                                       limit);
}

void LaunchBuilder::fillSequences() {
  using P = GpuParam;
  using View = OperandView;
  if (operands.queryBounds) {
    setOperand(P::QueryBounds, operands.queryBounds, {View::Row});
    argument(P::Sequences) = i32(sequenceCount());
  }
  if (operands.keyBounds)
    setOperand(P::KeyBounds, operands.keyBounds, {View::Row});
  if (!operands.blockTable)
    return;
  setOperand(P::BlockTable, operands.blockTable, {View::Batch, View::Row});
  Value rows = size(operands.v, View::Row);
  argument(P::Pages) = i32(size(operands.v, View::Batch));
  argument(P::PageRows) = i32(rows);
  constexpr int64_t whole = int64_t(1) << 60;
  argument(P::PagePart) = i64(compute<arith::AddIOp>(
      compute<arith::DivUIOp>(index(whole - 1), rows), index(1)));
}

void LaunchBuilder::fillScores(const ScoreRules &scores, bool scaled) {
  using P = GpuParam;
  using View = OperandView;
  setTensor(P::Q1, operands.q1);
  setTensor(P::K1, operands.k1);
  setTensor(P::Q2, operands.q2);
  setTensor(P::K2, operands.k2);
  setTensor(P::V, operands.v);
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
  setOperand(P::KvLen, operands.mask(MaskOperand::KvLen), {View::Batch});
  setOperand(P::QOffset, operands.mask(MaskOperand::QOffset), {View::Batch});

  argument(P::Queries) = i32(size(operands.q1, View::Row));
  argument(P::Keys) = i32(keyCount());
  fillSequences();
  const View &signal = operands.q1, &noise = operands.q2;
  if (noise)
    argument(P::SignalPerNoise) = i32(sharing(signal, noise));
  argument(P::SignalPerKey1) = i32(sharing(signal, operands.k1));
  argument(P::SignalPerValue) = i32(sharing(signal, operands.v));
  if (noise)
    argument(P::NoisePerKey2) = i32(sharing(noise, operands.k2));
  int64_t left = scores.reach.left.value_or(-1),
          right = scores.reach.right.value_or(-1);
  auto near = [](int64_t limit) {
    return limit < 0 ? kGpuUnlimited : std::min(limit, kGpuUnlimited);
  };
  argument(P::LeftLimit) = i64(index(left));
  argument(P::RightLimit) = i64(index(right));
  argument(P::WindowLeft) = i32(near(left));
  argument(P::WindowRight) = i32(near(right));

  double scale = scores.scale, cap = scores.softcap.value_or(0.0f);
  double factor = scores.softcap ? 2.0 * llvm::numbers::log2e * scale / cap
                  : scaled       ? scale
                                 : scale * llvm::numbers::log2e;
  // A cap near 0 makes the factor infinite, and 0 * inf NaN: the largest number
  // takes every score but 0 to the cap as well.
  argument(P::ScoreScale) = f32(factor);
  // 8 units of log2, in the unit of the scores whose maximum is taken; finite,
  // so that a first maximum of minus infinity stays that.
  argument(P::RescaleMargin) =
      f32(scaled ? 8.0 / llvm::numbers::log2e : 8.0 / factor);
  argument(P::ExponentScale) = f32(scaled ? llvm::numbers::log2e : factor);
  argument(P::StateScale) = f32(scaled ? 1.0 : scale);
  argument(P::Softcap) = f32(cap);
}

void LaunchBuilder::fillEpilogue(const EpilogueRules &epilogue,
                                 Value signalHeads, Value signalPerNoise) {
  using P = GpuParam;
  using View = OperandView;
  setTensor(P::O, operands.output);
  setTensor(P::Gate, operands.gate);
  setTensor(P::X, operands.x);
  setTensor(P::O2, operands.o2);
  if (operands.lambda)
    setOperand(P::Lambda, operands.lambda,
               {View::Batch, View::Row, View::Head});
  if (operands.normWeight)
    setOperand(P::NormWeight, operands.normWeight, {View::Column});
  const P sinks[] = {P::Sink1, P::Sink2}, lses[] = {P::Lse1, P::Lse2};
  for (unsigned map = 0; map < 2; ++map) {
    if (operands.sinks[map])
      setOperand(sinks[map], operands.sinks[map], {View::Head});
    if (operands.lses[map])
      setOperand(lses[map], operands.lses[map],
                 {View::Batch, View::Head, View::Row});
  }
  if (signalPerNoise)
    argument(P::SignalPerNoise) = i32(signalPerNoise);
  // A lambda without heads is the same for all of them.
  if (operands.lambda)
    argument(P::SignalPerLambda) =
        operands.lambda.axes[View::Head] < 0
            ? i32(1)
            : i32(compute<arith::DivUIOp>(signalHeads,
                                          size(operands.lambda, View::Head)));
  argument(P::NormEps) = f32(epilogue.eps);
  argument(P::OutScale) = f32(epilogue.outScale);
}

void LaunchBuilder::fillFlags(std::optional<EpilogueRules> epilogue) {
  int64_t flags = 0;
  if (epilogue)
    flags = (epilogue->rmsNorm ? GpuFlagNorm : 0) |
            (epilogue->epsOutside ? GpuFlagEpsOutside : 0) |
            (epilogue->lambdaSigmoid ? GpuFlagLambdaSigmoid : 0);
  Value &argument = this->argument(GpuParam::Flags);
  argument = i32(flags);
  if (operands.mask(MaskOperand::Bias))
    argument = b.createOrFold<arith::SelectOp>(
        biasInPairs(), i32(flags | GpuFlagBiasPairs), i32(flags));
}

Value LaunchBuilder::canCopyChunks() {
  return canCopyChunks({&operands.q1, &operands.k1, &operands.q2, &operands.k2,
                        &operands.v, &operands.output, &operands.x,
                        &operands.o2, &operands.gate});
}

Value LaunchBuilder::canCopyChunks(ArrayRef<const OperandView *> views) {
  // The bits that must be 0 of everything that is added to an address, in
  // bytes.
  Value all = index(0);
  using View = OperandView;
  for (const View *view : views) {
    if (!*view)
      continue;
    Value bits = address(view->value);
    Value bytes = index(elementBytes(view->value));
    for (View::Role role : {View::Batch, View::Head, View::Row})
      bits = compute<arith::OrIOp>(
          bits, compute<arith::MulIOp>(stride(*view, role), bytes));
    bits = compute<arith::AndIOp>(bits, index(GpuTarget::kCopiedBytes - 1));
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

void LaunchBuilder::launch(const GpuKernelSpec &spec,
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

Value LaunchBuilder::allocateCounter() {
  auto type = MemRefType::get({4}, b.getI8Type());
  Value counter = gpu::AllocOp::create(b, type, Type(), ValueRange(),
                                       ValueRange(), ValueRange())
                      .getMemref();
  Value zero = arith::ConstantIntOp::create(b, 0, 8);
  gpu::MemsetOp::create(b, TypeRange(), ValueRange(), counter, zero);
  return counter;
}

Value LaunchBuilder::countSectionHeads(const GpuKernelSpec &spec, Value all) {
  // Columns of all heads of K1, K2 and V.
  auto columns = [&](const OperandView &view) {
    return compute<arith::MulIOp>(size(view, OperandView::Head),
                                  size(view, OperandView::Column));
  };
  Value row = compute<arith::AddIOp>(columns(operands.k1), columns(operands.v));
  if (spec.hasSecondKeys())
    row = compute<arith::AddIOp>(row, columns(operands.k2));
  Value bytes = compute<arith::MulIOp>(compute<arith::MulIOp>(row, keyCount()),
                                       index(elementBytes(operands.v.value)));
  Value ofGroup = compute<arith::MaxUIOp>(
      compute<arith::DivUIOp>(bytes, size(operands.v, OperandView::Head)),
      index(1));
  Value groups = compute<arith::MaxUIOp>(
      compute<arith::DivUIOp>(index(kGpuSectionBytes), ofGroup), index(1));
  return compute<arith::MinUIOp>(
      compute<arith::MulIOp>(groups, sharing(operands.q1, operands.v)), all);
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
