//===- InterpreterTest.cpp - limits, weights and arrays -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the options and values do. Ops are compared with NumPy by
// test/python/tools/test_interpreter_*.py.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Testing/Interpreter/Interpreter.h"

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MLProgram/IR/MLProgram.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Parser/Parser.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn::interpreter;
using Kind = InterpreterError::Kind;

namespace {
class InterpreterTest : public testing::Test {
protected:
  InterpreterTest() {
    context.loadDialect<arith::ArithDialect, func::FuncDialect,
                        ml_program::MLProgramDialect, scf::SCFDialect,
                        tensor::TensorDialect, diffattn::DiffAttnDialect>();
  }

  /// Runs @f; the kind and message of an error go to `kind` and `message`.
  std::optional<Outcome> run(StringRef text, ArrayRef<Array> arguments = {}) {
    module = parseSourceString<ModuleOp>(text, &context);
    if (!module) {
      ADD_FAILURE() << "expected a module of MLIR";
      return std::nullopt;
    }
    auto outcome = interpret(*module, "f", arguments, options);
    if (outcome)
      return std::move(*outcome);
    llvm::handleAllErrors(outcome.takeError(),
                          [&](const InterpreterError &error) {
                            kind = error.getKind();
                            message = error.getMessage();
                          });
    return std::nullopt;
  }
  Array array(Type type, ArrayRef<int64_t> shape, const void *bytes) {
    return llvm::cantFail(Array::read(type, shape, bytes));
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
  Options options;
  Kind kind = Kind::Input;
  std::string message;
};
} // namespace

/// Ten tensors of 8000 bytes, each read by the next op alone.
static std::string makeChain() {
  std::string text = "func.func @f(%x: f32, %i: index) -> f32 {\n";
  for (int i = 0; i < 10; ++i) {
    std::string n = std::to_string(i);
    text += "  %s" + n + " = tensor.splat %x : tensor<1000xf32>\n  %d" + n +
            " = tensor.extract %s" + n + "[%i] : tensor<1000xf32>\n";
  }
  return text + "  return %d9 : f32\n}";
}

TEST_F(InterpreterTest, TensorsThatNothingReadsAnyMoreTakeNoMemory) {
  float x = 2.5;
  int64_t i = 3;
  std::vector<Array> arguments = {array(Float32Type::get(&context), {}, &x),
                                  array(IndexType::get(&context), {}, &i)};
  options.maxBytes = 8100;
  auto outcome = run(makeChain(), arguments);
  ASSERT_TRUE(outcome) << message;
  EXPECT_EQ(outcome->results[0].getFloat(0), 2.5);
  options.maxBytes = 7900;
  EXPECT_FALSE(run(makeChain(), arguments));
  EXPECT_EQ(kind, Kind::Limit);
  EXPECT_NE(message.find("expected tensors of at most 7900 bytes at once"),
            std::string::npos);
}

TEST_F(InterpreterTest, InsertionsOfALoopAreDoneInPlace) {
  // A copy of 8000 bytes in each of 1000 turns would not fit beside the first.
  const char *text = R"(
    func.func @f(%n: index) -> tensor<?xf32> {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %x = arith.constant 1.0 : f32
      %e = tensor.empty(%n) : tensor<?xf32>
      %r = scf.for %i = %zero to %n step %one iter_args(%t = %e)
          -> tensor<?xf32> {
        %u = tensor.insert %x into %t[%i] : tensor<?xf32>
        scf.yield %u : tensor<?xf32>
      }
      return %r : tensor<?xf32>
    })";
  int64_t n = 1000;
  options.maxBytes = 9000;
  auto outcome = run(text, array(IndexType::get(&context), {}, &n));
  ASSERT_TRUE(outcome) << message;
  for (int64_t i = 0; i < n; ++i)
    EXPECT_EQ(outcome->results[0].getFloat(i), 1.0);
}

TEST_F(InterpreterTest, ArgumentsAreNotChanged) {
  float values[] = {1, 2};
  Array argument = array(Float32Type::get(&context), {2}, values);
  auto outcome = run(R"(
    func.func @f(%t: tensor<2xf32>) -> tensor<2xf32> {
      %i = arith.constant 1 : index
      %x = arith.constant 7.0 : f32
      %u = tensor.insert %x into %t[%i] : tensor<2xf32>
      return %u : tensor<2xf32>
    })",
                     argument);
  ASSERT_TRUE(outcome) << message;
  EXPECT_EQ(outcome->results[0].getFloat(1), 7.0);
  EXPECT_EQ(argument.getFloat(1), 2.0);
}

TEST_F(InterpreterTest, WeightsAreAskedForByNameAndLayer) {
  const char *text = R"(
    ml_program.global private @"w.{}"(#ml_program.extern<tensor<2xf32>>)
      : tensor<2xf32> {diffattn.layers = 3 : i64}
    ml_program.global private @v(#ml_program.extern<tensor<2xf32>>)
      : tensor<2xf32>
    func.func @f(%i: index) -> (tensor<2xf32>, tensor<2xf32>) {
      %w = diffattn.layer_weight @"w.{}"[%i] : tensor<2xf32>
      %v = ml_program.global_load_const @v : tensor<2xf32>
      return %w, %v : tensor<2xf32>, tensor<2xf32>
    })";
  std::vector<std::pair<std::string, int64_t>> requests;
  Type given = Float32Type::get(&context);
  options.weight = [&](StringRef name, int64_t layer, RankedTensorType type) {
    requests.emplace_back(name.str(), layer);
    float values[] = {1, static_cast<float>(layer)};
    return Array::read(given, type.getShape(), values);
  };
  int64_t i = 2;
  Array layer = array(IndexType::get(&context), {}, &i);
  auto outcome = run(text, layer);
  ASSERT_TRUE(outcome) << message;
  EXPECT_EQ(outcome->results[0].getFloat(1), 2.0);
  EXPECT_EQ(outcome->results[1].getFloat(1), -1.0);
  const std::vector<std::pair<std::string, int64_t>> expected = {{"w.{}", 2},
                                                                 {"v", -1}};
  EXPECT_EQ(requests, expected);

  i = 3;
  EXPECT_FALSE(run(text, array(IndexType::get(&context), {}, &i)));
  EXPECT_EQ(kind, Kind::Fault);
  EXPECT_NE(message.find("expected a layer from 0 and below 3, but got 3"),
            std::string::npos)
      << message;
  given = IntegerType::get(&context, 32);
  EXPECT_FALSE(run(text, layer));
  EXPECT_EQ(kind, Kind::Input);
  EXPECT_NE(message.find("expected a weight @w.{} of 2, but got 2xi32"),
            std::string::npos)
      << message;
}

TEST_F(InterpreterTest, StepsAreCounted) {
  const char *text = R"(
    func.func @f() -> index {
      %n = arith.constant 10 : index
      return %n : index
    })";
  auto outcome = run(text);
  ASSERT_TRUE(outcome);
  options.maxSteps = outcome->steps;
  EXPECT_TRUE(run(text));
  options.maxSteps = outcome->steps - 1;
  EXPECT_FALSE(run(text));
  EXPECT_EQ(kind, Kind::Limit);
}

TEST_F(InterpreterTest, ArraysKeepTheirBytes) {
  Builder b(&context);
  const unsigned char bytes[] = {0x00, 0x3c, 0x80, 0xcf, 0x01, 0x7b,
                                 0xc0, 0x40, 0x12, 0x34, 0x56, 0x78,
                                 0x9a, 0xbc, 0xde, 0x3f};
  const std::pair<Type, int64_t> types[] = {
      {b.getF64Type(), 2}, {b.getF32Type(), 4},
      {b.getF16Type(), 8}, {b.getBF16Type(), 8},
      {b.getI64Type(), 2}, {b.getIndexType(), 2},
      {b.getI32Type(), 4}, {b.getIntegerType(16), 8},
      {b.getI8Type(), 16}, {b.getIntegerType(8, false), 16}};
  for (auto [type, count] : types) {
    unsigned char back[16] = {};
    array(type, {count}, bytes).write(back);
    EXPECT_EQ(memcmp(bytes, back, 16), 0) << count;
  }
  const unsigned char truths[] = {0, 1, 1};
  unsigned char back[3];
  Array array1 = array(b.getI1Type(), {3}, truths);
  array1.write(back);
  EXPECT_EQ(memcmp(truths, back, 3), 0);
  EXPECT_EQ(array1.getInteger(1), 1);
  EXPECT_EQ(array(b.getIntegerType(8, false), {1}, "\xff").getInteger(0), 255);
  EXPECT_EQ(array(b.getI8Type(), {1}, "\xff").getInteger(0), -1);
}
