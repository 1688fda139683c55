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
    // Of few queries the keys are copied where tiles cannot read them.
    return spec.splitKV ? takesTypes(spec) : PairedNumbers::takes(spec);
  }
  Value makePack(KernelBuilder &b, ArrayRef<Value> parts) const override {
    Value first = b.round(parts[0], getNumber(b)),
          second = b.round(parts[1], getNumber(b));
    return interleave(b, first, second);
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
