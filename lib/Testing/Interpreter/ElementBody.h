//===- ElementBody.h - a region that computes an element --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_ELEMENTBODY_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_ELEMENTBODY_H

#include "CodeBuilder.h"

namespace mlir::diffattn::interpreter {

/// A region whose arguments are the indices of an element, which it yields.
struct ElementBody {
  SmallVector<int32_t> indices;
  Code code;
  int32_t yielded = -1;

  bool build(CodeBuilder &b, Block &block);
  /// Computes every element of `array`.
  bool fill(Machine &m, const Inst &inst, Array &array) const;
};

/// Steps of `count` elements that take `each` and one more.
inline int64_t stepsOf(int64_t each, int64_t count) {
  int64_t steps;
  return __builtin_add_overflow(each, 1, &each) ||
                 __builtin_mul_overflow(count, each, &steps)
             ? INT64_MAX
             : steps;
}
inline int64_t stepsOf(const Code &code, int64_t count) {
  return stepsOf(code.size(), count);
}

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_ELEMENTBODY_H
