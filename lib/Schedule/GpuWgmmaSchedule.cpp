//===- GpuWgmmaSchedule.cpp - how kernels by warpgroups are cut -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/GpuSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;

static constexpr GpuPlacement kBoth = GpuPlacement::Both,
                              kApart = GpuPlacement::Apart;

// Blocks that take tiles by a counter: one for each multiprocessor.
static constexpr int64_t kAll = GpuTarget::kHopperMultiprocessors;

// A thread has 240 registers, of persistent blocks and of clusters 232. `both`
// holds the sums of both maps, 2 dv / 2, and their scores, 2 keys / 2; `apart`
// half of these for the same widths.
static constexpr GpuWgmmaRow kTable[] = {
    {64, 64, false, kBoth, 96, 5, /*cluster=*/1, /*overlap=*/false, kAll},
    // On an H100 a block for each tile took 0.95 times as long with 16384 keys,
    // and 1.03 times as long under a causal mask with 4096.
    {64, 128, false, kBoth, 64, 6, /*cluster=*/1, /*overlap=*/false, kAll,
     /*sharesEvenTiles=*/false},
    {128, 128, true, kApart, 128, 3, /*cluster=*/1, /*overlap=*/false, kAll},
    {128, 128, false, kBoth, 64, 3, /*cluster=*/1, /*overlap=*/false, kAll},
    {96, 192, false, kApart, 96, 2, /*cluster=*/1, /*overlap=*/false, kAll},
    {192, 128, true, kApart, 128, 2, /*cluster=*/1, /*overlap=*/false, kAll},
    {192, 128, false, kBoth, 48, 2, /*cluster=*/1, /*overlap=*/false, kAll},
    {128, 256, false, kApart, 64, 3, /*cluster=*/1, /*overlap=*/true},
    // On an H100 with 16384 keys, each by itself, the one above took 0.93 times
    // as long as the first of these (in turns with kernels that draw less power
    // 1.05 to 1.07 times), and 0.80 times as long as the second; the last one
    // took 1.09 times as long as what is chosen for its widths.
    {128, 256, false, kApart, 80, 2, /*cluster=*/1, /*overlap=*/false, kAll,
     /*sharesEvenTiles=*/true, /*byName=*/true},
    {128, 256, false, kApart, 96, 2, /*cluster=*/2, /*overlap=*/false, 0,
     /*sharesEvenTiles=*/true, /*byName=*/true},
    {64, 128, false, kBoth, 48, 8, /*cluster=*/1, /*overlap=*/true, 0,
     /*sharesEvenTiles=*/true, /*byName=*/true},
};

ArrayRef<GpuWgmmaRow> mlir::diffattn::getGpuWgmmaTable() { return kTable; }

/// What of `shape` only other kernels do.
static std::string getOther(const GpuAttentionShape &shape) {
  if (shape.elementType.isF32())
    return "f32 operands";
  if (shape.bias)
    return "an additive bias";
  if (shape.mask)
    return "a mask in memory";
  if (shape.segments)
    return "segments";
  if (shape.softcap)
    return "a softcap";
  return "";
}

std::optional<GpuWgmmaAttr>
mlir::diffattn::selectGpuWgmma(MLIRContext *context,
                               const GpuAttentionShape &shape,
                               const GpuTarget &target, std::string &reason) {
  if (!target.hasWgmma) {
    reason = target.chip + " has no wgmma";
    return std::nullopt;
  }
  if (std::string other = getOther(shape); !other.empty()) {
    reason = "expected none for kernels by warpgroups, but got " + other;
    return std::nullopt;
  }
  auto widths = [&] {
    return std::to_string(shape.headDim) + " and " +
           std::to_string(shape.valueDim);
  };
  if (shape.headDim % 8 || shape.valueDim % 8) {
    reason = "expected widths that are multiples of 8 for kernels by "
             "warpgroups, but got " +
             widths();
    return std::nullopt;
  }
  for (const GpuWgmmaRow &row : kTable)
    if (!row.byName && shape.headDim <= row.headDim &&
        shape.valueDim <= row.valueDim && (shape.sharedKeys || !row.sharedKeys))
      return row.getSchedule(context, shape.even);
  reason =
      "expected widths of at most 128 and 256, or 192 and 128, for kernels "
      "by warpgroups, but got " +
      widths();
  return std::nullopt;
}
