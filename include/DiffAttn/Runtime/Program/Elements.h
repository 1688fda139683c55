//===- Elements.h - elements of arrays as numbers ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_ELEMENTS_H
#define DIFFATTN_RUNTIME_PROGRAM_ELEMENTS_H

#include "DiffAttn/Runtime/Program/HostArray.h"

namespace diffattn_rt {

/// Element `i` of a buffer as f64; integers above 2^53 are rounded.
double readElement(const void *data, DType dtype, int64_t i);
/// Rounds `value` to nearest even, or converts it to an integer.
void writeElement(void *data, DType dtype, int64_t i, double value);

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_ELEMENTS_H
