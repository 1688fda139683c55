//===- GpuSchedule.cpp - choice of GPU schedules --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/GpuSchedule.h"

#include "llvm/Support/MathExtras.h"

#include <array>
#include <limits>
#include <vector>

using namespace mlir;
using namespace mlir::diffattn;

static constexpr GpuPlacement kBoth = GpuPlacement::Both,
                              kPair = GpuPlacement::Pair,
                              kApart = GpuPlacement::Apart;

// Registers of each: plain, with a softcap, a bias, a mask, segments; by
// element, without a bias or mask and with one. Last: whether there is room for
// more.
static const GpuScheduleRow kTable[] = {
    {32, 64, kBoth, 4, 1, 32, 2, true, {168, 168, 216, 228, 210, 168, 206}},
    {64, 64, kBoth, 4, 1, 64, 2, true, {244, 241, 255, 0, 255, 0, 0}},
    {64, 64, kBoth, 4, 1, 32, 2, true, {200, 196, 228, 242, 232, 208, 234}},
    {64, 128, kBoth, 4, 1, 32, 2, true, {255, 255, 0, 0, 0, 0, 0}, false},
    {64, 128, kBoth, 4, 1, 32, 2, false, {246, 244, 254, 255, 255, 255, 0}},
    {128, 128, kBoth, 4, 1, 32, 2, false, {246, 244, 254, 254, 0, 0, 0}},
    {128, 128, kApart, 8, 2, 32, 2, false, {247, 247, 255, 0, 0, 0, 0}},
    {128, 128, kPair, 8, 1, 32, 2, false, {160, 161, 182, 170, 216, 177, 177}},
    {96, 192, kPair, 8, 1, 32, 2, true, {232, 232, 240, 242, 255, 255, 255}},
    {128, 256, kPair, 8, 1, 32, 2, true, {254, 254, 255, 255, 255, 0, 0}},
    {192, 128, kPair, 8, 1, 32, 2, false, {160, 162, 182, 170, 238, 179, 253}},
};

// Rows for one map. A row has room for more where copies by element leave a
// register.
static const GpuScheduleRow kOneMapTable[] = {
    {32, 32, kBoth, 4, 2, 64, 2, true, {167, 168, 244, 254, 207, 168, 255}},
    {64, 64, kBoth, 4, 2, 64, 2, true, {232, 251, 255, 0, 255, 255, 0}},
    {64, 64, kBoth, 4, 2, 32, 2, true, {190, 191, 228, 246, 229, 195, 255}},
    {128, 128, kBoth, 4, 2, 32, 2, false, {246, 246, 255, 255, 255, 255, 0}},
    {128, 128, kBoth, 4, 1, 64, 2, false, {164, 164, 168, 168, 197, 168, 168}},
    {192, 128, kBoth, 4, 2, 32, 2, false, {245, 245, 255, 255, 255, 255, 0}},
    {192, 128, kBoth, 4, 1, 32, 2, false, {128, 128, 161, 168, 168, 168, 168}},
    {256, 256, kBoth, 4, 1, 32, 2, false, {239, 239, 241, 243, 255, 255, 255}},
};

ArrayRef<GpuScheduleRow> mlir::diffattn::getGpuScheduleTable() {
  static const std::vector<GpuScheduleRow> all = [] {
    std::vector<GpuScheduleRow> rows(std::begin(kTable), std::end(kTable));
    for (GpuScheduleRow row : kOneMapTable) {
      row.maps = 1;
      row.hasRoom = row.registers.elements < GpuTarget::kRegistersPerThread;
      rows.push_back(row);
    }
    return rows;
  }();
  return all;
}

static constexpr GpuSplitRow kSplitTable[] = {
    {16385, 2048},
    {2049, 512},
    {0, 128},
};

ArrayRef<GpuSplitRow> mlir::diffattn::getGpuSplitTable() { return kSplitTable; }

/// The most warps of a block of decode for `shape`. Where tensor maps bring
/// tiles, a block has one warp more, and two blocks of 4 and 1 leave a thread
/// 168 registers: too few for the sums of wide values beside a bias or a mask.
/// Those of 2 and 1 have room for it, and twice as many stages.
static int64_t getMaxDecodeWarps(const GpuAttentionShape &shape,
                                 const GpuTarget &target) {
  return target.hasWgmma && shape.maps == 2 && shape.valueDim > 192 &&
                 (shape.bias || shape.mask)
             ? 2
             : 4;
}

/// The schedules of `kernel` for each number of keys of a block, for calls with
/// at most `maxQueries` where that is not 0.
static SmallVector<Attribute> selectSplits(GpuSplitKVAttr kernel, int64_t keys,
                                           int64_t maxQueries) {
  SmallVector<Attribute> schedules;
  const bool isKnown = !ShapedType::isDynamic(keys);
  for (const GpuSplitRow &row : kSplitTable) {
    if (isKnown && keys < row.minKeys)
      continue;
    Attribute schedule = GpuSplitKVAttr::get(
        kernel.getContext(), kernel.getWarps(), kernel.getStages(),
        kernel.getQInRegisters(), kernel.getBulkCopies(), row.splitKeys);
    const int64_t minKeys = isKnown ? 0 : row.minKeys;
    if (maxQueries || minKeys || kernel.getBulkCopies())
      schedule =
          WhenAttr::get(kernel.getContext(), maxQueries, minKeys,
                        /*unaligned=*/false, kernel.getBulkCopies(), schedule);
    schedules.push_back(schedule);
    if (!minKeys)
      break;
  }
  return schedules;
}

int64_t mlir::diffattn::getGpuSharedBytes(const GpuScheduleRow &row,
                                          bool sharedKeys) {
  return GpuSharedLayout(row.getTiles(), row.headDim, row.valueDim, sharedKeys)
      .total;
}

int32_t mlir::diffattn::getGpuPlainBlocksPerSM(int64_t headDim,
                                               int64_t valueDim, bool segments,
                                               bool sequences) {
  // Each column of a lane takes about 8 registers more, half of them for sums
  // of all keys and of some. The products of widths that are not multiples of 4
  // take a second loop, segments another about the first, and sequences and
  // pages keep where they begin.
  constexpr std::array<int32_t, 8> whole{12, 12, 10, 9, 8, 7, 6, 4};
  constexpr std::array<int32_t, 8> split{10, 10, 9, 8, 7, 6, 5, 4};
  constexpr std::array<int32_t, 8> withSegments{8, 8, 7, 7, 6, 5, 5, 4};
  constexpr std::array<int32_t, 8> withSequences{6, 5, 5, 4, 4, 4, 4, 3};
  const auto &blocks = sequences     ? withSequences
                       : segments    ? withSegments
                       : headDim % 4 ? split
                                     : whole;
  return blocks[(valueDim - 1) / 32];
}

double mlir::diffattn::estimateGpuCycles(const GpuScheduleRow &row,
                                         const GpuTarget &target,
                                         const GpuAttentionShape &shape) {
  int64_t registers = row.getRegisters(shape);
  int64_t blocks =
      registers ? getGpuOccupancy(target, 32 * row.warps, registers,
                                  getGpuSharedBytes(row, shape.sharedKeys))
                : 0;
  if (!blocks)
    return std::numeric_limits<double>::infinity();
  double d = row.headDim, dv = row.valueDim, keys = row.keys,
         tiles = row.rowTiles;
  const bool isOne = shape.maps == 1;
  // The part of the work of two maps that this is.
  const double part = isOne ? 0.5 : 1.0;
  double tensor = (d + dv) / 4 * target.mmaCycles * part;
  // Bytes that the block copies of each 16 keys, for all of its rows.
  double copied = 16 * 2 * ((shape.sharedKeys || isOne ? d : 2 * d) + dv) /
                  (static_cast<double>(row.getTiles().getRows()) / 16);
  // Shared memory gives 128 bytes a cycle: K of both maps (once where one warp
  // has both and they are one), V once (twice where the maps are apart), data
  // that a pair exchanges, Q again for every tile, and the writes of copies.
  const bool isReadOnce = isOne || (shape.sharedKeys && row.placement == kBoth);
  double shared = (isReadOnce ? d / 4 : d / 2) / tiles +
                  (row.placement == kApart ? dv / 2 : dv / 4) / tiles +
                  copied / 128;
  if (row.placement == kPair)
    shared += 16 + 256 / keys;
  if (!row.qInRegisters)
    shared += 8 * d / keys * part;
  // A softcap takes an exponential and a reciprocal of each score.
  double exponentials = ((shape.softcap ? 96 : 32) + 128 / keys) * part;
  double floats = 56 * target.fp32Cycles * part;
  double l2 = copied / target.l2Bytes;
  double longest = std::max({tensor, shared, exponentials, floats, l2});
  // The shorter times are hidden only as far as other warps of a scheduler run
  // meanwhile, and best by those of another block, which no barrier keeps in
  // step. So it was on an H100, for (64,128) and (128,128).
  double warps = static_cast<double>(blocks * row.warps) / 4;
  double others = 0.3 * warps * static_cast<double>(blocks * blocks);
  return longest + (tensor + shared + exponentials + floats + l2 - longest) /
                       (1 + others);
}

ScheduleAttrInterface
mlir::diffattn::selectGpuKernel(MLIRContext *context,
                                const GpuAttentionShape &shape,
                                const GpuTarget &target, std::string &reason) {
  const int64_t widths[] = {shape.headDim, shape.valueDim};
  const bool areKnown = llvm::none_of(widths, ShapedType::isDynamic);
  if (!areKnown || shape.headDim > 256 || shape.valueDim > 256) {
    auto name = [](int64_t width) {
      return ShapedType::isDynamic(width) ? "?" : std::to_string(width);
    };
    reason = "expected widths of heads up to 256" +
             std::string(areKnown ? "" : " that are known when compiling") +
             ", but got " + name(shape.headDim) + " and " +
             name(shape.valueDim);
    return {};
  }
  if (shape.elementType.isF32())
    return GpuPlainAttr::get(context, /*warps=*/4);
  // Few rows: their maps are in one tile of 16 rows, and only splitting keys
  // fills the GPU.
  if (shape.knowsHeads && !shape.savesRows &&
      !ShapedType::isDynamic(shape.queries) &&
      shape.queries * shape.group <= kGpuDecodeRows) {
    bool narrow = shape.valueDim <= 128;
    GpuTiles tiles;
    tiles.qInRegisters = narrow && shape.headDim <= 192;
    tiles.splitKeys = kSplitTable[std::size(kSplitTable) - 1].splitKeys;
    tiles.maps = shape.maps;
    for (tiles.warps = getMaxDecodeWarps(shape, target);; tiles.warps /= 2) {
      tiles.keys = GpuSplitKVAttr::kKeysOfWarp * tiles.warps;
      if (tiles.warps == 1)
        break;
      // Two blocks on an SM if two warps can do it, with room to spare for
      // another tile of queries; one warp alone only where nothing else fits.
      GpuSharedLayout layout(tiles, shape.headDim, shape.valueDim,
                             shape.sharedKeys);
      int64_t bytes = layout.queries.bytes + layout.pipeline.end();
      if (bytes <= target.sharedBytesPerSM / 2 ||
          (tiles.warps == 2 && bytes <= target.sharedBytesPerBlock))
        break;
    }
    return GpuSplitKVAttr::get(context, tiles.warps, tiles.stages,
                               tiles.qInRegisters, /*bulk_copies=*/false,
                               tiles.splitKeys);
  }
  const GpuScheduleRow *best = nullptr;
  double bestCycles = std::numeric_limits<double>::infinity();
  for (const GpuScheduleRow &row : getGpuScheduleTable()) {
    if (row.headDim != shape.headDim || row.valueDim != shape.valueDim ||
        row.maps != shape.maps)
      continue;
    double cycles = estimateGpuCycles(row, target, shape);
    if (cycles < bestCycles) {
      best = &row;
      bestCycles = cycles;
    }
  }
  if (best)
    return best->getSchedule(context);
  // The general schedule: all maps in a warp while the sums fit in registers,
  // else a pair of warps; few keys where the widths are large.
  int64_t d = llvm::alignTo(shape.headDim, 32),
          dv = llvm::alignTo(shape.valueDim, 32);
  GpuScheduleRow general{
      shape.headDim,    shape.valueDim, kPair, 8, 1, 16, 2, false, {},
      /*hasRoom=*/true, shape.maps};
  if (dv <= 64 || shape.maps == 1) {
    general.placement = kBoth;
    general.warps = 4;
  }
  if (d <= 128 && dv <= 128)
    general.keys = 32;
  // Fewer rows where the queries of both maps leave no room for the pipeline.
  while (general.warps > 2 && getGpuSharedBytes(general, shape.sharedKeys) >
                                  target.sharedBytesPerBlock)
    general.warps /= 2;
  return general.getSchedule(context);
}

std::optional<GpuSplitKVAttr> mlir::diffattn::selectGpuBulkCopies(
    GpuSplitKVAttr split, const GpuAttentionShape &shape,
    const GpuTarget &target, std::string &reason) {
  if (!target.hasWgmma) {
    reason = target.chip + " has no tensor maps";
    return std::nullopt;
  }
  if (shape.segments) {
    reason = "expected none for decode by tensor maps, but got segments";
    return std::nullopt;
  }
  if (shape.headDim % 8 || shape.valueDim % 8) {
    reason = "expected widths that are multiples of 8 for decode by tensor "
             "maps, but got " +
             std::to_string(shape.headDim) + " and " +
             std::to_string(shape.valueDim);
    return std::nullopt;
  }
  // As many stages as two blocks on an SM have room for, else two stages of
  // one. With the same warps and tiles as other copies, results are the same.
  for (int64_t stages = 4; stages >= 2; --stages) {
    auto bulk = GpuSplitKVAttr::get(
        split.getContext(), split.getWarps(), stages, split.getQInRegisters(),
        /*bulk_copies=*/true, split.getKvSplitSize());
    const int64_t bytes =
        GpuSharedLayout(GpuTiles::of(bulk, shape.maps), shape.headDim,
                        shape.valueDim, shape.sharedKeys)
            .total;
    if (kGpuDecodeBlocksPerSM * (bytes + GpuTarget::kReservedSharedBytes) <=
            target.sharedBytesPerSM ||
        (stages == 2 && bytes <= target.sharedBytesPerBlock))
      return bulk;
  }
  reason = "expected two stages to fit in shared memory for decode by tensor "
           "maps, but got more";
  return std::nullopt;
}

SmallVector<Attribute> mlir::diffattn::selectGpuSchedules(
    MLIRContext *context, const GpuAttentionShape &shape,
    const GpuTarget &target, std::string &reason) {
  ScheduleAttrInterface kernel =
      selectGpuKernel(context, shape, target, reason);
  if (!kernel)
    return {};
  auto selectDecode = [&](GpuSplitKVAttr split, int64_t maxQueries) {
    SmallVector<Attribute> schedules;
    std::string refusal;
    if (std::optional<GpuSplitKVAttr> bulk =
            selectGpuBulkCopies(split, shape, target, refusal))
      schedules = selectSplits(*bulk, shape.keys, maxQueries);
    llvm::append_range(schedules, selectSplits(split, shape.keys, maxQueries));
    return schedules;
  };
  if (auto split = dyn_cast<GpuSplitKVAttr>(kernel))
    return selectDecode(split, /*maxQueries=*/0);
  if (!isa<GpuForwardAttr>(kernel))
    return {kernel};
  SmallVector<Attribute> schedules;
  if (shape.knowsHeads && !shape.savesRows &&
      ShapedType::isDynamic(shape.queries)) {
    GpuAttentionShape few = shape;
    few.queries = few.group = 1;
    auto split =
        cast<GpuSplitKVAttr>(selectGpuKernel(context, few, target, reason));
    schedules = selectDecode(split, kGpuDecodeRows);
  }
  std::string refusal;
  llvm::append_range(schedules,
                     selectGpuWgmma(context, shape, target, refusal));
  GpuAttentionShape elements = shape;
  elements.elementwise = true;
  ScheduleAttrInterface byElement =
      selectGpuKernel(context, elements, target, reason);
  if (byElement != kernel)
    schedules.push_back(WhenAttr::get(context, /*max_queries=*/0,
                                      /*min_keys=*/0, /*unaligned=*/true,
                                      /*tensor_maps=*/false, byElement));
  schedules.push_back(kernel);
  return schedules;
}
