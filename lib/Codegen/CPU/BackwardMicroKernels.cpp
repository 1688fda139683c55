//===- BackwardMicroKernels.cpp - gradients of a block of maps ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BackwardMicroKernels.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace mlir::diffattn;

/// `value`, or 0 where the exponential is that of a hidden key.
static Value unlessHidden(KernelBuilder &b, bool hidden, Value exponential,
                          Value value) {
  if (!hidden)
    return value;
  Value isHidden = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ,
                                         exponential, b.zero());
  return b.select(isHidden, b.zero(), value);
}

/// The vectors of lanes at each of `bases`.
static SmallVector<SmallVector<Value>>
loadLanes(KernelBuilder &b, ValueRange bases, int64_t vectors) {
  SmallVector<SmallVector<Value>> lanes;
  for (int64_t v = 0; v < vectors; ++v) {
    SmallVector<Value> &all = lanes.emplace_back();
    for (Value base : bases)
      all.push_back(b.load(b.vector, base, b.index(v * b.lanes)));
  }
  return lanes;
}

LLVM::LLVMFuncOp mlir::diffattn::getRowSumsKernel(KernelBuilder &b,
                                                  ModuleOp module,
                                                  CpuPrefillAttr schedule,
                                                  int64_t vectors,
                                                  bool hidden) {
  const int64_t stride = schedule.getQBlockSize();
  std::string name =
      b.kernelName("row_sums_" + Twine(vectors) + (hidden ? "_hidden" : "") +
                   "_r" + Twine(stride));
  Type p = b.pointer;
  return b.getOrEmitFunction(
      module, name, {p, p, p, p, p, b.i64, p, p}, [&](ValueRange args) {
        SmallVector<Value> sums(2 * vectors, b.zero());
        sums = b.loop(
            b.index(0), args[5], 1, sums, [&](Value key, ValueRange carried) {
              SmallVector<Value> next;
              for (int64_t v = 0; v < vectors; ++v) {
                Value at = b.add(b.mul(key, stride), v * b.lanes);
                Value product = b.load(b.vector, args[2], at);
                for (int map : {0, 1}) {
                  Value e = b.load(b.vector, args[map], at);
                  next.push_back(b.fma(e, unlessHidden(b, hidden, e, product),
                                       carried[2 * v + map]));
                }
              }
              return next;
            });
        for (int64_t v = 0; v < vectors; ++v)
          for (int map : {0, 1}) {
            Value lane = b.index(v * b.lanes);
            Value factor = b.load(b.vector, args[3 + map], lane);
            b.addTo(args[6 + map], lane, b.mulf(factor, sums[2 * v + map]));
          }
      });
}

LLVM::LLVMFuncOp mlir::diffattn::getScoreGradientsKernel(
    KernelBuilder &b, ModuleOp module, CpuPrefillAttr schedule, int64_t vectors,
    bool hidden, bool capped) {
  const int64_t stride = schedule.getQBlockSize();
  std::string name = b.kernelName(
      "score_gradients_" + Twine(vectors) + (hidden ? "_hidden" : "") +
      (capped ? "_capped" : "") + "_r" + Twine(stride));
  Type p = b.pointer;
  return b.getOrEmitFunction(
      module, name, {p, p, p, p, p, p, p, p, b.i64, p, p},
      [&](ValueRange args) {
        // For each vector: both factors, lambda, both sums.
        SmallVector<SmallVector<Value>> lanes =
            loadLanes(b, args.slice(3, 5), vectors);
        b.loop(args[8], [&](Value key) {
          for (int64_t v = 0; v < vectors; ++v) {
            ArrayRef<Value> of = lanes[v];
            Value at = b.add(b.mul(key, stride), v * b.lanes);
            Value e1 = b.load(b.vector, args[0], at),
                  e2 = b.load(b.vector, args[1], at),
                  product = b.load(b.vector, args[2], at);
            Value a1 = unlessHidden(b, hidden, e1, b.mulf(e1, of[0]));
            Value a2 =
                unlessHidden(b, hidden, e2, b.mulf(of[2], b.mulf(e2, of[1])));
            Value d1 = b.mulf(a1, b.subf(product, of[3]));
            Value d2 = b.mulf(a2, b.subf(of[4], product));
            if (capped) {
              d1 = b.mulf(d1, b.load(b.vector, args[9], at));
              d2 = b.mulf(d2, b.load(b.vector, args[10], at));
            }
            b.store(b.subf(a1, a2), args[2], at);
            b.store(unlessHidden(b, hidden, e1, d1), args[0], at);
            b.store(unlessHidden(b, hidden, e2, d2), args[1], at);
          }
        });
      });
}
