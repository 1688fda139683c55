//===- HostArray.h - arrays in host memory and their files ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_EXECUTION_HOSTARRAY_H
#define DIFFATTN_EXECUTION_HOSTARRAY_H

#include "DiffAttn/Execution/Error.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>

namespace mlir::diffattn {

/// An element type, by its number in the runtime's ABI (diffattn_dtype).
using DType = int32_t;

/// As MLIR spells them: f32, bf16, i64, i1, ui8, ...
llvm::StringRef stringifyDType(DType dtype);
std::optional<DType> parseDType(llvm::StringRef name);
int64_t getDTypeBytes(DType dtype);
bool isFloatDType(DType dtype);

/// The product of `shape` times the size of an element; nothing if a size is
/// negative or the product does not fit.
std::optional<int64_t> getByteSize(llvm::ArrayRef<int64_t> shape, DType dtype);

/// "2x3xf32", or "f32" for rank 0; a dynamic size is "?".
std::string describeType(llvm::ArrayRef<int64_t> shape, DType dtype);

struct FreeMemory {
  void operator()(void *p) const { std::free(p); }
};

/// A dense row-major array that owns its memory, 64-byte aligned.
struct HostArray {
  DType dtype = 0;
  llvm::SmallVector<int64_t> shape;
  std::unique_ptr<char, FreeMemory> data;

  int64_t getNumElements() const;
  int64_t getNumBytes() const;

  /// Uninitialised. Fails if memory does not hold it.
  static llvm::Expected<HostArray> create(DType dtype,
                                          llvm::ArrayRef<int64_t> shape);
};

/// Element `i` of a buffer as f64; integers above 2^53 are rounded.
double readElement(const void *data, DType dtype, int64_t i);
/// Rounds `value` to nearest even, or converts it to an integer.
void writeElement(void *data, DType dtype, int64_t i, double value);

/// Reads a .npy file: version 1 to 3, little-endian, C order. bfloat16 is what
/// ml_dtypes writes (two-byte void). The header is data and is never evaluated.
llvm::Expected<HostArray> readNpy(llvm::StringRef path);

/// Writes a .npy file under another name in the same folder first, so that
/// `path` holds the whole array or what it held before.
llvm::Error writeNpy(llvm::StringRef path, const void *data, DType dtype,
                     llvm::ArrayRef<int64_t> shape);

/// Writes `contents` to `path` in the same manner; "-" is standard output.
llvm::Error writeFileWhole(llvm::StringRef path,
                           llvm::ArrayRef<llvm::StringRef> contents);

} // namespace mlir::diffattn

#endif // DIFFATTN_EXECUTION_HOSTARRAY_H
