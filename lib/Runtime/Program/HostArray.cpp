//===- HostArray.cpp - arrays in host memory ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/HostArray.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"

using namespace diffattn_rt;

namespace {
struct DTypeFacts {
  DType dtype;
  const char *name;
  int64_t bytes;
  bool isFloat;
};
} // namespace

/// In the order of diffattn_dtype.
static constexpr DTypeFacts kDTypes[] = {
    {DIFFATTN_F32, "f32", 4, true},   {DIFFATTN_F16, "f16", 2, true},
    {DIFFATTN_BF16, "bf16", 2, true}, {DIFFATTN_F64, "f64", 8, true},
    {DIFFATTN_I64, "i64", 8, false},  {DIFFATTN_I32, "i32", 4, false},
    {DIFFATTN_BOOL, "i1", 1, false},  {DIFFATTN_I8, "i8", 1, false},
    {DIFFATTN_U8, "ui8", 1, false},   {DIFFATTN_I16, "i16", 2, false},
};

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
