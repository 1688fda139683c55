//===- InputLimitsTest.cpp - too deep or too large modules ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "InputLimits.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

std::string repeat(llvm::StringRef text, int64_t times) {
  std::string result;
  for (int64_t i = 0; i < times; ++i)
    result += text;
  return result;
}

/// `value` wrapped by aliases `times` times, {} standing for the one before.
std::string aliases(char sigil, llvm::StringRef value, llvm::StringRef wrap,
                    int times) {
  std::string text = sigil + std::string("a0 = ") + value.str() + "\n";
  for (int i = 0; i < times; ++i) {
    std::string next = wrap.str();
    std::string last = sigil + ("a" + std::to_string(i));
    for (size_t at; (at = next.find("{}")) != std::string::npos;)
      next.replace(at, 2, last);
    text += sigil + ("a" + std::to_string(i + 1)) + " = " + next + "\n";
  }
  return text;
}

TEST(InputLimits, TextWithinThem) {
  for (const std::string &text :
       {std::string("func.func @f() -> (tensor<2x?xf32>, f64)"),
        repeat("[", 256) + repeat("]", 256), repeat("()", 10000),
        // Neither strings, comments, arrows nor comparisons are brackets.
        "\"" + repeat("[", 1000) + "\"", "// " + repeat("[", 1000) + "\nx",
        "\"\\\"" + repeat("[", 1000) + "\"", repeat("() -> ", 1000),
        "#s = affine_set<(d0) : (" + repeat("d0 <= 4, ", 1000) + "d0 >= 0)>",
        "[" + repeat("-1, ", 1000) + "2]", "// " + repeat("-", 1000),
        aliases('#', "1 : i32", "[{}]", 100),
        aliases('!', "f32", "tuple<{}, {}>", 18),
        repeat("#a = 1 : i32\n", 1000) + repeat("foo #a ", 1000),
        // Operands of ops are not part of the alias above them.
        aliases('!', "f32", "tuple<{}, {}>", 15) + repeat("foo !a15\n", 1000),
        std::string("linalg.fill<{operandSegmentSizes = array<i32: 1, 1>}> "
                    "ins(%a : f32)"),
        std::string("#linalg.iterator_type<parallel> #linalg<x<1>> linalg.y"),
        std::string("\"linalg.fill\"<1> // linalg.fill<1>"),
        std::string("\"unfinished \\"), std::string("#"), std::string("-")})
    EXPECT_EQ(findTextBeyondLimits(text), "") << text.substr(0, 200);
}

TEST(InputLimits, TextBeyondThem) {
  const std::string set =
      "affine_set<(d0) : (" + repeat("d0 >= 0, ", 1000) + "d0 >= 0)>";
  const std::pair<std::string, const char *> cases[] = {
      {repeat("[", 257), "256 levels of brackets, but got more at byte 257"},
      {repeat("tuple<", 257), "256 levels of brackets"},
      {"#s = " + set + "\n" + repeat("[", 257), "256 levels of brackets"},
      {repeat("]", 1000) + repeat("[", 257), "256 levels of brackets"},
      {"// a comment\r" + repeat("[", 257), "256 levels of brackets"},
      {"(" + repeat("- ", 256), "256 levels of minus signs"},
      {repeat("-", 257), "256 levels of minus signs"},
      {aliases('#', "1 : i32", "[{}]", 200), "256 levels of aliases"},
      {aliases('!', "f32", "tuple<{}>", 200), "256 levels of aliases"},
      {aliases('!', "f32", "\ntuple\n<{}>", 200), "256 levels of aliases"},
      {aliases('!', "f32", "() ->\ntuple<{}>", 200), "256 levels of aliases"},
      {aliases('#', "loc(unknown)", "loc(callsite({} at {}))", 40),
       "1000000 parts"},
      {aliases('!', "f32", "tuple<{}, {}>", 20), "1000000 parts"},
      {"linalg.fill<f32>",
       "properties of an op of linalg in braces, but got others at byte 12"},
      {"#a = 1 : i32\n%0 = linalg.generic // with\n< #a>", "in braces"},
      {"#a = 4linalg.fill<\"x\">", "in braces"}};
  for (const auto &[text, fault] : cases)
    EXPECT_NE(findTextBeyondLimits(text).find(fault), std::string::npos)
        << fault << "\n"
        << findTextBeyondLimits(text);
}

/// Errors of the check on `text`; empty if there are none.
std::string checkSizes(llvm::StringRef text) {
  MLIRContext context;
  context.loadDialect<arith::ArithDialect, func::FuncDialect>();
  std::string errors;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    errors += diagnostic.str();
    return success();
  });
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
  EXPECT_TRUE(static_cast<bool>(module)) << errors;
  if (!module)
    return "does not parse";
  EXPECT_EQ(succeeded(checkSizeLimits(*module)), errors.empty());
  return errors;
}

TEST(InputLimits, SizesWithinThem) {
  EXPECT_EQ(checkSizes(R"(
    func.func @f(%a: tensor<?x4096xbf16>, %b: i128, %c: memref<*xf32>,
                 %d: vector<65536xi1>, %e: tuple<index, complex<f32>>) {
      %z = arith.constant dense<0.0> : tensor<16384x16384xf32>
      return
    })"),
            "");
}

TEST(InputLimits, SizesBeyondThem) {
  const std::pair<const char *, const char *> cases[] = {
      {"func.func private @f(%a: i129)",
       "expected integers of at most 128 bits, but got i129"},
      {"func.func private @f(%a: tensor<2xi129>)", "but got i129"},
      {"func.func private @f(%a: tensor<9223372036854775807xf32>)",
       "expected a type whose size in bits is below 2^63, but got "
       "tensor<9223372036854775807xf32>"},
      {"func.func private @f(%a: memref<0x4294967296x4294967296xi8>)",
       "below 2^63"},
      {"func.func private @f(%a: tuple<vector<65537xf32>>)",
       "expected vectors of at most 65536 elements, but got vector<65537xf32>"},
      {"func.func @f() { %z = arith.constant dense<0.0> : "
       "tensor<16384x16385xf32> return }",
       "expected constants of at most 1073741824 bytes, but got "
       "tensor<16384x16385xf32>"},
      {"func.func private @f() attributes {x = [dense<1> : "
       "vector<65537xi8>]}",
       "vectors of at most"}};
  for (const auto &[text, fault] : cases)
    EXPECT_NE(checkSizes(text).find(fault), std::string::npos)
        << text << "\n"
        << checkSizes(text);
}

std::string checkCallsOf(llvm::StringRef text) {
  MLIRContext context(MLIRContext::Threading::DISABLED);
  context.loadDialect<func::FuncDialect>();
  std::string errors;
  ScopedDiagnosticHandler handler(
      &context, [&](Diagnostic &diagnostic) { errors += diagnostic.str(); });
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
  return module && succeeded(checkCalls(*module)) ? "" : errors;
}

TEST(InputLimits, FunctionsThatCallEachOther) {
  const std::string chain = "func.func @c() { return }\n"
                            "func.func @b() { call @c() : () -> () return }\n"
                            "func.func @a() { call @b() : () -> ()\n"
                            "  call @c() : () -> () return }";
  EXPECT_EQ(checkCallsOf(chain), "");
  EXPECT_EQ(checkCallsOf("func.func @f() { call @f() : () -> () return }"),
            "expected functions that do not call themselves, but 'f' does");
  EXPECT_EQ(checkCallsOf("func.func @f() { call @g() : () -> () return }\n"
                         "func.func @g() { call @f() : () -> () return }"),
            "expected functions that do not call themselves, but 'f' does");
}

} // namespace
