//===- CpuSchedule.cpp - the kernels of a CPU -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/CpuSchedule.h"

#include "mlir/IR/BuiltinTypes.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

// With 32 registers 24 accumulators, 3 vectors of queries or 4 of values and
// one broadcast; with 16, 12 accumulators.
// Of tiles, four of sums, so that one does not wait for itself; and as many
// keys as leave the f32 scores of one map, 32 KB, in the first level of the
// cache.
// Cores with AMX have the values and weights of 64 keys, 44 KB, in their first
// level, and longer blocks wait for the second, as on Zen 4 they do not. The
// project's benchmarks have not timed it on one yet.
static constexpr CpuMicroKernel kMicroKernels[] = {
    {"bf16 tiles",
     "amx-bf16",
     32,
     CpuProduct::Bf16Tiles,
     {16, 4, 1},
     {64, 1, 1},
     128,
     64,
     128,
     64},
    {"bf16 pairs",
     "avx512bf16",
     32,
     CpuProduct::Bf16Pairs,
     {8, 3, 4},
     {6, 4, 2},
     256,
     48,
     192},
    {"f32 beside tiles",
     "amx-bf16",
     32,
     CpuProduct::F32,
     {8, 3, 4},
     {6, 4, 2},
     64,
     48,
     192},
    {"f32 in 32 registers",
     "",
     32,
     CpuProduct::F32,
     {8, 3, 4},
     {6, 4, 2},
     256,
     48,
     192},
    {"f32 in 16 registers",
     "",
     16,
     CpuProduct::F32,
     {4, 3, 4},
     {6, 2, 4},
     128,
     48,
     96,
     96},
};

ArrayRef<CpuMicroKernel> mlir::diffattn::getCpuMicroKernels() {
  return kMicroKernels;
}

/// Whether `product` computes attentions of `shape`. F32 widens any type.
/// Products of bf16 take Q and K as they lie in memory and scale the scores
/// afterwards, so the scale must keep their order.
static bool suits(CpuProduct product, const AttentionShape &shape) {
  switch (product) {
  case CpuProduct::F32:
    return true;
  case CpuProduct::Bf16Tiles:
  case CpuProduct::Bf16Pairs:
    return shape.elementType.isBF16() && shape.scale > 0.0f;
  }
  llvm_unreachable("all products are listed");
}

bool CpuMicroKernel::takes(const AttentionShape &shape,
                           const CpuTarget &target) const {
  const bool hasFeature = feature.starts_with("amx")
                              ? target.hasTiles(feature)
                              : feature.empty() || target.has(feature);
  return hasFeature && target.vectorRegisters >= registers &&
         suits(product, shape);
}

const CpuMicroKernel &
mlir::diffattn::selectCpuMicroKernel(const AttentionShape &shape,
                                     const CpuTarget &target) {
  return *llvm::find_if(kMicroKernels, [&](const CpuMicroKernel &row) {
    return row.takes(shape, target);
  });
}

SmallVector<Attribute>
mlir::diffattn::selectCpuSchedules(const AttentionShape &shape,
                                   const CpuTarget &target) {
  constexpr int64_t limit = kCpuSplitKVQueries;
  if (!ShapedType::isDynamic(shape.queries)) {
    if (shape.queries <= limit)
      return {selectCpuSplitKV(shape, target)};
    return {selectCpuPrefill(shape, target)};
  }
  if (!ShapedType::isDynamic(shape.keys) && shape.keys <= limit)
    return {selectCpuPrefill(shape, target)};
  return {WhenAttr::get(shape.elementType.getContext(), /*max_queries=*/limit,
                        /*min_keys=*/limit + 1, /*unaligned=*/false,
                        /*tensor_maps=*/false, selectCpuSplitKV(shape, target)),
          selectCpuPrefill(shape, target)};
}

std::string mlir::diffattn::getCallSizeBounds(int64_t queries, int64_t keys) {
  const std::string limit = std::to_string(kCpuSplitKVQueries),
                    above = std::to_string(kCpuSplitKVQueries + 1);
  if (queries > kCpuSplitKVQueries)
    return "min_queries = " + above;
  return "max_queries = " + limit + ", " +
         (keys > kCpuSplitKVQueries ? "min_keys = " + above
                                    : "max_keys = " + limit);
}
