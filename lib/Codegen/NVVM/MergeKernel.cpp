//===- MergeKernel.cpp - joins states of blocks of keys -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A warp takes one query of one signal head. States are joined in the order of
// their keys, so the result depends neither on when blocks ran nor on what else
// is in the batch.
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
  int64_t columns = llvm::divideCeil(spec.valueDim, 32),
          width = spec.getPaddedValueDim();
  Value query = b.blockId(0), head = b.blockId(1), batch = b.blockId(2);
  Value group = kernel.param(P::Group), splits = kernel.param(P::Splits);
  Value headBlock = b.divU(head, group);
  Value row = b.add(b.mul(query, group), b.sub(head, b.mul(headBlock, group)));
  Value index = b.add(b.mul(batch, b.divU(b.gridSize(1), group)), headBlock);
  Value first = b.mul(b.toI64(b.mul(index, splits)), spec.getStateSize());
  Value states = b.element(f32, kernel.param(P::Workspace), first);
  GpuMath math(b, kernel.param(P::ExponentScale));

  // (maximum, sum) of both maps, then this lane's columns of both.
  Values initial{b.minusInfinity(), b.f32(0.0), b.minusInfinity(), b.f32(0.0)};
  initial.append(2 * columns, b.f32(0.0));
  Values final = b.loop(
      b.i32(0), splits, 1, initial,
      [&](Value split, ValueRange carried) -> Values {
        Value state =
            b.element(f32, states, b.mul(b.toI64(split), spec.getStateSize()));
        Values next(carried.begin(), carried.end());
        for (int64_t map = 0; map < 2; ++map) {
          Value mapRow = b.add(row, 8 * map);
          Value slot = b.element(f32, state, b.toI64(mapRow));
          Value theirMax = b.load(f32, slot, 4),
                theirSum = b.load(f32, b.bytes(slot, 64), 4);
          Value max = b.maxF(carried[2 * map], theirMax);
          Value subtract = emitSubtrahend(math, max);
          Value ours = math.exponential(b.subF(carried[2 * map], subtract));
          Value theirs = math.exponential(b.subF(theirMax, subtract));
          next[2 * map] = max;
          next[2 * map + 1] =
              b.fma(theirSum, theirs, b.mulF(carried[2 * map + 1], ours));
          Value sums = b.element(f32, slot, b.toI64(b.mul(mapRow, width - 1)));
          for (int64_t i = 0; i < columns; ++i) {
            Value at = b.toI64(b.add(kernel.lane, 32 + 32 * i));
            Value sum = b.load(f32, b.element(f32, sums, at), 4);
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
    // Columns beyond the width are sums of zeros.
    x.push_back(b.fma(final[4 + columns + i], two, b.mulF(final[4 + i], one)));
    squares = b.fma(x.back(), x.back(), squares);
  }
  for (int64_t lanes = 16; lanes; lanes /= 2)
    squares = b.addF(squares, b.shuffleXor(squares, lanes));
  Value factor = epilogue.rowFactor(squares);
  epilogue.storeColumns(x, factor, query);
}
