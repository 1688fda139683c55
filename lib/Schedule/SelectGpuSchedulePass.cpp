//===- SelectGpuSchedulePass.cpp - the schedule of each GPU kernel --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/ScheduleCases.h"
#include "DiffAttn/Schedule/GpuSchedule.h"
#include "DiffAttn/Schedule/Passes.h"

#include "mlir/IR/Remarks.h"
#include "llvm/Support/Format.h"

#include <numeric>

namespace mlir::diffattn {
#define GEN_PASS_DEF_SELECTGPUSCHEDULEPASS
#include "DiffAttn/Schedule/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

/// Signal heads s of an aligned block of this size share all three heads of
/// keys and values: 1 where numbers of heads are 0 or not known.
static int64_t getGroup(DifferentialMapsOpInterface op) {
  int64_t signal = op.getSignalHeads(), group = 0;
  for (int64_t heads :
       {op.getKey1Heads(), op.getKey2Heads(), op.getValueHeads()}) {
    if (ShapedType::isDynamic(signal) || ShapedType::isDynamic(heads) || !heads)
      return 1;
    group = std::gcd(group, signal / heads);
  }
  return std::max<int64_t>(group, 1);
}

GpuAttentionShape
mlir::diffattn::getGpuAttentionShape(DifferentialMapsOpInterface op) {
  GpuAttentionShape shape;
  ShapedType q = op.getShaped(op.getQ1());
  shape.elementType = q.getElementType();
  shape.headDim = op.getHeadDim();
  shape.valueDim = op.getValueDim();
  shape.maps = op.hasSecondMap() ? 2 : 1;
  // How many queries each sequence has is not known.
  if (!op.isPacked())
    shape.queries = q.getDimSize(AttentionOp::lengthAxis(op.getQLayout()));
  // On states, ranges of keys are cut already.
  auto attention = dyn_cast<AttentionOp>(op.getOperation());
  shape.keys = attention ? attention.getKeyCount() : ShapedType::kDynamic;
  shape.group = getGroup(op);
  const int64_t heads[] = {op.getSignalHeads(), op.getNoiseHeads(),
                           op.getValueHeads()};
  shape.knowsHeads = llvm::none_of(heads, ShapedType::isDynamic);
  // A group that is too large for one tile of decode is cut into equal parts,
  // each taken by a block.
  if (!ShapedType::isDynamic(shape.queries) &&
      shape.queries <= kGpuDecodeRows) {
    int64_t part = std::min(
        shape.group, kGpuDecodeRows / std::max<int64_t>(shape.queries, 1));
    while (shape.group % part)
      --part;
    shape.group = part;
  }
  shape.even = !op.isPacked() && op.getMasks().empty();
  for (MaskAttrInterface mask : op.getMasks())
    if (mask.hasTileRelation())
      shape.segments = true;
    else if (!mask.isInterval())
      (mask.hasScoreTerm() ? shape.bias : shape.mask) = true;
  shape.softcap = op.getSoftcap().has_value();
  shape.sharedKeys = op.getK1() == op.getK2();
  shape.packed = op.isPacked();
  shape.paged = op.isPaged();
  auto end = dyn_cast<HeadEpilogueOpInterface>(op.getOperation());
  shape.savesRows = attention && !attention.getSavedRows().empty();
  // Sinks and logarithms of two maps, X and O2 take as many registers as a
  // gate: with other schedules kernels spill.
  const bool hasSums = attention && !attention.getSumOperand().empty();
  shape.gate = (end && end.getGate()) ||
               (shape.maps == 2 && (shape.savesRows || hasSums));
  return shape;
}

/// Widths of heads and of values: lanes of a warp share out the columns of a
/// row, and have them, or the sums of one gradient, in registers.
static constexpr int64_t kMaxGradientWidth = 256;

namespace {
/// Columns of a key and its value, and of a query, whose sums fit in registers:
/// few beside tiles of 32 rows, most beside tiles of 16. Kernels of more spill,
/// so that each gradient has one of its own.
struct GradientColumns {
  int64_t fewKeys, fewQueries, mostKeys, mostQueries;
};
/// Widths of heads and of values up to which several sums fit.
constexpr int64_t kMaxJointHead = 128, kMaxJointValue = 192;
constexpr GradientColumns kJointColumns{256, 128, 384, 256},
    // Two maps with a softcap, a bias, a mask or segments.
    kMaskedColumns{160, 32, 256, 128};
/// Columns of a key and its value up to which several sums fit where kernels
/// copy by element; of two maps those of queries do not.
constexpr int64_t kMostKeysByElement = 192;
/// Shared memory that a block of every chip may have.
constexpr int64_t kMaxGradientShared = 99 * 1024;
} // namespace

/// The kernels' tanh is 1 - 2 / (1 + e^2x), whose error near 0 does not shrink
/// with the result; times a cap beyond these it would be seen in the weights.
static constexpr float kMaxSoftcap = 1024.0f, kMaxPlainSoftcap = 64.0f;

std::string
mlir::diffattn::getGpuUnsupportedReason(DifferentialMapsOpInterface op) {
  if (auto attention = dyn_cast<AttentionOp>(op.getOperation())) {
    if (attention.getIntegral())
      return "no kernel computes integral attention";
  }
  bool plain = op.getShaped(op.getQ1()).getElementType().isF32();
  float maxCap = plain ? kMaxPlainSoftcap : kMaxSoftcap;
  if (!op.getSoftcap() || op.getSoftcap()->convertToFloat() <= maxCap)
    return "";
  std::string reason;
  llvm::raw_string_ostream(reason)
      << "expected a softcap of at most " << static_cast<int64_t>(maxCap)
      << " for " << (plain ? "f32" : "16-bit operands") << ", but got "
      << llvm::format("%g", op.getSoftcap()->convertToDouble());
  return reason;
}

/// Columns of sums that the kernels of gradients of `op` have in registers: of
/// K1, K2 and V, and of Q1 and Q2.
static std::pair<int64_t, int64_t>
countGradientColumns(DifferentialMapsOpInterface op) {
  const int64_t head = llvm::alignTo(op.getHeadDim(), kGpuWidthMultiple),
                value = llvm::alignTo(op.getValueDim(), kGpuWidthMultiple),
                maps = op.hasSecondMap() ? 2 : 1,
                keys = op.getK1() == op.getK2() ? 1 : maps;
  return {keys * head + value, maps * head};
}

/// Why no kernels compute the gradients of queries, keys and values.
static std::string getProductReason(DifferentialMapsOpInterface op) {
  if (ShapedType::isDynamic(op.getHeadDim()))
    return "expected a width of heads that is known when compiling, but got ?";
  if (const int64_t d = op.getHeadDim(); d > kMaxGradientWidth)
    return "expected a width of heads up to " +
           std::to_string(kMaxGradientWidth) + ", but got " + std::to_string(d);
  // A block has one head of all of them.
  const int64_t heads[] = {op.getKey1Heads(), op.getKey2Heads(),
                           op.getValueHeads()};
  if (llvm::any_of(heads, ShapedType::isDynamic) || heads[0] != heads[1] ||
      heads[0] != heads[2])
    return "expected as many heads of k1 as of k2 and v, but got others";
  return "";
}

std::string mlir::diffattn::getGpuGradientReason(AttentionBackwardOp op) {
  if (op.getDBias())
    return "expected no d_bias, but got one";
  // Operands that a forward kernel has saved; none is made again.
  std::pair<StringRef, Value> saved[] = {{"lse1", op.getLse1()},
                                         {"x", op.getX()},
                                         {"lse2", op.getLse2()},
                                         {"o2", op.getO2()}};
  for (auto [name, value] :
       ArrayRef(saved).take_front(op.hasSecondMap() ? 4 : 2))
    if (!value)
      return "expected " + name.str() + ", but got none";
  const int64_t width =
      cast<DifferentialMapsOpInterface>(op.getOperation()).getValueDim();
  if (ShapedType::isDynamic(width) || width > kMaxGradientWidth)
    return "expected a width of values up to " +
           std::to_string(kMaxGradientWidth) + ", but got " +
           (ShapedType::isDynamic(width) ? "?" : std::to_string(width));
  auto maps = cast<DifferentialMapsOpInterface>(op.getOperation());
  if (op.getDQ1() || op.getDK1() || op.getDQ2() || op.getDK2() || op.getDV())
    if (std::string reason = getProductReason(maps); !reason.empty())
      return reason;
  return getGpuUnsupportedReason(maps);
}

/// Whether registers hold tiles of 32 rows beside the sums of `op`, and whether
/// they hold all of its sums at once. The widths of `op` are known.
static std::pair<bool, bool> findFit(AttentionBackwardOp op, bool ofKeys) {
  auto maps = cast<DifferentialMapsOpInterface>(op.getOperation());
  const GpuAttentionShape shape = getGpuAttentionShape(maps);
  const auto [keys, queries] = countGradientColumns(maps);
  const bool isMasked =
      shape.softcap || shape.bias || shape.mask || shape.segments;
  const GradientColumns &fitting =
      isMasked && shape.maps == 2 ? kMaskedColumns : kJointColumns;
  const bool isWide =
      shape.headDim > kMaxJointHead || shape.valueDim > kMaxJointValue;
  return ofKeys ? std::pair(keys <= fitting.fewKeys,
                            !isWide && keys <= fitting.mostKeys)
                : std::pair(queries <= fitting.fewQueries,
                            !isWide && queries <= fitting.mostQueries);
}

bool mlir::diffattn::areGradientsApart(AttentionBackwardOp op, bool ofKeys,
                                       bool elementwise) {
  auto maps = cast<DifferentialMapsOpInterface>(op.getOperation());
  if (maps.getShaped(maps.getQ1()).getElementType().isF32())
    return false;
  if (!findFit(op, ofKeys).second)
    return true;
  return elementwise &&
         (ofKeys ? countGradientColumns(maps).first > kMostKeysByElement
                 : maps.hasSecondMap());
}

/// The row of the table of kernels by warpgroups for gradients of products of
/// `op`; without blocks where there is none, and `reason` then says why, but
/// for an op without such gradients.
static GpuWgmmaGradientRow selectWgmmaGradients(AttentionBackwardOp op,
                                                const GpuTarget &target,
                                                std::string &reason) {
  if (!op.getDQ1() && !op.getDK1() && !op.getDQ2() && !op.getDK2() &&
      !op.getDV())
    return {};
  const GpuAttentionShape shape = getGpuAttentionShape(
      cast<DifferentialMapsOpInterface>(op.getOperation()));
  reason = getGpuWgmmaGradientReason(shape, target);
  const GpuWgmmaGradientRow *row = llvm::find_if(
      getGpuWgmmaGradientTable(), [&](const GpuWgmmaGradientRow &row) {
        return row.holds(shape.maps, shape.headDim, shape.valueDim,
                         shape.sharedKeys);
      });
  if (row == getGpuWgmmaGradientTable().end()) {
    if (!reason.empty())
      reason += "; ";
    reason += "expected widths of at most 128 and 128, but got " +
              std::to_string(shape.headDim) + " and " +
              std::to_string(shape.valueDim);
  }
  return reason.empty() ? *row : GpuWgmmaGradientRow{};
}

GpuBackwardAttr mlir::diffattn::selectGpuBackward(AttentionBackwardOp op,
                                                  const GpuTarget &target,
                                                  std::string &reason) {
  const GpuWgmmaGradientRow byWarpgroups =
      selectWgmmaGradients(op, target, reason);
  auto maps = cast<DifferentialMapsOpInterface>(op.getOperation());
  const GpuAttentionShape shape = getGpuAttentionShape(maps);
  auto get = [&](int64_t warps, int64_t queries, int64_t keys) {
    return GpuBackwardAttr::get(op.getContext(), warps, queries, warps, keys,
                                /*stages=*/2, byWarpgroups.queries,
                                byWarpgroups.keyStages, byWarpgroups.keys,
                                byWarpgroups.queryStages);
  };
  // Tiles are of products of 16-bit types, of whose gradients there may be
  // none.
  if (ShapedType::isDynamic(shape.headDim) || shape.elementType.isF32())
    return get(/*warps=*/4, /*queries=*/32, /*keys=*/32);
  const int64_t queries = findFit(op, /*ofKeys=*/true).first ? 32 : 16,
                keys = findFit(op, /*ofKeys=*/false).first ? 32 : 16;
  for (int64_t warps = 4;; warps /= 2) {
    GpuBackwardAttr schedule = get(warps, queries, keys);
    auto getBytes = [&](bool ofKeys) {
      return GpuSharedLayout::ofGradients(
                 GpuTiles::ofGradients(schedule, ofKeys, shape.maps),
                 shape.headDim, shape.valueDim, shape.sharedKeys, ofKeys)
          .total;
    };
    if (warps == 1 ||
        std::max(getBytes(true), getBytes(false)) <= kMaxGradientShared)
      return schedule;
  }
}

static constexpr auto kGpuRemark =
    remark::RemarkOpts::name("SelectGpuSchedule").category("diffattn-gpu");
static constexpr auto kNoWgmmaRemark =
    remark::RemarkOpts::name("NoWgmma").category("diffattn-gpu");

namespace {
struct SelectGpuSchedulePass final
    : diffattn::impl::SelectGpuSchedulePassBase<SelectGpuSchedulePass> {
  using SelectGpuSchedulePassBase::SelectGpuSchedulePassBase;

  void runOnOperation() override {
    std::string error;
    std::optional<GpuTarget> target = getGpuTarget(chip, error);
    if (!target) {
      getOperation()->emitError() << error;
      return signalPassFailure();
    }
    WalkResult products = getOperation()->walk([](QuantizedGemmOp op) {
      op.emitOpError("expected a CPU as the target, but got a GPU, for which "
                     "no kernel multiplies with quantized weights");
      return WalkResult::interrupt();
    });
    if (products.wasInterrupted())
      return signalPassFailure();
    WalkResult attentions = getOperation()->walk([&](AttentionOp op) {
      if (takeEveryCall(getScheduleCases(op, ScheduleTarget::GPU)))
        emitChoiceRemark(op, op.getSchedulesAttr());
      else if (failed(select(op, *target)))
        return WalkResult::interrupt();
      return WalkResult::advance();
    });
    if (attentions.wasInterrupted())
      return signalPassFailure();
    WalkResult gradients = getOperation()->walk([&](AttentionBackwardOp op) {
      if (!findSchedule(op, ScheduleTarget::GPU) &&
          failed(selectGradients(op, *target)))
        return WalkResult::interrupt();
      return WalkResult::advance();
    });
    if (gradients.wasInterrupted())
      signalPassFailure();
  }

  /// Chooses the kernels of a gradient. If there are none, the op becomes
  /// loops, and its decomposition emits a remark as well. Fails, with an error,
  /// where these cannot be: of packed sequences.
  LogicalResult selectGradients(AttentionBackwardOp op,
                                const GpuTarget &target) {
    if (std::string reason = getGpuGradientReason(op); !reason.empty()) {
      if (op.isPacked())
        return emitNoKernelOfSequences(op, reason);
      remark::missed(op.getLoc(), kGpuRemark)
          << remark::reason("{0}", reason)
          << remark::metric("Summary",
                            "gradients of attention have no GPU kernels");
      return success();
    }
    std::string reason;
    Attribute schedule = selectGpuBackward(op, target, reason);
    if (!reason.empty() && runsOnWgmmaChip(target))
      remark::missed(op.getLoc(), kNoWgmmaRemark)
          << remark::reason("{0}", reason)
          << remark::metric("Summary",
                            "gradients of attention do not use wgmma");
    appendSchedules(op, schedule);
    remark::passed(op.getLoc(), kGpuRemark)
        << remark::metric("Schedules", op.getSchedulesAttr())
        << remark::metric("Summary", "gradients of attention are GPU kernels");
    return success();
  }

  /// A loop over sequences would be one of the host, which reads no bounds.
  static LogicalResult emitNoKernelOfSequences(Operation *op,
                                               StringRef reason) {
    return op->emitOpError()
           << "expected a kernel for cu_seqlens_q on a GPU, but got none: "
           << reason;
  }

  LogicalResult select(AttentionOp op, const GpuTarget &target) {
    std::string reason = getGpuUnsupportedReason(op);
    SmallVector<Attribute> schedules;
    if (reason.empty())
      schedules = selectGpuSchedules(&getContext(), getGpuAttentionShape(op),
                                     target, reason);
    if (schedules.empty()) {
      if (op.isPacked())
        return emitNoKernelOfSequences(op, reason);
      remark::missed(op.getLoc(), kGpuRemark)
          << remark::reason("{0}", reason)
          << remark::metric("Summary", "attention has no GPU kernel");
      return success();
    }
    if (!target.tuned)
      remark::analysis(op.getLoc(), kGpuRemark)
          << ("untuned: " + chip + " gets the code and the schedules of " +
              target.chip);
    emitWgmmaRemark(op, schedules, target);
    emitSplitRemark(op, schedules);
    emitBulkCopyRemark(op, schedules, target);
    emitChoiceRemark(op, Builder(op).getArrayAttr(schedules));
    appendSchedules(op, schedules);
    return success();
  }

  /// Why nothing is by wgmma on a chip that has it, of attention of many
  /// queries: kernels of few are others on every chip.
  static void emitWgmmaRemark(AttentionOp op, ArrayRef<Attribute> schedules,
                              const GpuTarget &target) {
    if (!runsOnWgmmaChip(target) ||
        !isa<GpuForwardAttr, GpuPlainAttr>(schedules.back()))
      return;
    std::string reason;
    if (!selectGpuWgmma(op.getContext(), getGpuAttentionShape(op), target,
                        reason)
             .empty())
      reason = getTensorMapReason(op);
    if (!reason.empty())
      remark::missed(op.getLoc(), kNoWgmmaRemark)
          << remark::reason("{0}", reason)
          << remark::metric("Summary", "attention does not use wgmma");
  }

  /// Why keys are not split where there may be few queries.
  static void emitSplitRemark(AttentionOp op, ArrayRef<Attribute> schedules) {
    const GpuAttentionShape shape = getGpuAttentionShape(op);
    const bool maySplit =
        ShapedType::isDynamic(shape.queries) || shape.queries <= kGpuDecodeRows;
    // Few queries that are known when compiling would have them split.
    if (shape.savesRows) {
      if (maySplit && !ShapedType::isDynamic(shape.queries))
        remark::missed(op.getLoc(), kGpuRemark)
            << remark::reason("expected no destination of x or o2, but got one")
            << remark::metric("Summary", "keys are not split between blocks");
      return;
    }
    if (maySplit && !shape.knowsHeads && isa<GpuForwardAttr>(schedules.back()))
      remark::missed(op.getLoc(), kGpuRemark)
          << remark::reason("expected numbers of heads that are known when "
                            "compiling, but got ?")
          << remark::metric("Summary", "keys are not split between blocks");
  }

  /// Why decode does not use tensor maps, where the chip has them.
  static void emitBulkCopyRemark(AttentionOp op, ArrayRef<Attribute> schedules,
                                 const GpuTarget &target) {
    for (Attribute entry : schedules) {
      auto when = dyn_cast<WhenAttr>(entry);
      auto split = dyn_cast<GpuSplitKVAttr>(when ? when.getSchedule() : entry);
      if (!split || !target.hasWgmma)
        continue;
      std::string reason;
      if (selectGpuBulkCopies(split, getGpuAttentionShape(op), target, reason))
        reason = getTensorMapReason(op);
      if (reason.empty())
        continue;
      remark::missed(op.getLoc(), kGpuRemark)
          << remark::reason("{0}", reason)
          << remark::metric("Summary", "decode does not use tensor maps");
      return;
    }
  }

  /// Emits a remark with the kernels of `schedules` and the most shared memory
  /// that a block of any takes.
  static void emitChoiceRemark(AttentionOp op, ArrayAttr schedules) {
    const int64_t maps = op.hasSecondMap() ? 2 : 1;
    int64_t bytes = 0;
    bool isKernel = false;
    for (Attribute entry : schedules) {
      auto when = dyn_cast<WhenAttr>(entry);
      Attribute schedule = when ? when.getSchedule() : entry;
      isKernel |= cast<ScheduleAttrInterface>(schedule).getTarget() ==
                  ScheduleTarget::GPU;
      if (isa<GpuForwardAttr, GpuSplitKVAttr>(schedule))
        bytes = std::max(
            bytes,
            GpuSharedLayout(
                GpuTiles::of(cast<ScheduleAttrInterface>(schedule), maps),
                op.getHeadDim(), op.getValueDim(), op.getK1() == op.getK2())
                .total);
      if (auto wgmma = dyn_cast<GpuWgmmaAttr>(schedule))
        bytes = std::max(bytes, GpuSharedLayout(wgmma, op.getHeadDim(),
                                                op.getValueDim(),
                                                op.getK1() == op.getK2(), maps)
                                    .total);
    }
    if (isKernel)
      remark::passed(op.getLoc(), kGpuRemark)
          << remark::metric("Schedules", schedules)
          << remark::metric("SharedMemory",
                            std::to_string(bytes) +
                                " bytes of shared memory a block")
          << remark::metric("Summary", "attention is a GPU kernel");
  }
};
} // namespace
