//===- Grouping.cpp - which ops become one kernel -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Grouping.h"

#include "StatusWord.h"

#include "DiffAttn/Model/Schedule/LinalgGpuSchedule.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

// Loops of the host.

/// Whether `memref` is a part that only the turn with this counter has: a view
/// of one index along some axis, and that index is the counter.
static bool isOwnPart(Value memref, scf::ForOp loop) {
  for (; memref.getDefiningOp() && loop->isAncestor(memref.getDefiningOp());
       memref = memref.getDefiningOp()->getOperand(0)) {
    auto part = memref.getDefiningOp<memref::SubViewOp>();
    if (!part)
      continue;
    for (auto [at, size] :
         llvm::zip_equal(part.getMixedOffsets(), part.getMixedSizes()))
      if (getConstantIntValue(size) == 1 &&
          dyn_cast<Value>(at) == loop.getInductionVar())
        return true;
  }
  return false;
}

bool linalggpu::isIndependent(scf::ForOp loop) {
  if (loop.getNumRegionIterArgs() ||
      getConstantIntValue(loop.getLowerBound()) != 0 ||
      getConstantIntValue(loop.getStep()) != 1 ||
      DeviceValues::contains(loop.getUpperBound()))
    return false;
  SmallVector<Phase> phases;
  for (Operation &op : loop.getBody()->without_terminator()) {
    if (auto generic = dyn_cast<linalg::GenericOp>(op)) {
      phases.emplace_back(&op, loop);
      if (!phases.back().isParallel() ||
          !findUnsupported(phases.back()).empty())
        return false;
    } else if (auto check = dyn_cast<cf::AssertOp>(op)) {
      if (DeviceValues::contains(check.getArg()))
        phases.emplace_back(&op, loop);
    } else if (!isPure(&op) && !isa<memref::LoadOp>(op)) {
      return false;
    }
  }
  if (llvm::none_of(phases,
                    [](const Phase &phase) { return phase.getGeneric(); }))
    return false;
  for (const Phase &phase : phases) {
    // Sizes that differ from turn to turn make no nest of loops.
    for (unsigned i = 1; i < phase.getLoops().size(); ++i) {
      auto [memref, axis] = *phase.findSize(i);
      auto type = cast<MemRefType>(memref.getType());
      if (type.isDynamicDim(axis) && DeviceValues::dependsOn(memref, loop)) {
        auto part = memref.getDefiningOp<memref::SubViewOp>();
        if (!part || llvm::any_of(part.getSizes(), [&](Value size) {
              return loop->isAncestor(size.getParentRegion()->getParentOp());
            }))
          return false;
      }
    }
    for (const Access &write : phase.getAccesses()) {
      if (!write.isWrite)
        continue;
      if (!isOwnPart(write.memref, loop))
        return false;
      // Only the same access may read memory that is written.
      for (const Phase &other : phases)
        for (const Access &access : other.getAccesses()) {
          const bool samePlace = &other == &phase &&
                                 access.memref == write.memref &&
                                 access.map == write.map;
          if (mayAlias(access.memref, write.memref) && !samePlace &&
              !areSeparateArguments(access.memref, write.memref))
            return false;
        }
    }
  }
  return true;
}

// Rows.

bool linalggpu::isRowReduction(const Phase &phase) {
  linalg::GenericOp generic = phase.getGeneric();
  if (!generic)
    return phase.getEnclosing().empty();
  if (!phase.getEnclosing().empty() || phase.isParallel())
    return false;
  unsigned rows = llvm::count_if(phase.getLoops(), linalg::isParallelIterator);
  unsigned columns = phase.getLoops().size() - rows;
  if (RowGroup::getPlace(phase, rows, columns) != RowGroup::Place::Reduction)
    return false;
  unsigned last = phase.getLoops().size() - 1;
  bool adjacent = false, anyRuns = false;
  for (const Access &access : phase.getOperands()) {
    if (!access.memref)
      continue;
    if (access.isWrite) {
      // One place a row, which the row's loops give by themselves.
      if (!access.map.isProjectedPermutation() ||
          access.map.getNumResults() != rows)
        return false;
      for (unsigned i = rows; i <= last; ++i)
        if (access.map.isFunctionOfDim(i))
          return false;
      continue;
    }
    auto strides =
        cast<MemRefType>(access.memref.getType()).getStridesAndOffset().first;
    for (auto [i, expr] : llvm::enumerate(access.map.getResults()))
      if (expr.isFunctionOfDim(last)) {
        anyRuns = true;
        adjacent |= isa<AffineDimExpr>(expr) && strides[i] == 1;
      }
  }
  if (anyRuns && !adjacent)
    return false;
  for (unsigned i = 0; i < generic.getNumDpsInits(); ++i)
    if (!phase.matchCombiner(i))
      return false;
  return true;
}

namespace {
/// One group in the making.
class Grouper {
public:
  explicit Grouper(const Phase &seed) {
    group.rowLoops =
        llvm::count_if(seed.getLoops(), linalg::isParallelIterator);
    group.columnLoops = seed.getLoops().size() - group.rowLoops;
    if (!seed.getGeneric())
      group.rowLoops = group.columnLoops = 0;
    learn(seed);
    group.phases.push_back(seed);
  }

  bool append(const Phase &phase) {
    if (!fits(phase))
      return false;
    for (const Phase &known : group.phases)
      if (!inOrder(known, phase))
        return false;
    learn(phase);
    group.phases.push_back(phase);
    return true;
  }
  bool prepend(const Phase &phase) {
    if (!fits(phase))
      return false;
    for (const Phase &known : group.phases)
      if (!inOrder(phase, known))
        return false;
    learn(phase);
    group.phases.insert(group.phases.begin(), phase);
    return true;
  }
  RowGroup take() { return std::move(group); }

private:
  using Place = RowGroup::Place;

  std::optional<Place> getPlace(const Phase &phase) const {
    return RowGroup::getPlace(phase, group.rowLoops, group.columnLoops);
  }

  void learn(const Phase &phase) {
    for (unsigned i = 0; i < phase.getLoops().size(); ++i)
      for (SizeKey key : getSizeKeys(phase, i))
        sizes.insert({i, key});
  }

  bool fits(const Phase &phase) {
    std::optional<Place> place = getPlace(phase);
    if (!place || !phase.getEnclosing().empty())
      return false;
    if (place == Place::Reduction && !isRowReduction(phase))
      return false;
    for (unsigned i = 0; i < phase.getLoops().size(); ++i)
      if (llvm::none_of(getSizeKeys(phase, i),
                        [&](SizeKey key) { return sizes.contains({i, key}); }))
        return false;
    if (place == Place::Row) {
      // A phase of rows writes one element of each row.
      for (const Access &access : phase.getOperands())
        if (access.isWrite && (!access.map.isProjectedPermutation() ||
                               access.map.getNumResults() != group.rowLoops))
          return false;
      if (group.columnLoops && overwrites(phase))
        return false;
    }
    if (place == Place::Element) {
      // Each element by one thread, and enough threads for all.
      int64_t elements = 1;
      for (unsigned i = group.rowLoops; i < phase.getLoops().size(); ++i) {
        auto [memref, axis] = *phase.findSize(i);
        int64_t size = cast<MemRefType>(memref.getType()).getDimSize(axis);
        elements = ShapedType::isDynamic(size) ? kMaxElementsOfOneGpuBlock + 1
                                               : elements * size;
      }
      if (group.rowLoops == 0 && elements > kMaxElementsOfOneGpuBlock)
        return false;
      for (const Access &access : phase.getOperands())
        if (access.isWrite &&
            (!access.map.isProjectedPermutation() ||
             access.map.getNumResults() != phase.getLoops().size()))
          return false;
    }
    // A kernel reads the word once, at its start.
    auto writesStatus = [](const Phase &phase) {
      return isa<cf::AssertOp>(phase.getOp()) || clearsStatus(phase.getOp());
    };
    return llvm::none_of(group.phases, [&](const Phase &known) {
      return writesStatus(phase) ? needsStatus(known)
                                 : writesStatus(known) && needsStatus(phase);
    });
  }

  /// Whether `second` sees the writes of `first`, and writes nothing that
  /// `first` may read too late. Rows' values pass in registers, and one thread
  /// writes them; an element is always the same thread's.
  bool inOrder(const Phase &first, const Phase &second) {
    bool rowFirst = getPlace(first) != Place::Element;
    bool rowSecond = getPlace(second) != Place::Element;
    for (const Access &a : first.getAccesses())
      for (const Access &b : second.getAccesses()) {
        if (!(a.isWrite || b.isWrite) || !mayAlias(a.memref, b.memref))
          continue;
        AffineMap mapA = a.map, mapB = b.map;
        // A scalar of the host's code that is all of its memref.
        if (!mapB && cast<MemRefType>(b.memref.getType()).getRank() == 0)
          mapB = AffineMap::get(0, 0, b.memref.getContext());
        if (a.memref != b.memref || !mapA || !mapB ||
            mapA.getResults() != mapB.getResults())
          return false;
        // All threads of the row read it, and one writes.
        if (!a.isWrite && rowSecond)
          return false;
        if (a.isWrite && b.isWrite && rowFirst != rowSecond)
          return false;
      }
    return true;
  }

  /// Whether all threads of a row would read what one of them then writes.
  bool overwrites(const Phase &phase) const {
    SmallVector<Access> accesses = phase.getAccesses();
    auto isHandedOn = [&](Value memref) {
      return llvm::any_of(group.phases, [&](const Phase &known) {
        return llvm::any_of(known.getAccesses(), [&](const Access &access) {
          return access.isWrite && access.memref == memref;
        });
      });
    };
    for (const Access &write : accesses)
      for (const Access &read : accesses)
        if (write.isWrite && !read.isWrite &&
            mayAlias(write.memref, read.memref) && !isHandedOn(read.memref))
          return true;
    return false;
  }

  RowGroup group;
  llvm::DenseSet<std::pair<unsigned, SizeKey>> sizes;
};
} // namespace

SmallVector<RowGroup> linalggpu::groupPhases(ArrayRef<Phase> phases) {
  SmallVector<RowGroup> groups;
  size_t next = 0;
  auto flushTo = [&](size_t end) {
    for (; next < end; ++next) {
      RowGroup alone;
      alone.phases.push_back(phases[next]);
      groups.push_back(std::move(alone));
    }
  };
  for (size_t seed = 0; seed < phases.size(); ++seed) {
    // A phase without loops joins the next one that has some; alone it is a
    // group of one.
    if (seed < next || !isRowReduction(phases[seed]) ||
        (!phases[seed].getGeneric() && seed + 1 < phases.size() &&
         isRowReduction(phases[seed + 1])))
      continue;
    Grouper grouper(phases[seed]);
    size_t begin = seed, end = seed + 1;
    while (begin > next && grouper.prepend(phases[begin - 1]))
      --begin;
    while (end < phases.size() && grouper.append(phases[end]))
      ++end;
    flushTo(begin);
    groups.push_back(grouper.take());
    next = end;
  }
  flushTo(phases.size());
  return groups;
}
