//===- ReadSignatureTest.cpp - signatures of modules, and as JSON ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "WriteSignature.h"

#include "DiffAttn/Compiler/ReadSignature.h"
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Program/SignatureReader.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MLProgram/IR/MLProgram.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

namespace {

llvm::Expected<Signature> read(llvm::StringRef text) {
  MLIRContext context;
  context.loadDialect<arith::ArithDialect, DiffAttnDialect, func::FuncDialect,
                      ml_program::MLProgramDialect,
                      bufferization::BufferizationDialect>();
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
  EXPECT_TRUE(static_cast<bool>(module));
  return readSignature(*module);
}

constexpr const char *kGlobals = R"(
  ml_program.global private @embed(#ml_program.extern<tensor<8x4xbf16>>) : tensor<8x4xbf16> {diffattn.source = "lm_head", diffattn.transpose}
  ml_program.global private @"l.{}.w"(#ml_program.extern<tensor<4x2xf32>>) : tensor<4x2xf32> {diffattn.layers = 3 : i64, diffattn.first_layer = 5 : i64, diffattn.layer_step = 2 : i64,
     diffattn.row_block_size = 2 : i64, diffattn.row_blocks = array<i64: 1, 0>}
  ml_program.global private @constant(dense<1.0> : tensor<2xf32>) : tensor<2xf32>
)";

// These globals after diffattn-bind-weights.
constexpr const char *kSlots = R"(
  module attributes {diffattn.weights = [
    #diffattn.weight<name = "embed", type = tensor<8x4xbf16>, source = "lm_head", transpose = true>,
    #diffattn.weight<name = "l.{}.w", type = tensor<4x2xf32>, layers = 3, first_layer = 5, layer_step = 2,
     row_block_size = 2, row_blocks = [1, 0]>]} {
)";

constexpr const char *kFunctions = R"(
  func.func @f(%x: tensor<?x4xf16>, %c: tensor<2x?xf32> {bufferization.writable = true},
               %m: memref<2x3xi64, strided<[?, 1], offset: ?>>, %i: index, %b: i1)
      -> (tensor<2x?xf32>, f64) {
    %z = arith.constant 0.0 : f64
    return %c, %z : tensor<2x?xf32>, f64
  }
  func.func private @hidden() { return }
)";

void expectModule(const Signature &signature) {
  ASSERT_EQ(signature.functions.size(), 1u);
  const FunctionSignature &f = signature.functions[0];
  EXPECT_EQ(f.name, "f");
  ASSERT_EQ(f.arguments.size(), 5u);
  EXPECT_EQ(f.arguments[0].dtype, DIFFATTN_F16);
  EXPECT_EQ(f.arguments[0].shape, (std::vector<int64_t>{-1, 4}));
  EXPECT_FALSE(f.arguments[0].inPlace);
  EXPECT_TRUE(f.arguments[1].inPlace);
  EXPECT_EQ(f.arguments[2].kind, ValueType::MemRef);
  EXPECT_EQ(f.arguments[2].strides, (std::vector<int64_t>{kAnyStride, 1}));
  EXPECT_EQ(f.arguments[3].kind, ValueType::Scalar);
  EXPECT_EQ(f.arguments[3].dtype, DIFFATTN_I64);
  EXPECT_EQ(f.arguments[4].dtype, DIFFATTN_BOOL);
  EXPECT_EQ(f.results[1].dtype, DIFFATTN_F64);
  ASSERT_EQ(signature.weights.size(), 2u);
  EXPECT_EQ(signature.getNumWeightSlots(), 4);
  EXPECT_TRUE(signature.weights[0].transpose);
  EXPECT_EQ(signature.weights[0].getFileName(0), "lm_head");
  EXPECT_EQ(signature.weights[1].getFileName(2), "l.9.w");
  EXPECT_EQ(signature.weights[1].rowBlocks, (std::vector<int64_t>{1, 0}));
}

TEST(Signature, OfAModule) {
  auto signature = read(std::string(kGlobals) + kFunctions);
  ASSERT_TRUE(static_cast<bool>(signature));
  expectModule(*signature);
}

TEST(Signature, OfAModuleWithBoundWeights) {
  auto signature = read(std::string(kSlots) + kFunctions + "}");
  ASSERT_TRUE(static_cast<bool>(signature));
  expectModule(*signature);
}

TEST(Signature, BadWeightsAreAnError) {
  for (auto [global, message] :
       {std::pair("@w(#ml_program.extern<tensor<2xf32>>) : tensor<2xf32> "
                  "{diffattn.layers = 2 : i64}",
                  "weight @w: expected layers on a name with {}"),
        {"@w(#ml_program.extern<tensor<2xi7>>) : tensor<2xi7>",
         "weight @w: expected a tensor of floats or integers, but got "
         "tensor<2xi7>"}}) {
    auto signature = read("ml_program.global private " + std::string(global));
    ASSERT_FALSE(static_cast<bool>(signature)) << global;
    EXPECT_NE(llvm::toString(signature.takeError()).find(message),
              std::string::npos)
        << global;
  }
}

TEST(Signature, SurvivesJson) {
  auto signature = read(std::string(kGlobals) + kFunctions);
  ASSERT_TRUE(static_cast<bool>(signature));
  const std::string text = writeSignature(*signature);
  Signature back;
  const Failure failure = parseSignature(text, back);
  ASSERT_FALSE(failure) << failure.getMessage();
  expectModule(back);
  EXPECT_EQ(writeSignature(back), text);
  EXPECT_EQ(getContractText(back), getContractText(*signature));
}

// A stride of -1 is a number, not any stride.
TEST(Signature, StridesMayBeNegative) {
  auto signature = read("func.func @f(%x: memref<4x4xf32, strided<[?, -1]>>, "
                        "%y: memref<4x4xf32, strided<[?, ?]>>) { return }");
  ASSERT_TRUE(static_cast<bool>(signature));
  Signature back;
  ASSERT_FALSE(parseSignature(writeSignature(*signature), back));
  for (const Signature &s : {*signature, back}) {
    const std::vector<ValueType> &arguments = s.functions[0].arguments;
    EXPECT_EQ(arguments[0].strides, (std::vector<int64_t>{kAnyStride, -1}));
    EXPECT_EQ(arguments[1].strides,
              (std::vector<int64_t>{kAnyStride, kAnyStride}));
  }
  Signature other = back;
  other.functions[0].arguments[0].strides[1] = kAnyStride;
  EXPECT_NE(getContractText(other), getContractText(back));
}

TEST(Signature, OtherJsonIsAnError) {
  for (const char *text : {"{}", "[]", "{\"functions\": 3, \"weights\": []}",
                           "{\"functions\": [{}], \"weights\": []}",
                           "{\"functions\": [], \"weights\": []} 1"}) {
    Signature signature;
    const Failure failure = parseSignature(text, signature);
    EXPECT_NE(failure.getMessage().find("expected the signature of compiled "
                                        "code, but got other JSON: "),
              std::string::npos)
        << text;
  }
}

} // namespace
