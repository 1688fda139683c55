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

/// The beginning of the names of kernels of `maps` maps.
static StringRef prefixOf(int64_t maps) { return maps == 1 ? "one_map_" : ""; }

LLVM::LLVMFuncOp mlir::diffattn::getRowSumsKernel(KernelBuilder &b,
                                                  ModuleOp module,
                                                  CpuPrefillAttr schedule,
                                                  int64_t vectors, int64_t maps,
                                                  bool hidden) {
  const int64_t stride = schedule.getQBlockSize();
  std::string name =
      b.kernelName(prefixOf(maps) + "row_sums_" + Twine(vectors) +
                   (hidden ? "_hidden" : "") + "_r" + Twine(stride));
  Type p = b.pointer;
  SmallVector<Type> types(2 * maps + 1, p);
  types.push_back(b.i64);
  types.append(maps, p);
  return b.getOrEmitFunction(module, name, types, [&](ValueRange args) {
    ValueRange exponentials = args.take_front(maps),
               factors = args.slice(maps + 1, maps),
               sumsOf = args.take_back(maps);
    Value products = args[maps], n = args[2 * maps + 1];
    SmallVector<Value> sums(maps * vectors, b.zero());
    sums = b.loop(b.index(0), n, 1, sums, [&](Value key, ValueRange carried) {
      SmallVector<Value> next;
      for (int64_t v = 0; v < vectors; ++v) {
        Value at = b.add(b.mul(key, stride), v * b.lanes);
        Value product = b.load(b.vector, products, at);
        for (auto [map, plane] : llvm::enumerate(exponentials)) {
          Value e = b.load(b.vector, plane, at);
          next.push_back(b.fma(e, unlessHidden(b, hidden, e, product),
                               carried[maps * v + map]));
        }
      }
      return next;
    });
    for (int64_t v = 0; v < vectors; ++v)
      for (int64_t map = 0; map < maps; ++map) {
        Value lane = b.index(v * b.lanes);
        Value factor = b.load(b.vector, factors[map], lane);
        b.addTo(sumsOf[map], lane, b.mulf(factor, sums[maps * v + map]));
      }
  });
}

LLVM::LLVMFuncOp mlir::diffattn::getScoreGradientsKernel(
    KernelBuilder &b, ModuleOp module, CpuPrefillAttr schedule, int64_t vectors,
    int64_t maps, const ProductAtom &atom, bool hidden, bool capped) {
  const int64_t stride = schedule.getQBlockSize();
  std::string name =
      b.kernelName(prefixOf(maps) + "score_gradients_" + Twine(vectors) +
                   (hidden ? "_hidden" : "") + (capped ? "_capped" : "") +
                   atom.suffix + "_r" + Twine(stride));
  Type p = b.pointer;
  // Exponentials, products; factors, lambda and sums of lanes; n; slopes; in
  // pairs, rows of products and exponentials, and pairs of the latter.
  const int64_t planes = maps + 1, laneParts = maps == 1 ? 2 : 5;
  SmallVector<Type> types(planes + laneParts, p);
  types.push_back(b.i64);
  types.append(maps, p);
  if (atom.pack > 1)
    types.append(planes + maps, p);
  return b.getOrEmitFunction(module, name, types, [&](ValueRange args) {
    ValueRange exponentials = args.take_front(maps),
               slopes = args.slice(planes + laneParts + 1, maps),
               rounded = args.drop_front(planes + laneParts + 1 + maps);
    Value products = args[maps], n = args[planes + laneParts];
    SmallVector<SmallVector<Value>> lanes =
        loadLanes(b, args.slice(planes, laneParts), vectors);
    // p and the gradients of each map of the lanes of vector `v`, whose scores
    // are at `at`.
    auto make = [&](int64_t v, Value at) {
      ArrayRef<Value> of = lanes[v], factors = of.take_front(maps),
                      sums = of.take_back(maps);
      SmallVector<Value> e, weights, made;
      for (Value plane : exponentials)
        e.push_back(b.load(b.vector, plane, at));
      Value product = b.load(b.vector, products, at);
      for (int64_t map = 0; map < maps; ++map) {
        Value weight = b.mulf(e[map], factors[map]);
        if (map)
          weight = b.mulf(/*lambda=*/of[maps], weight);
        weights.push_back(unlessHidden(b, hidden, e[map], weight));
      }
      made.push_back(maps == 2 ? b.subf(weights[0], weights[1]) : weights[0]);
      for (int64_t map = 0; map < maps; ++map) {
        Value distance =
            map ? b.subf(sums[map], product) : b.subf(product, sums[map]);
        Value gradient = b.mulf(weights[map], distance);
        if (capped)
          gradient = b.mulf(gradient, b.load(b.vector, slopes[map], at));
        made.push_back(unlessHidden(b, hidden, e[map], gradient));
      }
      return made;
    };
    // `keys` keys from `key` on: those of a pack, or fewer.
    auto emit = [&](Value key, int64_t keys) {
      for (int64_t v = 0; v < vectors; ++v) {
        SmallVector<SmallVector<Value>> parts(planes);
        for (int64_t i = 0; i < keys; ++i) {
          Value at = b.add(b.mul(b.add(key, i), stride), v * b.lanes);
          for (auto [k, value] : llvm::enumerate(make(v, at))) {
            if (atom.pack == 1) {
              b.store(value, k ? exponentials[k - 1] : products, at);
              continue;
            }
            b.store(atom.roundNumbers(b, value), rounded[k], atom.getNumber(b),
                    at);
            parts[k].push_back(value);
          }
        }
        if (atom.pack == 1)
          continue;
        Value pack = b.add(b.mul(b.div(key, atom.pack), stride), v * b.lanes);
        for (int64_t map = 0; map < maps; ++map) {
          parts[1 + map].resize(atom.pack, b.zero());
          b.store(atom.makePack(b, parts[1 + map]), rounded[planes + map],
                  atom.getPacked(b), pack);
        }
      }
    };
    Value whole = b.mul(b.div(n, atom.pack), atom.pack);
    b.loop(b.index(0), whole, atom.pack,
           [&](Value key) { emit(key, atom.pack); });
    if (atom.pack > 1)
      b.loop(whole, n, atom.pack, [&](Value key) { emit(key, 1); });
  });
}
