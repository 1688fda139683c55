//===- Compare.h - results against what is expected -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUN_COMPARE_H
#define DIFFATTN_RUN_COMPARE_H

#include "DiffAttn/Compiler/Npy.h"
#include "DiffAttn/Runtime/ABI/ElementType.h"

namespace mlir::diffattn {

/// A dense array that someone else owns.
struct DenseView {
  const void *data;
  diffattn_rt::DType dtype;
  llvm::ArrayRef<int64_t> shape;
};

/// |got - expected| <= atol + rtol * |expected|; negative: by element type, or
/// by `computedFrom`, if that has fewer digits.
struct Tolerance {
  double rtol = -1, atol = -1;
  diffattn_rt::DType computedFrom = DIFFATTN_F32;
};

/// The floating-point type among `types` with the fewest digits, f32 if none
/// has fewer.
diffattn_rt::DType getCoarsestType(llvm::ArrayRef<diffattn_rt::DType> types);

struct Comparison {
  bool matches = true;
  std::string text; // one line
};

/// Integers and truth values must be equal, NaN equals NaN. Fails if the arrays
/// cannot be compared.
llvm::Expected<Comparison> compareArrays(llvm::StringRef name, DenseView got,
                                         DenseView expected,
                                         Tolerance tolerance);

/// "2x3xf32, 0 to 1.5, mean 0.25: [0.1, 0.2, ...]"
std::string summarizeArray(DenseView array);

} // namespace mlir::diffattn

#endif // DIFFATTN_RUN_COMPARE_H
