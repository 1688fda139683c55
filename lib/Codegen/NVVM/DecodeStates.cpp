//===- DecodeStates.cpp - states of ranges of keys ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DecodeKernel.h"
#include "GpuMath.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

void DecodeKernel::leaveState(ValueRange values) {
  Type f32 = b.f32();
  int64_t pitch = layout.statePitch, rows = layout.stateRows;
  int64_t perWarp = layout.stateWarpBytes / 4; // rows, then maxima and sums
  // The pipeline is free once all warps are here: every tile was waited for.
  meet();
  Value states = b.bytes(kernel.shared, layout.states.offset);
  Value own = b.element(f32, states, b.mul(kernel.warp, perWarp));
  Value exists =
      b.compare(LLVM::ICmpPredicate::slt, kernel.laneRow, countRows());
  for (int64_t h = 0; h < laneRows(); ++h) {
    Value row = b.add(kernel.laneRow, 8 * h);
    Value rowBase = b.element(
        f32, own, b.add(b.mul(row, pitch), b.mul(kernel.laneColumn, 2)));
    b.branch(exists, [&] {
      for (int64_t n = 0; n < sumTiles; ++n) {
        size_t at = laneNumbers() * (1 + n) + 2 * h;
        b.store(b.pack({values[at], values[at + 1]}), b.bytes(rowBase, 32 * n),
                8);
      }
    });
    // All four lanes of a row have the maximum and, after the reduction, the
    // sum.
    Value sum = softmax.reduceQuad(values[laneRows() + h]);
    b.branch(b.compare(LLVM::ICmpPredicate::eq, kernel.laneColumn, b.i32(0)),
             [&] {
               Value slot = b.element(f32, own, b.add(row, rows * pitch));
               b.store(values[h], slot, 4);
               b.store(sum, b.bytes(slot, 4 * rows), 4);
             });
  }
  meet();
}

DecodeKernel::Joined DecodeKernel::join(Value tileRow) {
  Type f32 = b.f32();
  const int64_t pitch = layout.statePitch, rows = layout.stateRows,
                warps = spec.getTiles().warps,
                perWarp = layout.stateWarpBytes / 4;
  Value states = b.bytes(kernel.shared, layout.states.offset);
  auto ofWarp = [this, f32, states, perWarp](int64_t warp, Value at) {
    return b.load(f32, b.element(f32, states, b.add(at, warp * perWarp)), 4);
  };
  // Factors of the warps, in the order of their numbers.
  GpuMath math(b, kernel.param(GpuParam::ExponentScale));
  SmallVector<Value> weights;
  Value max = b.minusInfinity();
  for (int64_t warp = 0; warp < warps; ++warp) {
    weights.push_back(ofWarp(warp, b.add(tileRow, rows * pitch)));
    max = b.maxF(max, weights.back());
  }
  Value subtract = emitSubtrahend(math, max);
  for (Value &weight : weights)
    weight = math.exponential(b.subF(weight, subtract));
  auto sumAt = [this, ofWarp, weights, warps](Value at) {
    Value sum = b.f32(0.0);
    for (int64_t warp = 0; warp < warps; ++warp)
      sum = b.fma(ofWarp(warp, at), weights[warp], sum);
    return sum;
  };
  return {b.mulF(max, kernel.param(GpuParam::StateScale)),
          sumAt(b.add(tileRow, rows * pitch + rows)),
          [this, sumAt, tileRow, pitch](Value column) {
            return sumAt(b.add(b.mul(tileRow, pitch), column));
          }};
}

/// Warps take turns at the rows of all maps, and lanes at columns.
void DecodeKernel::storeStates(function_ref<Joined(Value tileRow)> getState) {
  using P = GpuParam;
  const int64_t warps = spec.getTiles().warps;
  const bool isOne = spec.maps == 1;
  Value rows = countRows(), group = kernel.param(P::Group);
  // Packed sequences lie in one batch.
  Value range = b.toI64(
      spec.isPacked() ? split : b.add(b.mul(split, b.gridSize(2)), batch));
  Value bySignal;
  if (!isOne)
    bySignal = b.compare(LLVM::ICmpPredicate::eq,
                         kernel.param(P::SignalPerAcc2), b.i32(1));
  b.loop(
      kernel.warp, isOne ? rows : b.mul(rows, 2), warps, ValueRange(),
      [&](Value number, ValueRange) -> Values {
        Value isSecond, row = number;
        if (!isOne) {
          isSecond = b.compare(LLVM::ICmpPredicate::sge, number, rows);
          row = b.select(isSecond, b.sub(number, rows), number);
        }
        Value query = b.divU(row, group);
        Value head = b.add(firstHead, b.sub(row, b.mul(query, group)));
        Value noiseHead = kernel.noiseHeadOf(head);
        auto placeOf = [&](Value heads, Value head) {
          Value place = b.add(b.mul(range, b.toI64(heads)), b.toI64(head));
          return b.add(b.mul(place, b.toI64(kernel.param(P::Queries))),
                       b.toI64(queryAt(query)));
        };
        Value signal = placeOf(b.mul(b.gridSize(1), group), head);
        Value noise, isStored, tileRow = row;
        if (!isOne) {
          noise = placeOf(kernel.param(P::NoiseHeads), noiseHead);
          // The first of the signal heads that share a noise head stores the
          // state of map 2, which is the same for all.
          isStored = b.orI(
              b.compare(LLVM::ICmpPredicate::eq, head,
                        b.mul(noiseHead, kernel.param(P::SignalPerNoise))),
              b.xorI(isSecond, b.i1(true)));
          tileRow = b.add(row, b.select(isSecond, b.i32(8), b.i32(0)));
        }
        auto ofMap = [&](P first, P second) {
          return isOne ? kernel.param(first)
                       : b.select(isSecond, kernel.param(second),
                                  kernel.param(first));
        };
        Joined state = getState(tileRow);
        auto store = [&](Value value, Value pointer, Value at) {
          b.store(value, b.element(b.f32(), pointer, at), 4);
        };
        Value isFirstLane =
            b.compare(LLVM::ICmpPredicate::eq, kernel.lane, b.i32(0));
        b.branch(isOne ? isFirstLane : b.andI(isStored, isFirstLane), [&] {
          Value place = isOne ? signal : b.select(isSecond, noise, signal);
          store(state.max, ofMap(P::Max1, P::Max2), place);
          store(state.sum, ofMap(P::Sum1, P::Sum2), place);
        });
        auto storeAccumulator = [&] {
          Value place = signal;
          if (!isOne)
            place = b.select(b.andI(isSecond, b.xorI(bySignal, b.i1(true))),
                             noise, signal);
          Value pointer = b.element(b.f32(), ofMap(P::Acc1, P::Acc2),
                                    b.mul(place, spec.valueDim));
          for (int64_t first = 0; first < spec.valueDim; first += 32) {
            Value column = b.add(kernel.lane, first);
            auto storeColumn = [&] {
              store(state.getColumn(column), pointer, b.toI64(column));
            };
            if (first + 32 <= spec.valueDim)
              storeColumn();
            else
              b.branch(b.compare(LLVM::ICmpPredicate::slt, column,
                                 b.i32(spec.valueDim)),
                       storeColumn);
          }
        };
        if (isOne)
          storeAccumulator();
        else
          b.branch(b.orI(isStored, bySignal), storeAccumulator);
        return {};
      },
      /*mayUnroll=*/false);
}
