//===- IntegersTest.cpp - integer ops at every width ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Meaning.h"
#include "Programs.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;
using namespace plain;

namespace {

std::vector<Type> integerTypes() {
  MLIRContext *context = &Program::context();
  std::vector<Type> types;
  for (unsigned width : {1, 4, 8, 16, 32, 64})
    types.push_back(IntegerType::get(context, width));
  types.push_back(IndexType::get(context));
  return types;
}

std::string describe(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

/// All numbers of a narrow type, or those at the edges of a wide one.
std::vector<int64_t> numbersOf(Type type, Draw &draw) {
  unsigned width = widthOf(type);
  if (width > 8)
    return edgesOf(type, draw);
  std::vector<int64_t> all;
  for (int64_t k = 0; k < int64_t(1) << width; ++k)
    all.push_back(wrap(k, type));
  return all;
}

/// Names of casts from one integer type to another.
std::vector<StringRef> castsBetween(Type from, Type to) {
  if (from.isIndex() && to.isIndex())
    return {};
  if (from.isIndex() || to.isIndex())
    return {"arith.index_cast", "arith.index_castui"};
  if (widthOf(from) == widthOf(to))
    return {};
  if (widthOf(from) > widthOf(to))
    return {"arith.trunci"};
  return {"arith.extsi", "arith.extui"};
}

std::string show(std::optional<int64_t> number) {
  return number ? std::to_string(*number) : "none";
}

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

/// One op of numbers: what it computes, and nothing where that is not defined.
TEST(IntegersTest, EvaluatesEveryBinaryOp) {
  Draw draw(1);
  for (Type type : integerTypes()) {
    std::vector<int64_t> numbers = numbersOf(type, draw);
    for (StringRef name : binaryIntegerOps()) {
      Program program({type, type});
      Operation *op = program
                          .add(("arith." + name).str(),
                               {program.argument(0), program.argument(1)}, type)
                          .getDefiningOp();
      for (int64_t a : numbers)
        for (int64_t b : numbers) {
          Number expected = computeInteger(name, type, a, b);
          std::optional<int64_t> got = evaluateInteger(op, {a, b});
          ASSERT_EQ(got.has_value(), expected.isDefined())
              << name.str() << " " << describe(type) << " " << a << ", " << b;
          if (got) {
            ASSERT_EQ(*got, expected.integer)
                << name.str() << " " << describe(type) << " " << a << ", " << b;
          }
        }
    }
  }
}

TEST(IntegersTest, EvaluatesEveryCast) {
  Draw draw(2);
  for (Type from : integerTypes())
    for (Type to : integerTypes())
      for (StringRef name : castsBetween(from, to)) {
        Program program({from});
        Operation *op =
            program.add(name, program.argument(0), to).getDefiningOp();
        for (int64_t number : numbersOf(from, draw)) {
          Number expected = compute(op, Number::of(number));
          ASSERT_EQ(evaluateInteger(op, number), expected.integer)
              << name.str() << " " << describe(from) << " " << number << " to "
              << describe(to);
        }
      }
}

/// An op of constants is read as the constant that it is: as a polynomial, as
/// an expression, and as a truth value.
TEST(IntegersTest, FoldsOpsOfConstants) {
  Draw draw(3);
  std::vector<Type> types = integerTypes();
  auto check = [&](Program &program, Value result, const std::string &what) {
    program.finish();
    Execution run;
    run.run(program.function);
    Number expected = run.number(result);
    ExprGraph graph(program.function);
    Expr expr = graph.scalar(result);
    std::optional<int64_t> got = graph.evaluateInteger(expr, Point());
    // A division of truth values that may have no behaviour stays.
    if (isPure(result.getDefiningOp()))
      ASSERT_EQ(got.has_value(), expected.isDefined())
          << what << program.text();
    if (!got)
      return;
    ASSERT_EQ(*got, expected.integer) << what << program.text();
    if (isInteger(result.getType()))
      ASSERT_EQ(show(graph.polyOf(result).constant()), show(*got)) << what;
    else if (result.getDefiningOp<arith::CmpIOp>() &&
             isInteger(result.getDefiningOp()->getOperand(0).getType()))
      ASSERT_EQ(graph.truthOf(result), std::optional(*got != 0)) << what;
  };
  for (Type type : types) {
    for (int turn = 0; turn < 40; ++turn) {
      std::vector<int64_t> edges = edgesOf(type, draw);
      int64_t a = draw.one(edges), b = draw.one(edges);
      for (StringRef name : binaryIntegerOps()) {
        Program program;
        Value result = program.add(
            ("arith." + name).str(),
            {program.integer(a, type), program.integer(b, type)}, type);
        check(program, result, describe(type) + "\n");
      }
      for (unsigned predicate = 0; predicate < 10; ++predicate) {
        Program program;
        Value result =
            program.compare(static_cast<arith::CmpIPredicate>(predicate),
                            program.integer(a, type), program.integer(b, type));
        check(program, result, describe(type) + "\n");
      }
      if (type.isInteger(1))
        continue;
      Program program;
      Value result = program.add("math.absi", program.integer(a, type), type);
      check(program, result, describe(type) + "\n");
    }
    for (Type to : types)
      for (StringRef name : castsBetween(type, to))
        for (int64_t number : edgesOf(type, draw)) {
          Program program;
          Value result = program.add(name, program.integer(number, type), to);
          check(program, result, name.str() + "\n");
        }
  }
}

//===----------------------------------------------------------------------===//
// Programs of scalars
//===----------------------------------------------------------------------===//

/// Counts, so that a test that finds nothing to check fails.
struct Seen {
  int64_t polynomials = 0; ///< that are no name of the value
  int64_t ranges = 0, truths = 0, numbers = 0;
};

/// Analyses of every value of a program, made once for all of its runs.
class Readings {
public:
  Readings(Program &program, ArrayRef<Value> values, Seen &seen)
      : program(program), graph(program.function), seen(seen) {
    for (Value value : values) {
      Reading reading{value, graph.scalar(value), {}, {}, {}};
      if (isInteger(value.getType())) {
        reading.poly = graph.polyOf(value);
        reading.range = graph.space.rangeOf(reading.poly);
      } else {
        reading.truth = graph.truthOf(value);
      }
      readings.push_back(reading);
    }
  }

  void check(const Execution &run) {
    Meaning meaning(graph.space, run);
    for (Reading &reading : readings) {
      Number expected = run.number(reading.value);
      if (!expected.isDefined())
        continue;
      ++seen.numbers;
      Number read = meaning.of(reading.expr, Point());
      ASSERT_TRUE(same(read, expected))
          << "expression: expected " << text(expected) << ", but got "
          << text(read) << " of " << where(reading.value);
      if (!isInteger(reading.value.getType())) {
        seen.truths += reading.truth.has_value();
        ASSERT_TRUE(!reading.truth || *reading.truth == (expected.integer != 0))
            << where(reading.value);
        continue;
      }
      std::optional<AtomId> atom = reading.poly.asAtom();
      seen.polynomials += !atom || graph.space[*atom].value != reading.value;
      std::optional<int64_t> number = meaning.of(reading.poly, Point());
      ASSERT_EQ(show(number), show(expected.integer)) << where(reading.value);
      if (!reading.range)
        continue;
      ++seen.ranges;
      ASSERT_LE(reading.range->low, expected.integer) << where(reading.value);
      ASSERT_GE(reading.range->high, expected.integer) << where(reading.value);
    }
  }

private:
  struct Reading {
    Value value;
    Expr expr;
    IndexPoly poly;
    std::optional<IndexSpace::Range> range;
    std::optional<bool> truth;
  };
  std::string where(Value value) {
    std::string text;
    llvm::raw_string_ostream(text) << value << " of\n";
    return text + program.text();
  }

  Program &program;
  ExprGraph graph;
  Seen &seen;
  std::vector<Reading> readings;
};

/// Programs of arguments of 4 bits: every value at every point.
TEST(IntegersTest, ReadsNarrowProgramsAtEveryPoint) {
  Seen seen;
  for (int seed = 0; seed < 400; ++seed) {
    Draw draw(1000 + seed);
    MLIRContext *context = &Program::context();
    Type narrow = IntegerType::get(context, seed % 4 == 0 ? 8 : 4);
    unsigned count = seed % 4 == 0 ? 1 : 2;
    std::vector<Type> types = {narrow,
                               IntegerType::get(context, 1),
                               IntegerType::get(context, 6),
                               IntegerType::get(context, 16),
                               IntegerType::get(context, 64),
                               IndexType::get(context)};
    Program program(std::vector<Type>(count, narrow));
    std::vector<Value> pool(program.function.getArguments().begin(),
                            program.function.getArguments().end());
    growIntegers(program, draw, pool, 12, types);
    program.finish();
    Readings readings(program, pool, seen);
    SmallVector<int64_t> shape(count, int64_t(1) << widthOf(narrow));
    forEach(shape, [&](ArrayRef<int64_t> at) {
      Execution run;
      for (auto [k, number] : llvm::enumerate(at))
        run.set(program.argument(k), Number::of(wrap(number, narrow)));
      run.run(program.function);
      if (!::testing::Test::HasFatalFailure())
        readings.check(run);
    });
    if (HasFatalFailure())
      FAIL() << "seed " << seed;
  }
  EXPECT_GT(seen.polynomials, 50000);
  EXPECT_GT(seen.ranges, 50000);
  EXPECT_GT(seen.truths, 5000);
}

/// Programs of arguments of all types, and of sizes, at their edges.
TEST(IntegersTest, ReadsWideProgramsAtTheEdges) {
  Seen seen;
  for (int seed = 0; seed < 600; ++seed) {
    Draw draw(5000 + seed);
    std::vector<Type> types = integerTypes();
    std::vector<Type> arguments;
    for (int k = 0; k < 3; ++k)
      arguments.push_back(draw.one(types));
    auto tensor = RankedTensorType::get({ShapedType::kDynamic},
                                        Float32Type::get(&Program::context()));
    arguments.push_back(tensor);
    Program program(arguments);
    std::vector<Value> pool;
    for (int k = 0; k < 3; ++k)
      pool.push_back(program.argument(k));
    pool.push_back(
        program.add("tensor.dim",
                    {program.argument(3), program.integer(0, program.index())},
                    program.index()));
    growIntegers(program, draw, pool, 16, types);
    program.finish();
    Readings readings(program, pool, seen);
    for (int point = 0; point < 40; ++point) {
      Execution run;
      for (int k = 0; k < 3; ++k) {
        std::vector<int64_t> edges = edgesOf(arguments[k], draw);
        run.set(program.argument(k), Number::of(draw.one(edges)));
      }
      // No elements are needed to have a size; the limit of the analysis is
      // 2^31 - 1, and 2^40 for a product.
      Array sized;
      sized.shape = {draw.chance(2) ? draw.from(1, 9)
                                    : draw.from(1, int64_t(1) << 20)};
      run.set(program.argument(3), sized);
      run.run(program.function);
      readings.check(run);
      if (HasFatalFailure())
        FAIL() << "seed " << seed;
    }
  }
  EXPECT_GT(seen.polynomials, 50000);
  EXPECT_GT(seen.ranges, 20000);
}

//===----------------------------------------------------------------------===//
// Programs in the bodies of loops
//===----------------------------------------------------------------------===//

/// Integer arithmetic of positions and elements of constants in a body, at
/// every position: expanded once, and closed down to numbers.
TEST(IntegersTest, ReadsBodiesAtEveryPosition) {
  int64_t closed = 0, polynomials = 0, points = 0, bodies = 0, opened = 0;
  for (int seed = 0; seed < 1500; ++seed) {
    Draw draw(9000 + seed);
    std::vector<Type> types = integerTypes();
    std::vector<Type> resultTypes;
    for (int k = 0; k < 4; ++k)
      resultTypes.push_back(draw.one(types));
    SmallVector<int64_t> shape = {draw.from(1, 6), draw.from(1, 9)};
    Type elements = draw.one(types);

    Program program;
    OpBuilder &b = program.builder;
    auto rowType = RankedTensorType::get({shape[1]}, elements);
    std::vector<int64_t> edges = edgesOf(elements, draw);
    SmallVector<APInt> row;
    for (int64_t k = 0; k < shape[1]; ++k)
      row.push_back(APInt(widthOf(elements),
                          static_cast<uint64_t>(draw.one(edges)), true, true));
    Value input = arith::ConstantOp::create(
        b, program.loc, DenseElementsAttr::get(rowType, row));
    SmallVector<Value> inits;
    SmallVector<AffineMap> maps = {
        AffineMap::get(2, 0, {b.getAffineDimExpr(1)}, &Program::context())};
    for (Type type : resultTypes) {
      inits.push_back(tensor::EmptyOp::create(b, program.loc, shape, type));
      maps.push_back(b.getMultiDimIdentityMap(2));
    }
    SmallVector<utils::IteratorType> iterators(2,
                                               utils::IteratorType::parallel);
    auto generic = linalg::GenericOp::create(
        b, program.loc, TypeRange(ValueRange(inits)), input, inits, maps,
        iterators, [&](OpBuilder &inner, Location loc, ValueRange arguments) {
          OpBuilder::InsertionGuard guard(b);
          b.setInsertionPointToEnd(inner.getInsertionBlock());
          std::vector<Value> pool = {arguments[0]};
          for (unsigned k : {0, 1}) {
            Value at = linalg::IndexOp::create(b, loc, k);
            pool.push_back(at);
            // Around 0, and up to an edge of a narrow type.
            pool.push_back(program.add(
                "arith.subi",
                {at, program.integer(draw.from(0, 9), program.index())},
                program.index()));
            Type narrow = draw.one(types);
            if (!narrow.isIndex())
              pool.push_back(
                  program.add("arith.index_cast", pool.back(), narrow));
          }
          growIntegers(program, draw, pool, 14, types);
          SmallVector<Value> yielded;
          for (Type type : resultTypes) {
            Value result;
            for (Value value : pool)
              if (value.getType() == type)
                result = value;
            yielded.push_back(result ? result : program.integer(1, type));
          }
          linalg::YieldOp::create(b, loc, yielded);
        });
    program.finish();
    Execution run;
    run.run(program.function);
    ExprGraph graph(program.function);
    Meaning meaning(graph.space, run);
    for (Value result : generic.getResults()) {
      SmallVector<IndexPoly> loops = graph.freshLoops(result);
      Expr load = graph.load(result, loops);
      Expr expr = load->kind == Kind::Load && load->value == result
                      ? graph.expand(load)
                      : load;
      ++bodies;
      // A body with a division that may have no behaviour is not read.
      if (!expr)
        continue;
      ++opened;
      Expr numbers = graph.close(expr);
      polynomials += expr->kind == Kind::Index;
      forEach(shape, [&](ArrayRef<int64_t> at) {
        Number expected = run.array(result).at(at);
        if (!expected.isDefined() || ::testing::Test::HasFailure())
          return;
        ++points;
        Point point = pointOf(loops, at);
        Number read = meaning.of(expr, point);
        EXPECT_TRUE(same(read, expected))
            << "expected " << text(expected) << ", but got " << text(read)
            << " at [" << at[0] << ", " << at[1] << "] of result "
            << cast<OpResult>(result).getResultNumber() << " of "
            << program.text();
        if (!numbers)
          return;
        std::optional<int64_t> number = graph.evaluateInteger(numbers, point);
        closed += number.has_value();
        EXPECT_TRUE(!number || *number == expected.integer)
            << "closed: expected " << text(expected) << ", but got "
            << show(number) << " at [" << at[0] << ", " << at[1]
            << "] of result " << cast<OpResult>(result).getResultNumber()
            << " of " << program.text();
      });
    }
    if (HasFailure())
      FAIL() << "seed " << seed;
  }
  EXPECT_GT(points, 20000);
  // Everything but the ops that are kept as they are (ctpop).
  EXPECT_GT(closed, points * 8 / 10);
  EXPECT_GT(polynomials, 100);
  EXPECT_GT(opened, bodies / 2);
}

/// Chains that use each value twice cost no more than the limits.
TEST(IntegersTest, StopsAtLongChains) {
  for (StringRef name : {"arith.muli", "arith.addi", "arith.maxsi"}) {
    Type type = IntegerType::get(&Program::context(), 64);
    Program program({type, type});
    std::vector<Value> pool = {program.argument(0), program.argument(1)};
    for (int k = 0; k < 2000; ++k)
      pool.push_back(
          program.add(name, {pool.back(), pool[pool.size() - 2]}, type));
    program.finish();
    ExprGraph graph(program.function);
    Execution run;
    run.set(program.argument(0), Number::of(3));
    run.set(program.argument(1), Number::of(-7));
    run.run(program.function);
    Meaning meaning(graph.space, run);
    for (unsigned k : {5u, 40u, 2001u}) {
      std::optional<int64_t> read = meaning.of(graph.polyOf(pool[k]), Point());
      EXPECT_EQ(show(read), show(run.number(pool[k]).integer)) << k;
    }
  }
}

} // namespace
