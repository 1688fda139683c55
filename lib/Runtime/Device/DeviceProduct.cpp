//===- DeviceProduct.cpp - Which products devices take --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Support/Internal.h"

#include "DiffAttn/Runtime/ABI/Device.h"

#include <string>

using namespace diffattn_rt;

const char *diffattn_rt::dtypeName(int32_t dtype) {
  switch (dtype) {
  case DIFFATTN_F32:
    return "f32";
  case DIFFATTN_F16:
    return "f16";
  case DIFFATTN_BF16:
    return "bf16";
  case DIFFATTN_F64:
    return "f64";
  default:
    return "no float type";
  }
}

const char *diffattn_device_check_product(const diffattn_product *p) {
  static thread_local std::string text;
  const bool small = p->dtype_a == DIFFATTN_F16 || p->dtype_a == DIFFATTN_BF16;
  const bool wide = p->dtype_a == DIFFATTN_F32 || p->dtype_a == DIFFATTN_F64;
  const bool keepsType = (small || wide) && p->dtype_c == p->dtype_a;
  const bool widens = small && p->dtype_c == DIFFATTN_F32;
  if (p->dtype_a != p->dtype_b || (!keepsType && !widens)) {
    text =
        std::string("expected a matrix product of A and B of one type f32, "
                    "f16, bf16 or f64 with C of the same type, or of f32 for "
                    "f16 and bf16, but got A ") +
        dtypeName(p->dtype_a) + ", B " + dtypeName(p->dtype_b) + " and C " +
        dtypeName(p->dtype_c);
    return text.c_str();
  }
  if (p->m <= 0 || p->n <= 0 || p->k <= 0 || p->batch <= 0)
    return nullptr;
  const struct {
    const char *name;
    int64_t leading, columns;
  } matrices[] = {{"A", p->lda, p->k},
                  {"B", p->ldb, p->transpose_b ? p->k : p->n},
                  {"C", p->ldc, p->n}};
  for (const auto &matrix : matrices) {
    if (matrix.leading >= matrix.columns)
      continue;
    text = std::string("expected rows of ") + matrix.name + " of a product " +
           std::to_string(matrix.columns) +
           " elements or more apart, but got " + std::to_string(matrix.leading);
    return text.c_str();
  }
  return nullptr;
}
