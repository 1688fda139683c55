//===- ProductAtom.cpp - how two operands are multiplied ------------------===//
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

const ProductAtom &mlir::diffattn::getProductAtom(ProductInput input) {
  switch (input) {
  case ProductInput::F32:
    return getFmaF32();
  case ProductInput::Bf16Pairs:
    return getDotBf16();
  }
  llvm_unreachable("all inputs are listed");
}
