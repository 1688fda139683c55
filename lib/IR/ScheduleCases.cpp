//===- ScheduleCases.cpp - which schedule a call takes --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/ScheduleCases.h"

#include <limits>

using namespace mlir;
using namespace mlir::diffattn;

/// Whether kernels of `schedule` read tensor maps.
static bool readsTensorMaps(Attribute schedule) {
  auto split = dyn_cast<GpuSplitKVAttr>(schedule);
  return isa<GpuWgmmaAttr>(schedule) || (split && split.getBulkCopies());
}

LogicalResult WhenAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                               int64_t maxQueries, int64_t minKeys,
                               bool unaligned, bool tensorMaps,
                               Attribute schedule) {
  auto interface = dyn_cast<ScheduleAttrInterface>(schedule);
  if (!interface) // when_c1
    return emitError() << "expected a schedule, but got " << schedule;
  if (maxQueries < 0 || minKeys < 0) // when_c2
    return emitError()
           << "expected max_queries and min_keys not to be negative, but got "
           << std::min(maxQueries, minKeys);
  if (maxQueries == 0 && minKeys == 0 && !unaligned && !tensorMaps) // when_c3
    return emitError() << "expected max_queries, min_keys, unaligned or "
                          "tensor_maps, but got no condition";
  // when_c4: other kernels have no copies of 16 bytes.
  if (unaligned && !isa<GpuForwardAttr, GpuSplitKVAttr>(schedule))
    return emitError()
           << "expected unaligned with gpu_forward or gpu_split_kv, but got "
           << interface.getFamily();
  // when_c5: kernels read K and V by maps always or never.
  if (tensorMaps != readsTensorMaps(schedule))
    return emitError() << "expected tensor_maps with gpu_wgmma, with "
                          "gpu_split_kv that has bulk_copies, and with no "
                          "other schedule, but got "
                       << interface.getFamily()
                       << (tensorMaps ? " with it" : " without it");
  return success();
}

LogicalResult
SizeBoundsAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                       int64_t minQueries, int64_t maxQueries, int64_t minKeys,
                       int64_t maxKeys) {
  // size_bounds_c1
  if (int64_t least = std::min({minQueries, maxQueries, minKeys, maxKeys});
      least < 0)
    return emitError() << "expected bounds of 0 or more, but got " << least;
  // size_bounds_c2
  if ((maxQueries && minQueries > maxQueries) || (maxKeys && minKeys > maxKeys))
    return emitError() << "expected no lower bound above the upper one, but got"
                       << " queries from " << minQueries << " to " << maxQueries
                       << " and keys from " << minKeys << " to " << maxKeys;
  return success();
}

/// `taken`: targets whose calls all take an entry further up.
static LogicalResult verifyNotBehind(Operation *op,
                                     ArrayRef<ScheduleTarget> taken,
                                     ScheduleAttrInterface schedule,
                                     Attribute entry) {
  if (!llvm::is_contained(taken, ScheduleTarget::Any) &&
      !llvm::is_contained(taken, schedule.getTarget()))
    return success();
  return op->emitOpError()
         << "expected no schedule behind one for every call, but got " << entry;
}

/// Whether no warp has all maps.
static bool sharesOutMaps(ScheduleAttrInterface schedule) {
  if (auto forward = dyn_cast<GpuForwardAttr>(schedule))
    return forward.getPlacement() != GpuPlacement::Both;
  auto wgmma = dyn_cast<GpuWgmmaAttr>(schedule);
  return wgmma && wgmma.getPlacement() != GpuPlacement::Both;
}

// attention_c24
LogicalResult diffattn::verifySchedules(AttentionOp op) {
  SmallVector<ScheduleTarget> taken;
  for (Attribute entry : op.getSchedulesAttr()) {
    auto when = dyn_cast<WhenAttr>(entry);
    auto schedule =
        dyn_cast<ScheduleAttrInterface>(when ? when.getSchedule() : entry);
    if (!schedule)
      return op.emitOpError()
             << "expected schedules to hold schedules, but got " << entry;
    // attention_c36
    if (schedule.computesGradients())
      return op.emitOpError() << "expected schedules of attention, not of its "
                                 "gradients, but got "
                              << entry;
    // attention_c25
    if (op.getIntegral() && schedule.getTarget() != ScheduleTarget::Any)
      return op.emitOpError()
             << "expected #diffattn.linalg alone with integral, which no "
                "kernel computes, but got "
             << entry;
    // attention_c40
    if (!op.hasSecondMap() && sharesOutMaps(schedule))
      return op.emitOpError() << "expected two maps with a schedule that "
                                 "shares them out to warps, but got one with "
                              << entry;
    // attention_c45
    if (StringRef saved = op.getSavedRows();
        !saved.empty() && isa<GpuSplitKVAttr>(schedule))
      return op.emitOpError()
             << "expected no " << saved
             << " with gpu_split_kv, whose kernels do not write it, but got "
             << entry;
    // attention_c47
    if (op.getO2() && schedule.getTarget() == ScheduleTarget::CPU)
      return op.emitOpError() << "expected no o2 with a schedule of CPUs, "
                                 "whose kernels do not write it, but got "
                              << entry;
    // attention_c27
    if (!when && readsTensorMaps(entry))
      return op.emitOpError() << "expected a schedule that reads tensor maps "
                                 "under a condition with tensor_maps, but got "
                              << entry;
    if (failed(verifyNotBehind(op, taken, schedule, entry)))
      return failure();
    if (!when)
      taken.push_back(schedule.getTarget());
  }
  return success();
}

// attention_backward_c34
LogicalResult diffattn::verifySchedules(AttentionBackwardOp op) {
  SmallVector<ScheduleTarget> taken;
  for (Attribute entry : op.getSchedulesAttr()) {
    auto schedule = dyn_cast<ScheduleAttrInterface>(entry);
    if (!schedule ||
        !(schedule.computesGradients() || isa<LinalgAttr>(schedule)))
      return op.emitOpError() << "expected schedules to hold #diffattn.linalg "
                                 "or schedules of gradients, but got "
                              << entry;
    if (failed(verifyNotBehind(op, taken, schedule, entry)))
      return failure();
    taken.push_back(schedule.getTarget());
  }
  return success();
}

ScheduleAttrInterface diffattn::findSchedule(AttentionBackwardOp op,
                                             ScheduleTarget target) {
  if (ArrayAttr schedules = op.getSchedulesAttr())
    for (auto schedule : schedules.getAsRange<ScheduleAttrInterface>())
      if (llvm::is_contained({ScheduleTarget::Any, target},
                             schedule.getTarget()))
        return schedule;
  return {};
}

/// Operands of these widths are never copied by 16 bytes.
static bool isUnaligned(AttentionOp op) {
  auto hasParts = [&](int64_t width) {
    int64_t bits = op.getShaped(op.getQ1()).getElementTypeBitWidth();
    return ShapedType::isDynamic(width) || width * bits % 128 != 0;
  };
  return hasParts(op.getHeadDim()) || hasParts(op.getValueDim());
}

namespace {
/// The values that a size may have: `low` to `high`, both included.
struct SizeRange {
  explicit SizeRange(int64_t size)
      : low(ShapedType::isDynamic(size) ? 0 : size),
        high(ShapedType::isDynamic(size) ? std::numeric_limits<int64_t>::max()
                                         : size) {}

  /// Intersects with `min` to `max`; `max` 0: no upper bound.
  void narrow(int64_t min, int64_t max) {
    low = std::max(low, min);
    high = max ? std::min(high, max) : high;
  }

  int64_t low, high;
};
} // namespace

static SizeRange getQueries(AttentionOp op) {
  SizeRange result(op.getShaped(op.getQ1())
                       .getDimSize(AttentionOp::lengthAxis(op.getQLayout())));
  // The mean of packed sequences counts, which may be less than one.
  if (op.isPacked())
    result.low = 0;
  if (SizeBoundsAttr bounds = op.getSizeBoundsAttr())
    result.narrow(bounds.getMinQueries(), bounds.getMaxQueries());
  return result;
}

static SizeRange getKeys(AttentionOp op) {
  SizeRange result(op.getKeyCount());
  if (SizeBoundsAttr bounds = op.getSizeBoundsAttr())
    result.narrow(bounds.getMinKeys(), bounds.getMaxKeys());
  return result;
}

/// The case of `entry`; nothing if no call takes it.
static std::optional<ScheduleCase> getCase(AttentionOp op, Attribute entry) {
  auto when = dyn_cast<WhenAttr>(entry);
  if (!when)
    return ScheduleCase{cast<ScheduleAttrInterface>(entry), {}, {}};
  ScheduleCase result{cast<ScheduleAttrInterface>(when.getSchedule()),
                      {},
                      {},
                      when.getUnaligned() && !isUnaligned(op),
                      when.getTensorMaps()};
  if (result.tensorMaps && isUnaligned(op))
    return std::nullopt;
  const SizeRange queries = getQueries(op), keys = getKeys(op);
  if (int64_t most = when.getMaxQueries()) {
    if (queries.low > most)
      return std::nullopt;
    if (queries.high > most)
      result.maxQueries = most;
  }
  if (int64_t least = when.getMinKeys()) {
    if (keys.high < least)
      return std::nullopt;
    if (keys.low < least)
      result.minKeys = least;
  }
  return result;
}

SmallVector<ScheduleCase> diffattn::getScheduleCases(AttentionOp op,
                                                     ScheduleTarget target) {
  SmallVector<ScheduleCase> cases;
  if (!op.getSchedulesAttr())
    return cases;
  for (Attribute entry : op.getSchedulesAttr()) {
    std::optional<ScheduleCase> next = getCase(op, entry);
    if (!next)
      continue;
    ScheduleTarget of = next->schedule.getTarget();
    if (target != ScheduleTarget::Any && of != ScheduleTarget::Any &&
        of != target)
      continue;
    cases.push_back(*next);
    if (next->isAlways())
      break;
  }
  return cases;
}

bool diffattn::takeEveryCall(ArrayRef<ScheduleCase> cases) {
  return !cases.empty() && cases.back().isAlways();
}

/// GPU kernels are emitted for their widths, and states of ranges of keys
/// allocated for their heads.
static LogicalResult verifyKnownSizes(AttentionOp op,
                                      ScheduleAttrInterface schedule) {
  auto verify = [&](StringRef what, ArrayRef<int64_t> sizes) -> LogicalResult {
    if (llvm::none_of(sizes, ShapedType::isDynamic))
      return success();
    return op.emitOpError()
           << "expected " << what << " that are known when compiling for "
           << schedule.getFamily() << ", but got ?";
  };
  if (schedule.getTarget() != ScheduleTarget::GPU)
    return success();
  if (failed(verify("widths of heads", {op.getHeadDim(), op.getValueDim()})))
    return failure();
  if (!isa<GpuSplitKVAttr>(schedule))
    return success();
  return verify("numbers of heads",
                {op.getSignalHeads(), op.getNoiseHeads(), op.getValueHeads()});
}

LogicalResult diffattn::verifyScheduleCases(AttentionOp op,
                                            ArrayRef<ScheduleCase> cases) {
  if (!takeEveryCall(cases))
    return op.emitOpError() << "expected schedules for every call, but got "
                            << op.getSchedulesAttr();
  const int64_t queries = getQueries(op).high;
  for (const ScheduleCase &choice : cases) {
    StringRef family = choice.schedule.getFamily();
    if (cases.size() > 1 && isa<LinalgAttr>(choice.schedule))
      return op.emitOpError() << "expected a kernel for every call, but got "
                              << family << " for some";
    if (failed(verifyKnownSizes(op, choice.schedule)))
      return failure();
    std::optional<int64_t> limit = choice.schedule.getMaxQueries();
    if (!limit)
      continue;
    int64_t queryCount = choice.maxQueries.value_or(queries);
    if (queryCount == std::numeric_limits<int64_t>::max())
      return op.emitOpError()
             << "expected at most " << *limit << " queries for " << family
             << ", but got any number";
    if (queryCount > *limit)
      return op.emitOpError()
             << "expected at most " << *limit << " queries for " << family
             << ", but got " << queryCount;
  }
  return success();
}

template <typename Op>
static void append(Op op, ArrayRef<Attribute> schedules) {
  SmallVector<Attribute> all;
  if (ArrayAttr before = op.getSchedulesAttr())
    llvm::append_range(all, before);
  llvm::append_range(all, schedules);
  op.setSchedulesAttr(ArrayAttr::get(op.getContext(), all));
}

void diffattn::appendSchedules(AttentionOp op, ArrayRef<Attribute> schedules) {
  append(op, schedules);
}

void diffattn::appendSchedules(AttentionBackwardOp op,
                               ArrayRef<Attribute> schedules) {
  append(op, schedules);
}
