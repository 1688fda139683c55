//===- ScalarBodyTest.cpp - bodies and reductions as expressions ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Meaning.h"
#include "Programs.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;
using namespace plain;

namespace {

using Pool = std::vector<Value>;

/// Draws the body of a `linalg.generic` over rows and columns.
class Bodies {
public:
  Bodies(Program &program, Draw &draw, ArrayRef<int64_t> shape)
      : program(program), draw(draw), b(program.builder),
        shape(shape.begin(), shape.end()) {
    MLIRContext *context = &Program::context();
    for (FloatType type : {FloatType(Float16Type::get(context)),
                           FloatType(BFloat16Type::get(context)),
                           FloatType(Float32Type::get(context)),
                           FloatType(Float64Type::get(context))})
      types.push_back(type);
    for (unsigned width : {1, 8, 32, 64})
      types.push_back(IntegerType::get(context, width));
    types.push_back(IndexType::get(context));
  }

  /// A tensor of the body's shape: an argument, or a constant.
  Value input(Type element) {
    SmallVector<Number> numbers;
    std::vector<int64_t> edges;
    if (!isa<FloatType>(element))
      edges = edgesOf(element, draw);
    for (int64_t k = 0; k < shape[0] * shape[1]; ++k)
      if (!isa<FloatType>(element))
        numbers.push_back(Number::of(draw.one(edges)));
      else if (extremes && draw.chance(8))
        numbers.push_back(Number::ofReal(nearest(
            draw.one(std::vector<double>{INFINITY, -INFINITY, 1e300, -1e300}),
            element)));
      else
        numbers.push_back(Number::ofReal(draw.from(-24, 24) / 8.0));
    auto type = RankedTensorType::get(shape, element);
    if (draw.chance(2)) {
      SmallVector<Attribute> attributes;
      for (Number number : numbers)
        attributes.push_back(
            isa<FloatType>(element)
                ? Attribute(FloatAttr::get(element, number.real))
                : Attribute(IntegerAttr::get(
                      element, APInt(widthOf(element),
                                     static_cast<uint64_t>(number.integer),
                                     true, true))));
      return arith::ConstantOp::create(
          b, program.loc, DenseElementsAttr::get(type, attributes));
    }
    unsigned k = program.function.getNumArguments();
    (void)program.function.insertArgument(k, type, {}, program.loc);
    Array array = Array::filled(shape, Number());
    array.elements.assign(numbers.begin(), numbers.end());
    given.push_back({program.function.getArgument(k), array});
    return given.back().first;
  }

  Value ofType(const Pool &pool, Type type) {
    Pool members;
    for (Value value : pool)
      if (value.getType() == type)
        members.push_back(value);
    if (!members.empty() && !draw.chance(4))
      return draw.one(members);
    if (isa<FloatType>(type))
      return program.real(draw.from(-8, 8) / 4.0, type);
    return program.integer(draw.from(-2, 3), type);
  }

  Type oneOf(llvm::function_ref<bool(Type)> predicate) {
    while (true)
      if (Type type = draw.one(types); predicate(type))
        return type;
  }

  /// Appends one op, or a choice with two sides.
  void grow(Pool &pool, int depth) {
    Value x = draw.chance(2) ? pool.back() : draw.one(pool);
    Type type = x.getType(), boolean = program.type(1);
    Builder attributes(&Program::context());
    if (draw.chance(6) && depth < 2) {
      Value condition = ofType(pool, boolean);
      auto choice = scf::IfOp::create(b, program.loc, TypeRange(type),
                                      condition, /*withElseRegion=*/true);
      for (Region *side : {&choice.getThenRegion(), &choice.getElseRegion()}) {
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPointToEnd(&side->front());
        Pool inner = pool;
        for (int64_t k = draw.from(1, 3); k > 0; --k)
          grow(inner, depth + 1);
        scf::YieldOp::create(b, program.loc, ofType(inner, type));
      }
      pool.push_back(choice.getResult(0));
      return;
    }
    if (draw.chance(5)) {
      pool.push_back(program.add("arith.select",
                                 {ofType(pool, boolean), x, ofType(pool, type)},
                                 type));
      return;
    }
    if (!isa<FloatType>(type)) {
      if (draw.chance(3)) {
        Type to = oneOf(llvm::IsaPred<FloatType>);
        if (!type.isIndex())
          pool.push_back(program.add(
              draw.chance(2) ? "arith.sitofp" : "arith.uitofp", x, to));
        return;
      }
      Pool integers;
      for (Value value : pool)
        if (!isa<FloatType>(value.getType()))
          integers.push_back(value);
      size_t before = integers.size();
      growIntegers(program, draw, integers, 1,
                   {program.type(1), program.type(8), program.type(32),
                    program.type(64), program.index()});
      pool.insert(pool.end(), integers.begin() + before, integers.end());
      return;
    }
    switch (draw.below(8)) {
    case 0: {
      auto predicate = static_cast<arith::CmpFPredicate>(draw.below(16));
      pool.push_back(program.add(
          "arith.cmpf", {x, ofType(pool, type)}, boolean,
          attributes.getNamedAttr(
              "predicate",
              arith::CmpFPredicateAttr::get(&Program::context(), predicate))));
      return;
    }
    case 1: {
      Type to = oneOf([&](Type other) {
        return isa<FloatType>(other) && widthOf(other) != widthOf(type);
      });
      pool.push_back(program.add(
          widthOf(to) > widthOf(type) ? "arith.extf" : "arith.truncf", x, to));
      return;
    }
    case 2: {
      Type to = oneOf([](Type other) { return isa<IntegerType>(other); });
      pool.push_back(
          program.add(draw.chance(2) ? "arith.fptosi" : "arith.fptoui", x, to));
      return;
    }
    case 3: {
      StringRef names[] = {"arith.negf", "math.absf", "math.sqrt"};
      pool.push_back(program.add(draw.one(names), x, type));
      return;
    }
    case 4: {
      // Not by zero: expressions do not keep its sign.
      double by[] = {0.5, -2, 3, -0.25};
      pool.push_back(program.add("arith.divf",
                                 {x, program.real(draw.one(by), type)}, type));
      return;
    }
    default: {
      StringRef names[] = {"addf",    "subf", "mulf", "maximumf",
                           "minnumf", "addf", "mulf"};
      Value y = ofType(pool, type);
      if (draw.chance(2))
        std::swap(x, y);
      pool.push_back(
          program.add(("arith." + draw.one(names)).str(), {x, y}, type));
    }
    }
  }

  Program &program;
  Draw &draw;
  OpBuilder &b;
  SmallVector<int64_t> shape;
  std::vector<Type> types;
  /// Whether inputs hold infinities and numbers that sums would lose others in.
  bool extremes = true;
  std::vector<std::pair<Value, Array>> given;
};

struct Counts {
  int64_t points = 0, opened = 0, results = 0, closed = 0, nan = 0, sums = 0;
};

/// The last finite number before `infinity`.
double endOf(Type type, double infinity) {
  return std::copysign(
      APFloat::getLargest(cast<FloatType>(type).getFloatSemantics())
          .convertToDouble(),
      infinity);
}

void checkResult(Program &program, const Execution &run, ExprGraph &graph,
                 Value result, Counts &counts) {
  const Array &elements = run.array(result);
  SmallVector<IndexPoly> loops = graph.freshLoops(result);
  Expr load = graph.load(result, loops);
  Expr expr = load->kind == Kind::Load && load->value == result
                  ? graph.expand(load)
                  : load;
  ++counts.results;
  if (!expr)
    return;
  ++counts.opened;
  counts.sums += expr->kind == Kind::Index;
  Expr numbers = graph.close(expr);
  Meaning meaning(graph.space, run);
  forEach(elements.shape, [&](ArrayRef<int64_t> at) {
    Number expected = elements.at(at);
    if (!expected.isDefined() || ::testing::Test::HasFailure())
      return;
    Point point = pointOf(loops, at);
    meaning.metNan = false;
    Number read = meaning.of(expr, point);
    // The ends of the finite numbers count as infinities where a reduction
    // starts.
    bool isEnd = expected.kind == Number::Real && std::isinf(read.real) &&
                 expected.real == endOf(elementType(result), read.real);
    if (meaning.metNan || isEnd) {
      ++counts.nan;
      return;
    }
    ++counts.points;
    EXPECT_TRUE(same(read, expected))
        << "expected " << text(expected) << ", but got " << text(read)
        << " of result " << cast<OpResult>(result).getResultNumber() << " of "
        << program.text();
    if (!numbers)
      return;
    bool isFloat = expected.kind == Number::Real;
    std::optional<double> real = graph.evaluate(numbers, point);
    std::optional<int64_t> integer;
    if (!isFloat)
      integer = graph.evaluateInteger(numbers, point);
    counts.closed += real.has_value();
    EXPECT_TRUE(!real ||
                (isFloat ? same(Number::ofReal(*real), expected)
                         : same(Number::of(integer.value_or(0)), expected)))
        << "closed: expected " << text(expected) << ", but got "
        << real.value_or(0) << " of result "
        << cast<OpResult>(result).getResultNumber() << " of " << program.text();
  });
}

/// Bodies of all types, with choices inside, at every position.
TEST(ScalarBodyTest, ReadsBodiesAtEveryPosition) {
  Counts counts;
  for (int seed = 0; seed < 2500; ++seed) {
    Draw draw(seed);
    Program program;
    SmallVector<int64_t> shape = {draw.from(1, 4), draw.from(1, 6)};
    Bodies bodies(program, draw, shape);
    OpBuilder &b = program.builder;
    SmallVector<Value> inputs, inits;
    for (int k = 0; k < 3; ++k)
      inputs.push_back(bodies.input(draw.one(bodies.types)));
    Value table = bodies.input(Float32Type::get(&Program::context()));
    for (int k = 0; k < 3; ++k)
      inits.push_back(tensor::EmptyOp::create(b, program.loc, shape,
                                              draw.one(bodies.types)));
    SmallVector<AffineMap> maps(6, b.getMultiDimIdentityMap(2));
    SmallVector<utils::IteratorType> iterators(2,
                                               utils::IteratorType::parallel);
    auto generic = linalg::GenericOp::create(
        b, program.loc, TypeRange(ValueRange(inits)), inputs, inits, maps,
        iterators, [&](OpBuilder &inner, Location loc, ValueRange arguments) {
          OpBuilder::InsertionGuard guard(b);
          b.setInsertionPointToEnd(inner.getInsertionBlock());
          Pool pool(arguments.begin(), arguments.begin() + 3);
          SmallVector<Value> at;
          for (unsigned k : {0, 1}) {
            Value index = linalg::IndexOp::create(b, loc, k);
            pool.push_back(index);
            at.push_back(
                program.add("arith.remui",
                            {index, program.integer(draw.from(1, shape[k]),
                                                    program.index())},
                            program.index()));
          }
          pool.push_back(tensor::ExtractOp::create(b, loc, table, at));
          for (int k = 0; k < 12; ++k)
            bodies.grow(pool, 0);
          SmallVector<Value> yielded;
          for (Value init : inits) {
            Type type = elementType(init);
            Value result;
            for (Value value : pool)
              if (value.getType() == type)
                result = value;
            yielded.push_back(result ? result : bodies.ofType(pool, type));
          }
          linalg::YieldOp::create(b, loc, yielded);
        });
    program.finish();
    Execution run;
    for (auto &[argument, array] : bodies.given)
      run.set(argument, array);
    run.run(program.function);
    ExprGraph graph(program.function);
    for (Value result : generic.getResults())
      checkResult(program, run, graph, result, counts);
    if (HasFailure())
      FAIL() << "seed " << seed;
  }
  EXPECT_GT(counts.points, 10000);
  EXPECT_GT(counts.opened, counts.results / 2);
  EXPECT_GT(counts.closed, 3000);
  EXPECT_LT(counts.nan, counts.points / 5);
}

/// Reductions along the columns: of what a body makes of positions and
/// elements, from every kind of start.
TEST(ScalarBodyTest, ReadsReductions) {
  Counts counts;
  for (int seed = 0; seed < 4000; ++seed) {
    Draw draw(50000 + seed);
    Program program;
    SmallVector<int64_t> shape = {draw.from(1, 4), draw.from(1, 6)};
    Bodies bodies(program, draw, shape);
    OpBuilder &b = program.builder;
    Type type = draw.one(bodies.types);
    bool isFloat = isa<FloatType>(type), isTruth = type.isInteger(1);
    StringRef floatOps[] = {"addf", "maximumf", "minimumf", "maxnumf",
                            "minnumf"};
    StringRef truthOps[] = {"andi", "ori", "minui", "maxui", "minsi", "maxsi"};
    std::string name = "arith." + (isFloat   ? draw.one(floatOps)
                                   : isTruth ? draw.one(truthOps)
                                             : StringRef("addi"))
                                      .str();
    Value start;
    if (isFloat) {
      double starts[] = {0,
                         1.5,
                         -INFINITY,
                         INFINITY,
                         endOf(type, -1),
                         endOf(type, 1),
                         -3.4028234663852886e38};
      start = program.real(nearest(draw.one(starts), type), type);
    } else {
      start = program.integer(draw.below(2) * draw.from(0, 3), type);
    }
    SmallVector<int64_t> rows = {shape[0]};
    Value empty = tensor::EmptyOp::create(b, program.loc, rows, type),
          init =
              linalg::FillOp::create(b, program.loc, start, empty).getResult(0);
    // The order of a sum is not kept.
    bodies.extremes = name != "arith.addf";
    Value input = bodies.input(type);
    SmallVector<AffineMap> maps = {
        b.getMultiDimIdentityMap(2),
        AffineMap::get(2, 0, {b.getAffineDimExpr(0)}, &Program::context())};
    SmallVector<utils::IteratorType> iterators = {
        utils::IteratorType::parallel, utils::IteratorType::reduction};
    auto generic = linalg::GenericOp::create(
        b, program.loc, init.getType(), input, init, maps, iterators,
        [&](OpBuilder &inner, Location loc, ValueRange arguments) {
          OpBuilder::InsertionGuard guard(b);
          b.setInsertionPointToEnd(inner.getInsertionBlock());
          Pool pool = {arguments[0]};
          for (unsigned k : {0, 1})
            pool.push_back(linalg::IndexOp::create(b, loc, k));
          Value element;
          if (draw.chance(2) && !isFloat && !isTruth) {
            // Up to a limit, or from one on: what is counted.
            Value j = pool[2],
                  limit = program.integer(draw.from(0, 6), program.index());
            if (draw.chance(2))
              limit =
                  program.add("arith.addi", {pool[1], limit}, program.index());
            if (draw.chance(2))
              std::swap(j, limit);
            Value condition = program.compare(
                static_cast<arith::CmpIPredicate>(draw.below(10)), j, limit);
            element = program.add(
                "arith.select",
                {condition, program.integer(draw.from(-3, 3), type),
                 program.integer(draw.chance(2) ? 0 : draw.from(-3, 3), type)},
                type);
          } else if (name == "arith.addf") {
            // Exact in any order.
            element = program.add("arith.mulf",
                                  {pool[0], program.real(0.5, type)}, type);
            Value condition = program.compare(
                static_cast<arith::CmpIPredicate>(draw.below(10)), pool[2],
                program.integer(draw.from(0, 6), program.index()));
            element = program.add("arith.select", {condition, pool[0], element},
                                  type);
          } else {
            for (int64_t k = draw.below(6); k > 0; --k)
              bodies.grow(pool, 0);
            for (Value value : pool)
              if (value.getType() == type)
                element = value;
          }
          SmallVector<Value> operands = {arguments[1], element};
          if (draw.chance(2))
            std::swap(operands[0], operands[1]);
          Value result = program.add(name, operands, type);
          linalg::YieldOp::create(b, loc, result);
        });
    program.finish();
    Execution run;
    for (auto &[argument, array] : bodies.given)
      run.set(argument, array);
    run.run(program.function);
    ExprGraph graph(program.function);
    checkResult(program, run, graph, generic.getResult(0), counts);
    if (HasFailure())
      FAIL() << "seed " << seed;
  }
  EXPECT_GT(counts.points, 2000);
  EXPECT_GT(counts.opened, counts.results / 2);
  EXPECT_GT(counts.sums, 100);
}

} // namespace
