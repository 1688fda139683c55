//===- RowSums.h - sinks and logarithms of the sums of rows -----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_ROWSUMS_H
#define DIFFATTN_LIB_CODEGEN_CPU_ROWSUMS_H

#include "KernelValues.h"

namespace mlir::diffattn {

/// Sums of rows of one map over all keys, a lane each.
struct RowSums {
  /// The sum of exponentials relative to the maximum of the scores; 0 without
  /// keys.
  Value sum;
  /// Loads that maximum, in the unit in which the kernel keeps scores.
  function_ref<Value()> maximum;
};

/// The sum of a row with its sink, and its logarithm.
struct FinishedSums {
  /// The sum with the sink in it, and the factor of exponentials relative to
  /// the maximum before they are divided by that sum; null: 1.
  Value sum, factor;
  /// The natural logarithm of the sum of exponentials, -inf without keys; null
  /// if not needed.
  Value logarithm;
};

/// The end of the sums of rows of map `map`. Emits nothing for an op that has
/// neither a sink nor a destination of logarithms there.
FinishedSums finishRowSums(KernelValues &v, int map, const HeadIndices &heads,
                           const RowSums &rows);

/// Runs `store` in the items of the signal head that stores the logarithms of
/// map `map`: of map 2 the first one of a noise head does. None do where the op
/// has no destination for them.
void ifStoresLogarithms(KernelValues &v, int map, const HeadIndices &heads,
                        function_ref<void()> store);

/// Stores the logarithm of one row, an f32.
void storeLogarithm(KernelValues &v, int map, Value batch,
                    const HeadIndices &heads, Value row, Value logarithm);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_ROWSUMS_H
