//===- GpuKernel.h - kernels for one attention op ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_NVVM_GPUKERNEL_H
#define DIFFATTN_CODEGEN_NVVM_GPUKERNEL_H

#include "DiffAttn/Codegen/NVVM/KernelParams.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Schedule/GpuSharedLayout.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

namespace mlir::diffattn {

enum GpuFlag : unsigned {
  GpuFlagNorm = 1,
  GpuFlagEpsOutside = 2,
  GpuFlagLambdaSigmoid = 4,
  /// Neighbours along the keys of the bias lie side by side, and pairs that
  /// begin at an even key are aligned to their size.
  GpuFlagBiasPairs = 8
};

/// Kernels count queries and keys in i32: lengths are below kGpuMaxLength, and
/// no key is farther than kGpuUnlimited from a position near the keys.
constexpr int64_t kGpuMaxLength = int64_t(1) << 28;
constexpr int64_t kGpuUnlimited = 2 * kGpuMaxLength;

/// Kinds of kernels. GradientRows makes dX, D1 and D2 of rows of the output;
/// WeightSums and LambdaSums add up the parts that it leaves of the gradients
/// of the norm's weight and of lambda; GradientKeys makes the gradients of a
/// block of keys and values, GradientQueries those of a block of queries.
enum class GpuKernelKind {
  Forward,
  Decode,
  Merge,
  GradientRows,
  WeightSums,
  LambdaSums,
  GradientKeys,
  GradientQueries
};

/// Rows whose parts of shared gradients a warp of GradientRows adds up: part n
/// of a head has rows [n * kGpuRowsOfPart, (n + 1) * kGpuRowsOfPart).
constexpr int64_t kGpuRowsOfPart = 16;

/// The masks of a kernel for an op with `masks`. Limits on positions and the
/// number of keys are arguments of every kernel, where one that limits nothing
/// costs nothing, so one kernel serves all windows; other masks are code.
SmallVector<MaskAttrInterface>
getGpuKernelMasks(MLIRContext *context, ArrayRef<MaskAttrInterface> masks);

/// The specification of a kernel's code: all that is not here is an argument. A
/// merge kernel depends only on `valueDim`, `maps` and the epilogue's operands.
struct GpuKernelSpec {
  GpuKernelKind kind = GpuKernelKind::Forward;
  Type elementType;
  /// Element type of the result: `elementType`, or f32. Null for a decode
  /// kernel, which stores states instead.
  Type resultType;
  int64_t headDim = 0, valueDim = 0;
  /// #diffattn.gpu_forward, gpu_wgmma, gpu_split_kv, gpu_plain or gpu_backward.
  ScheduleAttrInterface schedule;
  /// Read Q, K, V and write O element by element: any strides and alignment.
  /// Else 16 bytes are copied at a time, which wants widths, strides and
  /// pointers that are multiples of that.
  bool elementwise = false;
  /// 1: there is no second map: no Q2, K2, lambda and states of it.
  int64_t maps = 2;
  /// K2 is K1.
  bool sharedKeys = false;
  /// Whether a kernel of gradients makes products by warpgroups, of tiles that
  /// tensor maps describe.
  bool byWarpgroups = false;
  /// Masks that are code of the kernel, as from `getGpuKernelMasks`.
  SmallVector<MaskAttrInterface> masks;
  /// Element type of each operand whose elements masks load, indexed by
  /// `MaskOperand`; null if not loaded.
  std::array<Type, std::size(kMaskOperands)> maskTypes;
  Type getMaskType(MaskOperand operand) const {
    return maskTypes[static_cast<size_t>(operand)];
  }
  /// The element type of X, which is stored as it is before norm and gate; null
  /// if it is not stored.
  Type savedType;
  /// The element type of O2, map 2 times the values, before lambda; null if it
  /// is not stored.
  Type secondType;
  /// Null if there is none.
  Type normWeightType, gateType;
  /// Element types of the output's gradient, which is given, and of the
  /// gradients of gate and norm weight; null where these are not wanted.
  /// `resultType` is that of the sums of WeightSums.
  Type gradientType, gateGradientType, weightGradientType;
  /// The gradient of lambda: of all queries, or of each; of a kernel of rows
  /// the former makes parts, and the latter nothing.
  bool sumsLambda = false, sumsLambdaOfQueries = false;
  /// Element types of the gradients that the kernel stores: of the operand's
  /// type, or f32; null for others.
  std::array<Type, kGpuGradients> gradientTypes;
  Type getGradientType(GpuGradient gradient) const {
    return gradientTypes[static_cast<size_t>(gradient)];
  }
  /// Element types of the sinks of map 1 and map 2; null where there is none.
  std::array<Type, 2> sinkTypes;
  /// Whether logarithms of the sums of map 1 and of map 2 are stored.
  std::array<bool, 2> storesLogSums = {};
  /// Element types of cu_seqlens_q, cu_seqlens_k and block_table, i32 or i64;
  /// null if absent.
  Type queryBoundType, keyBoundType, pageType;
  /// Whether sequences follow one another, and whether keys lie in pages.
  bool isPacked() const { return static_cast<bool>(queryBoundType); }
  bool isPaged() const { return static_cast<bool>(pageType); }
  /// Whether sinks join the sums of rows, or their logarithms are stored.
  bool endsSums() const {
    return sinkTypes[0] || sinkTypes[1] || storesLogSums[0] || storesLogSums[1];
  }
  bool softcap = false;
  /// Scale scores before the maximum is taken: with a bias, a softcap or a
  /// scale that is not positive, or large.
  bool scaledScores() const {
    return scaleFirst || softcap ||
           llvm::any_of(masks, [](MaskAttrInterface mask) {
             return mask.hasScoreTerm();
           });
  }
  bool scaleFirst = false;

  /// Whether some mask is decided for whole tiles of keys.
  bool hasTileMasks() const {
    return llvm::any_of(
        masks, [](MaskAttrInterface mask) { return mask.hasTileRelation(); });
  }

  /// Products of gradients, from scores that are made again.
  bool isOfGradients() const {
    return kind == GpuKernelKind::GradientKeys ||
           kind == GpuKernelKind::GradientQueries;
  }
  /// Products of gradients of f32, by ordinary instructions.
  bool isPlainGradients() const {
    return isOfGradients() && elementType.isF32();
  }
  /// Whether it makes scores.
  bool attends() const {
    return kind == GpuKernelKind::Forward || kind == GpuKernelKind::Decode ||
           isOfGradients();
  }
  /// Products by ordinary instructions, which read operands where they lie.
  bool isPlain() const { return isa_and_nonnull<GpuPlainAttr>(schedule); }
  /// Products by warpgroups, of tiles that tensor maps describe.
  bool isWgmma() const {
    return byWarpgroups || isa_and_nonnull<GpuWgmmaAttr>(schedule);
  }
  /// Whether tiles of the result that lie within a sequence are stored by a
  /// tensor map.
  bool storesByMap() const;
  /// Decode whose tiles tensor maps describe.
  bool isBulk() const {
    auto split = dyn_cast_or_null<GpuSplitKVAttr>(schedule);
    return kind == GpuKernelKind::Decode && split && split.getBulkCopies();
  }
  /// The cut of any other kernel.
  GpuTiles getTiles() const;
  /// Whether tiles of K2 come beside those of K1.
  bool hasSecondKeys() const { return maps == 2 && !sharedKeys; }
  /// Rows of a fragment that a lane has numbers of: g and g + 8, or the first
  /// alone where the others would be those of a second map.
  int64_t getLaneRows() const {
    return kind == GpuKernelKind::Decode ? maps : 2;
  }
  /// A name made of all members: kernels of equal names are equal.
  std::string getName() const;
  /// Threads of a block, and those of them that compute.
  int64_t getThreads() const;
  int64_t getReadingThreads() const;
  /// Query rows of a block; of GradientKeys its keys.
  int64_t getRows() const;
  /// Blocks of neighbouring queries that have the same tiles, and their rows.
  int64_t getClusterBlocks() const;
  int64_t getClusterRows() const { return getClusterBlocks() * getRows(); }
  /// The most blocks of the grid, which share out tiles of queries by a
  /// counter; 0: a block for each tile.
  int64_t getPersistentBlocks() const;
  bool isPersistent() const { return getPersistentBlocks() != 0; }
  /// Whether a block, through tensor maps, takes rows of one tile or head after
  /// the other into the same place.
  bool refillsRows() const {
    return isPersistent() ||
           (byWarpgroups && kind == GpuKernelKind::GradientQueries);
  }
  /// Keys, of GradientKeys queries, and stages of the tiles that come into
  /// shared memory.
  int64_t getTileKeys() const;
  int64_t getStages() const;
  /// Dynamic shared memory of a block; nothing for plain kernels.
  GpuSharedLayout getSharedLayout() const;
  /// Widths of the tiles, padded for the matrix instructions.
  int64_t getPaddedHeadDim() const;
  int64_t getPaddedValueDim() const;
};

/// The kernel in `module`, made if it is not there yet. The module holds the
/// declaration of dynamic shared memory, `diffattn_shared`.
LLVM::LLVMFuncOp getOrEmitGpuKernel(gpu::GPUModuleOp module,
                                    const GpuKernelSpec &spec);

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_NVVM_GPUKERNEL_H
