//===- KernelParams.cpp - parameters of attention kernels -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuKernel.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// The readers of KernelParams.def. They depend only on properties that are in
/// a kernel's name.
namespace reader {
bool attends(const GpuKernelSpec &spec) { return spec.attends(); }
bool merges(const GpuKernelSpec &spec) {
  return spec.kind == GpuKernelKind::Merge;
}
bool decodes(const GpuKernelSpec &spec) {
  return spec.kind == GpuKernelKind::Decode;
}
bool isOfGradients(const GpuKernelSpec &spec) { return spec.isOfGradients(); }
bool splitsKeys(const GpuKernelSpec &spec) {
  return decodes(spec) || merges(spec);
}
bool finishes(const GpuKernelSpec &spec) {
  return spec.kind == GpuKernelKind::Forward || merges(spec);
}
/// Rows of gradients, from the output back to X.
bool finishesGradients(const GpuKernelSpec &spec) {
  return spec.kind == GpuKernelKind::GradientRows;
}
bool sumsWeights(const GpuKernelSpec &spec) {
  return spec.kind == GpuKernelKind::WeightSums;
}
bool sumsLambda(const GpuKernelSpec &spec) {
  return spec.kind == GpuKernelKind::LambdaSums;
}
bool sumsLambdaOfQueries(const GpuKernelSpec &spec) {
  return sumsLambda(spec) && spec.sumsLambdaOfQueries;
}
bool endsRows(const GpuKernelSpec &spec) {
  return finishes(spec) || finishesGradients(spec);
}
bool hasSecondMap(const GpuKernelSpec &spec) { return spec.maps == 2; }
bool splitsSecondMap(const GpuKernelSpec &spec) {
  return splitsKeys(spec) && hasSecondMap(spec);
}
bool decodesSecondMap(const GpuKernelSpec &spec) {
  return decodes(spec) && hasSecondMap(spec);
}
bool subtracts(const GpuKernelSpec &spec) {
  return finishes(spec) && hasSecondMap(spec);
}
bool hasRowGradients(const GpuKernelSpec &spec) {
  return finishesGradients(spec) || isOfGradients(spec);
}
bool readsRowGradientsByMap(const GpuKernelSpec &spec) {
  return isOfGradients(spec) && spec.isWgmma();
}
bool hasRowGradientsByPointer(const GpuKernelSpec &spec) {
  return hasRowGradients(spec) && !readsRowGradientsByMap(spec);
}
bool readsLambda(const GpuKernelSpec &spec) {
  return subtracts(spec) || sumsLambda(spec) ||
         (hasRowGradients(spec) && hasSecondMap(spec));
}
bool readsLambdaOfQueries(const GpuKernelSpec &spec) {
  return readsLambda(spec) && (!sumsLambda(spec) || sumsLambdaOfQueries(spec));
}
bool hasNoiseHeads(const GpuKernelSpec &spec) {
  return hasSecondMap(spec) && !sumsWeights(spec) && !sumsLambda(spec);
}
bool hasQueries(const GpuKernelSpec &spec) {
  return attends(spec) || finishesGradients(spec) || sumsLambdaOfQueries(spec);
}
bool hasWeightParts(const GpuKernelSpec &spec) {
  return sumsWeights(spec) ||
         (finishesGradients(spec) && spec.weightGradientType);
}
bool hasLambdaParts(const GpuKernelSpec &spec) {
  return (sumsLambda(spec) && !sumsLambdaOfQueries(spec)) ||
         (finishesGradients(spec) && spec.sumsLambda);
}
bool hasSecondRowSum(const GpuKernelSpec &spec) {
  return sumsLambdaOfQueries(spec) ||
         (hasRowGradients(spec) && hasSecondMap(spec));
}
/// Innermost strides are 1 where 16 bytes are copied or stored at a time.
bool readsByElement(const GpuKernelSpec &spec) {
  return attends(spec) && (spec.elementwise || spec.isPlain());
}
bool storesByElement(const GpuKernelSpec &spec) {
  return merges(spec) || (finishes(spec) && readsByElement(spec));
}
bool hasSecondKeys(const GpuKernelSpec &spec) {
  return attends(spec) && hasSecondMap(spec) &&
         (spec.hasSecondKeys() || spec.isPlain());
}
/// A block of keys has one head of them all.
bool findsValueHeads(const GpuKernelSpec &spec) {
  return attends(spec) && spec.kind != GpuKernelKind::GradientKeys;
}
bool findsSecondKeyHeads(const GpuKernelSpec &spec) {
  return hasSecondKeys(spec) && findsValueHeads(spec);
}
bool storesByMap(const GpuKernelSpec &spec) {
  return finishes(spec) && spec.storesByMap();
}
bool readsQueriesByMap(const GpuKernelSpec &spec) {
  return attends(spec) && spec.isWgmma();
}
bool readsSecondQueriesByMap(const GpuKernelSpec &spec) {
  return readsQueriesByMap(spec) && hasSecondMap(spec);
}
bool readsQueriesByPointer(const GpuKernelSpec &spec) {
  return attends(spec) && !spec.isWgmma();
}
bool readsSecondQueriesByPointer(const GpuKernelSpec &spec) {
  return readsQueriesByPointer(spec) && hasSecondMap(spec);
}
bool readsByMap(const GpuKernelSpec &spec) {
  return attends(spec) && (spec.isWgmma() || spec.isBulk());
}
bool readsByPointer(const GpuKernelSpec &spec) {
  return attends(spec) && !readsByMap(spec);
}
bool readsSecondKeysByMap(const GpuKernelSpec &spec) {
  return hasSecondKeys(spec) && readsByMap(spec);
}
bool readsSecondKeysByPointer(const GpuKernelSpec &spec) {
  return hasSecondKeys(spec) && readsByPointer(spec);
}
bool readsSecondKeysByElement(const GpuKernelSpec &spec) {
  return hasSecondKeys(spec) && readsByElement(spec);
}
bool readsSecondQueriesByElement(const GpuKernelSpec &spec) {
  return readsByElement(spec) && hasSecondMap(spec);
}
template <MaskOperand operand>
bool loads(const GpuKernelSpec &spec) {
  return attends(spec) && spec.getMaskType(operand);
}
bool isPersistent(const GpuKernelSpec &spec) {
  return attends(spec) && spec.isPersistent();
}
/// Kernels of sums add up parts of all heads.
bool countsAllHeads(const GpuKernelSpec &spec) {
  return isPersistent(spec) || sumsWeights(spec) ||
         (sumsLambda(spec) && !sumsLambdaOfQueries(spec));
}
bool countsParts(const GpuKernelSpec &spec) {
  return hasWeightParts(spec) || hasLambdaParts(spec);
}
bool isPacked(const GpuKernelSpec &spec) {
  return attends(spec) && spec.isPacked();
}
bool hasPackedKeys(const GpuKernelSpec &spec) {
  return attends(spec) && spec.keyBoundType;
}
bool readsPages(const GpuKernelSpec &spec) {
  return attends(spec) && spec.isPaged();
}
bool readsPagesByMap(const GpuKernelSpec &spec) {
  return readsPages(spec) && readsByMap(spec);
}
bool hasSoftcap(const GpuKernelSpec &spec) {
  return attends(spec) && spec.softcap;
}
bool hasNormWeight(const GpuKernelSpec &spec) {
  return endsRows(spec) && spec.normWeightType;
}
bool hasGate(const GpuKernelSpec &spec) {
  return endsRows(spec) && spec.gateType;
}
template <unsigned map>
bool hasSink(const GpuKernelSpec &spec) {
  return finishes(spec) && spec.sinkTypes[map];
}
template <unsigned map>
bool hasLogSums(const GpuKernelSpec &spec) {
  if (isOfGradients(spec))
    return map < spec.maps;
  return endsRows(spec) && spec.storesLogSums[map];
}
bool readsGradientByElement(const GpuKernelSpec &spec) {
  return finishesGradients(spec) && spec.elementwise;
}
template <GpuGradient gradient>
bool storesGradient(const GpuKernelSpec &spec) {
  return static_cast<bool>(spec.getGradientType(gradient));
}
template <GpuGradient gradient>
bool storesGradientByElement(const GpuKernelSpec &spec) {
  return storesGradient<gradient>(spec) && spec.elementwise;
}
bool readsGateByElement(const GpuKernelSpec &spec) {
  return hasGate(spec) &&
         (storesByElement(spec) || readsGradientByElement(spec));
}
bool savesX(const GpuKernelSpec &spec) {
  return endsRows(spec) && spec.savedType;
}
bool storesXByElement(const GpuKernelSpec &spec) {
  return savesX(spec) &&
         (storesByElement(spec) || readsGradientByElement(spec));
}
bool hasO2(const GpuKernelSpec &spec) {
  return endsRows(spec) && spec.secondType;
}
bool hasO2ByElement(const GpuKernelSpec &spec) {
  return hasO2(spec) && (storesByElement(spec) || readsGradientByElement(spec));
}
bool storesGateGradient(const GpuKernelSpec &spec) {
  return finishesGradients(spec) && spec.gateGradientType;
}
bool storesGateGradientByElement(const GpuKernelSpec &spec) {
  return storesGateGradient(spec) && spec.elementwise;
}
/// Flags choose the norm and lambda's activation, and allow the bias to be
/// loaded in pairs.
bool readsFlags(const GpuKernelSpec &spec) {
  if (isOfGradients(spec))
    return hasSecondMap(spec);
  return endsRows(spec) || sumsLambda(spec) ||
         (loads<MaskOperand::Bias>(spec) && !readsByElement(spec));
}
/// Kernels of tiles keep an old maximum until it grows by the margin.
bool keepsMaximum(const GpuKernelSpec &spec) {
  return attends(spec) && !spec.isPlain() && !isOfGradients(spec);
}
} // namespace reader
} // namespace

static constexpr GpuParamRow kTable[] = {
#define GPU_PARAM(Name, text, Type, isReadBy)                                  \
  {text, GpuParamType::Type, reader::isReadBy},
#include "DiffAttn/Codegen/NVVM/KernelParams.def"
};
static_assert(std::size(kTable) == static_cast<size_t>(GpuParam::Count));

const GpuParamRow &mlir::diffattn::getGpuParam(GpuParam param) {
  return kTable[static_cast<unsigned>(param)];
}

Type mlir::diffattn::getGpuParamType(MLIRContext *context, GpuParam param) {
  switch (getGpuParam(param).type) {
  case GpuParamType::TensorMap:
    return LLVM::LLVMPointerType::get(context);
  case GpuParamType::Pointer:
    return LLVM::LLVMPointerType::get(context, 1);
  case GpuParamType::I64:
    return IntegerType::get(context, 64);
  case GpuParamType::I32:
    return IntegerType::get(context, 32);
  case GpuParamType::F32:
    return Float32Type::get(context);
  }
  llvm_unreachable("all types are listed");
}

GpuParam mlir::diffattn::getGpuStride(GpuParam tensor, unsigned axis) {
  return static_cast<GpuParam>(static_cast<unsigned>(tensor) + 1 + axis);
}

static constexpr GpuParam kGradients[] = {
    GpuParam::DQ1, GpuParam::DK1, GpuParam::DQ2, GpuParam::DK2, GpuParam::DV};
static_assert(std::size(kGradients) == kGpuGradients);

GpuParam mlir::diffattn::getGpuParam(GpuGradient gradient) {
  return kGradients[static_cast<size_t>(gradient)];
}

std::optional<GpuGradient> mlir::diffattn::findGpuGradient(GpuParam tensor) {
  for (auto [i, param] : llvm::enumerate(kGradients))
    if (param == tensor)
      return static_cast<GpuGradient>(i);
  return std::nullopt;
}

std::optional<GpuMaskParams>
mlir::diffattn::getGpuMaskParams(MaskOperand operand) {
  std::optional<GpuParam> pointer;
  switch (operand) {
#define MASK_POSITION(Name, text, axes)                                        \
  case MaskOperand::Name:                                                      \
    break;
#define MASK_ELEMENTS(Name, text, axes, mayBroadcast)                          \
  case MaskOperand::Name:                                                      \
    pointer = GpuParam::Name;                                                  \
    break;
#include "DiffAttn/IR/MaskOperands.def"
  }
  if (!pointer)
    return std::nullopt;
  GpuMaskParams params{*pointer, {}, {}, {}, {}};
  for (auto [axis, role] : llvm::enumerate(getAxisRoles(operand))) {
    GpuParam stride = getGpuStride(*pointer, axis);
    if (role.kind == AxisRole::Batch)
      params.batch = stride;
    else if (role.kind == AxisRole::Head)
      params.head = stride;
    else if (role.kind == AxisRole::Query)
      params.query = stride;
    else
      params.key = stride;
  }
  return params;
}

SmallVector<GpuParam> mlir::diffattn::getGpuParams(const GpuKernelSpec &spec) {
  SmallVector<GpuParam> params;
  for (unsigned i = 0; i < std::size(kTable); ++i)
    if (kTable[i].isReadBy(spec))
      params.push_back(static_cast<GpuParam>(i));
  // No parameter needs padding then, and ptxas, which keeps the order of their
  // loads, takes fewer registers than with each stride behind its pointer.
  llvm::sort(params, [](GpuParam a, GpuParam b) {
    return std::pair(getGpuParam(a).type, a) <
           std::pair(getGpuParam(b).type, b);
  });
  return params;
}
