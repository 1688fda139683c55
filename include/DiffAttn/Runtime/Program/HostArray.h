//===- HostArray.h - arrays in host memory ----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_HOSTARRAY_H
#define DIFFATTN_RUNTIME_PROGRAM_HOSTARRAY_H

#include "DiffAttn/Runtime/Support/Failure.h"
#include "DiffAttn/Runtime/Support/ListRef.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace diffattn_rt {

/// An element type, by its number in the runtime's ABI (diffattn_dtype).
using DType = int32_t;

/// Sizes or strides of axes.
using SizeList = ListRef<int64_t>;

/// Whether `dtype` is one of the ABI's numbers.
bool isDType(DType dtype);

/// The name of an element type as MLIR spells it: f32, bf16, i64, i1, ui8, ...
std::string stringifyDType(DType dtype);
std::optional<DType> parseDType(std::string_view name);
int64_t getDTypeBytes(DType dtype);
bool isFloatDType(DType dtype);

/// The product of `shape` times the size of an element; nothing if a size is
/// negative or the product does not fit.
std::optional<int64_t> getByteSize(SizeList shape, DType dtype);

/// "2x3xf32", or "f32" for rank 0; a dynamic size is "?".
std::string describeType(SizeList shape, DType dtype);

struct FreeMemory {
  void operator()(void *p) const { std::free(p); }
};

/// A dense row-major array that owns its memory, 64-byte aligned.
struct HostArray {
  DType dtype = 0;
  std::vector<int64_t> shape;
  std::unique_ptr<char, FreeMemory> data;

  int64_t getNumElements() const;
  int64_t getNumBytes() const;

  /// Makes it an uninitialised array of `shape`. Fails if memory does not hold
  /// it.
  Failure allocate(DType dtype, SizeList shape);
};

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_HOSTARRAY_H
