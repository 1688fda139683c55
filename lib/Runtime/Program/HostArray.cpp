//===- HostArray.cpp - arrays in host memory ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/HostArray.h"

#include "DiffAttn/Runtime/ABI/ElementType.h"

#include <iterator>

using namespace diffattn_rt;

namespace {
struct DTypeFacts {
  DType dtype;
  const char *name;
  int64_t bytes;
  bool isFloat;
};
} // namespace

/// Facts of each element type, in the order of diffattn_dtype.
static constexpr DTypeFacts kDTypes[] = {
#define DIFFATTN_ROW(name, number, text, bytes, isFloat)                       \
  {DIFFATTN_##name, text, bytes, isFloat != 0},
    DIFFATTN_DTYPES(DIFFATTN_ROW)
#undef DIFFATTN_ROW
};

bool diffattn_rt::isDType(DType dtype) {
  return dtype >= 0 && dtype < static_cast<DType>(std::size(kDTypes));
}

std::string diffattn_rt::stringifyDType(DType dtype) {
  return kDTypes[dtype].name;
}

std::optional<DType> diffattn_rt::parseDType(std::string_view name) {
  for (const DTypeFacts &facts : kDTypes)
    if (name == facts.name)
      return facts.dtype;
  return std::nullopt;
}

int64_t diffattn_rt::getDTypeBytes(DType dtype) { return kDTypes[dtype].bytes; }

bool diffattn_rt::isFloatDType(DType dtype) { return kDTypes[dtype].isFloat; }

std::optional<int64_t> diffattn_rt::getByteSize(SizeList shape, DType dtype) {
  int64_t bytes = getDTypeBytes(dtype);
  // A size of 0 must not hide a product that overflows.
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0)
      return std::nullopt;
    if (size == 0)
      empty = true;
    else if (__builtin_mul_overflow(bytes, size, &bytes))
      return std::nullopt;
  }
  return empty ? 0 : bytes;
}

std::string diffattn_rt::describeType(SizeList shape, DType dtype) {
  std::string text;
  for (int64_t size : shape)
    text += (size < 0 ? std::string("?") : std::to_string(size)) + "x";
  return text + stringifyDType(dtype);
}

int64_t HostArray::getNumElements() const {
  int64_t count = 1;
  for (int64_t size : shape)
    count *= size;
  return count;
}

int64_t HostArray::getNumBytes() const {
  return getNumElements() * getDTypeBytes(dtype);
}

Failure HostArray::allocate(DType newType, SizeList newShape) {
  constexpr int64_t kAlign = 64;
  std::optional<int64_t> bytes = getByteSize(newShape, newType);
  void *memory = nullptr;
  if (bytes && *bytes <= INT64_MAX - kAlign)
    memory = std::aligned_alloc(kAlign, (*bytes / kAlign + 1) * kAlign);
  if (!memory)
    return {ErrorClass::Run, "expected memory for an array of " +
                                 describeType(newShape, newType) +
                                 ", but the system has no more"};
  dtype = newType;
  shape.assign(newShape.begin(), newShape.end());
  data.reset(static_cast<char *>(memory));
  return {};
}
