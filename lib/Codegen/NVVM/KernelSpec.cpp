//===- KernelSpec.cpp - names and sizes of kernels ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

#include "llvm/Support/MathExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

int64_t GpuKernelSpec::getPaddedHeadDim() const {
  return llvm::alignTo(headDim, kGpuWidthMultiple);
}
int64_t GpuKernelSpec::getPaddedValueDim() const {
  return llvm::alignTo(valueDim, kGpuWidthMultiple);
}

int64_t GpuKernelSpec::getThreads() const {
  return kind == GpuKernelKind::Merge ? 32 : 32 * schedule.getWarps();
}

int64_t GpuKernelSpec::getRows() const {
  return GpuTiles::of(schedule).getRows();
}

GpuSharedLayout GpuKernelSpec::getSharedLayout() const {
  if (kind == GpuKernelKind::Merge)
    return {};
  return GpuSharedLayout(GpuTiles::of(schedule), headDim, valueDim, sharedKeys);
}

std::string GpuKernelSpec::getName() const {
  std::string name;
  llvm::raw_string_ostream os(name);
  auto type = [&](StringRef what, Type type) {
    if (type)
      os << "_" << what
         << (type.isInteger(1) ? std::string("mask") : typeName(type));
  };
  static const StringRef kKinds[] = {"forward", "decode", "merge"};
  os << "diffattn_" << kKinds[static_cast<unsigned>(kind)] << "_" << headDim
     << "x" << valueDim << "_" << typeName(elementType);
  // The decode kernel leaves the epilogue to the merge kernel.
  const bool hasEpilogue = kind != GpuKernelKind::Decode;
  if (hasEpilogue && resultType != elementType)
    os << "_to_" << typeName(resultType);
  if (kind == GpuKernelKind::Merge) {
    os << "_" << schedule.getSplitKeys();
  } else {
    os << "_" << stringifyGpuPlacement(schedule.getPlacement())
       << schedule.getWarps() << "x" << schedule.getRowTiles() << "_k"
       << schedule.getKeys() << "s" << schedule.getStages();
    if (schedule.getQInRegisters())
      os << "q";
    if (schedule.getSplitKeys())
      os << "_" << schedule.getSplitKeys();
    if (sharedKeys)
      os << "_onekey";
    if (softcap)
      os << "_softcap";
    if (scaleFirst)
      os << "_scaled";
    type("bias", biasType);
  }
  if (elementwise && kind != GpuKernelKind::Merge)
    os << "_anystride";
  if (hasEpilogue) {
    type("weight", normWeightType);
    type("gate", gateType);
  }
  return name;
}

std::string mlir::diffattn::gpucode::typeName(Type type) {
  return type.isF32() ? "f32" : type.isF16() ? "f16" : "bf16";
}
