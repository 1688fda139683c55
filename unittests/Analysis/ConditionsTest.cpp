//===- ConditionsTest.cpp - guards and clamps ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Meaning.h"

#include "DiffAttn/Analysis/TensorExpr/Conditions.h"
#include "Programs.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;
using namespace plain;

namespace {

const double kFinite[] = {0.0,  -0.0, 1.0,    -1.0,    0.5,
                          -2.5, 7.0,  3.4e38, -3.4e38, 1.2e-38};

/// Random questions about one finite number, answered for all of them.
TEST(ConditionsTest, WhatIsKnownOfFiniteValuesHoldsForAll) {
  int64_t answers = 0, nanTests = 0;
  MLIRContext *context = &Program::context();
  Type f32 = Float32Type::get(context), f64 = Float64Type::get(context),
       boolean = IntegerType::get(context, 1);
  for (int seed = 0; seed < 2000; ++seed) {
    Draw draw(seed);
    Program program({f32});
    auto question = [&]() -> Value {
      Value x = program.argument(0);
      Type type = f32;
      if (draw.chance(3))
        x = program.add("arith.extf", x, type = f64);
      auto value = [&]() -> Value {
        switch (draw.below(6)) {
        case 0:
          return program.real(INFINITY, type);
        case 1:
          return program.real(-INFINITY, type);
        case 2:
          return program.add("math.absf", x, type);
        case 3:
          return program.add("arith.negf", x, type);
        case 4:
          return program.real(draw.from(-2, 2), type);
        default:
          return x;
        }
      };
      if (draw.chance(4)) {
        StringRef tests[] = {"math.isnan", "math.isinf", "math.isfinite"};
        return program.add(draw.one(tests), value(), boolean);
      }
      return program.add(
          "arith.cmpf", {value(), value()}, boolean,
          program.builder.getNamedAttr(
              "predicate",
              arith::CmpFPredicateAttr::get(
                  context, static_cast<arith::CmpFPredicate>(draw.below(16)))));
    };
    Value condition = question();
    for (int k = 0; k < 2 && draw.chance(2); ++k) {
      StringRef joins[] = {"arith.andi", "arith.ori", "arith.xori"};
      condition =
          program.add(draw.one(joins), {condition, question()}, boolean);
    }
    program.finish();
    ExprGraph graph(program.function);
    auto isArgument = [&](Expr expr) {
      return expr->kind == Kind::Scalar && expr->value == program.argument(0);
    };
    bool testsNan = false;
    std::optional<bool> truth =
        truthIfFinite(graph, graph.scalar(condition), isArgument, testsNan);
    nanTests += testsNan;
    if (!truth)
      continue;
    ++answers;
    for (double number : kFinite) {
      Execution run;
      run.set(program.argument(0), Number::ofReal(nearest(number, f32)));
      run.run(program.function);
      ASSERT_EQ(run.number(condition).integer, *truth)
          << "at " << number << " of " << program.text();
    }
  }
  EXPECT_GT(answers, 700);
  EXPECT_GT(nanTests, 100);
}

/// A clamp is the greater or the smaller one of a value and its bound, for each
/// number and each way to spell it.
TEST(ConditionsTest, ClampsAreMaximaAndMinima) {
  MLIRContext *context = &Program::context();
  Type f32 = Float32Type::get(context), boolean = IntegerType::get(context, 1);
  unsigned clamps = 0;
  auto check = [&](Program &program, Value clamped, const std::string &what) {
    program.finish();
    ExprGraph graph(program.function);
    std::optional<Clamp> clamp = matchClamp(graph, graph.scalar(clamped));
    if (!clamp)
      return;
    ++clamps;
    ASSERT_TRUE(clamp->value->kind == Kind::Scalar) << what;
    for (double number : kFinite) {
      Execution run;
      number = nearest(number, f32);
      run.set(program.argument(0), Number::ofReal(number));
      run.run(program.function);
      double expected = clamp->isLower ? std::max(number, clamp->bound)
                                       : std::min(number, clamp->bound);
      ASSERT_EQ(run.number(clamped).real, expected) << what << program.text();
    }
  };
  for (double bound : {0.0, -2.5, 7.0})
    for (bool swapped : {false, true}) {
      for (StringRef name : {"maximumf", "minimumf", "maxnumf", "minnumf"}) {
        Program program({f32});
        Value a = program.argument(0), b = program.real(bound, f32);
        if (swapped)
          std::swap(a, b);
        check(program, program.add(("arith." + name).str(), {a, b}, f32), "");
      }
      for (bool crossed : {false, true})
        for (int64_t predicate = 0; predicate < 16; ++predicate) {
          Program program({f32});
          Value a = program.argument(0), b = program.real(bound, f32);
          if (swapped)
            std::swap(a, b);
          Value compare = program.add(
              "arith.cmpf", {a, b}, boolean,
              program.builder.getNamedAttr(
                  "predicate",
                  arith::CmpFPredicateAttr::get(
                      context, static_cast<arith::CmpFPredicate>(predicate))));
          if (crossed)
            std::swap(a, b);
          check(program, program.add("arith.select", {compare, a, b}, f32),
                std::to_string(predicate));
        }
    }
  // Eight ordered predicates, both ways, and the four ops.
  EXPECT_EQ(clamps, 3 * 2 * (4 + 2 * 8));
}

} // namespace
