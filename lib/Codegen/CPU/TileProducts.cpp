//===- TileProducts.cpp - products by tiles of AMX ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "PairedNumbers.h"
#include "TileBuilder.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
/// Pairs fill whole tiles, with zeros behind the last one.
template <typename Number>
class TileProduct final : public PairedNumbers {
public:
  TileProduct(StringRef suffix, StringRef feature)
      : PairedNumbers(suffix, getType<Number>, /*usesTiles=*/true,
                      /*multiple=*/kTileDepth / 2),
        feature(feature) {}
  bool takes(const AttentionSpec &spec) const override {
    if (!spec.target.hasTiles(feature))
      return false;
    // With few queries, keys that tiles cannot read in place are copied.
    return spec.splitKV ? takesTypes(spec) : PairedNumbers::takes(spec);
  }
  Value roundNumbers(KernelBuilder &b, Value part) const override {
    return b.round(part, getNumber(b));
  }
  Value multiplyAdd(KernelBuilder &, Value, Value, Value) const override {
    llvm_unreachable("tiles are multiplied by the kernels of TileKernels.h");
  }

private:
  const StringRef feature;
};
} // namespace

const ProductAtom &mlir::diffattn::getTileBf16() {
  static const TileProduct<BFloat16Type> atom("_bf16", "amx-bf16");
  return atom;
}
