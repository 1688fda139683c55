//===- KernelSpec.cpp - names, sizes and arguments of kernels -------------===//
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

static const StringRef kNames[] = {"q1",
                                   "k1",
                                   "q2",
                                   "k2",
                                   "v",
                                   "o",
                                   "lambda",
                                   "bias",
                                   "norm_weight",
                                   "gate",
                                   "kv_len",
                                   "q_offset",
                                   "workspace",
                                   "q1_b",
                                   "q1_h",
                                   "q1_t",
                                   "q1_w",
                                   "k1_b",
                                   "k1_h",
                                   "k1_t",
                                   "k1_w",
                                   "q2_b",
                                   "q2_h",
                                   "q2_t",
                                   "q2_w",
                                   "k2_b",
                                   "k2_h",
                                   "k2_t",
                                   "k2_w",
                                   "v_b",
                                   "v_h",
                                   "v_t",
                                   "v_w",
                                   "o_b",
                                   "o_h",
                                   "o_t",
                                   "o_w",
                                   "gate_b",
                                   "gate_h",
                                   "gate_t",
                                   "gate_w",
                                   "lambda_b",
                                   "lambda_t",
                                   "lambda_h",
                                   "bias_b",
                                   "bias_h",
                                   "bias_q",
                                   "bias_k",
                                   "norm_weight_w",
                                   "kv_len_b",
                                   "q_offset_b",
                                   "left_limit",
                                   "right_limit",
                                   "queries",
                                   "keys",
                                   "signal_per_noise",
                                   "signal_per_key1",
                                   "signal_per_value",
                                   "noise_per_key2",
                                   "signal_per_lambda",
                                   "window_left",
                                   "window_right",
                                   "flags",
                                   "group",
                                   "splits",
                                   "score_scale",
                                   "rescale_margin",
                                   "exponent_scale",
                                   "softcap",
                                   "norm_eps",
                                   "out_scale"};
static_assert(std::size(kNames) == static_cast<size_t>(GpuParam::Count));

StringRef mlir::diffattn::getGpuParamName(GpuParam param) {
  return kNames[static_cast<unsigned>(param)];
}

Type mlir::diffattn::getGpuParamType(MLIRContext *context, GpuParam param) {
  if (param <= GpuParam::Workspace)
    return LLVM::LLVMPointerType::get(context, 1);
  if (param <= GpuParam::RightLimit)
    return IntegerType::get(context, 64);
  if (param <= GpuParam::Splits)
    return IntegerType::get(context, 32);
  return Float32Type::get(context);
}

int64_t GpuKernelSpec::getPaddedHeadDim() const {
  return llvm::alignTo(headDim, 32);
}
int64_t GpuKernelSpec::getPaddedValueDim() const {
  return llvm::alignTo(valueDim, 32);
}

int64_t GpuKernelSpec::getThreads() const {
  return kind == GpuKernelKind::Merge ? 32 : 32 * schedule.getWarps();
}

int64_t GpuKernelSpec::getRows() const {
  if (kind != GpuKernelKind::Forward)
    return 8;
  int64_t warps = schedule.getWarps();
  if (schedule.getPlacement() == GpuPlacement::Plain)
    return warps;
  if (schedule.getPlacement() != GpuPlacement::Both)
    warps /= 2;
  return warps * 16 * schedule.getRowTiles();
}

int64_t GpuKernelSpec::getSharedBytes() const {
  return SharedLayout(*this).total;
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

SharedLayout::SharedLayout(const GpuKernelSpec &spec) {
  if (spec.kind == GpuKernelKind::Merge ||
      spec.schedule.getPlacement() == GpuPlacement::Plain)
    return;
  GpuScheduleAttr schedule = spec.schedule;
  int64_t rows = spec.kind == GpuKernelKind::Decode ? 16 : spec.getRows();
  headPitch = 2 * spec.getPaddedHeadDim();
  valuePitch = 2 * spec.getPaddedValueDim();
  queryBytes = rows * headPitch;
  keyBytes = schedule.getKeys() * headPitch;
  int64_t valueBytes = schedule.getKeys() * valuePitch;
  int64_t keyMaps = spec.sharedKeys ? 1 : 2;
  valueOffset = keyMaps * keyBytes;
  stageBytes = valueOffset + valueBytes;
  // The decode kernel's block of queries holds both maps.
  int64_t queries =
      spec.kind == GpuKernelKind::Decode ? queryBytes : 2 * queryBytes;
  if (!schedule.getQInRegisters() || spec.kind == GpuKernelKind::Decode)
    ringOffset = queries;
  int64_t end = ringOffset + schedule.getStages() * stageBytes;
  // Queries that go to registers pass through the ring before it is used.
  end = std::max(end, queries);
  if (schedule.getPlacement() == GpuPlacement::Pair) {
    exchangeOffset = end;
    // For each warp: fragments of P and a factor of each row for every lane.
    exchangeBytes = 32 * schedule.getRowTiles() * (schedule.getKeys() + 8);
    end += schedule.getWarps() * exchangeBytes;
  }
  // Accumulators of the second map pass through memory that the ring no longer
  // needs.
  if (schedule.getPlacement() == GpuPlacement::Apart)
    end = std::max(end, rows * spec.getPaddedValueDim() * 4);
  // Each warp leaves its state: 16 rows of sums, with maximum and sum.
  if (spec.kind == GpuKernelKind::Decode) {
    statePitch = spec.getPaddedValueDim() + 8;
    end =
        std::max(end, ringOffset + schedule.getWarps() * 64 * (statePitch + 2));
  }
  total = end;
}
