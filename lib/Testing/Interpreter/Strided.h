//===- Strided.h - copies between boxes of arrays ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_STRIDED_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_STRIDED_H

#include "DiffAttn/Testing/Interpreter/Array.h"

namespace mlir::diffattn::interpreter {

/// Strides of a dense array in row-major order.
inline llvm::SmallVector<int64_t> stridesOf(llvm::ArrayRef<int64_t> shape) {
  llvm::SmallVector<int64_t> strides(shape.size(), 1);
  for (int64_t axis = static_cast<int64_t>(shape.size()) - 2; axis >= 0; --axis)
    strides[axis] = strides[axis + 1] * shape[axis + 1];
  return strides;
}

/// Copies a box of `sizes`; each side has its strides.
inline void copyStrided(Slot *to, llvm::ArrayRef<int64_t> toStrides,
                        const Slot *from, llvm::ArrayRef<int64_t> fromStrides,
                        llvm::ArrayRef<int64_t> sizes) {
  if (sizes.empty()) {
    *to = *from;
    return;
  }
  for (int64_t i = 0; i < sizes.front(); ++i) {
    if (sizes.size() == 1)
      to[i * toStrides[0]] = from[i * fromStrides[0]];
    else
      copyStrided(to + i * toStrides[0], toStrides.drop_front(),
                  from + i * fromStrides[0], fromStrides.drop_front(),
                  sizes.drop_front());
  }
}

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_STRIDED_H
