//===- Comparison.h - a module before and after raising ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Both modules are interpreted in f64 and must agree to 1e-6 of M, the
// magnitude that docs/numerics.md judges errors by. M is carried to the results
// by running the raised module once more with attention off by that much. Where
// docs/raising.md rests on the rounding of f32, which takes numbers as large or
// as small as only fills and guards are, the modules may also agree in the
// types written, by their gate. A row that sees no key is 0 when raised; in the
// graph it may be NaN.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TEST_FUZZ_COMPARISON_H
#define DIFFATTN_TEST_FUZZ_COMPARISON_H

#include "GivenInputs.h"

#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn::fuzz {

struct Verdict {
  /// - `same`: raised, and agrees; `same-f32`: only in the types written;
  ///   `same-overflow`: but where a graph changed at random makes NaN
  /// - `far-scores`: differs, but scores are so large that they do not vanish
  ///   beside a finite fill
  /// - `kept`: not raised
  /// - `undefined`: the graph as given has no meaning for these arguments
  /// - `invalid`: no module
  /// - `unknown`: the interpreter does not know an op
  /// - `fault`: the modules differ
  std::string kind;
  std::string detail;
};

Verdict compare(const Case &given, ModuleOp graph, ModuleOp raised);

} // namespace mlir::diffattn::fuzz

#endif // DIFFATTN_TEST_FUZZ_COMPARISON_H
