//===- HostArray.cpp - arrays in host memory ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Execution/HostArray.h"

#include "DiffAttn/Runtime/Runtime.h"

#include "llvm/ADT/APFloat.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>
#include <cstring>

using namespace mlir;
using namespace mlir::diffattn;
using llvm::ArrayRef;
using llvm::StringRef;

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

StringRef mlir::diffattn::stringifyDType(DType dtype) {
  return kDTypes[dtype].name;
}

std::optional<DType> mlir::diffattn::parseDType(StringRef name) {
  for (const DTypeFacts &facts : kDTypes)
    if (name == facts.name)
      return facts.dtype;
  return std::nullopt;
}

int64_t mlir::diffattn::getDTypeBytes(DType dtype) {
  return kDTypes[dtype].bytes;
}

bool mlir::diffattn::isFloatDType(DType dtype) {
  return kDTypes[dtype].isFloat;
}

std::optional<int64_t> mlir::diffattn::getByteSize(ArrayRef<int64_t> shape,
                                                   DType dtype) {
  int64_t bytes = getDTypeBytes(dtype);
  // A size of 0 must not hide a product that overflows.
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0)
      return std::nullopt;
    if (size == 0)
      empty = true;
    else if (llvm::MulOverflow(bytes, size, bytes))
      return std::nullopt;
  }
  return empty ? 0 : bytes;
}

std::string mlir::diffattn::describeType(ArrayRef<int64_t> shape, DType dtype) {
  std::string text;
  for (int64_t size : shape)
    text += (size < 0 ? std::string("?") : std::to_string(size)) + "x";
  return text + stringifyDType(dtype).str();
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

llvm::Expected<HostArray> HostArray::create(DType dtype,
                                            ArrayRef<int64_t> shape) {
  std::optional<int64_t> bytes = getByteSize(shape, dtype);
  void *memory = nullptr;
  if (bytes)
    memory = std::aligned_alloc(64, llvm::alignTo(*bytes + 1, 64));
  if (!memory)
    return makeError(ErrorClass::Run, "expected memory for an array of " +
                                          describeType(shape, dtype) +
                                          ", but the system has no more");
  HostArray array;
  array.dtype = dtype;
  array.shape.assign(shape.begin(), shape.end());
  array.data.reset(static_cast<char *>(memory));
  return array;
}

template <typename T>
static T loadAs(const void *data, int64_t i) {
  T value;
  memcpy(&value, static_cast<const char *>(data) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
static void storeAs(void *data, int64_t i, T value) {
  memcpy(static_cast<char *>(data) + i * sizeof(T), &value, sizeof(T));
}

double mlir::diffattn::readElement(const void *data, DType dtype, int64_t i) {
  switch (dtype) {
  case DIFFATTN_F32:
    return loadAs<float>(data, i);
  case DIFFATTN_F64:
    return loadAs<double>(data, i);
  case DIFFATTN_F16:
    return static_cast<double>(loadAs<_Float16>(data, i));
  case DIFFATTN_BF16: {
    uint32_t bits = static_cast<uint32_t>(loadAs<uint16_t>(data, i)) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
  case DIFFATTN_I64:
    return static_cast<double>(loadAs<int64_t>(data, i));
  case DIFFATTN_I32:
    return loadAs<int32_t>(data, i);
  case DIFFATTN_I16:
    return loadAs<int16_t>(data, i);
  case DIFFATTN_I8:
    return loadAs<int8_t>(data, i);
  default:
    return loadAs<uint8_t>(data, i);
  }
}

void mlir::diffattn::writeElement(void *data, DType dtype, int64_t i,
                                  double value) {
  auto rounded = [&](const llvm::fltSemantics &semantics) {
    llvm::APFloat number(value);
    bool losesInfo;
    number.convert(semantics, llvm::APFloat::rmNearestTiesToEven, &losesInfo);
    return static_cast<uint16_t>(number.bitcastToAPInt().getZExtValue());
  };
  switch (dtype) {
  case DIFFATTN_F32:
    return storeAs<float>(data, i, static_cast<float>(value));
  case DIFFATTN_F64:
    return storeAs<double>(data, i, value);
  case DIFFATTN_F16:
    return storeAs<uint16_t>(data, i, rounded(llvm::APFloat::IEEEhalf()));
  case DIFFATTN_BF16:
    return storeAs<uint16_t>(data, i, rounded(llvm::APFloat::BFloat()));
  case DIFFATTN_I64:
    return storeAs<int64_t>(data, i, static_cast<int64_t>(value));
  case DIFFATTN_I32:
    return storeAs<int32_t>(data, i, static_cast<int32_t>(value));
  case DIFFATTN_I16:
    return storeAs<int16_t>(data, i, static_cast<int16_t>(value));
  case DIFFATTN_I8:
    return storeAs<int8_t>(data, i, static_cast<int8_t>(value));
  case DIFFATTN_BOOL:
    return storeAs<uint8_t>(data, i, value != 0);
  default:
    return storeAs<uint8_t>(data, i, static_cast<uint8_t>(value));
  }
}
