//===- GpuSchedule.h - choice of GPU schedules ------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SCHEDULE_GPUSCHEDULE_H
#define DIFFATTN_SCHEDULE_GPUSCHEDULE_H

#include "DiffAttn/Schedule/GpuSharedLayout.h"
#include "DiffAttn/Target/GpuTarget.h"

namespace mlir::diffattn {

/// The decode kernel takes up to so many queries, times the heads that share
/// their keys.
constexpr int64_t kGpuDecodeRows = GpuSplitKVAttr::kMaxQueries;

/// Properties of an attention that the choice of its GPU kernel may depend on.
/// `queries` and `keys` may be `ShapedType::kDynamic`.
struct GpuAttentionShape {
  Type elementType;
  int64_t headDim, valueDim;
  /// 1: there is no second map, and no K2.
  int64_t maps = 2;
  int64_t queries = ShapedType::kDynamic, keys = ShapedType::kDynamic;
  /// Signal heads that share their heads of K1, K2 and V, or as many of them as
  /// one block of decode takes.
  int64_t group = 1;
  /// Whether numbers of heads are known, for which states of ranges of keys are
  /// allocated.
  bool knowsHeads = true;
  /// Features that take registers beside the tiles: a mask that adds a number
  /// to each score, one that is decided per element, one that can be decided
  /// for whole tiles, a softcap, copies by element.
  bool bias = false, mask = false, segments = false, softcap = false,
       elementwise = false;
  /// Whether something is kept across the loop over keys: a gate's rows, or
  /// sinks of two maps and destinations beside the output, which take as much;
  /// bounds of packed sequences; a table of pages.
  bool gate = false, packed = false, paged = false;
  /// X or O2 is a destination too, which not every kernel stores.
  bool savesRows = false;
  /// K2 is K1, and takes no memory of its own.
  bool sharedKeys = false;
  /// Whether all tiles of queries see the same number of keys: nothing hides
  /// any, and no sequence is packed.
  bool even = false;
};

/// The properties of `op` that the choice of its kernel may depend on.
GpuAttentionShape getGpuAttentionShape(DifferentialMapsOpInterface op);

/// Why no kernel computes `op`, whatever its schedule; empty if one does.
std::string getGpuUnsupportedReason(DifferentialMapsOpInterface op);
/// Why no kernels of GPUs compute the gradients of `op`; empty if some do.
std::string getGpuGradientReason(AttentionBackwardOp op);
/// The schedule of these kernels on `target`, with kernels by warpgroups where
/// `target` and `op` allow them; where `op` has gradients of products and they
/// do not, `reason` says why.
GpuBackwardAttr selectGpuBackward(AttentionBackwardOp op,
                                  const GpuTarget &target, std::string &reason);
/// Whether each gradient of keys and values, or else of queries, has a kernel
/// of its own, which makes the scores again: the sums of several do not fit in
/// registers. The widths of `op` are those of kernels. `elementwise`: of
/// kernels that copy by element.
bool areGradientsApart(AttentionBackwardOp op, bool ofKeys, bool elementwise);

/// Registers of a thread with each feature, 0 where the kernel spills: those of
/// ptxas 13.0 for bf16, the most of sm_80, sm_86 and sm_90. All but
/// `plain` hold with and without a softcap, `segments` with numbers of either
/// width, `elements` with copies by element, `biasedElements` so with a bias or
/// a mask. Segments with any of these are left to the general schedule, which
/// has registers for all.
struct GpuScheduleRegisters {
  int64_t plain, softcap, bias, mask, segments, elements, biasedElements;
  int64_t of(const GpuAttentionShape &shape) const {
    const bool isBiased = shape.bias || shape.mask;
    if (shape.segments)
      return isBiased || shape.elementwise ? 0 : segments;
    if (shape.elementwise)
      return isBiased ? biasedElements : elements;
    return shape.bias      ? bias
           : shape.mask    ? mask
           : shape.softcap ? softcap
                           : plain;
  }
};

/// A row of the table: a schedule for two widths and a number of maps, and its
/// cost in registers.
struct GpuScheduleRow {
  int64_t headDim, valueDim;
  GpuPlacement placement;
  int64_t warps, rowTiles, keys, stages;
  bool qInRegisters;
  GpuScheduleRegisters registers;
  /// Whether registers are left for a gate, and for packed sequences that are
  /// copied by element and have a softcap.
  bool hasRoom = true;
  int64_t maps = 2;

  int64_t getRegisters(const GpuAttentionShape &shape) const {
    const bool isFull =
        shape.gate || (shape.packed && shape.elementwise && shape.softcap);
    return isFull && !hasRoom ? 0 : registers.of(shape);
  }
  GpuTiles getTiles() const {
    GpuTiles tiles{placement, warps, rowTiles, keys, stages, qInRegisters};
    tiles.maps = maps;
    return tiles;
  }
  GpuForwardAttr getSchedule(MLIRContext *context) const {
    return GpuForwardAttr::get(context, placement, warps, rowTiles, keys,
                               stages, qInRegisters);
  }
};

/// The schedules to choose from, as tools/gpu-check found them.
ArrayRef<GpuScheduleRow> getGpuScheduleTable();

/// The cost model: cycles of an SM for 16 queries x 16 keys of all maps of
/// `shape`, with as many blocks on it as fit. Infinite if none fits, or if the
/// kernel spills.
double estimateGpuCycles(const GpuScheduleRow &row, const GpuTarget &target,
                         const GpuAttentionShape &shape);

/// Shared memory of a block.
int64_t getGpuSharedBytes(const GpuScheduleRow &row, bool sharedKeys);

/// Chunks of 16 bytes that a thread copies by element at once. Loads of more of
/// them, all under way, take more registers than there are.
constexpr int64_t kGpuElementChunks = 8;

/// Blocks of a plain kernel that an SM is to hold. Without this, ptxas aims at
/// a number of its own and was seen to spill for it. `sequences`: packed ones,
/// or pages.
int32_t getGpuPlainBlocksPerSM(int64_t headDim, int64_t valueDim, bool segments,
                               bool sequences);

/// Blocks of decode by tensor maps, or of one map, that an SM is to hold, where
/// their shared memory fits. Without this, ptxas aims at more of them and was
/// seen to spill.
constexpr int32_t kGpuDecodeBlocksPerSM = 2;

/// Keys of a block of decode where the caches have room for at least `minKeys`:
/// enough blocks for a GPU where there are few keys, and few states to merge
/// where there are many. Nothing else decides, so a row's result is the same in
/// any batch.
struct GpuSplitRow {
  int64_t minKeys, splitKeys;
};
/// The table of ranges of keys: rows of more keys first; the last one takes any
/// number.
ArrayRef<GpuSplitRow> getGpuSplitTable();

/// The kernel for `shape` on `target`: from the table where it has the widths,
/// else the general one; the decode kernel for at most 8 rows of queries; the
/// plain one for f32. Nothing, and a reason, if there is none.
ScheduleAttrInterface selectGpuKernel(MLIRContext *context,
                                      const GpuAttentionShape &shape,
                                      const GpuTarget &target,
                                      std::string &reason);

/// A row of the table of kernels by warpgroups: up to these widths, for one map
/// or two, and of these for one K or two. None spills within the registers that
/// `setmaxnreg` gives.
struct GpuWgmmaRow {
  int64_t headDim, valueDim;
  bool sharedKeys;
  GpuPlacement placement;
  int64_t keys, stages;
  /// Blocks of a cluster, which copy tiles for each other.
  int64_t cluster = 1;
  /// Whether a warpgroup's exponentials run beside products of its own.
  bool overlap = false;
  /// Blocks that share out tiles of queries; 0: a block for each tile.
  int64_t persistentBlocks = 0;
  /// Whether they do where tiles are even too; else these get a block each.
  bool sharesEvenTiles = true;
  /// Whether the row is used only if the op names its schedule: another one is
  /// chosen for the same widths.
  bool byName = false;
  /// The row is for at least so many keys; a later row for the same widths is
  /// for fewer.
  int64_t minKeys = 0;
  int64_t maps = 2;
  /// Whether registers hold x and o2 too (GpuAttentionShape::savesRows). For an
  /// op that saves them, the rows that do are for any number of keys.
  bool savesRows = true;

  /// The schedule of this row; `even`: for tiles that all see the same number
  /// of keys.
  GpuWgmmaAttr getSchedule(MLIRContext *context, bool even = false) const {
    return GpuWgmmaAttr::get(context, placement, keys, stages, cluster, overlap,
                             even && !sharesEvenTiles ? 0 : persistentBlocks);
  }
};
/// The most bytes of the keys and values of a section of heads, through which
/// persistent blocks go in turn. They stay in the L2 meanwhile, of which an
/// H100 has 50 MB and more, beside queries and results.
constexpr int64_t kGpuSectionBytes = int64_t(32) << 20;
/// The first row that holds the widths of an op, and is not by name, is chosen
/// for as many keys as it is for, and for fewer the next one: those that cost
/// less come first.
ArrayRef<GpuWgmmaRow> getGpuWgmmaTable();

/// A row of the table of kernels of gradients by warpgroups: up to these
/// widths, for one map or two, and of these for one K or both. `queries` of a
/// tile and `keyStages` of the kernel of keys, `keys` and `queryStages` of that
/// of queries; 0: there is none. None spills.
struct GpuWgmmaGradientRow {
  int64_t headDim, valueDim;
  int64_t queries, keyStages, keys, queryStages;
  bool sharedKeys = false;
  int64_t maps = 2;
  /// Whether the row is for attention of `otherMaps` maps, whose widths are
  /// `head` and `value`, and which read one K or two.
  bool holds(int64_t otherMaps, int64_t head, int64_t value,
             bool readsOneKey) const {
    return maps == otherMaps && head <= headDim && value <= valueDim &&
           (readsOneKey || !sharedKeys);
  }
};
/// The first row that holds the widths of an op is chosen.
ArrayRef<GpuWgmmaGradientRow> getGpuWgmmaGradientTable();

/// Why no kernels by warpgroups make the gradients of `shape` on `target`,
/// whatever the widths; empty if some do.
std::string getGpuWgmmaGradientReason(const GpuAttentionShape &shape,
                                      const GpuTarget &target);

/// The kernels by warpgroups for `shape`, whatever the number of queries, in
/// the order in which they are tried. If there are none, `reason` has all
/// reasons.
SmallVector<WhenAttr> selectGpuWgmma(MLIRContext *context,
                                     const GpuAttentionShape &shape,
                                     const GpuTarget &target,
                                     std::string &reason);

/// Rows of a box of keys in pages, a multiple of the rows of swizzles and of
/// products.
constexpr int64_t kGpuMapBoxRows = 16;

/// Why no call of `op` has operands that tensor maps can describe; empty if one
/// may have. Layouts of tensors are not known.
std::string getTensorMapReason(AttentionOp op);

/// `split` with K and V brought by tensor maps. Nothing, and a reason, where
/// that is not done.
std::optional<GpuSplitKVAttr>
selectGpuBulkCopies(GpuSplitKVAttr split, const GpuAttentionShape &shape,
                    const GpuTarget &target, std::string &reason);

/// The schedules of an op, in the order in which they are tried: beside the
/// kernel for `shape` the decode kernel where the number of queries is not
/// known, once for each number of keys of a block, the one by warpgroups where
/// the chip and the operands allow it, and another cut where operands cannot be
/// copied by 16 bytes. None, and a reason, if no kernel takes the op.
SmallVector<Attribute> selectGpuSchedules(MLIRContext *context,
                                          const GpuAttentionShape &shape,
                                          const GpuTarget &target,
                                          std::string &reason);

} // namespace mlir::diffattn

#endif // DIFFATTN_SCHEDULE_GPUSCHEDULE_H
