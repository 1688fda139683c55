//===- CostTest.cpp - chains that use each value twice -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Written out, each of these programs has more terms than there is memory. What
// is read of them is right, and read at once: without limits these tests do not
// end.
//
//===----------------------------------------------------------------------===//
#include "Meaning.h"
#include "Programs.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn::tensorexpr;
using namespace plain;

namespace {

/// Reads `result` at all positions, as it stands, opened and closed.
void checkElements(Program &program, const Execution &run, Value result) {
  ExprGraph graph(program.function);
  Position loops = graph.freshLoops(result);
  Expr load = graph.load(result, loops);
  Meaning meaning(graph.space, run);
  for (Expr expr : {load, graph.expand(load)}) {
    if (!expr)
      continue;
    EXPECT_LE(expr->size, 2 * kMaxNodes);
    for (const IndexPoly &loop : loops)
      graph.mentions(expr, *loop.asAtom());
    graph.equal(expr, graph.substitute(
                          expr, {{*loops[0].asAtom(), graph.space.loop(2)}}));
    Expr closed = graph.close(expr);
    forEach(run.array(result).shape, [&](ArrayRef<int64_t> at) {
      Number expected = run.array(result).at(at);
      Point point = pointOf(loops, at);
      EXPECT_TRUE(!expected.isDefined() ||
                  same(meaning.of(expr, point), expected));
      std::optional<double> number;
      if (closed)
        number = graph.evaluate(closed, point);
      EXPECT_TRUE(!number || expected.kind != Number::Real ||
                  *number == expected.real);
    });
  }
}

/// A body over four positions that makes one number of the position.
Value body(Program &program, Type type,
           llvm::function_ref<Value(Value index)> make) {
  OpBuilder &b = program.builder;
  Value init = tensor::EmptyOp::create(b, program.loc, {4}, type);
  return linalg::GenericOp::create(
             b, program.loc, init.getType(), ValueRange(), init,
             b.getMultiDimIdentityMap(1), utils::IteratorType::parallel,
             [&](OpBuilder &inner, Location loc, ValueRange) {
               OpBuilder::InsertionGuard guard(b);
               b.setInsertionPointToEnd(inner.getInsertionBlock());
               Value index = linalg::IndexOp::create(b, loc, 0);
               Value result = make(index);
               linalg::YieldOp::create(b, loc, result);
             })
      .getResult(0);
}

TEST(CostTest, IntegersOfBodies) {
  Type index = IndexType::get(&Program::context());
  for (StringRef name : {"muli", "addi", "maxsi", "xori", "floordivsi"})
    for (int length : {3, 80}) {
      Program program;
      Value result = body(program, index, [&](Value x) {
        Value two = program.integer(2, index);
        x = program.add("arith.addi", {x, two}, index);
        for (int k = 0; k < length; ++k) {
          Value y = name == "floordivsi"
                        ? program.add("arith.floordivsi", {x, two}, index)
                        : x;
          x = program.add(name == "floordivsi" ? "arith.addi"
                                               : ("arith." + name).str(),
                          {x, y}, index);
        }
        return x;
      });
      program.finish();
      Execution run;
      run.run(program.function);
      checkElements(program, run, result);
    }
}

TEST(CostTest, FloatsOfBodies) {
  Type f64 = Float64Type::get(&Program::context());
  for (int length : {3, 10, 200}) {
    Program program;
    Value result = body(program, f64, [&](Value x) {
      x = program.add("arith.index_cast", x, program.type(64));
      x = program.add("arith.sitofp", x, f64);
      for (int k = 0; k < length; ++k)
        x = program.add("arith.addf", {x, x}, f64);
      return x;
    });
    program.finish();
    Execution run;
    run.run(program.function);
    checkElements(program, run, result);
  }
}

TEST(CostTest, Scalars) {
  Type f32 = Float32Type::get(&Program::context());
  for (int length : {3, 300}) {
    Program program({f32});
    Value x = program.argument(0);
    for (int k = 0; k < length; ++k)
      x = program.add(k % 2 ? "arith.addf" : "arith.maximumf", {x, x}, f32);
    program.finish();
    Execution run;
    run.set(program.argument(0), Number::ofReal(0.75));
    run.run(program.function);
    ExprGraph graph(program.function);
    Expr expr = graph.scalar(x);
    EXPECT_LE(expr->size, 2000u);
    Meaning meaning(graph.space, run);
    EXPECT_TRUE(same(meaning.of(expr, Point()), run.number(x)));
    EXPECT_FALSE(graph.constantValue(expr));
  }
}

TEST(CostTest, Tensors) {
  for (int length : {3, 60}) {
    Program program;
    auto type = RankedTensorType::get({4}, program.builder.getF32Type());
    Value x = arith::ConstantOp::create(
        program.builder, program.loc,
        DenseElementsAttr::get(type, ArrayRef<float>{1, 2, 3, 4}));
    for (int k = 0; k < length; ++k)
      x = program.add("arith.addf", {x, x}, type);
    program.finish();
    Execution run;
    run.run(program.function);
    checkElements(program, run, x);
  }
}

/// Each body reads the tensor before it twice, and keeps one of the two.
TEST(CostTest, ChoicesOfTensors) {
  for (bool decided : {false, true})
    for (int length : {3, 60}) {
      Program program;
      OpBuilder &b = program.builder;
      auto type = RankedTensorType::get({4}, b.getF32Type());
      (void)program.function.insertArgument(0, type, {}, program.loc);
      Value x = program.argument(0);
      for (int k = 0; k < length; ++k) {
        Value read = x;
        x = linalg::GenericOp::create(
                b, program.loc, type, ValueRange{read, read}, read,
                SmallVector<AffineMap>(3, b.getMultiDimIdentityMap(1)),
                utils::IteratorType::parallel,
                [&](OpBuilder &inner, Location loc, ValueRange arguments) {
                  OpBuilder::InsertionGuard guard(b);
                  b.setInsertionPointToEnd(inner.getInsertionBlock());
                  Value at = linalg::IndexOp::create(b, loc, 0);
                  Value first = program.compare(
                      arith::CmpIPredicate::slt, at,
                      program.integer(decided ? 9 : k % 4, program.index()));
                  Value chosen = program.add(
                      "arith.select", {first, arguments[0], arguments[1]},
                      b.getF32Type());
                  linalg::YieldOp::create(b, loc, chosen);
                })
                .getResult(0);
      }
      program.finish();
      Execution run;
      Array array = Array::filled({4}, Number());
      for (int64_t k = 0; k < 4; ++k)
        array.elements[k] = Number::ofReal(static_cast<double>(k));
      run.set(program.argument(0), array);
      run.run(program.function);
      checkElements(program, run, x);
    }
}

/// Turned around and cut anew, over and over: positions are quotients of
/// quotients.
TEST(CostTest, Reshapes) {
  for (int length : {4, 60}) {
    Program program;
    OpBuilder &b = program.builder;
    auto type = [&](ArrayRef<int64_t> shape) {
      return RankedTensorType::get(shape, b.getF32Type());
    };
    const SmallVector<int64_t> shapes[] = {{6, 35}, {10, 21}, {14, 15},
                                           {5, 42}, {7, 30},  {3, 70}};
    (void)program.function.insertArgument(0, type(shapes[0]), {}, program.loc);
    Value x = program.argument(0);
    for (int k = 0; k < length; ++k) {
      const SmallVector<int64_t> &shape = shapes[(k + 1) % 6];
      SmallVector<Value> sizes;
      for (int64_t size : shape)
        sizes.push_back(program.integer(size, program.index()));
      // Turned around in between, or the position would be that of all elements
      // in their order.
      SmallVector<int64_t> turned(llvm::reverse(shapes[k % 6]));
      Value init =
          tensor::EmptyOp::create(b, program.loc, turned, b.getF32Type());
      x = linalg::TransposeOp::create(b, program.loc, x, init,
                                      ArrayRef<int64_t>{1, 0})
              ->getResult(0);
      Value newShape = tensor::FromElementsOp::create(b, program.loc, sizes);
      x = tensor::ReshapeOp::create(b, program.loc, type(shape), x, newShape);
    }
    program.finish();
    Execution run;
    Array array = Array::filled(shapes[0], Number());
    for (auto [k, element] : llvm::enumerate(array.elements))
      element = Number::ofReal(static_cast<double>(k));
    run.set(program.argument(0), array);
    run.run(program.function);
    checkElements(program, run, x);
  }
}

} // namespace
