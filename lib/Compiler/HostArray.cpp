//===- HostArray.cpp - elements of arrays ---------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/HostArray.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "llvm/ADT/APFloat.h"

#include <cstring>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

llvm::Expected<HostArray> mlir::diffattn::createArray(DType dtype,
                                                      SizeList shape) {
  HostArray array;
  if (Failure failure = array.allocate(dtype, shape))
    return toError(failure);
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
