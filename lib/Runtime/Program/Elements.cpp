//===- Elements.cpp - elements of arrays as numbers -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Elements.h"

#include "DiffAttn/Runtime/ABI/ElementType.h"
#include "DiffAttn/Runtime/Support/Rounding.h"

#include <cstring>

using namespace diffattn_rt;

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

double diffattn_rt::readElement(const void *data, DType dtype, int64_t i) {
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

void diffattn_rt::writeElement(void *data, DType dtype, int64_t i,
                               double value) {
  switch (dtype) {
  case DIFFATTN_F32:
    return storeAs<float>(data, i, static_cast<float>(value));
  case DIFFATTN_F64:
    return storeAs<double>(data, i, value);
  case DIFFATTN_F16:
    return storeAs<_Float16>(data, i, static_cast<_Float16>(value));
  case DIFFATTN_BF16:
    return storeAs<uint16_t>(data, i, toBFloat(toOdd(value)));
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
