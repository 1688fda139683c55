//===- TileBf16.cpp - products of bf16 by tiles of AMX --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PairsBf16.h"
#include "TileBuilder.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Pairs fill whole tiles, with zeros behind the last one.
class TileBf16 final : public PairsBf16 {
public:
  TileBf16()
      : PairsBf16("_tiles", /*usesTiles=*/true, /*multiple=*/kTileDepth / 2) {}
  bool takes(const AttentionSpec &spec) const override {
    return spec.target.hasTiles() && PairsBf16::takes(spec);
  }
  Value makePack(KernelBuilder &b, ArrayRef<Value> parts) const override {
    Value first = b.round(parts[0], b.bf16), second = b.round(parts[1], b.bf16);
    return interleave(b, first, second);
  }
  Value multiplyAdd(KernelBuilder &, Value, Value, Value) const override {
    llvm_unreachable("tiles are multiplied by the kernels of TileKernels.h");
  }
};
} // namespace

const ProductAtom &mlir::diffattn::getTileBf16() {
  static const TileBf16 atom;
  return atom;
}
