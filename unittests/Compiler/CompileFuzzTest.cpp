//===- CompileFuzzTest.cpp - damaged modules are errors, never crashes ----===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Text of MLIR through the C API. A case that still is a module is compiled and
// asked for its signature; it is not run, since it may ask for any memory.
//
#include "Mutation.h"
#include "diffattn-c/DiffAttn.h"

#include "mlir/Bytecode/BytecodeWriter.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/InitAllDialects.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/raw_ostream.h"
#include "gtest/gtest.h"

using namespace mlir::diffattn;
using llvm::StringRef;

namespace {

constexpr StringRef kAttention = R"(
#map = affine_map<(i, j) -> (i, j)>
!heads = tensor<1x4x?x16xf32>
func.func @attend(%q1: !heads, %q2: !heads, %k1: tensor<1x2x?x16xf32>, %k2: tensor<1x2x?x16xf32>,
                  %v: tensor<1x2x?x32xf32>, %lambda: tensor<4xf32>, %e: tensor<1x4x?x32xf32>) -> tensor<1x4x?x32xf32> {
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !heads, tensor<1x2x?x16xf32>, !heads,
         tensor<1x2x?x16xf32>, tensor<1x2x?x32xf32>) lambda(%lambda : tensor<4xf32>)
         outs(%e : tensor<1x4x?x32xf32>) {scale = 0.25 : f32, is_causal} -> tensor<1x4x?x32xf32>
  return %o : tensor<1x4x?x32xf32>
}
)";

constexpr StringRef kModel = R"(
ml_program.global private @w(#ml_program.extern<tensor<3x4xf32>>) : tensor<3x4xf32> {diffattn.source = "x", diffattn.transpose}
ml_program.global private @"layers.{}.b"(#ml_program.extern<tensor<3xf32>>) : tensor<3xf32>
  {diffattn.layers = 2 : i64, diffattn.first_layer = 1 : i64, diffattn.layer_step = 2 : i64, diffattn.row_block_size = 1 : i64, diffattn.row_blocks = array<i64: 2, 0, 1>}
func.func @forward(%x: tensor<?x4xf32>) -> tensor<?x3xf32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %w = ml_program.global_load_const @w : tensor<3x4xf32>
  %b = diffattn.layer_weight @"layers.{}.b"[%c0] : tensor<3xf32>
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%n) : tensor<?x3xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x3xf32>) -> tensor<?x3xf32>
  %m = linalg.matmul indexing_maps=[affine_map<(m,n,k)->(m,k)>, affine_map<(m,n,k)->(n,k)>, affine_map<(m,n,k)->(m,n)>]
         ins(%x, %w : tensor<?x4xf32>, tensor<3x4xf32>) outs(%f : tensor<?x3xf32>) -> tensor<?x3xf32>
  return %m : tensor<?x3xf32>
}
)";

constexpr StringRef kLoops = R"(
func.func @scale(%x: memref<8x?xf32, strided<[?, 1], offset: ?>>, %s: f32, %n: index) {
  %c = arith.constant dense<[1.0, -2.0]> : vector<2xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    %a = memref.load %x[%c0, %i] : memref<8x?xf32, strided<[?, 1], offset: ?>>
    %b = arith.mulf %a, %s : f32
    %y = math.exp %b : f32
    memref.store %y, %x[%c0, %i] : memref<8x?xf32, strided<[?, 1], offset: ?>>
  }
  return
}
)";

/// The text as bytecode.
std::string makeBytecode(StringRef text) {
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::MLIRContext context(registry);
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
  std::string bytes;
  llvm::raw_string_ostream os(bytes);
  EXPECT_TRUE(module && succeeded(mlir::writeBytecodeToFile(*module, os)));
  return bytes;
}

void expectKnown(int32_t status, bool mayCrash = false) {
  EXPECT_TRUE(status == DIFFATTN_OK || status == DIFFATTN_ERROR_USAGE ||
              status == DIFFATTN_ERROR_IR || status == DIFFATTN_ERROR_COMPILE)
      << status;
  if (!status)
    return;
  const StringRef message = diffattn_last_error();
  EXPECT_NE(message, "");
  // A crash of MLIR is an error for users; here it would hide one of ours.
  // That of its reader of bytecode is in another process.
  EXPECT_FALSE(!mayCrash && message.contains("but it crashed"))
      << message.str();
}

/// Reads the types of every entry.
void readSignature(const diffattn_program *program) {
  EXPECT_NE(diffattn_program_diagnostics(program), nullptr);
  for (int32_t i = 0; i < diffattn_num_weights(program); ++i)
    EXPECT_NE(diffattn_weight_name(program, i), nullptr);
  for (int32_t e = 0; e < diffattn_num_entries(program); ++e) {
    const char *name = diffattn_entry_name(program, e);
    ASSERT_NE(name, nullptr);
    int32_t count = -1;
    ASSERT_EQ(diffattn_num_arguments(program, name, &count), DIFFATTN_OK);
    diffattn_type type;
    for (int32_t i = 0; i < count; ++i)
      EXPECT_EQ(diffattn_argument_type(program, name, i, &type), DIFFATTN_OK);
    EXPECT_EQ(diffattn_argument_type(program, name, count, &type),
              DIFFATTN_ERROR_USAGE);
    ASSERT_EQ(diffattn_num_results(program, name, &count), DIFFATTN_OK);
    for (int32_t i = 0; i < count; ++i)
      EXPECT_EQ(diffattn_result_type(program, name, i, &type), DIFFATTN_OK);
  }
}

bool compile(StringRef text, bool mayCrash = false) {
  diffattn_program *program = nullptr;
  int32_t status =
      diffattn_compile(text.data(), text.size(), nullptr, &program);
  expectKnown(status, mayCrash);
  EXPECT_EQ(program != nullptr, status == DIFFATTN_OK);
  if (!program)
    return false;
  readSignature(program);
  diffattn_program_destroy(program);
  return true;
}

TEST(CompileFuzz, SeedsAreSound) {
  for (StringRef seed : {kAttention, kModel, kLoops})
    EXPECT_TRUE(compile(seed)) << diffattn_last_error();
}

void compileDamaged(StringRef seed) {
  unsigned taken = 0;
  forEachCase(getNumCases(300, /*share=*/5), [&](unsigned, Mutator &mutator) {
    taken += compile(mutator.mutate(seed));
  });
  // Some changes leave a module: both ways out are tried.
  EXPECT_GT(taken, 0u);
}

TEST(CompileFuzz, Attention) { compileDamaged(kAttention); }
TEST(CompileFuzz, Weights) { compileDamaged(kModel); }
TEST(CompileFuzz, Loops) { compileDamaged(kLoops); }

TEST(CompileFuzz, Bytecode) {
  // One of them looks like a module at its start alone.
  const std::string seeds[] = {makeBytecode(kLoops),
                               std::string("ML\xefR\x0dMLIR22.1.8\0", 16) +
                                   std::string(64, '\x05')};
  EXPECT_TRUE(compile(seeds[0])) << diffattn_last_error();
  forEachCase(getNumCases(300, /*share=*/5), [&](unsigned i, Mutator &mutator) {
    compile(mutator.mutate(seeds[i % 4 == 0]), /*mayCrash=*/true);
  });
}

TEST(CompileFuzz, Stages) {
  static const char *const stages[] = {
      "input", "imported", "raised", "bufferized", "loops",
      "llvm",  "llvm-ir",  "object", "nope",       ""};
  forEachCase(getNumCases(100, /*share=*/15), [&](unsigned i,
                                                  Mutator &mutator) {
    std::string text = i % 2 ? mutator.mutate(kLoops) : kLoops.str();
    char *out = nullptr;
    size_t bytes = 0;
    int32_t status =
        diffattn_emit(text.data(), text.size(), nullptr,
                      stages[mutator.below(std::size(stages))], &out, &bytes);
    expectKnown(status);
    EXPECT_EQ(out != nullptr, status == DIFFATTN_OK);
    diffattn_free(out);
  });
}

} // namespace
