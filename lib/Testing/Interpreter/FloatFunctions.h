//===- FloatFunctions.h - instructions from functions of f64 ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_FLOATFUNCTIONS_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_FLOATFUNCTIONS_H

#include "CodeBuilder.h"

namespace mlir::diffattn::interpreter {

/// An op whose result is that of `fn`, rounded.
template <double (*fn)(double)>
struct UnaryOp {
  template <FloatKind kind>
  struct Kind {
    static bool run(Machine &m, const Inst &inst) {
      m.scalars[inst.dst].f = roundTo<kind>(fn(m.scalars[inst.a].f), m.random);
      return true;
    }
  };
  static bool build(CodeBuilder &b, Operation *op) {
    return b.emitOp(pickFloat<Kind>(b.kindOf(op->getResult(0).getType())), op);
  }
};

template <double (*fn)(double, double)>
struct BinaryOp {
  template <FloatKind kind>
  struct Kind {
    static bool run(Machine &m, const Inst &inst) {
      m.scalars[inst.dst].f =
          roundTo<kind>(fn(m.scalars[inst.a].f, m.scalars[inst.b].f), m.random);
      return true;
    }
  };
  static bool build(CodeBuilder &b, Operation *op) {
    return b.emitOp(pickFloat<Kind>(b.kindOf(op->getResult(0).getType())), op);
  }
};

inline double maximum(double a, double b) {
  if (std::isnan(a) || std::isnan(b))
    return a + b;
  // +0 is above -0.
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}
inline double minimum(double a, double b) {
  if (std::isnan(a) || std::isnan(b))
    return a + b;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_FLOATFUNCTIONS_H
