//===- ProductAtom.cpp - products of two operands -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "ProductAtom.h"

using namespace mlir;
using namespace mlir::diffattn;

Value ProductAtom::loadScalar(KernelBuilder &b, Value base, Value index) const {
  return b.load(getPacked(b), base, getPacked(b), index);
}

const ProductAtom &mlir::diffattn::getProductAtom(CpuProduct product) {
  switch (product) {
  case CpuProduct::F32:
    return getFmaF32();
  case CpuProduct::Bf16Pairs:
    return getDotBf16();
  case CpuProduct::Bf16Tiles:
    return getTileBf16();
  }
  llvm_unreachable("all products are listed");
}

const ProductAtom &AttentionSpec::getAtom() const {
  const ProductAtom &atom = getProductAtom(product);
  return atom.takes(*this) ? atom : getFmaF32();
}

bool AttentionSpec::pairsExponentials() const {
  return getAtom().usesTiles && !keepsWideExponentials;
}

AttentionSpec AttentionSpec::withDenseRows() const {
  AttentionSpec dense = *this;
  const SpecSize unit{1}, none{0};
  for (auto [operand, pages, width] :
       {std::tuple(&dense.k1, &dense.pages[0], headDim),
        {&dense.k2, &dense.pages[1], headDim},
        {&dense.v, &dense.pages[2], valueDim}}) {
    *pages = *operand;
    const SpecSize strides[] = {none, none, width, unit};
    llvm::copy(strides, operand->strides);
  }
  return dense;
}

std::optional<float> AttentionSpec::exponentFactor() const {
  if (editsEveryScore())
    return kLog2E;
  if (!getAtom().scalesQueries)
    return scores.scale * kLog2E;
  return std::nullopt;
}
