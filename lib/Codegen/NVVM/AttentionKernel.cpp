//===- AttentionKernel.cpp - common parts of all kernels ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"
#include "DiffAttn/Codegen/NVVM/GpuKernelModule.h"
#include "DiffAttn/Codegen/NVVM/HopperBuilder.h"
#include "GpuMath.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

#include "llvm/Support/ErrorHandling.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

static constexpr StringLiteral kSharedName = "diffattn_shared";

AttentionKernel::AttentionKernel(GpuBuilder &b, const GpuKernelSpec &spec)
    : b(b), spec(spec), layout(spec.getSharedLayout()),
      element(spec.elementType) {
  for (auto [param, argument] :
       llvm::zip_equal(getGpuParams(spec), b.getKernel().getArguments()))
    arguments[static_cast<size_t>(param)] = argument;
  setThread(b.threadId());
  if (!layout.total)
    return;
  shared = LLVM::AddressOfOp::create(
      b, LLVM::LLVMPointerType::get(b.getContext(), 3), kSharedName);
  if (!spec.isWgmma() && spec.attends())
    loader = TileLoader::create(*this);
}

void AttentionKernel::setThread(Value number) {
  thread = number;
  lane = b.remU(thread, 32);
  warp = b.divU(thread, 32);
  laneRow = b.divU(lane, 4);
  laneColumn = b.remU(lane, 4);
}

Value AttentionKernel::param(GpuParam param) {
  Value argument = arguments[static_cast<size_t>(param)];
  if (!argument)
    llvm::report_fatal_error("kernel " + spec.getName() + " reads " +
                             getGpuParam(param).name +
                             ", which the table of parameters denies it");
  return argument;
}

Value AttentionKernel::stridePointer(Type type, Value pointer, Value index,
                                     Value stride) {
  return b.element(type, pointer, b.mul(index, stride));
}

Value AttentionKernel::headBase(GpuParam tensor, Value batch, Value head) {
  Value batchStride = param(getGpuStride(tensor, 0));
  Value headStride = param(getGpuStride(tensor, 1));
  Type type = element;
  if (tensor == GpuParam::Gate)
    type = spec.gateType;
  else if (tensor == GpuParam::O)
    type = spec.resultType;
  else if (tensor == GpuParam::X)
    type = spec.savedType;
  else if (std::optional<GpuGradient> gradient = findGpuGradient(tensor))
    type = spec.getGradientType(*gradient);
  else if (tensor == GpuParam::O2)
    type = spec.secondType;
  else if (tensor == GpuParam::DOut)
    type = spec.gradientType;
  else if (tensor == GpuParam::DGate)
    type = spec.gateGradientType;
  const bool isOfKeys =
      tensor == GpuParam::K1 || tensor == GpuParam::K2 || tensor == GpuParam::V;
  Value pointer = param(tensor);
  // The first page, where there are pages.
  if (!isOfKeys || !spec.isPaged())
    pointer = stridePointer(type, pointer, b.toI64(batch), batchStride);
  pointer = stridePointer(type, pointer, b.toI64(head), headStride);
  Value first = isOfKeys ? firstKey : firstQuery;
  return first && !spec.isOfGradients()
             ? stridePointer(type, pointer, b.toI64(first), rowStride(tensor))
             : pointer;
}

std::pair<Value, Value> AttentionKernel::findTiles(const QueryBlock &queries,
                                                   int64_t keys) {
  Value lastRow =
      b.minS(b.add(queries.clusterRow, spec.getClusterRows()), this->queries());
  VisibleRange visible = masks->getRange({queries.clusterRow}, {lastRow, -1});
  Value end = masks->emit(visible.end);
  Value begin = b.maxS(masks->emit(visible.begin), b.i32(0));
  if (masks->hasTiles()) {
    masks->beginBlock(queries.firstRow, spec.getRows());
    std::tie(begin, end) = masks->narrow(begin, end, spec.getThreads());
  }
  return {b.divU(begin, keys),
          b.divU(b.add(b.maxS(end, b.i32(0)), keys - 1), keys)};
}

Value AttentionKernel::isSeenInPart(Value row, int64_t rows, Value key,
                                    int64_t keys) {
  VisibleRange visible = masks->getRange({row}, {row, rows - 1});
  Value lastVisible = masks->emit(visible.wholeEnd, -1);
  Value firstVisible = masks->emit(visible.wholeBegin);
  return b.orI(
      b.compare(LLVM::ICmpPredicate::sgt, b.add(key, keys - 1), lastVisible),
      b.compare(LLVM::ICmpPredicate::slt, key, firstVisible));
}

Value AttentionKernel::getLog2Scale() {
  // States of ranges are in the op's unit.
  if (spec.kind == GpuKernelKind::Merge || spec.scaledScores())
    return b.f32(kLog2E);
  // Scores of plain kernels are multiplied by it before the maximum is taken.
  return spec.isPlain() ? b.f32(1.0) : param(GpuParam::ScoreScale);
}

Value AttentionKernel::locateLambda(Value batch, Value row, Value head) {
  Type f32 = b.f32();
  Value lambdaHead = b.divU(head, param(GpuParam::SignalPerLambda));
  Value pointer = stridePointer(f32, param(GpuParam::Lambda), b.toI64(batch),
                                param(GpuParam::LambdaB));
  pointer = stridePointer(f32, pointer, b.toI64(queryAt(row)),
                          param(GpuParam::LambdaT));
  return stridePointer(f32, pointer, b.toI64(lambdaHead),
                       param(GpuParam::LambdaH));
}

Value AttentionKernel::activateLambda(Value lambda) {
  Value isSigmoid = isSet(GpuFlagLambdaSigmoid);
  GpuMath math(b);
  return b.select(isSigmoid, emitSigmoid(math, lambda), lambda);
}

Value AttentionKernel::isSet(GpuFlag flag) {
  return b.compare(LLVM::ICmpPredicate::ne,
                   b.andI(param(GpuParam::Flags), flag), b.i32(0));
}

Value AttentionKernel::getInverseRms(Value squares) {
  Value eps = param(GpuParam::NormEps);
  Value mean = b.mulF(squares, b.f32(1.0 / static_cast<double>(spec.valueDim)));
  GpuMath math(b);
  Value inside = emitInverseRms(math, mean, eps, /*epsOutside=*/false);
  Value outside = emitInverseRms(math, mean, eps, /*epsOutside=*/true);
  return b.select(isSet(GpuFlagEpsOutside), outside, inside);
}

Value AttentionKernel::getRowFactor(Value squares) {
  GpuMath math(b);
  Value norm = emitUnlessZeros(math, getInverseRms(squares), squares);
  return b.select(isSet(GpuFlagNorm), norm, b.f32(1.0));
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
  const SmallVector<GpuParam> params = getGpuParams(spec);
  SmallVector<Type> types;
  for (GpuParam param : params)
    types.push_back(getGpuParamType(context, param));
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
  if (spec.isPlain())
    kernel->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(),
                    builder.getI32IntegerAttr(getGpuPlainBlocksPerSM(
                        spec.headDim, spec.valueDim, spec.hasTileMasks(),
                        spec.isPacked() || spec.isPaged())));
  const bool isDecodeOfOne =
      spec.kind == GpuKernelKind::Decode && spec.maps == 1;
  // Where shared memory of sm_90, the first with such copies, holds one block,
  // ptxas would still keep registers for two, and was seen to spill.
  std::string error;
  const bool isAlone =
      spec.isBulk() && 2 * spec.getSharedLayout().total >
                           getGpuTarget("sm_90", error)->sharedBytesPerSM;
  if (spec.isBulk() || isDecodeOfOne)
    kernel->setAttr(
        NVVM::NVVMDialect::getMinctasmAttrName(),
        builder.getI32IntegerAttr(isAlone ? 1 : kGpuDecodeBlocksPerSM));
  // ptxas aims at three blocks, and was seen to spill for it; at four of
  // kernels of keys that copy by element, at six and twelve of plain ones.
  const bool isNarrowQueries = spec.kind == GpuKernelKind::GradientQueries &&
                               spec.maps == 2 &&
                               spec.getPaddedHeadDim() == kGpuWidthMultiple;
  const bool isKeysByElement = spec.kind == GpuKernelKind::GradientKeys &&
                               spec.elementwise && !spec.isPlainGradients();
  if (isNarrowQueries || isKeysByElement || spec.isPlainGradients())
    kernel->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(),
                    builder.getI32IntegerAttr(2));
  // Without a bound on the registers ptxas ignores setmaxnreg (C7508).
  if (spec.isWgmma())
    kernel->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(),
                    builder.getI32IntegerAttr(1));
  if (int32_t blocks = spec.getClusterBlocks(); blocks > 1)
    kernel->setAttr(NVVM::NVVMDialect::getClusterDimAttrName(),
                    builder.getDenseI32ArrayAttr({blocks, 1, 1}));
  for (auto [i, param] : llvm::enumerate(params)) {
    if (getGpuParam(param).type != GpuParamType::TensorMap)
      continue;
    auto bytes = LLVM::LLVMArrayType::get(builder.getI8Type(), kTensorMapBytes);
    kernel.setArgAttr(i, LLVM::LLVMDialect::getByValAttrName(),
                      TypeAttr::get(bytes));
    kernel.setArgAttr(i, LLVM::LLVMDialect::getAlignAttrName(),
                      builder.getI64IntegerAttr(kTensorMapAlignment));
    // Without it the back end copies the map to local memory, where nothing
    // finds it.
    kernel.setArgAttr(i, NVVM::NVVMDialect::getGridConstantAttrName(),
                      builder.getUnitAttr());
  }
  kernel->setAttr("diffattn.shared_bytes",
                  builder.getI64IntegerAttr(spec.getSharedLayout().total));

  GpuBuilder b(loc, kernel);
  // Names for whoever prints the kernel to read it.
  for (auto [param, argument] : llvm::zip_equal(params, kernel.getArguments()))
    argument.setLoc(
        NameLoc::get(builder.getStringAttr(getGpuParam(param).name), loc));
  AttentionKernel state(b, spec);
  if (spec.kind == GpuKernelKind::Merge)
    emitMergeKernel(state);
  else if (spec.kind == GpuKernelKind::Decode)
    emitDecodeKernel(state);
  else if (spec.isPlainGradients())
    emitPlainGradientsKernel(state);
  else if (spec.kind == GpuKernelKind::GradientKeys)
    emitGradientKeysKernel(state);
  else if (spec.kind == GpuKernelKind::GradientQueries)
    emitGradientQueriesKernel(state);
  else if (!spec.attends())
    emitGradientRowsKernel(state);
  else if (spec.isPlain())
    emitPlainKernel(state);
  else if (spec.isWgmma())
    emitWgmmaKernel(state);
  else
    emitForwardKernel(state);
  if (hasDependentLaunch(module))
    HopperBuilder(b).startEarly();
  b.finish();
  return kernel;
}
