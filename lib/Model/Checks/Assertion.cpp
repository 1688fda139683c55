//===- Assertion.cpp - comparisons that messages can tell -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Assertion.h"

#include "mlir/Dialect/Utils/StaticValueUtils.h"

using namespace mlir;
using namespace mlir::diffattn;

static void replaceSide(std::string &text, StringRef side, Value value) {
  std::optional<int64_t> number = getConstantIntValue(value);
  if (!number)
    return;
  for (size_t at; (at = text.find(side.str())) != std::string::npos;)
    text.replace(at, side.size(), std::to_string(*number));
}

cf::AssertOp diffattn::assertThat(OpBuilder &builder, Location loc,
                                  arith::CmpIPredicate predicate, Value a,
                                  Value b, const Twine &message) {
  assert(predicate != arith::CmpIPredicate::ugt &&
         predicate != arith::CmpIPredicate::uge &&
         predicate != arith::CmpIPredicate::sle && "sides could not be told");
  std::string text = message.str();
  replaceSide(text, "{0}", a);
  replaceSide(text, "{1}", b);
  Value holds = arith::CmpIOp::create(builder, loc, predicate, a, b);
  return cf::AssertOp::create(builder, loc, holds, text);
}
