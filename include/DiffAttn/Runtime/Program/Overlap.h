//===- Overlap.h - arrays that share memory ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_OVERLAP_H
#define DIFFATTN_RUNTIME_PROGRAM_OVERLAP_H

#include "DiffAttn/Runtime/Program/Call.h"

namespace diffattn_rt {

/// Whether an element of `a` and one of `b` have a byte in common. Exact for
/// views of arrays, whatever their strides: elements of one that lie between
/// those of the other are not shared. Where that would take too long to find
/// out, which takes strides that no view of an array has, the answer is yes.
bool shareMemory(const ArrayView &a, const ArrayView &b);

/// Whether two indices of `array` can be one element. Axes that do not step
/// over all that the shorter strides reach count as such.
bool repeatsElements(const ArrayView &array);

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_OVERLAP_H
