//===- MicroKernels.cpp - the register-blocked phases of a kernel ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "MicroKernels.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::diffattn;

int64_t mlir::diffattn::scoreTileHeight(CpuPrefillAttr schedule,
                                        int64_t vectors) {
  RegisterTile tile = schedule.getQk();
  return std::min(2 * tile.height, tile.height * tile.vectors / vectors);
}

int64_t mlir::diffattn::productTileHeight(CpuPrefillAttr schedule,
                                          int64_t vectors) {
  RegisterTile tile = schedule.getPv();
  return std::min(2 * tile.height, tile.height * tile.vectors / vectors);
}

/// Steps at a time of a tile that is `vectors` wide. Narrower tiles, for the
/// remainder of full ones, are no slower with half as many, and compile sooner.
static int64_t getUnroll(RegisterTile tile, int64_t vectors) {
  return vectors == tile.vectors ? tile.unroll
                                 : llvm::divideCeil(tile.unroll, 2);
}

int64_t mlir::diffattn::productPanelRows(CpuPrefillAttr schedule) {
  if (usesTiles(schedule.getProduct()))
    return schedule.getQBlockSize();
  // Heights of narrower tiles need not divide the rows.
  return schedule.getQBlockSize() + 2 * schedule.getPv().height;
}

int64_t mlir::diffattn::scorePlanePadding(CpuPrefillAttr schedule) {
  return 2 * schedule.getQk().height;
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

LLVM::LLVMFuncOp
mlir::diffattn::getScoresKernel(KernelBuilder &b, ModuleOp module,
                                CpuPrefillAttr schedule, int64_t vectors,
                                const ProductAtom &atom, bool keepsMaximum) {
  int64_t height = scoreTileHeight(schedule, vectors),
          unroll = getUnroll(schedule.getQk(), vectors);
  std::string name = b.kernelName(
      "scores_" + Twine(height) + "x" + Twine(vectors) + "_u" + Twine(unroll) +
      atom.suffix + "_r" + Twine(schedule.getQBlockSize()) +
      (keepsMaximum ? "" : "_raw"));
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
            rows.push_back(b.at(keys, atom.getNumber(b),
                                b.mul(b.min(b.add(key, j), last), keyStride)));
          SmallVector<Value> accumulators(height * vectors, b.zero());
          // One step along the contracted axis; `scalar` is a key's part of it.
          auto step = [&](Value c, ArrayRef<Value> carried,
                          function_ref<Value(Value)> scalar) {
            SmallVector<Value> next(carried), q;
            Value row = b.mul(c, schedule.getQBlockSize());
            for (int64_t v = 0; v < vectors; ++v)
              q.push_back(atom.loadVector(b, queries, b.add(row, v * b.lanes)));
            for (int64_t j = 0; j < height; ++j) {
              Value k = b.splat(scalar(rows[j]));
              for (int64_t v = 0; v < vectors; ++v)
                next[j * vectors + v] =
                    atom.multiplyAdd(b, k, q[v], next[j * vectors + v]);
            }
            return next;
          };
          Value steps = b.div(d, atom.pack);
          accumulators =
              unrolledLoop(b, b.index(0), steps, unroll, accumulators,
                           [&](Value c, ArrayRef<Value> carried) {
                             return step(c, carried, [&](Value row) {
                               return atom.loadScalar(b, row, c);
                             });
                           });
          if (atom.pack > 1)
            // The last of an odd number of columns: memory after it is not
            // read.
            accumulators = b.loop(
                steps, b.ceilDiv(d, atom.pack), 1, accumulators,
                [&](Value c, ValueRange carried) {
                  return step(c, SmallVector<Value>(carried), [&](Value row) {
                    return atom.loadFirst(b, row, c);
                  });
                });
          Value out = b.at(scores, b.f32, b.mul(key, schedule.getQBlockSize()));
          for (int64_t v = 0; v < vectors; ++v) {
            Value lane = b.index(v * b.lanes), maximum;
            if (keepsMaximum)
              maximum = b.load(b.vector, maxima, lane);
            for (int64_t j = 0; j < height; ++j) {
              Value score = accumulators[j * vectors + v];
              b.store(score, out,
                      b.index(j * schedule.getQBlockSize() + v * b.lanes));
              if (keepsMaximum)
                maximum = emitMaximum(b, maximum, score);
            }
            if (keepsMaximum)
              b.store(maximum, maxima, lane);
          }
        });
      });
}

LLVM::LLVMFuncOp
mlir::diffattn::getExponentialKernel(KernelBuilder &b, ModuleOp module,
                                     CpuPrefillAttr schedule, int64_t vectors,
                                     bool hasMasked, bool scaled, int degree) {
  std::string name =
      b.kernelName("exp_" + Twine(vectors) + "_d" + Twine(degree) +
                   (hasMasked ? "_masked" : "") + (scaled ? "_scaled" : "") +
                   "_r" + Twine(schedule.getQBlockSize()));
  Type p = b.pointer;
  return b.getOrEmitFunction(
      module, name, {p, b.i64, p, p, b.f32}, [&](ValueRange args) {
        PolynomialMath lanes(b, b.vector, degree,
                             scaled ? b.splat(args[4]) : Value());
        Value scores = args[0], n = args[1], maxima = args[2], sums = args[3];
        SmallVector<Value> maximum, sum(vectors, b.zero());
        for (int64_t v = 0; v < vectors; ++v)
          maximum.push_back(b.load(b.vector, maxima, b.index(v * b.lanes)));
        sum = b.loop(b.index(0), n, 1, sum, [&](Value key, ValueRange carried) {
          SmallVector<Value> next;
          Value row = b.at(scores, b.f32, b.mul(key, schedule.getQBlockSize()));
          for (int64_t v = 0; v < vectors; ++v) {
            Value score = b.load(b.vector, row, b.index(v * b.lanes));
            Value e = emitWeight(lanes, score, maximum[v], hasMasked);
            b.store(e, row, b.index(v * b.lanes));
            next.push_back(b.addf(carried[v], e));
          }
          return next;
        });
        for (int64_t v = 0; v < vectors; ++v)
          b.addTo(sums, b.index(v * b.lanes), sum[v]);
      });
}

/// Stores `numberOf` each of `n` keys and vectors in packs, [pack][lane]; past
/// the last key they are 0.
static void storePacks(KernelBuilder &b, CpuPrefillAttr schedule,
                       int64_t vectors, const ProductAtom &atom, Value n,
                       Value out,
                       function_ref<Value(Value key, int64_t v)> numberOf) {
  // The first `count` keys of a pack; the others are 0.
  auto store = [&](Value pack, int64_t count) {
    Value key = b.mul(pack, atom.pack);
    for (int64_t v = 0; v < vectors; ++v) {
      SmallVector<Value> parts;
      for (int64_t i = 0; i < count; ++i)
        parts.push_back(numberOf(b.add(key, i), v));
      parts.resize(atom.pack, b.zero());
      b.store(atom.makePack(b, parts), out, atom.getPacked(b),
              b.add(b.mul(pack, schedule.getQBlockSize()), v * b.lanes));
    }
  };
  Value whole = b.div(n, atom.pack);
  b.loop(whole, [&](Value pack) { store(pack, atom.pack); });
  if (atom.pack > 1)
    b.loop(whole, b.ceilDiv(n, atom.pack), 1,
           [&](Value pack) { store(pack, 1); });
}

LLVM::LLVMFuncOp mlir::diffattn::getCombineKernel(KernelBuilder &b,
                                                  ModuleOp module,
                                                  CpuPrefillAttr schedule,
                                                  int64_t vectors,
                                                  const ProductAtom &atom) {
  std::string name = b.kernelName("combine_" + Twine(vectors) + atom.suffix +
                                  "_r" + Twine(schedule.getQBlockSize()));
  Type p = b.pointer;
  return b.getOrEmitFunction(
      module, name, {p, p, p, p, b.i64, p}, [&](ValueRange args) {
        SmallVector<Value> factor1, factor2;
        for (int64_t v = 0; v < vectors; ++v) {
          factor1.push_back(b.load(b.vector, args[2], b.index(v * b.lanes)));
          factor2.push_back(b.load(b.vector, args[3], b.index(v * b.lanes)));
        }
        auto combine = [&](Value key, int64_t v) {
          Value position =
              b.add(b.mul(key, schedule.getQBlockSize()), v * b.lanes);
          Value e1 = b.load(b.vector, args[0], position),
                e2 = b.load(b.vector, args[1], position);
          return b.subf(b.mulf(e1, factor1[v]), b.mulf(e2, factor2[v]));
        };
        storePacks(b, schedule, vectors, atom, args[4], args[5], combine);
      });
}

LLVM::LLVMFuncOp mlir::diffattn::getPackWeightsKernel(KernelBuilder &b,
                                                      ModuleOp module,
                                                      CpuPrefillAttr schedule,
                                                      int64_t vectors,
                                                      const ProductAtom &atom) {
  std::string name = b.kernelName("weights_" + Twine(vectors) + atom.suffix +
                                  "_r" + Twine(schedule.getQBlockSize()));
  Type p = b.pointer;
  return b.getOrEmitFunction(module, name, {p, b.i64, p}, [&](ValueRange args) {
    storePacks(b, schedule, vectors, atom, args[1], args[2],
               [&](Value key, int64_t v) {
                 return b.load(
                     b.vector, args[0],
                     b.add(b.mul(key, schedule.getQBlockSize()), v * b.lanes));
               });
  });
}

/// sums += scalar * values; `careful`: a scalar of 0 adds nothing.
static void addProducts(KernelBuilder &b, const ProductAtom &atom, Value scalar,
                        ArrayRef<Value> values, MutableArrayRef<Value> sums,
                        bool careful) {
  for (auto [value, sum] : llvm::zip_equal(values, sums))
    sum = careful ? atom.multiplyAddCarefully(b, scalar, value, sum)
                  : atom.multiplyAdd(b, scalar, value, sum);
}

LLVM::LLVMFuncOp mlir::diffattn::getProductKernel(
    KernelBuilder &b, ModuleOp module, CpuPrefillAttr schedule, int64_t vectors,
    bool masked, const ProductAtom &atom, bool careful) {
  int64_t height = productTileHeight(schedule, vectors),
          unroll = getUnroll(schedule.getPv(), vectors);
  std::string name = b.kernelName(
      "product_" + Twine(height) + "x" + Twine(vectors) + "_u" + Twine(unroll) +
      (masked ? "_masked" : "") + (careful ? "_careful" : "") + atom.suffix +
      "_r" + Twine(schedule.getQBlockSize()));
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
            if (atom.pack > 1) {
              first = b.div(first, atom.pack);
              last = b.ceilDiv(b.max(last, b.index(0)), atom.pack);
            }
            Value panel = b.at(values, b.f32, column),
                  lanes = b.at(probabilities, b.f32, row);
            Value tile = b.at(out, b.f32, b.add(b.mul(row, outStride), column));
            SmallVector<Value> accumulators(height * vectors, b.zero());
            accumulators = unrolledLoop(
                b, first, last, unroll, accumulators,
                [&](Value key, ArrayRef<Value> carried) {
                  SmallVector<Value> next(carried), value;
                  Value row = b.mul(key, valueStride);
                  for (int64_t v = 0; v < vectors; ++v)
                    value.push_back(
                        mask ? b.loadWide(panel, b.f32, row, mask)
                             : atom.loadVector(b, panel,
                                               b.add(row, v * b.lanes)));
                  Value scalars = b.mul(key, schedule.getQBlockSize());
                  for (int64_t r = 0; r < height; ++r) {
                    Value scalar =
                        b.splat(atom.loadScalar(b, lanes, b.add(scalars, r)));
                    addProducts(
                        b, atom, scalar, value,
                        MutableArrayRef(next).slice(r * vectors, vectors),
                        careful);
                  }
                  return next;
                });
            for (int64_t r = 0; r < height; ++r)
              for (int64_t v = 0; v < vectors; ++v)
                b.addTo(tile, b.add(b.mul(outStride, r), v * b.lanes),
                        accumulators[r * vectors + v]);
          });
        });
      });
}

LLVM::LLVMFuncOp
mlir::diffattn::getLaneProductKernel(KernelBuilder &b, ModuleOp module,
                                     CpuPrefillAttr schedule, int64_t vectors,
                                     const ProductAtom &atom, bool careful) {
  const int64_t height = productTileHeight(schedule, vectors),
                unroll = getUnroll(schedule.getPv(), vectors),
                lanes = schedule.getQBlockSize() / atom.pack;
  std::string name =
      b.kernelName("lane_product_" + Twine(height) + "x" + Twine(vectors) +
                   "_u" + Twine(unroll) + (careful ? "_careful" : "") +
                   atom.suffix + "_r" + Twine(schedule.getQBlockSize()));
  Type p = b.pointer, i = b.i64;
  return b.getOrEmitFunction(
      module, name, {p, p, i, p, i, i, i, i}, [&](ValueRange args) {
        Value coefficients = args[0], values = args[1], valueStride = args[2],
              out = args[3], outStride = args[4],
              packs = b.ceilDiv(args[5], atom.pack), columns = args[6],
              n = args[7];
        // A tile of `keys` keys from `key` on.
        auto multiply = [&](Value key, Value column, int64_t keys) {
          Value panel = b.at(values, b.f32, column),
                scalars = b.at(coefficients, b.f32, b.mul(key, lanes)),
                tile = b.at(out, b.f32, b.add(b.mul(key, outStride), column));
          // The sums of all keys leave the caches between two blocks of
          // queries: prefetch those of the next tile.
          for (int64_t k = keys; k < 2 * keys; ++k)
            for (int64_t bytes = 0; bytes < vectors * b.lanes * 4; bytes += 64)
              b.prefetch(tile, b.add(b.mul(outStride, 4 * k), bytes));
          SmallVector<Value> sums;
          for (int64_t k = 0; k < keys; ++k)
            for (int64_t v = 0; v < vectors; ++v)
              sums.push_back(b.load(b.vector, tile,
                                    b.add(b.mul(outStride, k), v * b.lanes)));
          sums = unrolledLoop(
              b, b.index(0), packs, unroll, sums,
              [&](Value lane, ArrayRef<Value> carried) {
                SmallVector<Value> next(carried), row;
                Value at = b.mul(lane, valueStride);
                for (int64_t v = 0; v < vectors; ++v)
                  row.push_back(
                      atom.loadVector(b, panel, b.add(at, v * b.lanes)));
                for (int64_t k = 0; k < keys; ++k) {
                  Value scalar =
                      atom.loadScalar(b, scalars, b.add(lane, k * lanes));
                  addProducts(b, atom, b.splat(scalar), row,
                              MutableArrayRef(next).slice(k * vectors, vectors),
                              careful);
                }
                return next;
              });
          for (int64_t k = 0; k < keys; ++k)
            for (int64_t v = 0; v < vectors; ++v)
              b.store(sums[k * vectors + v], tile,
                      b.add(b.mul(outStride, k), v * b.lanes));
        };
        Value whole = b.mul(b.div(n, height), height);
        b.loop(b.index(0), columns, vectors * b.lanes, [&](Value column) {
          b.loop(b.index(0), whole, height,
                 [&](Value key) { multiply(key, column, height); });
          // Memory behind the last key is not the kernel's.
          b.loop(whole, n, 1, [&](Value key) { multiply(key, column, 1); });
        });
      });
}
