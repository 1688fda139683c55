//===- TileKernels.cpp - the phases of a kernel by matrix tiles -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TileKernels.h"

#include "TileBuilder.h"
#include "Transpose.h"

#include "DiffAttn/Semantics/Activations.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

LLVM::LLVMFuncOp mlir::diffattn::getTileScoresKernel(
    KernelBuilder &b, ModuleOp module, CpuPrefillAttr schedule, int64_t vectors,
    const ProductAtom &atom, bool keepsMaximum) {
  const Type number = atom.getNumber(b);
  const int64_t stride = schedule.getQBlockSize();
  std::string name =
      b.kernelName("tile_scores_" + Twine(vectors) + atom.suffix + "_r" +
                   Twine(stride) + (keepsMaximum ? "" : "_raw"));
  Type p = b.pointer, i = b.i64;
  return b.getOrEmitFunction(
      module, name, {p, i, p, i, i, p, p, p}, [&](ValueRange args) {
        Value keys = args[0], keyStride = args[1], queries = args[2],
              depth = args[3], n = args[4], tail = args[5], scores = args[6],
              maxima = args[7];
        TileBuilder tiles(b, number);
        // 16 keys from `rows` on, whose scores go to `out`.
        auto multiply = [&](Value rows, Value rowStride, Value out) {
          SmallVector<Value> sums;
          for (int64_t v = 0; v < vectors; ++v)
            sums.push_back(tiles.zeroSums());
          sums = b.loop(
              b.index(0), depth, kTileDepth, sums,
              [&](Value c, ValueRange carried) {
                SmallVector<Value> next(carried);
                Value a = tiles.loadFactor(b.at(rows, number, c), rowStride);
                Value pairs = b.at(queries, b.i32, b.mul(b.div(c, 2), stride));
                for (int64_t v = 0; v < vectors; ++v) {
                  Value q = tiles.loadFactor(
                      b.at(pairs, b.i32, b.index(v * kTileLanes)),
                      b.index(2 * stride));
                  next[v] = tiles.multiplyAdd(a, q, next[v]);
                }
                return next;
              });
          for (int64_t v = 0; v < vectors; ++v)
            tiles.storeSums(sums[v], b.at(out, b.f32, b.index(v * kTileLanes)),
                            b.index(stride));
        };
        auto raise = [&](Value row, int64_t v, Value maximum) {
          return emitMaximum(b, maximum,
                             b.load(b.vector, row, b.index(v * kTileLanes)));
        };
        auto forMaxima = [&](function_ref<Value(int64_t, Value)> body) {
          if (!keepsMaximum)
            return;
          for (int64_t v = 0; v < vectors; ++v) {
            Value lane = b.index(v * kTileLanes);
            b.store(body(v, b.load(b.vector, maxima, lane)), maxima, lane);
          }
        };
        Value whole = b.mul(b.div(n, kTileRows), kTileRows);
        b.loop(b.index(0), whole, kTileRows, [&](Value key) {
          Value out = b.at(scores, b.f32, b.mul(key, stride));
          multiply(b.at(keys, number, b.mul(key, keyStride)), keyStride, out);
          forMaxima([&](int64_t v, Value maximum) {
            for (int64_t row = 0; row < kTileRows; ++row)
              maximum =
                  raise(b.at(out, b.f32, b.index(row * stride)), v, maximum);
            return maximum;
          });
        });
        b.ifThen(b.less(whole, n), [&] {
          multiply(tail, depth, b.at(scores, b.f32, b.mul(whole, stride)));
          forMaxima([&](int64_t v, Value maximum) {
            return b.loop(
                whole, n, 1, maximum, [&](Value key, ValueRange carried) {
                  Value row = b.at(scores, b.f32, b.mul(key, stride));
                  return SmallVector<Value>{raise(row, v, carried[0])};
                })[0];
          });
        });
      });
}

LLVM::LLVMFuncOp mlir::diffattn::getTileExponentialKernel(
    KernelBuilder &b, ModuleOp module, CpuPrefillAttr schedule, int64_t vectors,
    bool masked, bool scaled, const ProductAtom &atom) {
  const int64_t stride = schedule.getQBlockSize();
  std::string name = b.kernelName(
      "tile_exp_" + Twine(vectors) + atom.suffix + (masked ? "_masked" : "") +
      (scaled ? "_scaled" : "") + "_r" + Twine(stride));
  Type p = b.pointer;
  return b.getOrEmitFunction(
      module, name, {p, b.i64, p, p, b.f32, p}, [&](ValueRange args) {
        PolynomialMath lanes(b, b.vector, atom.exponentDegree,
                             scaled ? b.splat(args[4]) : Value(),
                             b.target.has("avx512dq")
                                 ? ExponentCut::BelowByAvx512
                                 : ExponentCut::Below);
        TileBuilder tiles(b, atom.getNumber(b));
        Value scores = args[0], n = args[1], maxima = args[2], sums = args[3],
              e = args[5];
        SmallVector<Value> maximum, sum(vectors, b.zero());
        for (int64_t v = 0; v < vectors; ++v)
          maximum.push_back(b.load(b.vector, maxima, b.index(v * kTileLanes)));
        auto computePair = [&](Value pair, bool hasSecond, ValueRange carried) {
          SmallVector<Value> next;
          Value row = b.at(scores, b.f32, b.mul(pair, 2 * stride));
          for (int64_t v = 0; v < vectors; ++v) {
            Value lane = b.index(v * kTileLanes), total = carried[v];
            auto compute = [&](Value lane) {
              Value weight = emitWeight(lanes, b.load(b.vector, row, lane),
                                        maximum[v], masked);
              total = b.addf(total, weight);
              return weight;
            };
            Value first = compute(lane);
            // A NaN that a pair does not keep is in the sum, which makes all
            // weights of the row NaN.
            Value second = hasSecond ? compute(b.add(lane, stride)) : b.zero();
            b.store(tiles.makePairs(first, second), e, b.i32,
                    b.add(b.mul(pair, stride), lane));
            next.push_back(total);
          }
          return next;
        };
        Value pairs = b.div(n, 2);
        sum = b.loop(b.index(0), pairs, 1, sum,
                     [&](Value pair, ValueRange carried) {
                       return computePair(pair, /*hasSecond=*/true, carried);
                     });
        sum = b.loop(pairs, b.ceilDiv(n, 2), 1, sum,
                     [&](Value pair, ValueRange carried) {
                       return computePair(pair, /*hasSecond=*/false, carried);
                     });
        for (int64_t v = 0; v < vectors; ++v)
          b.addTo(sums, b.index(v * kTileLanes), sum[v]);
      });
}

LLVM::LLVMFuncOp mlir::diffattn::getTileCombineKernel(KernelBuilder &b,
                                                      ModuleOp module,
                                                      CpuPrefillAttr schedule,
                                                      const ProductAtom &atom) {
  const int64_t stride = schedule.getQBlockSize();
  std::string name =
      b.kernelName("tile_combine" + Twine(atom.suffix) + "_r" + Twine(stride));
  Type p = b.pointer;
  return b.getOrEmitFunction(
      module, name, {p, p, p, p, b.i64, p}, [&](ValueRange args) {
        // NaN of any bits as one that stays NaN when pairs are made.
        auto loadFactor = [&](Value factors) -> Value {
          Value factor = b.load(b.vector, factors, b.index(0));
          Value isNaN = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO,
                                              factor, factor);
          return b.select(
              isNaN, b.splat(std::numeric_limits<float>::quiet_NaN()), factor);
        };
        Value factor1 = loadFactor(args[2]), factor2 = loadFactor(args[3]);
        Value n = args[4], out = args[5], lastPair = b.div(b.add(n, -1), 2);
        TileBuilder tiles(b, atom.getNumber(b));
        // `first` and the 31 keys after it. In the last tile, the last pair is
        // read in place of those past it, whose weights are 0.
        auto combine = [&](Value first, bool isWhole) {
          Value firstPair = b.div(first, 2);
          auto weigh = [&](int64_t offset) {
            Value pair = b.add(firstPair, offset / 2);
            Value at = b.mul(isWhole ? pair : b.min(pair, lastPair), stride);
            auto load = [&](Value e) {
              return tiles.splitPairs(b.load(b.integers, e, b.i32, at));
            };
            auto [first1, second1] = load(args[0]);
            auto [first2, second2] = load(args[1]);
            auto subtract = [&](Value e1, Value e2, int64_t offset) -> Value {
              Value weight = b.subf(b.mulf(e1, factor1), b.mulf(e2, factor2));
              return isWhole ? weight
                             : b.select(b.less(b.add(first, offset), n), weight,
                                        b.zero());
            };
            return tiles.makePairs(subtract(first1, first2, offset),
                                   subtract(second1, second2, offset + 1));
          };
          SmallVector<Value> pairs;
          for (int64_t key = 0; key < kTileDepth; key += 2)
            pairs.push_back(weigh(key));
          Value tile = b.at(out, atom.getNumber(b), b.mul(first, kTileRows));
          for (auto [row, keys] : llvm::enumerate(emitTranspose(b, pairs)))
            b.store(keys, tile, b.i32, b.index(row * kTileLanes));
        };
        Value whole = b.mul(b.div(n, kTileDepth), kTileDepth);
        b.loop(b.index(0), whole, kTileDepth,
               [&](Value key) { combine(key, /*isWhole=*/true); });
        b.ifThen(b.less(whole, n), [&] { combine(whole, /*isWhole=*/false); });
      });
}

LLVM::LLVMFuncOp mlir::diffattn::getTileWeightsKernel(KernelBuilder &b,
                                                      ModuleOp module,
                                                      CpuPrefillAttr schedule,
                                                      const ProductAtom &atom) {
  const int64_t stride = schedule.getQBlockSize();
  std::string name =
      b.kernelName("tile_weights" + Twine(atom.suffix) + "_r" + Twine(stride));
  Type p = b.pointer;
  return b.getOrEmitFunction(module, name, {p, b.i64, p}, [&](ValueRange args) {
    Value e = args[0], n = args[1], out = args[2];
    Value pairCount = b.ceilDiv(n, 2), lastPair = b.add(pairCount, -1);
    Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(b.integers));
    // `first` and the 31 keys after it, by pairs. The last of an odd number
    // of keys is paired with 0 already.
    auto transpose = [&](Value first, bool isWhole) {
      Value firstPair = b.div(first, 2);
      SmallVector<Value> pairs;
      for (int64_t i = 0; i < kTileDepth / 2; ++i) {
        Value pair = b.add(firstPair, i);
        Value at = b.mul(isWhole ? pair : b.min(pair, lastPair), stride);
        Value keys = b.load(b.integers, e, b.i32, at);
        pairs.push_back(
            isWhole ? keys : b.select(b.less(pair, pairCount), keys, zeros));
      }
      Value tile = b.at(out, atom.getNumber(b), b.mul(first, kTileRows));
      for (auto [row, keys] : llvm::enumerate(emitTranspose(b, pairs)))
        b.store(keys, tile, b.i32, b.index(row * kTileLanes));
    };
    Value whole = b.mul(b.div(n, kTileDepth), kTileDepth);
    b.loop(b.index(0), whole, kTileDepth,
           [&](Value key) { transpose(key, /*isWhole=*/true); });
    b.ifThen(b.less(whole, n), [&] { transpose(whole, /*isWhole=*/false); });
  });
}

LLVM::LLVMFuncOp mlir::diffattn::getTileProductKernel(KernelBuilder &b,
                                                      ModuleOp module,
                                                      CpuPrefillAttr schedule,
                                                      int64_t tiles,
                                                      const ProductAtom &atom) {
  const Type number = atom.getNumber(b);
  // From one tile of 16 rows to the next.
  const int64_t plane = kTileRows * schedule.getKvBlockSize();
  std::string name = b.kernelName("tile_product_" + Twine(tiles) + atom.suffix +
                                  "_n" + Twine(schedule.getKvBlockSize()));
  Type p = b.pointer, i = b.i64;
  return b.getOrEmitFunction(
      module, name, {p, p, i, p, i, i, i, i, i, i, i, i, i},
      [&](ValueRange args) {
        Value weights = args[0], values = args[1], valueStride = args[2],
              out = args[3], outStride = args[4], rowBegin = args[5],
              rowEnd = args[6], columns = args[7], n = args[8], low = args[9],
              lowSlope = args[10], high = args[11], highSlope = args[12];
        TileBuilder builder(b, number);
        const int64_t height = tiles * kTileRows;
        b.loop(rowBegin, rowEnd, height, [&](Value row) {
          Value first = b.max(b.add(low, b.mul(row, lowSlope)), b.index(0));
          Value last =
              b.min(b.add(high, b.mul(b.add(row, height - 1), highSlope)), n);
          first = b.mul(b.div(first, kTileDepth), kTileDepth);
          Value planes =
              b.at(weights, number, b.mul(row, schedule.getKvBlockSize()));
          b.loop(b.index(0), columns, kTileLanes, [&](Value column) {
            auto sumsOf = [&](int64_t tile) {
              Value at = b.mul(b.add(row, tile * kTileRows), outStride);
              return b.at(out, b.f32, b.add(at, column));
            };
            SmallVector<Value> sums;
            for (int64_t tile = 0; tile < tiles; ++tile)
              sums.push_back(builder.loadSums(sumsOf(tile), outStride));
            sums = b.loop(
                first, last, kTileDepth, sums,
                [&](Value key, ValueRange carried) {
                  SmallVector<Value> next(carried);
                  Value at = b.add(b.mul(b.div(key, 2), valueStride), column);
                  Value pairs = builder.loadFactor(b.at(values, b.i32, at),
                                                   b.mul(valueStride, 2));
                  for (int64_t tile = 0; tile < tiles; ++tile) {
                    Value a = builder.loadFactor(
                        b.at(planes, number,
                             b.add(b.mul(key, kTileRows), tile * plane)),
                        b.index(kTileDepth));
                    next[tile] = builder.multiplyAdd(a, pairs, next[tile]);
                  }
                  return next;
                });
            for (int64_t tile = 0; tile < tiles; ++tile)
              builder.storeSums(sums[tile], sumsOf(tile), outStride);
          });
        });
      });
}

LLVM::LLVMFuncOp
mlir::diffattn::getTileKeyProductKernel(KernelBuilder &b, ModuleOp module,
                                        CpuPrefillAttr schedule, int64_t tiles,
                                        const ProductAtom &atom) {
  const Type number = atom.getNumber(b);
  const int64_t lanes = schedule.getQBlockSize(), height = tiles * kTileRows;
  std::string name = b.kernelName("tile_key_product_" + Twine(tiles) +
                                  atom.suffix + "_r" + Twine(lanes));
  Type p = b.pointer, i = b.i64;
  return b.getOrEmitFunction(
      module, name, {p, p, i, p, i, i, i, i}, [&](ValueRange args) {
        Value coefficients = args[0], values = args[1], valueStride = args[2],
              out = args[3], outStride = args[4],
              depth = b.roundUp(args[5], kTileDepth), columns = args[6],
              n = args[7];
        TileBuilder builder(b, number);
        Value tail =
            LLVM::AllocaOp::create(b, p, b.f32, b.index(kTileRows * kTileLanes),
                                   /*alignment=*/64);
        // `count` tiles of keys from `key` on, whose sums are at `base`.
        auto multiply = [&](Value key, Value column, int64_t count, Value base,
                            Value stride) {
          auto sumsOf = [&](int64_t tile) {
            return b.at(base, b.f32, b.mul(stride, tile * kTileRows));
          };
          SmallVector<Value> sums;
          for (int64_t tile = 0; tile < count; ++tile)
            sums.push_back(builder.loadSums(sumsOf(tile), stride));
          sums =
              b.loop(b.index(0), depth, kTileDepth, sums,
                     [&](Value lane, ValueRange carried) {
                       SmallVector<Value> next(carried);
                       Value at =
                           b.add(b.mul(b.div(lane, 2), valueStride), column);
                       Value pairs = builder.loadFactor(b.at(values, b.i32, at),
                                                        b.mul(valueStride, 2));
                       for (int64_t tile = 0; tile < count; ++tile) {
                         Value row = b.mul(b.add(key, tile * kTileRows), lanes);
                         Value a = builder.loadFactor(
                             b.at(coefficients, number, b.add(row, lane)),
                             b.index(lanes));
                         next[tile] = builder.multiplyAdd(a, pairs, next[tile]);
                       }
                       return next;
                     });
          for (int64_t tile = 0; tile < count; ++tile)
            builder.storeSums(sums[tile], sumsOf(tile), stride);
        };
        Value whole = b.mul(b.div(n, kTileRows), kTileRows),
              full = b.mul(b.div(n, height), height), rest = b.sub(n, whole);
        b.loop(b.index(0), columns, kTileLanes, [&](Value column) {
          auto at = [&](Value key) {
            return b.at(out, b.f32, b.add(b.mul(key, outStride), column));
          };
          b.loop(b.index(0), full, height, [&](Value key) {
            multiply(key, column, tiles, at(key), outStride);
          });
          if (tiles > 1)
            b.loop(full, whole, kTileRows, [&](Value key) {
              multiply(key, column, 1, at(key), outStride);
            });
          // Memory behind the last key is not the kernel's.
          b.ifThen(b.less(b.index(0), rest), [&] {
            Value last = at(whole), stride = b.index(kTileLanes);
            auto copy = [&](Value from, Value fromStride, Value to,
                            Value toStride) {
              b.loop(rest, [&](Value row) {
                b.store(b.load(b.vector, from, b.mul(row, fromStride)), to,
                        b.mul(row, toStride));
              });
            };
            copy(last, outStride, tail, stride);
            multiply(whole, column, 1, tail, stride);
            copy(tail, stride, last, outStride);
          });
        });
      });
}
