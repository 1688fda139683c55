//===- RowReductionKernel.cpp - a warp or a block to each row -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KernelKinds.h"
#include "StatusWord.h"

#include "DiffAttn/Model/Schedule/LinalgGpuSchedule.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/UB/IR/UBOps.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

std::optional<RowGroup::Place> RowGroup::getPlace(const Phase &phase,
                                                  unsigned rowLoops,
                                                  unsigned columnLoops) {
  ArrayRef<utils::IteratorType> loops = phase.getLoops();
  if (!phase.getGeneric())
    return rowLoops == loops.size() ? std::optional(Place::Row) : std::nullopt;
  if (phase.isParallel() && loops.size() == rowLoops)
    return Place::Row;
  if (loops.size() != rowLoops + columnLoops)
    return std::nullopt;
  if (phase.isParallel())
    return Place::Element;
  bool ordered =
      llvm::all_of(loops.take_front(rowLoops), linalg::isParallelIterator) &&
      llvm::all_of(loops.drop_front(rowLoops), linalg::isReductionIterator);
  return ordered ? std::optional(Place::Reduction) : std::nullopt;
}

namespace {
class RowEmitter {
public:
  RowEmitter(Emission &emission, const RowGroup &group,
             const llvm::SmallPtrSetImpl<Operation *> &kept)
      : emission(emission), group(group), kept(kept) {
    for (const Phase &phase : group.phases) {
      if (group.getPlace(phase) == RowGroup::Place::Row) {
        if (rowSizes.empty() && group.columnLoops == 0)
          rowSizes = getLoopSizes(emission.host, phase);
        continue;
      }
      columnPhases.push_back(phase);
    }
    GpuRows rows;
    rows.hasColumns = !columnPhases.empty();
    rows.isOnlyRow = group.rowLoops == 0;
    if (rows.hasColumns) {
      rowSizes = getLoopSizes(emission.host, columnPhases.front());
      columnSizes.assign(rowSizes.begin() + group.rowLoops, rowSizes.end());
      rowSizes.resize(group.rowLoops);
      rows.columns = getConstantIntValue(productOf(emission.host, columnSizes));
    }
    schedule = selectRowReductionGpuSchedule(rows);
  }

  void emit() {
    VectorPlan plan;
    if (!columnPhases.empty())
      plan = planVectors(columnPhases, columnSizes.back(), emission.host);
    Launch vector = write(plan);
    emitChoice(emission.host, plan.condition, vector, [&] {
      bool known = getConstantIntValue(columnSizes.back()).has_value();
      return write(plan.byElements(/*sameShares=*/known));
    });
  }

private:
  /// One row of one kernel.
  struct Row {
    KernelWriter &w;
    const VectorPlan &plan;
    SmallVector<Value> numbers, columnExtents;
    Value lane, isFirst, columnCount;
  };

  Launch write(const VectorPlan &plan);
  void writeRowPhase(Row &row, const Phase &phase);
  void writeElementPhase(Row &row, const Phase &phase,
                         ArrayRef<AccessKind> kinds);
  void writeReduction(Row &row, const Phase &phase, ArrayRef<AccessKind> kinds);
  void writeAssertion(Row &row, const Phase &phase);

  /// Runs `body` for each vector of the lane's columns with the numbers of all
  /// loops.
  SmallVector<Value> forColumns(
      Row &row, const Phase &phase, ValueRange initial,
      function_ref<SmallVector<Value>(SmallVector<Value>, ValueRange)> body);
  /// Values of the inputs of `phase` for each iteration of the vector; those of
  /// outputs too if `withOutputs`.
  SmallVector<SmallVector<Value>> loadOperands(Row &row, const Phase &phase,
                                               ArrayRef<AccessKind> kinds,
                                               const SmallVector<Value> &loops,
                                               bool withOutputs);
  /// Loads the element at `access`, whose map depends on loops over rows alone.
  Value loadRow(Row &row, const Access &access, ArrayRef<Value> loops);
  /// Notes the row's value of an output, and writes it.
  void finishRow(Row &row, Value memref, AffineMap map, Value value);
  Value combineLanes(Row &row, Operation *op, Value sum);
  Value shuffle(KernelWriter &w, Value value, int64_t lanes);

  Emission &emission;
  const RowGroup &group;
  const llvm::SmallPtrSetImpl<Operation *> &kept;
  LinalgGpuSchedule schedule;
  SmallVector<Phase> columnPhases;
  SmallVector<OpFoldResult> rowSizes, columnSizes;
};
} // namespace

Launch RowEmitter::write(const VectorPlan &plan) {
  ArrayRef<scf::ForOp> enclosing = group.phases.front().getEnclosing();
  KernelWriter w(emission.kernels, emission.host, enclosing, schedule.threads);
  // any order: it fills a set
  for (Operation *alloc : kept)
    w.keepInRegisters(alloc->getResult(0));
  const int64_t perRow = schedule.threadsPerRow;
  const int64_t rowsPerBlock = schedule.threads / perRow;
  OpFoldResult rows = productOf(emission.host, rowSizes);
  bool guarded = llvm::any_of(
      group.phases, [&](const Phase &phase) { return needsStatus(phase); });
  w.unlessFailed(guarded ? emission.status : Value(), [&] {
    auto &b = w.getBuilder();
    Row row{w, plan, {}, {}, {}, {}, {}};
    SmallVector<Value> rowExtents;
    for (OpFoldResult size : rowSizes)
      rowExtents.push_back(w.size(size));
    if (!columnPhases.empty()) {
      SmallVector<OpFoldResult> counts = columnSizes;
      if (plan.width > 1)
        counts.back() = vectorsIn(emission.host, counts.back(), plan.width);
      for (OpFoldResult count : counts)
        row.columnExtents.push_back(w.size(count));
      row.columnCount = w.size(productOf(emission.host, counts));
    }
    Value thread = w.thread();
    row.lane = thread;
    Value first = w.block();
    if (rowsPerBlock > 1) {
      row.lane = arith::RemUIOp::create(b, thread, w.index(perRow));
      first = w.add(w.mul(first, w.index(rowsPerBlock)),
                    arith::DivUIOp::create(b, thread, w.index(perRow)));
    }
    row.isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, row.lane,
                                        w.index(0));
    auto writeRow = [&](Value number) {
      row.numbers = w.delinearize(number, rowExtents);
      for (auto [i, loop] : llvm::enumerate(enclosing))
        w.setCounter(loop, row.numbers[i]);
      unsigned column = 0;
      for (const Phase &phase : group.phases) {
        auto place = group.getPlace(phase);
        w.prepare(phase);
        if (isa<cf::AssertOp>(phase.getOp()))
          writeAssertion(row, phase);
        else if (place == RowGroup::Place::Row)
          writeRowPhase(row, phase);
        else if (place == RowGroup::Place::Element)
          writeElementPhase(row, phase, plan.kinds[column++]);
        else
          writeReduction(row, phase, plan.kinds[column++]);
      }
    };
    if (group.rowLoops == 0)
      return writeRow(w.index(0));
    Value step = w.mul(w.blocks(), w.index(rowsPerBlock));
    w.loop(first, w.size(rows), step, {}, [&](Value number, ValueRange) {
      writeRow(number);
      return SmallVector<Value>();
    });
  });
  return w.finish(
      "row_reduction",
      countBlocks(emission.host, rows, rowsPerBlock, schedule.maxBlocks));
}

/// The numbers of the loops in iteration `i` of a vector.
static SmallVector<Value>
atIteration(KernelWriter &w, const SmallVector<Value> &loops, int64_t i) {
  SmallVector<Value> at = loops;
  if (i)
    at.back() = w.add(at.back(), w.index(i));
  return at;
}

Value RowEmitter::loadRow(Row &row, const Access &access,
                          ArrayRef<Value> loops) {
  if (Value known = row.w.getRegister(access.memref))
    return known;
  return row.w.load(row.w.view(access.memref),
                    row.w.evaluate(access.map, loops));
}

void RowEmitter::finishRow(Row &row, Value memref, AffineMap map, Value value) {
  Type element = cast<MemRefType>(memref.getType()).getElementType();
  value = row.w.convertTo(element, value);
  row.w.setRegister(memref, value);
  if (Operation *alloc = memref.getDefiningOp(); alloc && kept.contains(alloc))
    return;
  View view = row.w.view(memref);
  SmallVector<Value> at = row.w.evaluate(map, row.numbers);
  row.w.branch(row.isFirst, [&] { row.w.store(value, view, at); });
}

void RowEmitter::writeAssertion(Row &row, const Phase &phase) {
  KernelWriter &w = row.w;
  auto &b = w.getBuilder();
  auto check = cast<cf::AssertOp>(phase.getOp());
  Value fine = w.scalar(check.getArg());
  View word = w.view(emission.status);
  Value none = arith::ConstantIntOp::create(b, 0, 32);
  Value wrong =
      arith::XOrIOp::create(b, fine, arith::ConstantIntOp::create(b, 1, 1));
  w.branch(arith::AndIOp::create(b, wrong, row.isFirst), [&] {
    // The first one that fails sets the word.
    Value known = w.load(word, {});
    Value isFree =
        arith::CmpIOp::create(b, arith::CmpIPredicate::eq, known, none);
    w.branch(isFree, [&] {
      w.store(arith::ConstantIntOp::create(b, getStatusCode(check), 32), word,
              {});
    });
  });
}

void RowEmitter::writeRowPhase(Row &row, const Phase &phase) {
  KernelWriter &w = row.w;
  if (auto store = dyn_cast<memref::StoreOp>(phase.getOp())) {
    Value value = w.scalar(store.getValue());
    if (store.getIndices().empty())
      return finishRow(row, store.getMemRef(),
                       AffineMap::get(0, 0, store.getContext()), value);
    View view = w.view(store.getMemRef());
    SmallVector<Value> at;
    for (Value i : store.getIndices())
      at.push_back(w.scalar(i));
    return w.branch(row.isFirst, [&] { w.store(value, view, at); });
  }
  SmallVector<Value> arguments;
  for (auto [n, access] : llvm::enumerate(phase.getOperands())) {
    if (!access.memref)
      arguments.push_back(w.scalar(phase.getOp()->getOperand(n)));
    else if (!phase.readsOperand(n))
      arguments.push_back(ub::PoisonOp::create(
          w.getBuilder(),
          cast<MemRefType>(access.memref.getType()).getElementType()));
    else
      arguments.push_back(loadRow(row, access, row.numbers));
  }
  SmallVector<Value> results = w.computeBody(phase, row.numbers, arguments);
  for (auto [access, value] :
       llvm::zip_equal(phase.getOperands().take_back(results.size()), results))
    finishRow(row, access.memref, access.map, value);
}

SmallVector<Value> RowEmitter::forColumns(
    Row &row, const Phase &phase, ValueRange initial,
    function_ref<SmallVector<Value>(SmallVector<Value>, ValueRange)> body) {
  KernelWriter &w = row.w;
  return w.loop(row.lane, row.columnCount, w.index(schedule.threadsPerRow),
                initial, [&](Value item, ValueRange carried) {
                  SmallVector<Value> loops = row.numbers;
                  llvm::append_range(loops,
                                     w.delinearize(item, row.columnExtents));
                  if (row.plan.width > 1)
                    loops.back() = w.mul(loops.back(), w.index(row.plan.width));
                  return body(loops, carried);
                });
}

SmallVector<SmallVector<Value>>
RowEmitter::loadOperands(Row &row, const Phase &phase,
                         ArrayRef<AccessKind> kinds,
                         const SmallVector<Value> &loops, bool withOutputs) {
  KernelWriter &w = row.w;
  const int64_t width = row.plan.width;
  SmallVector<SmallVector<Value>> values;
  for (auto [n, access] : llvm::enumerate(phase.getOperands())) {
    auto &of = values.emplace_back();
    if (access.memref && access.isWrite && !withOutputs)
      continue;
    if (!access.memref) {
      of.assign(width, w.scalar(phase.getOp()->getOperand(n)));
    } else if (!phase.readsOperand(n)) {
      Type type = cast<MemRefType>(access.memref.getType()).getElementType();
      of.assign(width, ub::PoisonOp::create(w.getBuilder(), type));
    } else if (w.getRegister(access.memref)) {
      of.assign(width, w.getRegister(access.memref));
    } else if (width > 1 && kinds[n] == AccessKind::Vector) {
      of = w.loadVector(w.view(access.memref), w.evaluate(access.map, loops),
                        width);
    } else {
      View view = w.view(access.memref);
      bool same = width == 1 || kinds[n] == AccessKind::Broadcast;
      for (int64_t i = 0; i < (same ? 1 : width); ++i) {
        SmallVector<Value> at = atIteration(w, loops, i);
        of.push_back(w.load(view, w.evaluate(access.map, at)));
      }
      if (same)
        of.assign(width, Value(of.front()));
    }
  }
  return values;
}

void RowEmitter::writeElementPhase(Row &row, const Phase &phase,
                                   ArrayRef<AccessKind> kinds) {
  KernelWriter &w = row.w;
  const int64_t width = row.plan.width;
  forColumns(row, phase, {}, [&](SmallVector<Value> loops, ValueRange) {
    auto values = loadOperands(row, phase, kinds, loops, /*withOutputs=*/true);
    unsigned outputs = phase.getGeneric().getNumDpsInits();
    SmallVector<SmallVector<Value>> results(outputs);
    for (int64_t i = 0; i < width; ++i) {
      SmallVector<Value> arguments, at = atIteration(w, loops, i);
      for (const auto &of : values)
        arguments.push_back(of[i]);
      for (auto [n, value] :
           llvm::enumerate(w.computeBody(phase, at, arguments)))
        results[n].push_back(value);
    }
    const size_t first = phase.getOperands().size() - outputs;
    for (unsigned n = 0; n < outputs; ++n) {
      const Access &access = phase.getOperands()[first + n];
      View view = w.view(access.memref);
      if (width > 1 && kinds[first + n] == AccessKind::Vector) {
        w.storeVector(results[n], view, w.evaluate(access.map, loops));
        continue;
      }
      for (int64_t i = 0; i < width; ++i) {
        SmallVector<Value> at = atIteration(w, loops, i);
        w.store(results[n][i], view, w.evaluate(access.map, at));
      }
    }
    return SmallVector<Value>();
  });
}

void RowEmitter::writeReduction(Row &row, const Phase &phase,
                                ArrayRef<AccessKind> kinds) {
  KernelWriter &w = row.w;
  auto &b = w.getBuilder();
  unsigned outputs = phase.getGeneric().getNumDpsInits();
  SmallVector<Combiner> combiners;
  SmallVector<Value> sums;
  for (unsigned i = 0; i < outputs; ++i) {
    combiners.push_back(*phase.matchCombiner(i));
    Value neutral = arith::ConstantOp::create(b, combiners[i].neutral);
    sums.push_back(neutral);
    const Access &access = phase.getOperands().take_back(outputs)[i];
    if (w.getRegister(access.memref))
      continue;
    // One thread starts with what memory holds; others might read it after
    // that thread has written the result.
    View view = w.view(access.memref);
    SmallVector<Value> at = w.evaluate(access.map, row.numbers);
    sums.back() = w.choose(
        row.isFirst,
        [&] { return w.convertTo(combiners[i].type, w.load(view, at)); },
        neutral);
  }
  sums = forColumns(
      row, phase, sums, [&](SmallVector<Value> loops, ValueRange carried) {
        auto values =
            loadOperands(row, phase, kinds, loops, /*withOutputs=*/false);
        SmallVector<Value> now(carried);
        for (int64_t i = 0; i < row.plan.width; ++i) {
          SmallVector<Value> arguments, at = atIteration(w, loops, i);
          for (const auto &of : ArrayRef(values).drop_back(outputs))
            arguments.push_back(of[i]);
          llvm::append_range(arguments, now);
          now = w.computeBody(phase, at, arguments, combiners);
        }
        return now;
      });
  for (auto [n, access] :
       llvm::enumerate(phase.getOperands().take_back(outputs))) {
    Operation *op = combiners[n].chain.front();
    Value total = combineLanes(row, op, sums[n]);
    if (Value start = w.getRegister(access.memref))
      total = w.combine(op, w.convertTo(combiners[n].type, start), total);
    finishRow(row, access.memref, access.map, total);
  }
}

Value RowEmitter::shuffle(KernelWriter &w, Value value, int64_t lanes) {
  auto &b = w.getBuilder();
  Type type = value.getType();
  if (type.isF32() || type.isInteger(32))
    return b.shuffleXor(value, lanes);
  if (isa<IndexType>(type)) {
    Value wide = arith::IndexCastOp::create(b, b.getI64Type(), value);
    return arith::IndexCastOp::create(b, type, shuffle(w, wide, lanes));
  }
  if (type.isF64()) {
    Value bits = arith::BitcastOp::create(b, b.getI64Type(), value);
    return arith::BitcastOp::create(b, type, shuffle(w, bits, lanes));
  }
  if (type.getIntOrFloatBitWidth() < 32) {
    Value wide = arith::ExtUIOp::create(b, b.getI32Type(), value);
    return arith::TruncIOp::create(b, type, b.shuffleXor(wide, lanes));
  }
  // Two halves.
  Value half = arith::ConstantIntOp::create(b, 32, 64);
  Value low = arith::TruncIOp::create(b, b.getI32Type(), value);
  Value high = arith::TruncIOp::create(b, b.getI32Type(),
                                       arith::ShRUIOp::create(b, value, half));
  low = arith::ExtUIOp::create(b, type, b.shuffleXor(low, lanes));
  high = arith::ExtUIOp::create(b, type, b.shuffleXor(high, lanes));
  return arith::OrIOp::create(b, low, arith::ShLIOp::create(b, high, half));
}

Value RowEmitter::combineLanes(Row &row, Operation *op, Value sum) {
  KernelWriter &w = row.w;
  auto &b = w.getBuilder();
  // All lanes get the same: both partners of a step add the same two numbers.
  for (int64_t lanes = kWarp / 2; lanes > 0; lanes /= 2)
    sum = w.combine(op, sum, shuffle(w, sum, lanes));
  const int64_t warps = schedule.threadsPerRow / kWarp;
  if (warps <= 1)
    return sum;
  Type type = sum.getType();
  bool isIndex = isa<IndexType>(type), isBit = type.isInteger(1);
  Type stored = isIndex ? b.getI64Type() : isBit ? b.getI8Type() : type;
  View shared;
  shared.element = type;
  shared.pointer =
      LLVM::AddressOfOp::create(b, emission.kernels.getShared(stored, warps));
  shared.strides.push_back(w.index(1));
  Value warp = arith::DivUIOp::create(b, row.lane, w.index(kWarp));
  Value isFirst = arith::CmpIOp::create(
      b, arith::CmpIPredicate::eq,
      arith::RemUIOp::create(b, row.lane, w.index(kWarp)), w.index(0));
  // Nobody reads the sums of the row before any more.
  b.barrier();
  w.branch(isFirst, [&] { w.store(sum, shared, {warp}); });
  b.barrier();
  Value total = w.load(shared, {w.index(0)});
  for (int64_t i = 1; i < warps; ++i)
    total = w.combine(op, total, w.load(shared, {w.index(i)}));
  return total;
}

void linalggpu::emitRowReduction(
    Emission &emission, const RowGroup &group,
    const llvm::SmallPtrSetImpl<Operation *> &kept) {
  RowEmitter(emission, group, kept).emit();
}
