//===- BatchInvariance.cpp - which products sum in one order --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Schedule/BatchInvariance.h"

#include "mlir/IR/BuiltinTypes.h"

using namespace mlir;
using namespace mlir::diffattn;

bool mlir::diffattn::isInvariantByDefault(Type type, const CpuTarget &target) {
  // On where prefill loses less than a tenth to the library. Ours widens bf16
  // where it has neither dot products nor tiles, while the library may find
  // AMX; and f16 by software where the CPU cannot.
  return type.isF32() || (type.isF16() && target.hasHalfConversion()) ||
         (type.isBF16() && (target.hasBf16Dot() || target.hasTiles()));
}

bool mlir::diffattn::sumsInOrder(BatchInvariance choice, Type type,
                                 bool isWeight, const CpuTarget &target) {
  switch (choice) {
  case BatchInvariance::Auto:
    return isWeight && isInvariantByDefault(type, target);
  case BatchInvariance::Always:
    return true;
  case BatchInvariance::Never:
    return false;
  }
  llvm_unreachable("all choices are listed");
}
