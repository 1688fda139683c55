//===- Meaning.h - values of expressions ------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The number that an expression of the analysis stands for in one run of the
// program, by what its header says and without the analysis' own evaluation.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_ANALYSIS_MEANING_H
#define DIFFATTN_UNITTESTS_ANALYSIS_MEANING_H

#include "Plain.h"

#include "DiffAttn/Analysis/TensorExpr/ExprGraph.h"

namespace plain {

/// Where loops stand.
using Point = llvm::DenseMap<mlir::diffattn::tensorexpr::AtomId, int64_t>;

class Meaning {
public:
  Meaning(const mlir::diffattn::tensorexpr::IndexSpace &space,
          const Execution &run)
      : space(space), run(run) {}

  /// Arithmetic wraps around in 64 bits. None where a divisor is not positive,
  /// or an index has no value in this run.
  std::optional<int64_t> of(const mlir::diffattn::tensorexpr::IndexPoly &poly,
                            const Point &at) const;
  /// The greater or the smaller one of NaN and a number is undefined: ops that
  /// expressions do not distinguish differ there. Sets `metNan` then.
  Number of(mlir::diffattn::tensorexpr::Expr expr, const Point &at);

  bool metNan = false;

private:
  std::optional<int64_t> atom(mlir::diffattn::tensorexpr::AtomId id,
                              const Point &at) const;
  Number reduce(mlir::diffattn::tensorexpr::Expr expr, const Point &at);

  const mlir::diffattn::tensorexpr::IndexSpace &space;
  const Execution &run;
};

/// The loops of `positions`, which are one loop each, at `at`.
Point pointOf(llvm::ArrayRef<mlir::diffattn::tensorexpr::IndexPoly> positions,
              llvm::ArrayRef<int64_t> at);

} // namespace plain

#endif // DIFFATTN_UNITTESTS_ANALYSIS_MEANING_H
