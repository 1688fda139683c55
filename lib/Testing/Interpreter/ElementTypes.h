//===- ElementTypes.h - the element types of the interpreter ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_ELEMENTTYPES_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_ELEMENTTYPES_H

#include "mlir/IR/BuiltinTypes.h"

namespace mlir::diffattn::interpreter {

/// Bits of an integer type or index; of floats too.
inline int getWidth(Type type) {
  return type.isIndex() ? 64 : static_cast<int>(type.getIntOrFloatBitWidth());
}

inline bool isKnownElementType(Type type) {
  if (type.isF64() || type.isF32() || type.isF16() || type.isBF16() ||
      type.isIndex())
    return true;
  auto integer = dyn_cast<IntegerType>(type);
  return integer && integer.getWidth() >= 1 && integer.getWidth() <= 64;
}

/// The lowest `width` bits as a signed number, and as an unsigned one.
inline int64_t signExtend(int64_t value, int width) {
  const int shift = 64 - width;
  return static_cast<int64_t>(static_cast<uint64_t>(value) << shift) >> shift;
}
inline int64_t zeroExtend(int64_t value, int width) {
  const int shift = 64 - width;
  return static_cast<int64_t>((static_cast<uint64_t>(value) << shift) >> shift);
}

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_ELEMENTTYPES_H
