//===- ElementwiseKernel.cpp - a thread to each output --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KernelKinds.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Model/Schedule/LinalgGpuSchedule.h"

#include "mlir/Dialect/ControlFlow/IR/ControlFlowOps.h"
#include "mlir/Dialect/UB/IR/UBOps.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::linalggpu;

SmallVector<OpFoldResult> linalggpu::getLoopSizes(ImplicitLocOpBuilder &host,
                                                  const Phase &phase) {
  SmallVector<OpFoldResult> sizes;
  for (scf::ForOp loop : phase.getEnclosing())
    sizes.push_back(getAsOpFoldResult(loop.getUpperBound()));
  for (unsigned i = sizes.size(); i < phase.getLoops().size(); ++i) {
    auto [memref, axis] = *phase.findSize(i);
    sizes.push_back(sizeOf(host, memref, axis));
  }
  return sizes;
}

Value linalggpu::countBlocks(ImplicitLocOpBuilder &host, OpFoldResult items,
                             int64_t perBlock, int64_t most) {
  if (std::optional<int64_t> known = getConstantIntValue(items))
    return arith::ConstantIndexOp::create(
        host, std::min(llvm::divideCeil(*known, perBlock), uint64_t(most)));
  auto index = [&](int64_t value) {
    return arith::ConstantIndexOp::create(host, value).getResult();
  };
  Value rounded =
      arith::AddIOp::create(host, cast<Value>(items), index(perBlock - 1));
  return arith::MinUIOp::create(
      host, arith::DivUIOp::create(host, rounded, index(perBlock)),
      index(most));
}

void linalggpu::emitChoice(ImplicitLocOpBuilder &host, Value condition,
                           const Launch &vector,
                           function_ref<Launch()> elements) {
  if (!condition)
    return vector.emit(host);
  Launch slow = elements();
  auto choice = scf::IfOp::create(host, condition, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(host);
  host.setInsertionPointToStart(choice.thenBlock());
  vector.emit(host);
  host.setInsertionPointToStart(choice.elseBlock());
  slow.emit(host);
}

static bool mayDivideByZero(Operation *op) {
  return isa<arith::DivSIOp, arith::DivUIOp, arith::RemSIOp, arith::RemUIOp,
             arith::CeilDivSIOp, arith::CeilDivUIOp, arith::FloorDivSIOp>(op) &&
         !matchPattern(op->getOperand(1), m_Constant());
}

bool linalggpu::needsStatus(const Phase &phase) {
  auto byData = [&](Value value) {
    return DeviceValues::contains(value) ||
           DeviceValues::dependsOn(value, phase.getEnclosing());
  };
  if (isa<cf::AssertOp>(phase.getOp()))
    return false;
  for (const Access &access : phase.getAccesses()) {
    if (access.isWrite &&
        !rootOf(access.memref).getDefiningOp<memref::AllocOp>())
      return true;
    if (DeviceValues::contains(access.memref) ||
        (!access.map && access.isWrite &&
         llvm::any_of(cast<memref::StoreOp>(phase.getOp()).getIndices(),
                      byData)))
      return true;
  }
  if (linalg::GenericOp generic = phase.getGeneric())
    return generic.getBody()
        ->walk([](Operation *op) {
          // A division by 0 ends a process that simulates a GPU.
          return isa<memref::LoadOp>(op) || mayDivideByZero(op)
                     ? WalkResult::interrupt()
                     : WalkResult::advance();
        })
        .wasInterrupted();
  return false;
}

namespace {
class ElementwiseEmitter {
public:
  ElementwiseEmitter(Emission &emission, const Phase &phase)
      : emission(emission), phase(phase),
        schedule(selectElementwiseGpuSchedule()) {
    sizes = getLoopSizes(emission.host, phase);
    for (auto [i, kind] : llvm::enumerate(phase.getLoops()))
      (isOutputLoop(i) ? outer : inner).push_back(i);
  }

  void emit() {
    VectorPlan plan;
    if (inner.empty() && !outer.empty())
      plan = planVectors({phase}, sizes.back(), emission.host);
    Launch vector = write(plan);
    emitChoice(emission.host, plan.condition, vector,
               [&] { return write(plan.byElements()); });
  }

private:
  /// A loop that every output is indexed by; else iterations would write one
  /// element, and must come one after another.
  bool isOutputLoop(unsigned loop) const {
    if (!linalg::isParallelIterator(phase.getLoops()[loop]))
      return false;
    return loop < phase.getEnclosing().size() ||
           llvm::all_of(
               phase.getOperands(),
               [&](const Access &access) {
                 return !access.isWrite || access.map.isFunctionOfDim(loop);
               });
  }

  Launch write(const VectorPlan &plan);
  void writeElements(KernelWriter &w, const VectorPlan &plan,
                     SmallVector<Value> &loops);
  void writeReduction(KernelWriter &w, SmallVector<Value> &loops);

  Emission &emission;
  const Phase &phase;
  LinalgGpuSchedule schedule;
  SmallVector<OpFoldResult> sizes;
  /// Loops over outputs, and loops of each thread.
  SmallVector<unsigned> outer, inner;
};
} // namespace

Launch ElementwiseEmitter::write(const VectorPlan &plan) {
  KernelWriter w(emission.kernels, emission.host, phase.getEnclosing(),
                 schedule.threads);
  SmallVector<OpFoldResult> counts;
  SmallVector<Value> extents;
  for (unsigned i : outer)
    counts.push_back(sizes[i]);
  if (plan.width > 1)
    counts.back() = vectorsIn(emission.host, counts.back(), plan.width);
  OpFoldResult total = productOf(emission.host, counts);
  w.unlessFailed(needsStatus(phase) ? emission.status : Value(), [&] {
    for (OpFoldResult count : counts)
      extents.push_back(w.size(count));
    Value count = w.size(total);
    w.prepare(phase);
    Value threads = w.index(schedule.threads);
    Value first = w.add(w.mul(w.block(), threads), w.thread());
    Value step = w.mul(w.blocks(), threads);
    w.loop(first, count, step, {}, [&](Value item, ValueRange) {
      SmallVector<Value> loops(phase.getLoops().size());
      SmallVector<Value> numbers = w.delinearize(item, extents);
      if (plan.width > 1)
        numbers.back() = w.mul(numbers.back(), w.index(plan.width));
      for (auto [i, number] : llvm::zip_equal(outer, numbers))
        loops[i] = number;
      for (auto [i, loop] : llvm::enumerate(phase.getEnclosing()))
        w.setCounter(loop, loops[i]);
      w.prepare(phase);
      if (inner.empty())
        writeElements(w, plan, loops);
      else
        writeReduction(w, loops);
      return SmallVector<Value>();
    });
  });
  Value blocks =
      countBlocks(emission.host, total, schedule.threads, schedule.maxBlocks);
  return w.finish(inner.empty() ? "elementwise" : "generic", blocks);
}

void ElementwiseEmitter::writeElements(KernelWriter &w, const VectorPlan &plan,
                                       SmallVector<Value> &loops) {
  ArrayRef<Access> operands = phase.getOperands();
  SmallVector<SmallVector<Value>> values(operands.size());
  // Numbers of the loops in iteration `i` of the vector.
  auto loopsAt = [&](int64_t i) {
    SmallVector<Value> at = loops;
    if (i)
      at.back() = w.add(at.back(), w.index(i));
    return at;
  };
  for (auto [n, access] : llvm::enumerate(operands)) {
    if (!access.memref) {
      values[n].assign(plan.width, w.scalar(phase.getOp()->getOperand(n)));
      continue;
    }
    // An operand that the body does not read needs no load, only a value.
    if (!phase.readsOperand(n)) {
      Type type = cast<MemRefType>(access.memref.getType()).getElementType();
      values[n].assign(plan.width, ub::PoisonOp::create(w.getBuilder(), type));
      continue;
    }
    View view = w.view(access.memref);
    AccessKind kind = plan.width > 1 ? plan.kinds[0][n] : AccessKind::Broadcast;
    if (kind == AccessKind::Element)
      for (int64_t i = 0; i < plan.width; ++i)
        values[n].push_back(w.load(view, w.evaluate(access.map, loopsAt(i))));
    else if (kind == AccessKind::Broadcast)
      values[n].assign(plan.width, w.load(view, w.evaluate(access.map, loops)));
    else
      values[n] = w.loadVector(view, w.evaluate(access.map, loops), plan.width);
  }
  unsigned outputs = phase.getGeneric().getNumDpsInits();
  SmallVector<SmallVector<Value>> results(outputs);
  for (int64_t i = 0; i < plan.width; ++i) {
    SmallVector<Value> arguments;
    for (const auto &of : values)
      arguments.push_back(of[i]);
    for (auto [n, value] :
         llvm::enumerate(w.computeBody(phase, loopsAt(i), arguments)))
      results[n].push_back(value);
  }
  for (auto [access, of] :
       llvm::zip_equal(operands.take_back(outputs), results)) {
    View view = w.view(access.memref);
    SmallVector<Value> at = w.evaluate(access.map, loops);
    if (plan.width > 1)
      w.storeVector(of, view, at);
    else
      w.store(of[0], view, at);
  }
}

void ElementwiseEmitter::writeReduction(KernelWriter &w,
                                        SmallVector<Value> &loops) {
  ArrayRef<Access> operands = phase.getOperands();
  unsigned outputs = phase.getGeneric().getNumDpsInits();
  ArrayRef<Access> inits = operands.take_back(outputs);
  // Where every output is known before its last loop, sums stay in registers;
  // a loop that moves an output has it read and written each time.
  bool carried = llvm::all_of(inits, [&](const Access &init) {
    return llvm::none_of(
        inner, [&](unsigned loop) { return init.map.isFunctionOfDim(loop); });
  });
  // Sums of half precision are rounded once, at the end.
  SmallVector<Combiner> combiners;
  for (unsigned i = 0; carried && i < outputs; ++i)
    if (std::optional<Combiner> combiner = phase.matchCombiner(i))
      combiners.push_back(*combiner);
  if (combiners.size() != outputs)
    combiners.clear();
  // A long loop has parts with sums of their own: in one chain of many equal
  // terms all would be rounded alike.
  constexpr int64_t kPart = 256;
  Value zero = w.index(0), one = w.index(1);
  auto body = [&](ArrayRef<Value> sums) {
    SmallVector<Value> arguments;
    for (auto [n, access] : llvm::enumerate(operands)) {
      if (!access.memref)
        arguments.push_back(w.scalar(phase.getOp()->getOperand(n)));
      else if (access.isWrite && carried)
        arguments.push_back(sums[n - (operands.size() - outputs)]);
      else
        arguments.push_back(
            w.load(w.view(access.memref), w.evaluate(access.map, loops)));
    }
    return w.computeBody(phase, loops, arguments, combiners);
  };
  std::function<SmallVector<Value>(unsigned, SmallVector<Value>)> nest =
      [&](unsigned depth, SmallVector<Value> sums) -> SmallVector<Value> {
    if (depth == inner.size()) {
      SmallVector<Value> next = body(sums);
      if (carried)
        return next;
      for (auto [init, value] : llvm::zip_equal(inits, next))
        w.store(value, w.view(init.memref), w.evaluate(init.map, loops));
      return {};
    }
    auto run = [&](Value lower, Value upper, ValueRange initial) {
      return w.loop(lower, upper, one, initial, [&](Value i, ValueRange now) {
        loops[inner[depth]] = i;
        return nest(depth + 1, SmallVector<Value>(now));
      });
    };
    Value size = w.size(sizes[inner[depth]]);
    if (combiners.empty() ||
        getConstantIntValue(size).value_or(2 * kPart) < 2 * kPart)
      return run(zero, size, sums);
    return w.loop(
        zero, size, w.index(kPart), sums, [&](Value first, ValueRange before) {
          auto &b = w.getBuilder();
          SmallVector<Value> part;
          for (const Combiner &combiner : combiners)
            part.push_back(arith::ConstantOp::create(b, combiner.neutral));
          Value last = arith::MinSIOp::create(
              b, arith::AddIOp::create(b, first, w.index(kPart)), size);
          part = run(first, last, part);
          for (auto [n, sum] : llvm::enumerate(part))
            sum = w.combine(combiners[n].chain.front(), before[n], sum);
          return part;
        });
  };
  SmallVector<Value> sums;
  if (carried)
    for (auto [i, init] : llvm::enumerate(inits)) {
      Value old = w.load(w.view(init.memref), w.evaluate(init.map, loops));
      sums.push_back(combiners.empty() ? old
                                       : w.convertTo(combiners[i].type, old));
    }
  sums = nest(0, sums);
  if (carried)
    for (auto [init, sum] : llvm::zip_equal(inits, sums))
      w.store(sum, w.view(init.memref), w.evaluate(init.map, loops));
}

void linalggpu::emitElementwise(Emission &emission, const Phase &phase) {
  ElementwiseEmitter(emission, phase).emit();
}
