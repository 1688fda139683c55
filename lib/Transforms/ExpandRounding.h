//===- ExpandRounding.h - rounding and remainders in plain arithmetic -----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TRANSFORMS_EXPANDROUNDING_H
#define DIFFATTN_LIB_TRANSFORMS_EXPANDROUNDING_H

#include "mlir/IR/PatternMatch.h"

namespace mlir::diffattn {

/// `math.round` and `arith.remf` on scalars of every type of float by
/// arithmetic, exactly.
void populateRoundingPatterns(RewritePatternSet &patterns);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_TRANSFORMS_EXPANDROUNDING_H
