//===- AttentionKernel.cpp - what all kernels are made of -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

static constexpr StringLiteral kSharedName = "diffattn_shared";

AttentionKernel::AttentionKernel(GpuBuilder &b, const GpuKernelSpec &spec)
    : b(b), spec(spec), layout(spec), element(spec.elementType) {
  thread = b.threadId();
  lane = b.remU(thread, 32);
  warp = b.divU(thread, 32);
  laneRow = b.divU(lane, 4);
  laneColumn = b.remU(lane, 4);
  if (layout.total)
    shared = LLVM::AddressOfOp::create(
        b, LLVM::LLVMPointerType::get(b.getContext(), 3), kSharedName);
}

Value AttentionKernel::stridePointer(Type type, Value pointer, Value index,
                                     Value stride) {
  return b.element(type, pointer, b.mul(index, stride));
}

Value AttentionKernel::headBase(GpuParam pointer, GpuParam firstStride,
                                Value batch, Value head) {
  Value batchStride = param(firstStride);
  Value headStride =
      param(static_cast<GpuParam>(static_cast<unsigned>(firstStride) + 1));
  Type type = element;
  if (pointer == GpuParam::Gate)
    type = spec.gateType;
  else if (pointer == GpuParam::O)
    type = spec.resultType;
  return stridePointer(
      type, stridePointer(type, param(pointer), b.toI64(batch), batchStride),
      b.toI64(head), headStride);
}

void AttentionKernel::readPositions(Value batch) {
  Value null =
      LLVM::ZeroOp::create(b, LLVM::LLVMPointerType::get(b.getContext(), 1));
  auto readOr = [&](GpuParam pointer, GpuParam stride, int64_t low, Value high,
                    Value otherwise) {
    Value given = b.compare(LLVM::ICmpPredicate::ne, param(pointer), null);
    return b.branch(
        given,
        [&]() -> GpuBuilder::Values {
          Type i64 = b.getI64Type();
          Value loaded =
              b.loadConstant(i64, stridePointer(i64, param(pointer),
                                                b.toI64(batch), param(stride)));
          return {b.toI32(b.minS(b.maxS(loaded, b.i64(low)), b.toI64(high)))};
        },
        otherwise)[0];
  };
  Value keys = param(GpuParam::Keys);
  keyLimit = readOr(GpuParam::KvLen, GpuParam::KvLenB, 0, keys, keys);
  // By default the last query sees the last key.
  position0 =
      readOr(GpuParam::QOffset, GpuParam::QOffsetB, -kGpuUnlimited,
             b.i32(kGpuUnlimited), b.sub(keyLimit, param(GpuParam::Queries)));
}

Value AttentionKernel::loadLambda(Value batch, Value row, Value head) {
  Type f32 = b.f32();
  Value lambdaHead = b.divU(head, param(GpuParam::SignalPerLambda));
  Value pointer = stridePointer(f32, param(GpuParam::Lambda), b.toI64(batch),
                                param(GpuParam::LambdaB));
  pointer = stridePointer(f32, pointer, b.toI64(row), param(GpuParam::LambdaT));
  pointer = stridePointer(f32, pointer, b.toI64(lambdaHead),
                          param(GpuParam::LambdaH));
  Value lambda = b.loadConstant(f32, pointer);
  Value isSigmoid =
      b.compare(LLVM::ICmpPredicate::ne,
                b.andI(param(GpuParam::Flags), GpuFlagLambdaSigmoid), b.i32(0));
  return b.select(isSigmoid, b.sigmoid(lambda), lambda);
}

LLVM::LLVMFuncOp mlir::diffattn::getOrEmitGpuKernel(gpu::GPUModuleOp module,
                                                    const GpuKernelSpec &spec) {
  std::string name = spec.getName();
  if (auto kernel = module.lookupSymbol<LLVM::LLVMFuncOp>(name))
    return kernel;
  MLIRContext *context = module.getContext();
  Location loc = module.getLoc();
  auto builder = OpBuilder::atBlockEnd(module.getBody());
  if (!module.lookupSymbol(kSharedName)) {
    // External, so that it takes whatever size the launch gives; aligned for
    // later bulk copies.
    auto type = LLVM::LLVMArrayType::get(IntegerType::get(context, 8), 0);
    LLVM::GlobalOp::create(builder, loc, type, /*isConstant=*/false,
                           LLVM::Linkage::External, kSharedName, Attribute(),
                           /*alignment=*/1024, /*addrSpace=*/3);
  }
  SmallVector<Type> types;
  for (unsigned i = 0; i < static_cast<unsigned>(GpuParam::Count); ++i)
    types.push_back(getGpuParamType(context, static_cast<GpuParam>(i)));
  auto type =
      LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(context), types);
  auto kernel = LLVM::LLVMFuncOp::create(builder, loc, name, type);
  kernel->setAttr(gpu::GPUDialect::getKernelFuncAttrName(),
                  builder.getUnitAttr());
  kernel->setAttr(NVVM::NVVMDialect::getKernelFuncAttrName(),
                  builder.getUnitAttr());
  int32_t threads = spec.getThreads();
  kernel->setAttr(NVVM::NVVMDialect::getReqntidAttrName(),
                  builder.getDenseI32ArrayAttr({threads, 1, 1}));
  kernel->setAttr("diffattn.shared_bytes",
                  builder.getI64IntegerAttr(spec.getSharedBytes()));

  GpuBuilder b(loc, kernel);
  // Names for whoever prints the kernel to read it.
  for (auto [i, argument] : llvm::enumerate(kernel.getArguments()))
    argument.setLoc(NameLoc::get(
        builder.getStringAttr(getGpuParamName(static_cast<GpuParam>(i))), loc));
  AttentionKernel state(b, spec);
  if (spec.kind == GpuKernelKind::Merge)
    emitMergeKernel(state);
  else if (spec.kind == GpuKernelKind::Decode)
    emitDecodeKernel(state);
  else if (spec.schedule.getPlacement() == GpuPlacement::Plain)
    emitPlainKernel(state);
  else
    emitForwardKernel(state);
  b.finish();
  return kernel;
}
