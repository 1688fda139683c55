//===- Npy.h - arrays in .npy files -----------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_NPY_H
#define DIFFATTN_COMPILER_NPY_H

#include "DiffAttn/Compiler/Error.h"
#include "DiffAttn/Runtime/Program/HostArray.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace mlir::diffattn {

/// An uninitialised array. Fails if memory does not hold it.
llvm::Expected<diffattn_rt::HostArray> createArray(diffattn_rt::DType dtype,
                                                   diffattn_rt::SizeList shape);

/// Reads a .npy file: version 1 to 3, little-endian, C order. bfloat16 is what
/// ml_dtypes writes (two-byte void). The header is data and is never evaluated.
llvm::Expected<diffattn_rt::HostArray> readNpy(llvm::StringRef path);

/// Writes a .npy file as `writeFile` does: `path` holds the whole array or what
/// it held before.
llvm::Error writeNpy(llvm::StringRef path, const void *data,
                     diffattn_rt::DType dtype, diffattn_rt::SizeList shape);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_NPY_H
