//===- MicroKernels.cpp - the register-blocked phases of a nest -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "MicroKernels.h"

#include "DiffAttn/Kernel/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

int64_t mlir::diffattn::scoreTileHeight(const NestSchedule &schedule,
                                        int64_t vectors) {
  const RegisterTile &tile = schedule.scores;
  return std::min(2 * tile.height, tile.height * tile.vectors / vectors);
}

int64_t mlir::diffattn::productTileHeight(const NestSchedule &schedule,
                                          int64_t vectors) {
  const RegisterTile &tile = schedule.product;
  return std::min(2 * tile.height, tile.height * tile.vectors / vectors);
}

int64_t mlir::diffattn::productPanelRows(const NestSchedule &schedule) {
  // Heights of narrower tiles need not divide the rows.
  return schedule.rows + 2 * schedule.product.height;
}

int64_t mlir::diffattn::scorePlanePadding(const NestSchedule &schedule) {
  return 2 * schedule.scores.height;
}

/// A loop over [0, d) in steps of `unroll`, and one step at a time over the
/// rest. `step` takes the position and the values carried, and gives the values
/// carried on.
static SmallVector<Value>
unrolledLoop(KernelBuilder &b, Value lower, Value upper, int64_t unroll,
             ValueRange inits,
             function_ref<SmallVector<Value>(Value, ArrayRef<Value>)> step) {
  Value whole =
      b.add(lower, b.mul(b.div(b.max(b.sub(upper, lower), b.index(0)), unroll),
                         unroll));
  SmallVector<Value> values =
      b.loop(lower, whole, unroll, inits, [&](Value i, ValueRange carried) {
        SmallVector<Value> current(carried);
        for (int64_t u = 0; u < unroll; ++u)
          current = step(b.add(i, u), current);
        return current;
      });
  if (unroll == 1)
    return values;
  return b.loop(whole, upper, 1, values, [&](Value i, ValueRange carried) {
    return step(i, SmallVector<Value>(carried));
  });
}

LLVM::LLVMFuncOp mlir::diffattn::getScoresKernel(KernelBuilder &b,
                                                 ModuleOp module,
                                                 const NestSchedule &schedule,
                                                 int64_t vectors) {
  int64_t height = scoreTileHeight(schedule, vectors),
          unroll = schedule.scores.unroll;
  std::string name =
      b.kernelName("scores_" + Twine(height) + "x" + Twine(vectors) + "_u" +
                   Twine(unroll) + "_r" + Twine(schedule.rows));
  Type p = b.pointer, i = b.i64;
  return b.getOrEmitFunction(
      module, name, {p, i, p, i, i, p, p}, [&](ValueRange args) {
        Value keys = args[0], keyStride = args[1], queries = args[2],
              d = args[3], n = args[4], scores = args[5], maxima = args[6];
        b.loop(b.index(0), n, height, [&](Value key) {
          // The last tile repeats the last key: its scores lie in the padding,
          // and a repeated score does not change a maximum.
          SmallVector<Value> rows;
          Value last = b.sub(n, b.index(1));
          for (int64_t j = 0; j < height; ++j)
            rows.push_back(b.at(keys, b.f32,
                                b.mul(b.min(b.add(key, j), last), keyStride)));
          SmallVector<Value> accumulators(height * vectors, b.zero());
          accumulators =
              unrolledLoop(b, b.index(0), d, unroll, accumulators,
                           [&](Value c, ArrayRef<Value> carried) {
                             SmallVector<Value> next(carried), q;
                             Value row = b.mul(c, schedule.rows);
                             for (int64_t v = 0; v < vectors; ++v)
                               q.push_back(b.load(b.vector, queries,
                                                  b.add(row, v * b.lanes)));
                             for (int64_t j = 0; j < height; ++j) {
                               Value k = b.splat(b.load(b.f32, rows[j], c));
                               for (int64_t v = 0; v < vectors; ++v)
                                 next[j * vectors + v] =
                                     b.fma(k, q[v], next[j * vectors + v]);
                             }
                             return next;
                           });
          Value out = b.at(scores, b.f32, b.mul(key, schedule.rows));
          for (int64_t v = 0; v < vectors; ++v) {
            Value maximum = b.load(b.vector, maxima, b.index(v * b.lanes));
            for (int64_t j = 0; j < height; ++j) {
              Value score = accumulators[j * vectors + v];
              b.store(score, out, b.index(j * schedule.rows + v * b.lanes));
              maximum = emitMaximum(b, maximum, score);
            }
            b.store(maximum, maxima, b.index(v * b.lanes));
          }
        });
      });
}

LLVM::LLVMFuncOp mlir::diffattn::getExponentialKernel(
    KernelBuilder &b, ModuleOp module, const NestSchedule &schedule,
    int64_t vectors, bool hasMasked, bool natural) {
  std::string name =
      b.kernelName("exp_" + Twine(vectors) + (hasMasked ? "_masked" : "") +
                   (natural ? "_natural" : "") + "_r" + Twine(schedule.rows));
  Type p = b.pointer;
  return b.getOrEmitFunction(
      module, name, {p, b.i64, p, p}, [&](ValueRange args) {
        Value scores = args[0], n = args[1], maxima = args[2], sums = args[3];
        SmallVector<Value> maximum, sum;
        for (int64_t v = 0; v < vectors; ++v) {
          maximum.push_back(b.load(b.vector, maxima, b.index(v * b.lanes)));
          sum.push_back(b.load(b.vector, sums, b.index(v * b.lanes)));
        }
        sum = b.loop(b.index(0), n, 1, sum, [&](Value key, ValueRange carried) {
          SmallVector<Value> next;
          Value row = b.at(scores, b.f32, b.mul(key, schedule.rows));
          for (int64_t v = 0; v < vectors; ++v) {
            Value score = b.load(b.vector, row, b.index(v * b.lanes));
            // The difference first: a score of -3.4e38 would overflow if it
            // were scaled.
            Value x = b.subf(score, maximum[v]);
            if (natural)
              x = b.mulf(x, b.splat(kLog2E));
            Value e = emitExp2(b, x);
            if (hasMasked) {
              // A lowest exponent is not 0, and times an infinite value it
              // would be seen.
              Value masked = arith::CmpFOp::create(
                  b, arith::CmpFPredicate::OEQ, score,
                  b.splat(-std::numeric_limits<float>::infinity()));
              e = arith::SelectOp::create(b, masked, b.zero(), e);
            }
            b.store(e, row, b.index(v * b.lanes));
            next.push_back(b.addf(carried[v], e));
          }
          return next;
        });
        for (int64_t v = 0; v < vectors; ++v)
          b.store(sum[v], sums, b.index(v * b.lanes));
      });
}

LLVM::LLVMFuncOp mlir::diffattn::getCombineKernel(KernelBuilder &b,
                                                  ModuleOp module,
                                                  const NestSchedule &schedule,
                                                  int64_t vectors) {
  std::string name =
      b.kernelName("combine_" + Twine(vectors) + "_r" + Twine(schedule.rows));
  Type p = b.pointer;
  return b.getOrEmitFunction(
      module, name, {p, p, p, p, b.i64, p}, [&](ValueRange args) {
        SmallVector<Value> factor1, factor2;
        for (int64_t v = 0; v < vectors; ++v) {
          factor1.push_back(b.load(b.vector, args[2], b.index(v * b.lanes)));
          factor2.push_back(b.load(b.vector, args[3], b.index(v * b.lanes)));
        }
        b.loop(args[4], [&](Value key) {
          Value row = b.mul(key, schedule.rows);
          for (int64_t v = 0; v < vectors; ++v) {
            Value position = b.add(row, v * b.lanes);
            Value e1 = b.load(b.vector, args[0], position),
                  e2 = b.load(b.vector, args[1], position);
            b.store(b.subf(b.mulf(e1, factor1[v]), b.mulf(e2, factor2[v])),
                    args[5], position);
          }
        });
      });
}

LLVM::LLVMFuncOp mlir::diffattn::getProductKernel(KernelBuilder &b,
                                                  ModuleOp module,
                                                  const NestSchedule &schedule,
                                                  int64_t vectors,
                                                  bool masked) {
  int64_t height = productTileHeight(schedule, vectors),
          unroll = schedule.product.unroll;
  std::string name = b.kernelName(
      "product_" + Twine(height) + "x" + Twine(vectors) + "_u" + Twine(unroll) +
      (masked ? "_masked" : "") + "_r" + Twine(schedule.rows));
  Type p = b.pointer, i = b.i64;
  return b.getOrEmitFunction(
      module, name, {p, p, i, p, i, i, i, i, i, i, i, i}, [&](ValueRange args) {
        Value probabilities = args[0], values = args[1], valueStride = args[2],
              out = args[3], outStride = args[4], rows = args[5],
              columns = args[6], n = args[7], low = args[8], lowSlope = args[9],
              high = args[10], highSlope = args[11];
        Value mask = masked ? b.firstLanes(columns) : Value();
        b.loop(b.index(0), columns, vectors * b.lanes, [&](Value column) {
          b.loop(b.index(0), rows, height, [&](Value row) {
            Value first = b.max(b.add(low, b.mul(row, lowSlope)), b.index(0));
            Value last =
                b.min(b.add(high, b.mul(b.add(row, height - 1), highSlope)), n);
            Value panel = b.at(values, b.f32, column),
                  lanes = b.at(probabilities, b.f32, row);
            Value tile = b.at(out, b.f32, b.add(b.mul(row, outStride), column));
            SmallVector<Value> accumulators;
            for (int64_t r = 0; r < height; ++r)
              for (int64_t v = 0; v < vectors; ++v)
                accumulators.push_back(b.load(
                    b.vector, tile, b.add(b.mul(outStride, r), v * b.lanes)));
            accumulators = unrolledLoop(
                b, first, last, unroll, accumulators,
                [&](Value key, ArrayRef<Value> carried) {
                  SmallVector<Value> next(carried), value;
                  Value row = b.mul(key, valueStride);
                  for (int64_t v = 0; v < vectors; ++v)
                    value.push_back(b.loadWide(panel, b.f32,
                                               b.add(row, v * b.lanes), mask));
                  Value scalars = b.mul(key, schedule.rows);
                  for (int64_t r = 0; r < height; ++r) {
                    Value scalar =
                        b.splat(b.load(b.f32, lanes, b.add(scalars, r)));
                    for (int64_t v = 0; v < vectors; ++v)
                      next[r * vectors + v] =
                          b.fma(scalar, value[v], next[r * vectors + v]);
                  }
                  return next;
                });
            for (int64_t r = 0; r < height; ++r)
              for (int64_t v = 0; v < vectors; ++v)
                b.store(accumulators[r * vectors + v], tile,
                        b.add(b.mul(outStride, r), v * b.lanes));
          });
        });
      });
}
