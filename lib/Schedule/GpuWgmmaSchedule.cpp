//===- GpuWgmmaSchedule.cpp - choice of schedules by warpgroups -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/GpuSchedule.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

static constexpr GpuPlacement kBoth = GpuPlacement::Both,
                              kApart = GpuPlacement::Apart;

// Blocks that take tiles by a counter: one for each multiprocessor.
static constexpr int64_t kAll = GpuTarget::kHopperMultiprocessors;

/// A row whose kernel spills where it stores x and o2 as well.
static constexpr GpuWgmmaRow withoutSavedRows(GpuWgmmaRow row) {
  row.savesRows = false;
  return row;
}

/// A row of one map, of which each warpgroup has 64 rows of its own.
static constexpr GpuWgmmaRow withOneMap(GpuWgmmaRow row) {
  row.maps = 1;
  return row;
}

// A thread has 240 registers, of persistent blocks and of clusters 232. `both`
// holds the sums of both maps, 2 dv / 2, and their scores, 2 keys / 2; `apart`
// half of these for the same widths. What is beside the rows was measured on an
// H100 at its limit of power, as parts of the time of the row, with 16384 keys
// and (second) with 4096 under a causal mask.
static constexpr GpuWgmmaRow kTable[] = {
    // A block for each tile: 1.01, 1.06.
    {32, 64, false, kBoth, 96, 5, /*cluster=*/1, /*overlap=*/false, kAll},
    // Persistent blocks: 1.00, 1.04.
    {64, 64, false, kBoth, 96, 5},
    {64, 128, false, kApart, 192, 2, /*cluster=*/1, /*overlap=*/false, kAll,
     /*sharesEvenTiles=*/true, /*byName=*/false, /*minKeys=*/8192},
    // With 16384 keys 1.07, and 1.10 under a causal mask, of the row above,
    // which takes 1.03 of this one with 4096. A block for each tile:
    // 0.98, 1.03.
    withoutSavedRows({64, 128, false, kBoth, 64, 6, /*cluster=*/1,
                      /*overlap=*/false, kAll, /*sharesEvenTiles=*/false}),
    // With 128 keys and three stages: 1.09, 1.03.
    {128, 128, true, kApart, 192, 2, /*cluster=*/1, /*overlap=*/false, kAll},
    // Persistent blocks of these: 1.01 to 1.02, 1.02; 1.04, 1.10; 1.01, 1.02.
    {128, 128, false, kBoth, 64, 3},
    {96, 192, false, kApart, 96, 2},
    {192, 128, true, kApart, 128, 2},
    // Persistent blocks: 1.01 to 1.02, 1.03. Both maps with 48
    // keys: 1.08, 1.08.
    {192, 128, false, kApart, 80, 2},
    {128, 256, false, kApart, 64, 3, /*cluster=*/1, /*overlap=*/true},
    // 1.07, 1.05; in clusters 1.12 to 1.25 with 16384 keys.
    {128, 256, false, kApart, 80, 2, /*cluster=*/1, /*overlap=*/false, kAll,
     /*sharesEvenTiles=*/true, /*byName=*/true},
    {128, 256, false, kApart, 96, 2, /*cluster=*/2, /*overlap=*/false, 0,
     /*sharesEvenTiles=*/true, /*byName=*/true},
    // 1.18, 1.17 of what is chosen for its widths.
    withoutSavedRows({64, 128, false, kBoth, 48, 8, /*cluster=*/1,
                      /*overlap=*/true, 0, /*sharesEvenTiles=*/true,
                      /*byName=*/true}),
    // Not measured on a GPU.
    withOneMap({64, 64, false, kBoth, 128, 5}),
    withOneMap({128, 128, false, kBoth, 128, 3}),
    withOneMap({192, 128, false, kBoth, 128, 2}),
    withOneMap({256, 256, false, kBoth, 80, 2}),
};

ArrayRef<GpuWgmmaRow> mlir::diffattn::getGpuWgmmaTable() { return kTable; }

static constexpr GpuWgmmaGradientRow
gradientsOfOneMap(GpuWgmmaGradientRow row) {
  row.maps = 1;
  return row;
}

// Registers hold 128 sums of a thread beside two tiles of scores: those of two
// wide K and V are more. Kernels of queries keep numbers of their rows too, and
// spill with wide heads and tiles of 64 keys.
static constexpr GpuWgmmaGradientRow kGradientTable[] = {
    {64, 64, 64, 3, 64, 4},
    {64, 128, 64, 3, 64, 4},
    {128, 128, 64, 2, 48, 4, /*sharedKeys=*/true},
    {128, 128, 0, 0, 48, 3},
    gradientsOfOneMap({64, 64, 64, 4, 64, 4}),
    gradientsOfOneMap({128, 128, 64, 3, 64, 3}),
};

ArrayRef<GpuWgmmaGradientRow> mlir::diffattn::getGpuWgmmaGradientTable() {
  return kGradientTable;
}

static std::string getWidths(const GpuAttentionShape &shape) {
  return std::to_string(shape.headDim) + " and " +
         std::to_string(shape.valueDim);
}

/// The reasons against kernels by warpgroups for `shape` on `target`, but for
/// widths beyond those of the table.
static SmallVector<std::string> getReasons(const GpuAttentionShape &shape,
                                           const GpuTarget &target) {
  SmallVector<std::string> reasons;
  if (!target.hasWgmma)
    reasons.push_back("expected chip sm_90a, which has wgmma, but got " +
                      target.chip);
  if (shape.elementType.isF32())
    reasons.push_back(
        "expected " +
        std::string(shape.maps == 1 ? "q1, k1" : "q1, k1, q2, k2") +
        " and v of f16 or bf16, but got f32");
  if (shape.headDim % 8 || shape.valueDim % 8)
    reasons.push_back("expected widths that are multiples of 8, but got " +
                      getWidths(shape));
  if (shape.bias)
    reasons.push_back("expected no additive bias, but got one");
  if (shape.mask)
    reasons.push_back("expected no mask in memory, but got one");
  if (shape.segments)
    reasons.push_back("expected no segments, but got q_segments and "
                      "kv_segments");
  if (shape.softcap)
    reasons.push_back("expected no softcap, but got one");
  return reasons;
}

std::string
mlir::diffattn::getGpuWgmmaGradientReason(const GpuAttentionShape &shape,
                                          const GpuTarget &target) {
  SmallVector<std::string> reasons = getReasons(shape, target);
  if (shape.packed)
    reasons.push_back("expected no cu_seqlens_q, but got one");
  return llvm::join(reasons, "; ");
}

SmallVector<WhenAttr>
mlir::diffattn::selectGpuWgmma(MLIRContext *context,
                               const GpuAttentionShape &shape,
                               const GpuTarget &target, std::string &reason) {
  SmallVector<std::string> reasons = getReasons(shape, target);
  auto holds = [&](const GpuWgmmaRow &row) {
    return !row.byName && row.maps == shape.maps &&
           shape.headDim <= row.headDim && shape.valueDim <= row.valueDim &&
           (shape.sharedKeys || !row.sharedKeys) &&
           (row.savesRows || !shape.savesRows);
  };
  if (llvm::none_of(kTable, holds))
    reasons.push_back("expected widths of at most " +
                      std::string(shape.maps == 1 ? "256 and 256"
                                                  : "128 and 256, or 192 and "
                                                    "128") +
                      ", but got " + getWidths(shape));
  if (!reasons.empty()) {
    reason = llvm::join(reasons, "; ");
    return {};
  }
  const bool knowsKeys = !ShapedType::isDynamic(shape.keys);
  SmallVector<WhenAttr> schedules;
  for (const GpuWgmmaRow &row : kTable) {
    if (!holds(row))
      continue;
    // With packed sequences, `keys` is the sum of all, each of which may be
    // short.
    int64_t minKeys = shape.savesRows ? 0 : row.minKeys;
    if (minKeys && (shape.packed || (knowsKeys && shape.keys < minKeys)))
      continue;
    if (knowsKeys)
      minKeys = 0;
    schedules.push_back(WhenAttr::get(context, /*max_queries=*/0, minKeys,
                                      /*unaligned=*/false, /*tensor_maps=*/true,
                                      row.getSchedule(context, shape.even)));
    if (!minKeys)
      return schedules;
  }
  return schedules;
}
