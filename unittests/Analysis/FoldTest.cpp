//===- FoldTest.cpp - arithmetic on floats of constants ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Meaning.h"
#include "Programs.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;
using namespace plain;

namespace {

std::vector<FloatType> floatTypes() {
  MLIRContext *context = &Program::context();
  return {Float16Type::get(context), BFloat16Type::get(context),
          Float32Type::get(context), Float64Type::get(context)};
}

/// The distance of two numbers of `type` in steps of its last digit.
double stepsBetween(double a, double b, FloatType type) {
  if (a == b || (std::isnan(a) && std::isnan(b)))
    return 0;
  if (!std::isfinite(a) || !std::isfinite(b))
    return INFINITY;
  APFloat next(std::max(std::fabs(a), std::fabs(b)));
  bool lost;
  next.convert(type.getFloatSemantics(), APFloat::rmNearestTiesToEven, &lost);
  double at = next.convertToDouble();
  next.next(/*nextDown=*/true);
  return std::fabs(a - b) / (at - next.convertToDouble());
}

/// Ops of constants in one function, and what each must be.
class Folds {
public:
  explicit Folds(double steps) : steps(steps) {}
  Value real(double number, Type type) { return program.real(number, type); }
  Value integer(int64_t number, Type type) {
    return program.integer(number, type);
  }
  Value add(const std::string &name, ValueRange operands, Type type,
            ArrayRef<NamedAttribute> attributes = {}) {
    results.push_back(program.add(name, operands, type, attributes));
    return results.back();
  }

  /// Checks all ops; `mayStay` names those that need not be numbers.
  void check(llvm::function_ref<bool(Operation *, ArrayRef<Number>)> mayStay =
                 [](Operation *, ArrayRef<Number>) { return false; }) {
    program.finish();
    Execution run;
    run.run(program.function);
    ExprGraph graph(program.function);
    for (Value result : results) {
      Operation *op = result.getDefiningOp();
      SmallVector<Number> operands;
      std::string what;
      llvm::raw_string_ostream stream(what);
      stream << op->getName() << " to " << result.getType();
      for (Value operand : op->getOperands()) {
        operands.push_back(run.number(operand));
        stream << " (" << text(operands.back()) << ")";
      }
      Number expected = run.number(result);
      Expr expr = graph.scalar(result);
      std::optional<double> got = graph.constantValue(expr);
      if (!expected.isDefined()) {
        EXPECT_FALSE(got) << what;
        continue;
      }
      if (!got) {
        EXPECT_TRUE(mayStay(op, operands)) << "not folded: " << what;
        continue;
      }
      auto type = dyn_cast<FloatType>(result.getType());
      if (!type) {
        EXPECT_EQ(*got, static_cast<double>(expected.integer)) << what;
        continue;
      }
      EXPECT_LE(stepsBetween(*got, expected.real, type), steps)
          << what << " expected " << text(expected) << ", but got " << *got;
    }
  }

private:
  Program program;
  std::vector<Value> results;
  double steps;
};

/// A number that is rounded once is exact, in each type.
TEST(FoldTest, RoundsArithmeticToTheType) {
  for (FloatType type : floatTypes()) {
    Draw draw(1);
    std::vector<double> edges = realEdgesOf(type, draw);
    Folds folds(0);
    for (double a : edges) {
      for (int turn = 0; turn < 16; ++turn) {
        double b = draw.one(edges);
        for (StringRef name : {"addf", "subf", "mulf", "divf", "maximumf",
                               "minimumf", "maxnumf", "minnumf"})
          folds.add(("arith." + name).str(),
                    {folds.real(a, type), folds.real(b, type)}, type);
      }
      folds.add("arith.negf", folds.real(a, type), type);
      folds.add("math.absf", folds.real(a, type), type);
      folds.add("math.sqrt", folds.real(a, type), type);
    }
    // The greater one of NaN and a number is another one for each op.
    folds.check([](Operation *op, ArrayRef<Number> o) {
      return isa<arith::MaximumFOp, arith::MinimumFOp, arith::MaxNumFOp,
                 arith::MinNumFOp>(op) &&
             (std::isnan(o[0].real) || std::isnan(o[1].real));
    });
  }
}

TEST(FoldTest, FunctionsAreOneStepOffAtMost) {
  for (FloatType type : floatTypes()) {
    Draw draw(2);
    Folds folds(1);
    for (double a : realEdgesOf(type, draw)) {
      for (StringRef name : {"exp", "exp2", "log", "rsqrt", "tanh"})
        folds.add(("math." + name).str(), folds.real(a, type), type);
      // A root is read as a root, which differs at -0 and -inf.
      for (double power : {2.0, 1.0, -1.0, 0.5, -0.5})
        if (!std::signbit(a) || std::fabs(power) != 0.5)
          folds.add("math.powf", {folds.real(a, type), folds.real(power, type)},
                    type);
      folds.add("math.powf", {folds.real(2, type), folds.real(a, type)}, type);
      Type i32 = IntegerType::get(&Program::context(), 32);
      for (int64_t power : {2, -1})
        folds.add("math.fpowi",
                  {folds.real(a, type), folds.integer(power, i32)}, type);
      // Ops that have no kind of their own stay, and are not misread.
      folds.add("math.powf", {folds.real(a, type), folds.real(3, type)}, type);
      folds.add("math.erf", folds.real(a, type), type);
      folds.add("math.floor", folds.real(a, type), type);
    }
    folds.check([](Operation *op, ArrayRef<Number> o) {
      return isa<math::ErfOp, math::FloorOp>(op) ||
             (isa<math::PowFOp>(op) && (o[1].real == 3 && o[0].real != 2));
    });
  }
}

TEST(FoldTest, CastsBetweenFloats) {
  for (FloatType from : floatTypes())
    for (FloatType to : floatTypes()) {
      if (from.getWidth() == to.getWidth())
        continue;
      Draw draw(3);
      Folds folds(0);
      for (double a : realEdgesOf(from, draw))
        folds.add(from.getWidth() < to.getWidth() ? "arith.extf"
                                                  : "arith.truncf",
                  folds.real(a, from), to);
      folds.check();
    }
}

/// A cast that rounds in another way is no cast to the nearest number.
TEST(FoldTest, OtherRoundingIsLeftAlone) {
  MLIRContext *context = &Program::context();
  Type f32 = Float32Type::get(context), f16 = Float16Type::get(context);
  for (auto mode :
       {arith::RoundingMode::to_nearest_even, arith::RoundingMode::downward,
        arith::RoundingMode::upward, arith::RoundingMode::toward_zero,
        arith::RoundingMode::to_nearest_away}) {
    Program program;
    Builder &b = program.builder;
    // 1 + 3/4 of the last digit of f16.
    Value cast = program.add(
        "arith.truncf", program.real(1 + 0.75 / 1024, f32), f16,
        b.getNamedAttr("roundingmode",
                       arith::RoundingModeAttr::get(context, mode)));
    program.finish();
    ExprGraph graph(program.function);
    std::optional<double> got = graph.constantValue(graph.scalar(cast));
    if (mode == arith::RoundingMode::to_nearest_even)
      EXPECT_EQ(got, 1 + 1.0 / 1024);
    else
      EXPECT_FALSE(got) << static_cast<int>(mode);
  }
}

TEST(FoldTest, CastsBetweenIntegersAndFloats) {
  MLIRContext *context = &Program::context();
  for (FloatType real : floatTypes())
    for (unsigned width : {1, 8, 16, 32, 64}) {
      Draw draw(width);
      Type integer = IntegerType::get(context, width);
      Folds folds(0);
      for (int64_t number : edgesOf(integer, draw))
        for (StringRef name : {"sitofp", "uitofp"})
          folds.add(("arith." + name).str(), folds.integer(number, integer),
                    real);
      folds.check();
    }
}

/// A number outside of the integers of a type, and NaN, is no number of it.
TEST(FoldTest, CastsFloatsToIntegersInBodies) {
  MLIRContext *context = &Program::context();
  for (FloatType real : floatTypes())
    for (unsigned width : {1, 8, 16, 32, 64})
      for (StringRef name : {"arith.fptosi", "arith.fptoui"}) {
        Draw draw(width);
        std::vector<Attribute> numbers;
        for (double number : realEdgesOf(real, draw))
          numbers.push_back(FloatAttr::get(real, number));
        SmallVector<int64_t> shape = {static_cast<int64_t>(numbers.size())};
        Program program;
        OpBuilder &b = program.builder;
        Type integer = IntegerType::get(context, width);
        Value input = arith::ConstantOp::create(
            b, program.loc,
            DenseElementsAttr::get(RankedTensorType::get(shape, real),
                                   numbers));
        Value init = tensor::EmptyOp::create(b, program.loc, shape, integer);
        SmallVector<AffineMap> maps(2, b.getMultiDimIdentityMap(1));
        auto generic = linalg::GenericOp::create(
            b, program.loc, init.getType(), input, init, maps,
            utils::IteratorType::parallel,
            [&](OpBuilder &inner, Location loc, ValueRange arguments) {
              OperationState state(loc, name, arguments[0], integer);
              linalg::YieldOp::create(inner, loc,
                                      inner.create(state)->getResults());
            });
        program.finish();
        Execution run;
        run.run(program.function);
        ExprGraph graph(program.function);
        Value result = generic.getResult(0);
        SmallVector<IndexPoly> loops = graph.freshLoops(result);
        Expr closed = graph.close(graph.load(result, loops));
        ASSERT_TRUE(closed) << program.text();
        for (int64_t k = 0; k < shape[0]; ++k) {
          Number expected = run.array(result).at(k);
          std::optional<int64_t> got =
              graph.evaluateInteger(closed, pointOf(loops, k));
          ASSERT_EQ(got.has_value(), expected.isDefined())
              << name.str() << " of element " << k << program.text();
          if (got)
            ASSERT_EQ(*got, expected.integer)
                << name.str() << " of element " << k << program.text();
        }
      }
}

TEST(FoldTest, ComparesWithEveryPredicate) {
  MLIRContext *context = &Program::context();
  for (FloatType type : floatTypes()) {
    Draw draw(5);
    std::vector<double> edges = realEdgesOf(type, draw);
    Folds folds(0);
    for (double a : edges)
      for (double b :
           {a, draw.one(edges), draw.one(edges), static_cast<double>(NAN)})
        for (int64_t predicate = 0; predicate < 16; ++predicate)
          folds.add(
              "arith.cmpf", {folds.real(a, type), folds.real(b, type)},
              IntegerType::get(context, 1),
              Builder(context).getNamedAttr(
                  "predicate",
                  arith::CmpFPredicateAttr::get(
                      context, static_cast<arith::CmpFPredicate>(predicate))));
    folds.check();
  }
}

/// Numbers of types that f64 does not hold are no numbers of f64.
TEST(FoldTest, WiderTypesAreNotRead) {
  MLIRContext *context = &Program::context();
  for (FloatType type : {FloatType(Float80Type::get(context)),
                         FloatType(Float128Type::get(context))}) {
    Program program;
    APFloat third(type.getFloatSemantics(), "0.333333333333333333333333");
    Value constant = arith::ConstantOp::create(program.builder, program.loc,
                                               FloatAttr::get(type, third));
    Value sum = program.add("arith.addf", {constant, constant}, type);
    program.finish();
    ExprGraph graph(program.function);
    EXPECT_FALSE(graph.constantValue(graph.scalar(constant)));
    EXPECT_FALSE(graph.constantValue(graph.scalar(sum)));
  }
}

} // namespace
