//===- MergeKernel.cpp - joins states of ranges of keys -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// diffattn.merge of the ranges of both maps and diffattn.finalize. A warp takes
// one query of one signal head. States are joined in the order of their keys,
// so the result depends neither on when blocks ran nor on what else is in the
// batch.
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"
#include "GpuMath.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

using Values = GpuBuilder::Values;

void mlir::diffattn::gpucode::emitMergeKernel(AttentionKernel &kernel) {
  using P = GpuParam;
  GpuBuilder &b = kernel.b;
  const GpuKernelSpec &spec = kernel.spec;
  Type f32 = b.f32();
  int64_t width = spec.valueDim, columns = llvm::divideCeil(width, 32);
  Value query = b.blockId(0), head = b.blockId(1), batch = b.blockId(2);
  Value queries = b.gridSize(0), heads = b.gridSize(1), batches = b.gridSize(2);
  GpuMath math(b, b.f32(kLog2E));

  // Of each map: where the row's state of the first range lies, and how far it
  // is to the next range's, in states.
  struct MapStates {
    P max, sum, acc;
    Value row, step, accRow, accStep;
  };
  MapStates maps[] = {{P::Max1, P::Sum1, P::Acc1, {}, {}, {}, {}},
                      {P::Max2, P::Sum2, P::Acc2, {}, {}, {}, {}}};
  auto locate = [&](Value sharing, Value &row, Value &step) {
    Value count = sharing ? b.divU(heads, sharing) : heads;
    Value number = sharing ? b.divU(head, sharing) : head;
    row = b.toI64(b.add(b.mul(batch, count), number));
    row = b.add(b.mul(row, b.toI64(queries)), b.toI64(query));
    step = b.mul(b.toI64(b.mul(batches, count)), b.toI64(queries));
  };
  locate({}, maps[0].row, maps[0].step);
  locate({}, maps[0].accRow, maps[0].accStep);
  locate(kernel.param(P::SignalPerNoise), maps[1].row, maps[1].step);
  locate(kernel.param(P::SignalPerAcc2), maps[1].accRow, maps[1].accStep);

  // (maximum, sum) of both maps, then this lane's columns of both.
  Values initial{b.minusInfinity(), b.f32(0.0), b.minusInfinity(), b.f32(0.0)};
  initial.append(2 * columns, b.f32(0.0));
  Values final = b.loop(
      b.i32(0), kernel.param(P::Splits), 1, initial,
      [&](Value split, ValueRange carried) -> Values {
        Value range = b.toI64(split);
        Values next(carried.begin(), carried.end());
        for (auto [map, states] : llvm::enumerate(maps)) {
          Value at = b.add(states.row, b.mul(range, states.step));
          Value theirMax =
              b.load(f32, b.element(f32, kernel.param(states.max), at), 4);
          Value theirSum =
              b.load(f32, b.element(f32, kernel.param(states.sum), at), 4);
          Value max = b.maxF(carried[2 * map], theirMax);
          Value subtract = emitSubtrahend(math, max);
          Value ours = math.exponential(b.subF(carried[2 * map], subtract));
          Value theirs = math.exponential(b.subF(theirMax, subtract));
          next[2 * map] = max;
          next[2 * map + 1] =
              b.fma(theirSum, theirs, b.mulF(carried[2 * map + 1], ours));
          Value accAt = b.add(states.accRow, b.mul(range, states.accStep));
          Value acc =
              b.element(f32, kernel.param(states.acc), b.mul(accAt, width));
          for (int64_t i = 0; i < columns; ++i) {
            Value column = b.add(kernel.lane, 32 * i), inside;
            // A lane beyond the width reads the row's first number instead.
            if (32 * (i + 1) > width) {
              inside =
                  b.compare(LLVM::ICmpPredicate::slt, column, b.i32(width));
              column = b.select(inside, column, b.i32(0));
            }
            Value sum = b.load(f32, b.element(f32, acc, b.toI64(column)), 4);
            if (inside)
              sum = b.select(inside, sum, b.f32(0.0));
            Value &ofColumn = next[4 + map * columns + i];
            ofColumn = b.fma(sum, theirs, b.mulF(ofColumn, ours));
          }
        }
        return next;
      });

  Epilogue epilogue(kernel, batch, head);
  Value one = epilogue.divideBySum(b.f32(1.0), final[1]);
  Value lambda = kernel.loadLambda(batch, query, head);
  Value two = epilogue.divideBySum(b.mulF(lambda, b.f32(-1.0)), final[3]);
  SmallVector<Value> x;
  Value squares = b.f32(0.0);
  for (int64_t i = 0; i < columns; ++i) {
    // Columns beyond the width are zeros.
    x.push_back(b.fma(final[4 + columns + i], two, b.mulF(final[4 + i], one)));
    squares = b.fma(x.back(), x.back(), squares);
  }
  for (int64_t lanes = 16; lanes; lanes /= 2)
    squares = b.addF(squares, b.shuffleXor(squares, lanes));
  Value factor = epilogue.rowFactor(squares);
  epilogue.storeColumns(x, factor, query);
}
