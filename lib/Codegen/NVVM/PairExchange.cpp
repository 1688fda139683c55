//===- PairExchange.cpp - exchange between two warps ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PairExchange.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

PairExchange::PairExchange(AttentionKernel &kernel, Value rowGroup)
    : kernel(kernel), b(kernel.b), barrierId(b.add(rowGroup, 1)) {}

Value PairExchange::slot(Value ofWarp) {
  const GpuSharedLayout &layout = kernel.layout;
  return b.bytes(
      b.bytes(kernel.shared, b.mul(ofWarp, layout.exchangeWarpBytes)),
      layout.exchange.offset);
}

SmallVector<OnlineSoftmax::Step>
PairExchange::steps(ArrayRef<OnlineSoftmax::Step> own) {
  Value ownSlot = slot(kernel.warp), partnerSlot = slot(b.xorI(kernel.warp, 1));
  // Factors lie behind the fragments.
  Value fragmentLane = b.mul(kernel.lane, 16),
        factorLane = b.mul(kernel.lane, 8);
  int64_t fragments = own.front().probabilities.size();
  const GpuSharedLayout &layout = kernel.layout;
  int64_t factors = layout.fragmentBytes * fragments,
          perTile = layout.exchangeTileBytes;
  for (auto [tile, step] : llvm::enumerate(own)) {
    for (auto [i, fragment] : llvm::enumerate(step.probabilities))
      b.store(b.pack(fragment),
              b.bytes(b.bytes(ownSlot, fragmentLane),
                      tile * perTile + i * layout.fragmentBytes),
              16);
    b.store(b.pack(step.alpha),
            b.bytes(b.bytes(ownSlot, factorLane), tile * perTile + factors), 8);
  }
  meet();
  SmallVector<OnlineSoftmax::Step> other;
  auto words = VectorType::get(4, b.getI32Type());
  auto pair = VectorType::get(2, b.f32());
  for (size_t tile = 0; tile < own.size(); ++tile) {
    OnlineSoftmax::Step &step = other.emplace_back();
    for (int64_t i = 0; i < fragments; ++i) {
      Value packed = b.load(words,
                            b.bytes(b.bytes(partnerSlot, fragmentLane),
                                    tile * perTile + i * layout.fragmentBytes),
                            16);
      llvm::copy(b.unpack(packed), step.probabilities.emplace_back().begin());
    }
    Value packed = b.load(
        pair,
        b.bytes(b.bytes(partnerSlot, factorLane), tile * perTile + factors), 8);
    llvm::copy(b.unpack(packed), step.alpha.begin());
    step.rescale =
        b.orI(b.compareF(LLVM::FCmpPredicate::une, step.alpha[0], b.f32(1.0)),
              b.compareF(LLVM::FCmpPredicate::une, step.alpha[1], b.f32(1.0)));
  }
  return other;
}

SmallVector<Value> PairExchange::numbers(ArrayRef<Value> own) {
  Value lane = b.mul(kernel.lane, 4);
  Value ownSlot = b.bytes(slot(kernel.warp), lane);
  Value partnerSlot = b.bytes(slot(b.xorI(kernel.warp, 1)), lane);
  meet();
  for (auto [i, value] : llvm::enumerate(own))
    b.store(value, b.bytes(ownSlot, 128 * i));
  meet();
  SmallVector<Value> other;
  for (size_t i = 0; i < own.size(); ++i)
    other.push_back(b.load(own[i].getType(), b.bytes(partnerSlot, 128 * i)));
  return other;
}
