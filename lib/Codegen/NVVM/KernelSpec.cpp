//===- KernelSpec.cpp - names and sizes of kernels ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

/// Warps of a block that takes rows, or queries, of gradients.
static constexpr int64_t kRowWarps = 4;

/// Whether the mask is an argument of every kernel, and no code.
static bool isArgument(MaskAttrInterface mask) {
  return mask.isInterval() &&
         llvm::all_of(mask.getMaskOperands(), [](MaskOperand operand) {
           return operand == MaskOperand::KvLen ||
                  operand == MaskOperand::QOffset;
         });
}

SmallVector<MaskAttrInterface>
mlir::diffattn::getGpuKernelMasks(MLIRContext *context,
                                  ArrayRef<MaskAttrInterface> masks) {
  SmallVector<MaskAttrInterface> ofKernel{
      WindowMaskAttr::get(context, /*left=*/0, /*right=*/0),
      LengthMaskAttr::get(context)};
  llvm::copy_if(masks, std::back_inserter(ofKernel),
                [](MaskAttrInterface mask) { return !isArgument(mask); });
  return ofKernel;
}

int64_t GpuKernelSpec::getPaddedHeadDim() const {
  return llvm::alignTo(headDim, kGpuWidthMultiple);
}
int64_t GpuKernelSpec::getPaddedValueDim() const {
  return llvm::alignTo(valueDim, kGpuWidthMultiple);
}

GpuTiles GpuKernelSpec::getTiles() const {
  if (isOfGradients())
    return GpuTiles::ofGradients(cast<GpuBackwardAttr>(schedule),
                                 kind == GpuKernelKind::GradientKeys, maps,
                                 byWarpgroups);
  return GpuTiles::of(schedule, maps);
}

int64_t GpuKernelSpec::getThreads() const {
  if (kind == GpuKernelKind::Merge)
    return 32 * GpuSharedLayout::kMergeWarps;
  if (kind == GpuKernelKind::GradientRows || sumsLambdaOfQueries)
    return 32 * kRowWarps;
  if (!attends())
    return 32 * GpuSharedLayout::kSumWarps;
  if (auto plain = dyn_cast<GpuPlainAttr>(schedule))
    return 32 * plain.getWarps();
  if (isWgmma())
    return GpuWgmmaAttr::kThreads;
  return 32 * (getTiles().warps + (isBulk() ? 1 : 0));
}

int64_t GpuKernelSpec::getReadingThreads() const {
  if (isWgmma())
    return GpuWgmmaAttr::kThreads - GpuWgmmaAttr::kGroupThreads;
  return getThreads() - (isBulk() ? 32 : 0);
}

int64_t GpuKernelSpec::getRows() const {
  if (auto plain = dyn_cast<GpuPlainAttr>(schedule))
    return plain.getWarps();
  if (auto wgmma = dyn_cast<GpuWgmmaAttr>(schedule))
    return wgmma.getRows();
  if (isPlainGradients())
    return getTiles().warps;
  return getTiles().getRows();
}

int64_t GpuKernelSpec::getClusterBlocks() const {
  auto wgmma = dyn_cast_or_null<GpuWgmmaAttr>(schedule);
  return wgmma ? wgmma.getCluster() : 1;
}

int64_t GpuKernelSpec::getPersistentBlocks() const {
  auto wgmma = dyn_cast_or_null<GpuWgmmaAttr>(schedule);
  return wgmma ? wgmma.getPersistentBlocks() : 0;
}

int64_t GpuKernelSpec::getTileKeys() const {
  auto wgmma = dyn_cast<GpuWgmmaAttr>(schedule);
  return wgmma ? wgmma.getKvBlockSize() : getTiles().keys;
}
int64_t GpuKernelSpec::getStages() const {
  auto wgmma = dyn_cast<GpuWgmmaAttr>(schedule);
  return wgmma ? wgmma.getStages() : getTiles().stages;
}

GpuSharedLayout GpuKernelSpec::getSharedLayout() const {
  if (kind == GpuKernelKind::Merge)
    return GpuSharedLayout::ofMerge(valueDim, maps);
  if (kind == GpuKernelKind::WeightSums ||
      (kind == GpuKernelKind::LambdaSums && !sumsLambdaOfQueries))
    return GpuSharedLayout::ofSums();
  if (!attends())
    return {};
  if (isPlain() || isPlainGradients())
    return {};
  if (auto wgmma = dyn_cast<GpuWgmmaAttr>(schedule))
    return GpuSharedLayout(wgmma, headDim, valueDim, sharedKeys, maps);
  if (isOfGradients()) {
    const bool ofKeys = kind == GpuKernelKind::GradientKeys;
    return byWarpgroups
               ? GpuSharedLayout::ofWgmmaGradients(getTiles(), headDim,
                                                   valueDim, sharedKeys, ofKeys)
               : GpuSharedLayout::ofGradients(getTiles(), headDim, valueDim,
                                              sharedKeys, ofKeys);
  }
  return GpuSharedLayout(getTiles(), headDim, valueDim, sharedKeys);
}

bool GpuKernelSpec::storesByMap() const {
  return isWgmma() && resultType == elementType &&
         getSharedLayout().result.bytes != 0;
}

/// A mask with its parameters, in letters and digits.
static std::string getText(MaskAttrInterface mask) {
  std::string text;
  llvm::raw_string_ostream(text) << mask;
  StringRef kind = StringRef(text).split('.').second;
  std::string name;
  for (char c : kind)
    if (llvm::isAlnum(c))
      name += c;
  return name;
}

std::string GpuKernelSpec::getName() const {
  std::string name;
  llvm::raw_string_ostream os(name);
  auto type = [&](StringRef what, Type type) {
    if (type)
      os << "_" << what
         << (type.isInteger(1) ? std::string("mask") : typeName(type));
  };
  static const StringRef kKinds[] = {"forward", "decode",  "merge", "rows",
                                     "weights", "lambdas", "keys",  "queries"};
  os << "diffattn_" << kKinds[static_cast<unsigned>(kind)] << "_";
  // The decode kernel leaves the epilogue to the merge kernel, whose operands
  // are states of any kernel.
  const bool hasEpilogue = kind != GpuKernelKind::Decode && !isOfGradients();
  if (kind == GpuKernelKind::LambdaSums) {
    os << (sumsLambdaOfQueries ? "of_queries" : "of_all");
  } else if (kind == GpuKernelKind::WeightSums) {
    os << valueDim << "_" << typeName(resultType);
  } else if (kind == GpuKernelKind::GradientRows) {
    os << valueDim << "_" << typeName(elementType);
    if (maps == 1)
      os << "_onemap";
    type("dout", gradientType);
  } else if (kind == GpuKernelKind::Merge) {
    os << valueDim << "_" << typeName(resultType);
    if (maps == 1)
      os << "_onemap";
  } else {
    os << headDim << "x" << valueDim << "_" << typeName(elementType);
    if (hasEpilogue && resultType != elementType)
      os << "_to_" << typeName(resultType);
    if (auto plain = dyn_cast<GpuPlainAttr>(schedule)) {
      os << "_plain" << plain.getWarps();
    } else if (auto wgmma = dyn_cast<GpuWgmmaAttr>(schedule)) {
      os << "_wgmma_" << stringifyGpuPlacement(wgmma.getPlacement()) << "_k"
         << wgmma.getKvBlockSize() << "s" << wgmma.getStages();
      if (wgmma.getCluster() > 1)
        os << "c" << wgmma.getCluster();
      if (wgmma.getOverlap())
        os << "o";
      // How many blocks there are is the grid's alone.
      if (wgmma.getPersistentBlocks())
        os << "p";
    } else if (isPlainGradients()) {
      os << "_plain" << getTiles().warps;
    } else if (isOfGradients()) {
      const GpuTiles tiles = getTiles();
      os << (byWarpgroups ? "_wgmma" : "_w" + std::to_string(tiles.warps))
         << "_t" << tiles.keys << "s" << tiles.stages;
    } else {
      const GpuTiles tiles = getTiles();
      os << "_" << stringifyGpuPlacement(tiles.placement) << tiles.warps << "x"
         << tiles.rowTiles << "_k" << tiles.keys << "s" << tiles.stages;
      if (tiles.qInRegisters)
        os << "q";
      if (tiles.bulk)
        os << "_bulk";
    }
    if (sharedKeys)
      os << "_onekey";
    if (maps == 1)
      os << "_onemap";
    type("packed", queryBoundType);
    type("packedkeys", keyBoundType);
    type("pages", pageType);
    if (softcap)
      os << "_softcap";
    if (scaleFirst)
      os << "_scaled";
    // The type of a bias decides whether it is a mask or a term; other masks
    // have their kind and operands in the name.
    type("bias", getMaskType(MaskOperand::Bias));
    for (MaskAttrInterface mask : masks) {
      SmallVector<MaskOperand> operands = mask.getMaskOperands();
      if (isArgument(mask) || llvm::is_contained(operands, MaskOperand::Bias))
        continue;
      os << "_" << getText(mask);
      for (MaskOperand operand : operands)
        if (Type loaded = getMaskType(operand)) {
          os << typeName(loaded);
          break;
        }
    }
  }
  if (elementwise && kind != GpuKernelKind::Merge)
    os << "_anystride";
  static const StringRef kGradients[] = {"dq1", "dk1", "dq2", "dk2", "dv"};
  for (auto [gradient, gradientType] :
       llvm::zip_equal(kGradients, gradientTypes))
    type(gradient, gradientType);
  if (hasEpilogue) {
    type("weight", normWeightType);
    type("gate", gateType);
    type("x", savedType);
    type("o2", secondType);
    type("sink", sinkTypes[0]);
    type("sink2", sinkTypes[1]);
    for (auto [map, stores] : llvm::enumerate(storesLogSums))
      if (stores)
        os << "_lse" << map + 1;
    type("dgate", gateGradientType);
    if (weightGradientType)
      os << "_dweight";
    if (sumsLambda)
      os << "_dlambda";
  }
  return name;
}

std::string mlir::diffattn::gpucode::typeName(Type type) {
  std::string name;
  llvm::raw_string_ostream(name) << type;
  return name;
}
