//===- MergeKernel.cpp - joins states of ranges of keys -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// diffattn.merge of the ranges of the maps and diffattn.finalize. A block
// takes one query of one signal head. Of as many ranges as it has threads, each
// thread reads the maximum and the sum of one: so all of them are on their way
// at once, and every range has its weight before an accumulator is read. Warps
// then take turns at the ranges, in the order of the keys, and their sums are
// added in the order of the warps: the result depends neither on when blocks
// ran nor on what else is in the batch.
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"
#include "GpuMath.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;
using MapPair = std::array<Value, 2>;

/// Ranges whose accumulators a warp has on their way at once.
static constexpr int64_t kRangesAhead = 4;
/// The weight that marks a range without keys, whose state is not read.
static constexpr double kNothing = -1.0;

namespace {
class MergeKernel {
public:
  explicit MergeKernel(AttentionKernel &kernel)
      : kernel(kernel), b(kernel.b), spec(kernel.spec), layout(kernel.layout),
        numMaps(spec.maps), width(spec.valueDim),
        columns(llvm::divideCeil(width, 32)) {}
  void emit();

private:
  using P = GpuParam;
  static constexpr int64_t kWarps = GpuSharedLayout::kMergeWarps,
                           kThreads = 32 * kWarps;
  void locate();
  /// Joins one or two numbers of every thread over the block, in a fixed order.
  /// Overwrites `scratch`.
  Values reduceBlock(Values own, int64_t scratch,
                     function_ref<Value(Value, Value)> join);
  /// Merges `kThreads` ranges from `first` on into `carried`: maxima and sums
  /// of the maps, then this lane's columns of each.
  Values mergeRanges(Value first, ValueRange carried);
  Values addRanges(Value first, Value split, ValueRange sums);
  /// This thread's column of each map, summed over the warps.
  MapPair joinWarps(ValueRange sums, Value column);
  /// Maxima and sums of the maps before the first range.
  Values emptyStates() {
    Values empty;
    for (int64_t map = 0; map < numMaps; ++map)
      empty.append({b.minusInfinity(), b.f32(0.0)});
    return empty;
  }
  Value place(int64_t offset, Value index, int64_t bytes) {
    return b.bytes(b.bytes(kernel.shared, b.mul(index, bytes)), offset);
  }

  AttentionKernel &kernel;
  GpuBuilder &b;
  const GpuKernelSpec &spec;
  const GpuSharedLayout &layout;
  int64_t numMaps, width, columns;
  Value query, head, batch;
  /// Position of the row's states of one map: in the first range, and the step
  /// to the next range, in states.
  struct MapStates {
    P max, sum, acc;
    Value row, step, accRow, accStep;
  };
  MapStates ofMaps[2] = {{P::Max1, P::Sum1, P::Acc1, {}, {}, {}, {}},
                         {P::Max2, P::Sum2, P::Acc2, {}, {}, {}, {}}};
  MutableArrayRef<MapStates> maps{ofMaps, static_cast<size_t>(spec.maps)};
};
} // namespace

void MergeKernel::locate() {
  query = b.blockId(0);
  head = b.blockId(1);
  batch = b.blockId(2);
  Value queries = b.gridSize(0), heads = b.gridSize(1), batches = b.gridSize(2);
  auto locate = [&](Value sharing, Value &row, Value &step) {
    Value count = sharing ? b.divU(heads, sharing) : heads;
    Value number = sharing ? b.divU(head, sharing) : head;
    row = b.toI64(b.add(b.mul(batch, count), number));
    row = b.add(b.mul(row, b.toI64(queries)), b.toI64(query));
    step = b.mul(b.toI64(b.mul(batches, count)), b.toI64(queries));
  };
  locate({}, maps[0].row, maps[0].step);
  locate({}, maps[0].accRow, maps[0].accStep);
  if (numMaps == 1)
    return;
  locate(kernel.param(P::SignalPerNoise), maps[1].row, maps[1].step);
  locate(kernel.param(P::SignalPerAcc2), maps[1].accRow, maps[1].accStep);
}

Values MergeKernel::reduceBlock(Values own, int64_t scratch,
                                function_ref<Value(Value, Value)> join) {
  for (Value &value : own)
    for (int64_t lanes = 16; lanes; lanes /= 2)
      value = join(value, b.shuffleXor(value, lanes));
  const auto count = static_cast<int64_t>(own.size()), bytes = 4 * count;
  b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0)), [&] {
    b.store(b.pack(own), place(scratch, kernel.warp, bytes), bytes);
  });
  b.barrier();
  auto type = VectorType::get(count, b.f32());
  Values all(count);
  for (int64_t warp = 0; warp < kWarps; ++warp) {
    Values theirs = b.unpack(
        b.load(type, b.bytes(kernel.shared, scratch + bytes * warp), bytes));
    for (int64_t i = 0; i < count; ++i)
      all[i] = warp ? join(all[i], theirs[i]) : theirs[i];
  }
  return all;
}

Values MergeKernel::addRanges(Value first, Value split, ValueRange sums) {
  auto ofWeights = VectorType::get(numMaps, b.f32());
  // Everything is on its way before the first number is used.
  SmallVector<Value> weights;
  SmallVector<Values> loaded;
  for (int64_t ahead = 0; ahead < kRangesAhead; ++ahead) {
    Value at = b.add(split, ahead * kWarps);
    SmallVector<Value> weightsAt = b.unpack(b.load(
        ofWeights, place(layout.mergeWeights, at, 4 * numMaps), 4 * numMaps));
    Value range = b.toI64(b.add(first, at));
    for (auto [states, weight] : llvm::zip_equal(maps, weightsAt)) {
      // NaN is a weight.
      Value exists = b.compareF(LLVM::FCmpPredicate::uge, weight, b.f32(0.0));
      weights.push_back(weight);
      loaded.push_back(b.branch(
          exists,
          [&, &states = states]() -> Values {
            Value accAt = b.add(states.accRow, b.mul(range, states.accStep));
            Value acc = b.element(b.f32(), kernel.param(states.acc),
                                  b.mul(accAt, width));
            Values numbers;
            for (int64_t i = 0; i < columns; ++i) {
              Value column = b.add(kernel.lane, 32 * i);
              // A lane beyond the width reads the last column again; its
              // result is not used.
              if (32 * (i + 1) > width)
                column = b.minS(column, b.i32(width - 1));
              numbers.push_back(
                  b.load(b.f32(), b.element(b.f32(), acc, b.toI64(column)), 4));
            }
            return numbers;
          },
          Values(columns, b.f32(0.0))));
    }
  }
  Values next(sums.begin(), sums.end());
  for (auto [i, numbers] : llvm::enumerate(loaded))
    for (auto [column, number] : llvm::enumerate(numbers)) {
      Value &sum = next[i % numMaps * columns + column];
      sum = b.fma(number, weights[i], sum);
    }
  return next;
}

Values MergeKernel::mergeRanges(Value first, ValueRange carried) {
  Type f32 = b.f32();
  GpuMath math(b, b.f32(kLog2E));
  Value split = b.add(first, kernel.thread);
  Value exists =
      b.compare(LLVM::ICmpPredicate::slt, split, kernel.param(P::Splits));
  Value range = b.toI64(split);
  Values theirs = b.branch(
      exists,
      [&]() -> Values {
        Values loaded;
        for (const MapStates &states : maps) {
          Value at = b.add(states.row, b.mul(range, states.step));
          for (P state : {states.max, states.sum})
            loaded.push_back(
                b.load(f32, b.element(f32, kernel.param(state), at), 4));
        }
        return loaded;
      },
      emptyStates());
  Values ofRanges;
  for (int64_t map = 0; map < numMaps; ++map)
    ofRanges.push_back(theirs[2 * map]);
  Values maxima = reduceBlock(ofRanges, layout.mergeMaxima,
                              [&](Value x, Value y) { return b.maxF(x, y); });
  Values next(carried.begin(), carried.end());
  Values weights(numMaps), sums(numMaps), ours(numMaps);
  for (int64_t map = 0; map < numMaps; ++map) {
    Value max = b.maxF(carried[2 * map], maxima[map]);
    Value subtract = emitSubtrahend(math, max);
    ours[map] = math.exponential(b.subF(carried[2 * map], subtract));
    Value weight = math.exponential(b.subF(theirs[2 * map], subtract));
    Value sum = theirs[2 * map + 1];
    sums[map] = b.mulF(sum, weight);
    Value isEmpty = b.compareF(LLVM::FCmpPredicate::oeq, sum, b.f32(0.0));
    weights[map] = b.select(isEmpty, b.f32(kNothing), weight);
    next[2 * map] = max;
  }
  b.store(b.pack(weights),
          place(layout.mergeWeights, kernel.thread, 4 * numMaps), 4 * numMaps);
  sums = reduceBlock(sums, layout.mergeSums,
                     [&](Value x, Value y) { return b.addF(x, y); });
  for (int64_t map = 0; map < numMaps; ++map) {
    next[2 * map + 1] = b.fma(carried[2 * map + 1], ours[map], sums[map]);
    for (int64_t i = 0; i < columns; ++i) {
      Value &sum = next[2 * numMaps + map * columns + i];
      sum = b.mulF(sum, ours[map]);
    }
  }
  Value left = b.minS(b.sub(kernel.param(P::Splits), first), b.i32(kThreads));
  Values merged = b.loop(
      kernel.warp, left, kRangesAhead * kWarps,
      ValueRange(next).drop_front(2 * numMaps),
      [&](Value split, ValueRange sums) {
        return addRanges(first, split, sums);
      },
      /*mayUnroll=*/false);
  llvm::copy(merged, next.begin() + 2 * numMaps);
  return next;
}

MapPair MergeKernel::joinWarps(ValueRange sums, Value column) {
  const int64_t mapBytes = 4 * 32 * columns, warpBytes = numMaps * mapBytes;
  Value own = b.element(
      b.f32(), place(layout.mergeColumns, kernel.warp, warpBytes), kernel.lane);
  for (auto [i, sum] : llvm::enumerate(sums))
    b.store(sum, b.bytes(own, 128 * static_cast<int64_t>(i)), 4);
  b.barrier();
  Value ofColumn =
      b.element(b.f32(), b.bytes(kernel.shared, layout.mergeColumns), column);
  MapPair joined;
  for (int64_t warp = 0; warp < kWarps; ++warp)
    for (int64_t map = 0; map < numMaps; ++map) {
      Value theirs = b.load(
          b.f32(), b.bytes(ofColumn, warp * warpBytes + map * mapBytes), 4);
      joined[map] = warp ? b.addF(joined[map], theirs) : theirs;
    }
  return joined;
}

void MergeKernel::emit() {
  locate();
  Values initial = emptyStates();
  initial.append(numMaps * columns, b.f32(0.0));
  Values final = b.loop(
      b.i32(0), kernel.param(P::Splits), kThreads, initial,
      [&](Value first, ValueRange carried) {
        return mergeRanges(first, carried);
      },
      /*mayUnroll=*/false);

  Value column = b.minS(kernel.thread, b.i32(width - 1));
  MapPair sums = joinWarps(ValueRange(final).drop_front(2 * numMaps), column);
  Epilogue epilogue(kernel, batch, head);
  auto divide = [&](Value weight, int64_t map) {
    Epilogue::RowSum end;
    end.map = map;
    end.max = final[2 * map];
    end.sum = final[2 * map + 1];
    if (spec.endsSums()) {
      end.query = query;
      end.isStored =
          b.compare(LLVM::ICmpPredicate::eq, kernel.thread, b.i32(0));
    }
    return epilogue.divideBySum(weight, end);
  };
  Value one = divide(b.f32(1.0), 0);
  Value two;
  if (numMaps == 2) {
    Value lambda = kernel.loadLambda(batch, query, head);
    two = divide(b.mulF(lambda, b.f32(-1.0)), 1);
  }
  Value x = b.mulF(sums[0], one);
  if (two)
    x = b.fma(sums[1], two, x);
  Value inside =
      b.compare(LLVM::ICmpPredicate::slt, kernel.thread, b.i32(width));
  Value square = b.select(inside, b.mulF(x, x), b.f32(0.0));
  Values squares = reduceBlock({square}, layout.mergeMaxima,
                               [&](Value x, Value y) { return b.addF(x, y); });
  Value factor = epilogue.rowFactor(squares[0]);
  epilogue.storeColumn(x, factor, query, kernel.thread, kThreads - 1);
}

void mlir::diffattn::gpucode::emitMergeKernel(AttentionKernel &kernel) {
  MergeKernel(kernel).emit();
}
