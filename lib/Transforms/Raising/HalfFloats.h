//===- HalfFloats.h - types that values are rounded to ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_RAISING_HALFFLOATS_H
#define DIFFATTN_LIB_TRANSFORMS_RAISING_HALFFLOATS_H

#include "mlir/IR/BuiltinTypes.h"
#include "llvm/ADT/SetVector.h"

namespace mlir::diffattn::raise {

/// Whether `type`, which may be null, is f16 or bf16.
inline bool isHalfFloat(Type type) {
  return isa_and_nonnull<Float16Type, BFloat16Type>(type);
}

/// Takes out of `types` what is not in `others`.
inline void keepCommon(llvm::SmallSetVector<Type, 2> &types,
                       const llvm::SmallSetVector<Type, 2> &others) {
  types.remove_if([&](Type type) { return !others.contains(type); });
}

} // namespace mlir::diffattn::raise

#endif // DIFFATTN_LIB_TRANSFORMS_RAISING_HALFFLOATS_H
