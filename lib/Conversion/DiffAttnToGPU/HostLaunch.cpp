//===- HostLaunch.cpp - launches of kernels -------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HostLaunch.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;

static constexpr double kLog2E = 1.44269504088896340736;

GpuAttentionShape mlir::diffattn::getGpuAttentionShape(AttentionOp op) {
  GpuAttentionShape shape;
  ShapedType q = op.getShaped(op.getQ1());
  shape.elementType = q.getElementType();
  shape.headDim = op.getHeadDim();
  shape.valueDim = op.getValueDim();
  shape.queries = q.getDimSize(AttentionOp::lengthAxis(op.getQLayout()));
  // Signal heads s of an aligned block of this size share all three heads of
  // keys and values.
  int64_t signal = op.getSignalHeads();
  shape.group =
      std::gcd(std::gcd(signal / op.getKey1Heads(), signal / op.getKey2Heads()),
               signal / op.getValueHeads());
  // Of a group that is too large for one tile of decode, blocks take parts.
  if (!ShapedType::isDynamic(shape.queries) && shape.queries <= 8) {
    int64_t part = shape.group;
    while (shape.group % part || part * shape.queries > 8)
      --part;
    shape.group = part;
  }
  shape.needsRegisters = op.getBias() || op.getSoftcap();
  shape.sharedKeys = op.getK1() == op.getK2();
  return shape;
}

GpuKernelSpec mlir::diffattn::getGpuKernelSpec(AttentionOp op,
                                               GpuScheduleAttr schedule,
                                               bool elementwise) {
  auto elementType = [&](Value value) {
    return value ? cast<ShapedType>(value.getType()).getElementType() : Type();
  };
  GpuKernelSpec spec;
  spec.kind =
      schedule.getSplitKeys() ? GpuKernelKind::Decode : GpuKernelKind::Forward;
  spec.elementType = elementType(op.getQ1());
  spec.headDim = op.getHeadDim();
  spec.valueDim = op.getValueDim();
  spec.schedule = schedule;
  spec.elementwise = elementwise;
  spec.sharedKeys = op.getK1() == op.getK2();
  spec.biasType = elementType(op.getBias());
  spec.normWeightType = elementType(op.getNormWeight());
  spec.gateType = elementType(op.getGate());
  spec.softcap = op.getSoftcap().has_value();
  // A maximum of products is a maximum of scores only if the scale is positive.
  spec.scaleFirst = !(op.getScale().convertToFloat() > 0.0f);
  return spec;
}

namespace {
class LaunchBuilder {
public:
  LaunchBuilder(RewriterBase &rewriter, AttentionOp op,
                GpuScheduleAttr schedule)
      : b(op.getLoc(), rewriter), op(op), schedule(schedule),
        arguments(static_cast<size_t>(GpuParam::Count)) {
    fillArguments();
  }
  void launch(gpu::GPUModuleOp module, const GpuKernelSpec &spec);
  void launchIn(Block *block, gpu::GPUModuleOp module,
                const GpuKernelSpec &spec) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(block);
    launch(module, spec);
  }
  /// Whether all copies and stores of 16 bytes are aligned and contiguous.
  Value canCopyChunks();
  scf::IfOp choose(Value condition) {
    return scf::IfOp::create(b, condition, /*withElseRegion=*/true);
  }

private:
  Value index(int64_t value) {
    return arith::ConstantIndexOp::create(b, value);
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
  Value f32(double value) {
    return arith::ConstantOp::create(
        b, b.getF32FloatAttr(static_cast<float>(value)));
  }
  Value size(Value memref, int64_t axis) {
    auto type = cast<MemRefType>(memref.getType());
    if (!type.isDynamicDim(axis))
      return index(type.getDimSize(axis));
    return memref::DimOp::create(b, memref, axis);
  }
  /// The offset, or with `axis` a stride, as a constant where the type tells
  /// it.
  Value stride(Value memref, int64_t axis);
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
  void setTensor(GpuParam pointer, GpuParam firstStride, Value memref,
                 Layout layout);
  void fillArguments();
  void fillBias();
  void fillNumbers();
  void launchKernel(gpu::GPUModuleOp module, const GpuKernelSpec &spec,
                    std::array<Value, 3> blocks);

  ImplicitLocOpBuilder b;
  AttentionOp op;
  GpuScheduleAttr schedule;
  SmallVector<Value> arguments;
  DenseMap<Value, memref::ExtractStridedMetadataOp> metadata;
  Value batches, queries, keys;
};
} // namespace

Value LaunchBuilder::stride(Value memref, int64_t axis) {
  auto type = cast<MemRefType>(memref.getType());
  auto [strides, offset] = type.getStridesAndOffset();
  if (!ShapedType::isDynamic(strides[axis]))
    return index(strides[axis]);
  auto &known = metadata[memref];
  if (!known)
    known = memref::ExtractStridedMetadataOp::create(b, memref);
  return known.getStrides()[axis];
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

Value LaunchBuilder::address(Value memref) {
  Type element = cast<MemRefType>(memref.getType()).getElementType();
  int64_t bytes = std::max<int64_t>(1, element.getIntOrFloatBitWidth() / 8);
  Value base = memref::ExtractAlignedPointerAsIndexOp::create(b, memref);
  return arith::AddIOp::create(
      b, base, arith::MulIOp::create(b, offset(memref), index(bytes)));
}

void LaunchBuilder::setPointer(GpuParam param, Value memref) {
  argument(param) = LLVM::IntToPtrOp::create(
      b, LLVM::LLVMPointerType::get(b.getContext(), 1), i64(address(memref)));
}

void LaunchBuilder::setTensor(GpuParam pointer, GpuParam firstStride,
                              Value memref, Layout layout) {
  setPointer(pointer, memref);
  const int64_t axes[] = {0, AttentionOp::headAxis(layout),
                          AttentionOp::lengthAxis(layout), 3};
  for (int64_t i = 0; i < 4; ++i)
    arguments[static_cast<size_t>(firstStride) + i] =
        i64(stride(memref, axes[i]));
}

void LaunchBuilder::fillArguments() {
  using P = GpuParam;
  Value null =
      LLVM::ZeroOp::create(b, LLVM::LLVMPointerType::get(b.getContext(), 1));
  Value zero64 = i64(index(0));
  for (size_t i = 0; i < arguments.size(); ++i) {
    Type type = getGpuParamType(b.getContext(), static_cast<P>(i));
    arguments[i] = isa<LLVM::LLVMPointerType>(type) ? null
                   : type.isInteger(64)             ? zero64
                                                    : Value();
  }
  setTensor(P::Q1, P::Q1B, op.getQ1(), op.getQLayout());
  setTensor(P::Q2, P::Q2B, op.getQ2(), op.getQLayout());
  setTensor(P::K1, P::K1B, op.getK1(), op.getKLayout());
  setTensor(P::K2, P::K2B, op.getK2(), op.getKLayout());
  setTensor(P::V, P::VB, op.getV(), op.getVLayout());
  setTensor(P::O, P::OB, op.getInit(), op.getOLayout());
  if (op.getGate())
    setTensor(P::Gate, P::GateB, op.getGate(), op.getOLayout());
  batches = size(op.getInit(), 0);
  queries = size(op.getInit(), AttentionOp::lengthAxis(op.getOLayout()));
  keys = size(op.getV(), AttentionOp::lengthAxis(op.getVLayout()));

  Value lambda = op.getLambda();
  setPointer(P::Lambda, lambda);
  int64_t rank = cast<ShapedType>(lambda.getType()).getRank();
  argument(P::SignalPerLambda) = i32(1);
  if (rank == 1) {
    argument(P::LambdaH) = i64(stride(lambda, 0));
  } else if (rank == 3) {
    argument(P::LambdaB) = i64(stride(lambda, 0));
    argument(P::LambdaT) = i64(stride(lambda, 1));
    argument(P::LambdaH) = i64(stride(lambda, 2));
    argument(P::SignalPerLambda) = i32(
        arith::DivUIOp::create(b, index(op.getSignalHeads()), size(lambda, 2)));
  }
  if (op.getBias())
    fillBias();
  if (Value weight = op.getNormWeight()) {
    setPointer(P::NormWeight, weight);
    argument(P::NormWeightW) = i64(stride(weight, 0));
  }
  if (Value length = op.getKvLen()) {
    setPointer(P::KvLen, length);
    argument(P::KvLenB) = i64(stride(length, 0));
  }
  if (Value position = op.getQOffset()) {
    setPointer(P::QOffset, position);
    argument(P::QOffsetB) = i64(stride(position, 0));
  }
  fillNumbers();
}

void LaunchBuilder::fillBias() {
  using P = GpuParam;
  Value bias = op.getBias();
  setPointer(P::Bias, bias);
  const P strides[] = {P::BiasB, P::BiasH, P::BiasQ};
  for (int64_t axis = 0; axis < 3; ++axis) {
    // An axis of size 1 is broadcast: its stride is 0.
    Value step = stride(bias, axis);
    Value single = arith::CmpIOp::create(b, arith::CmpIPredicate::eq,
                                         size(bias, axis), index(1));
    argument(strides[axis]) =
        i64(arith::SelectOp::create(b, single, index(0), step));
  }
  argument(P::BiasK) = i64(stride(bias, 3));
}

void LaunchBuilder::fillNumbers() {
  using P = GpuParam;
  argument(P::Queries) = i32(queries);
  argument(P::Keys) = i32(keys);
  int64_t signal = op.getSignalHeads(), noise = op.getNoiseHeads();
  argument(P::SignalPerNoise) = i32(signal / noise);
  argument(P::SignalPerKey1) = i32(signal / op.getKey1Heads());
  argument(P::SignalPerValue) = i32(signal / op.getValueHeads());
  argument(P::NoisePerKey2) = i32(noise / op.getKey2Heads());
  int64_t left = kGpuUnlimited, right = kGpuUnlimited;
  if (auto window = op.getWindow()) {
    if ((*window)[0] >= 0)
      left = std::min((*window)[0], kGpuUnlimited);
    if ((*window)[1] >= 0)
      right = std::min((*window)[1], kGpuUnlimited);
  }
  if (op.getIsCausal())
    right = 0;
  argument(P::WindowLeft) = i32(left);
  argument(P::WindowRight) = i32(right);
  int64_t flags =
      (op.getNorm() == Norm::RMS ? GpuFlagNorm : 0) |
      (op.getNormEpsMode() == EpsMode::Outside ? GpuFlagEpsOutside : 0) |
      (op.getLambdaAct() == Activation::Sigmoid ? GpuFlagLambdaSigmoid : 0);
  argument(P::Flags) = i32(flags);
  int64_t group = getGpuAttentionShape(op).group;
  argument(P::Group) = i32(group);
  argument(P::Splits) = i32(1);

  double scale = op.getScale().convertToFloat();
  double cap = op.getSoftcap() ? op.getSoftcap()->convertToFloat() : 0.0;
  bool scaled =
      getGpuKernelSpec(op, schedule, /*elementwise=*/false).scaledScores();
  double factor = op.getSoftcap() ? 2.0 * kLog2E * scale / cap
                  : scaled        ? scale
                                  : scale * kLog2E;
  argument(P::ScoreScale) = f32(factor);
  // 8 units of log2, in the unit of the scores whose maximum is taken.
  argument(P::RescaleMargin) = f32(scaled ? 8.0 / kLog2E : 8.0 / factor);
  argument(P::ExponentScale) = f32(scaled ? kLog2E : factor);
  argument(P::Softcap) = f32(cap);
  argument(P::NormEps) = f32(op.getNormEps().convertToFloat());
  argument(P::OutScale) = f32(op.getOutScale().convertToFloat());
}

Value LaunchBuilder::canCopyChunks() {
  // The bits that must be 0 of everything that is added to an address, in
  // bytes.
  auto misaligned = [&](Value memref, int64_t bytes) {
    Value bits = address(memref);
    for (int64_t axis = 0; axis < 3; ++axis)
      bits = arith::OrIOp::create(
          b, bits, arith::MulIOp::create(b, stride(memref, axis), index(2)));
    bits = arith::AndIOp::create(b, bits, index(bytes - 1));
    // An innermost stride other than 1 counts as a bit.
    Value apart = arith::SubIOp::create(b, stride(memref, 3), index(1));
    return arith::OrIOp::create(b, bits, apart).getResult();
  };
  Value all = misaligned(op.getInit(), 16);
  for (Value memref :
       {op.getQ1(), op.getK1(), op.getQ2(), op.getK2(), op.getV()})
    all = arith::OrIOp::create(b, all, misaligned(memref, 16));
  return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, all, index(0));
}

void LaunchBuilder::launchKernel(gpu::GPUModuleOp module,
                                 const GpuKernelSpec &spec,
                                 std::array<Value, 3> blocks) {
  LLVM::LLVMFuncOp kernel = getOrEmitGpuKernel(module, spec);
  auto symbol = SymbolRefAttr::get(module.getNameAttr(),
                                   {FlatSymbolRefAttr::get(kernel)});
  Value one = index(1);
  gpu::LaunchFuncOp::create(b, symbol,
                            gpu::KernelDim3{blocks[0], blocks[1], blocks[2]},
                            gpu::KernelDim3{index(spec.getThreads()), one, one},
                            i32(spec.getSharedBytes()), arguments);
}

void LaunchBuilder::launch(gpu::GPUModuleOp module, const GpuKernelSpec &spec) {
  if (spec.kind == GpuKernelKind::Forward) {
    launchKernel(module, spec,
                 {ceilDiv(queries, spec.getRows()), index(op.getSignalHeads()),
                  batches});
    return;
  }
  // Decode: a block for each block of keys, then the merge of their states in
  // order.
  int64_t group = getGpuAttentionShape(op).group;
  Value splits = ceilDiv(keys, spec.schedule.getSplitKeys());
  Value heads = index(op.getSignalHeads() / group);
  argument(GpuParam::Splits) = i32(splits);
  // Sums of 16 rows, with maximum and sum of each.
  Value states = arith::MulIOp::create(
      b, arith::MulIOp::create(b, batches, heads), splits);
  Value numbers = arith::MulIOp::create(
      b, states, index(16 * (spec.getPaddedValueDim() + 2)));
  auto type = MemRefType::get({ShapedType::kDynamic}, b.getF32Type());
  Value workspace = gpu::AllocOp::create(b, type, Type(), ValueRange(),
                                         ValueRange{numbers}, ValueRange())
                        .getMemref();
  setPointer(GpuParam::Workspace, workspace);
  launchKernel(module, spec, {splits, heads, batches});
  GpuKernelSpec merge = spec;
  merge.kind = GpuKernelKind::Merge;
  launchKernel(module, merge, {queries, index(op.getSignalHeads()), batches});
  gpu::DeallocOp::create(b, TypeRange(), ValueRange(), workspace);
}

void mlir::diffattn::replaceByLaunch(RewriterBase &rewriter, AttentionOp op,
                                     gpu::GPUModuleOp module,
                                     GpuScheduleAttr schedule,
                                     GpuScheduleAttr elementSchedule) {
  OpBuilder::InsertionGuard guard(rewriter);
  rewriter.setInsertionPoint(op);
  LaunchBuilder builder(rewriter, op, schedule);
  GpuKernelSpec chunks = getGpuKernelSpec(op, schedule, /*elementwise=*/false);
  GpuKernelSpec elements =
      getGpuKernelSpec(op, elementSchedule, /*elementwise=*/true);
  bool plain = schedule.getPlacement() == GpuPlacement::Plain;
  if (plain || chunks.headDim % 8 || chunks.valueDim % 8) {
    builder.launch(module, elements);
  } else {
    Value canCopy = builder.canCopyChunks();
    auto choice = builder.choose(canCopy);
    builder.launchIn(choice.thenBlock(), module, chunks);
    builder.launchIn(choice.elseBlock(), module, elements);
  }
  rewriter.eraseOp(op);
}
