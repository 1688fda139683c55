//===- ScheduleCasesTest.cpp - which schedule a call takes ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/ScheduleCases.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"

#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
constexpr const char *kSplit =
    "#diffattn.gpu_split_kv<warps = 4, kv_split_size = 512>";
constexpr const char *kForward =
    "#diffattn.gpu_forward<placement = both, warps = 4, kv_block_size = 32>";
constexpr const char *kElements =
    "#diffattn.gpu_forward<placement = both, warps = 2, kv_block_size = 32>";
constexpr const char *kCpu =
    "#diffattn.cpu_prefill<isa = \"avx2\", lanes = 8, q_block_size = 48, "
    "qk_tile = [4, 3, 4], pv_tile = [6, 2, 4], kv_block_size = 128, "
    "two_pass_keys = 16384>";

std::string when(const std::string &conditions, const std::string &schedule) {
  return "#diffattn.when<" + conditions + " : " + schedule + ">";
}

class ScheduleCasesTest : public ::testing::Test {
protected:
  ScheduleCasesTest() {
    context.loadDialect<DiffAttnDialect, func::FuncDialect>();
  }

  /// An op with so many queries, keys ("?": any number) and columns, and a
  /// list.
  AttentionOp parse(const std::string &queries, const std::string &keys,
                    int64_t width, const std::string &list) {
    std::string of = "x" + std::to_string(width) + "xbf16>";
    std::string q = "memref<1x1x" + queries + of, k = "memref<1x1x" + keys + of;
    module = parseSourceString<ModuleOp>(
        "func.func @f(%q: " + q + ", %k: " + k +
            ", %l: memref<f32>) {\n diffattn.attention ins(%q, %k, %q, %k, %k "
            ": " +
            q + ", " + k + ", " + q + ", " + k + ", " + k +
            ") lambda(%l : memref<f32>) outs(%q : " + q +
            ") {scale = 1.0 : f32" +
            (list.empty() ? "" : ", schedules = [" + list + "]") +
            "}\n return\n}",
        &context);
    return *(*module->getOps<func::FuncOp>().begin())
                .getOps<AttentionOp>()
                .begin();
  }

  /// The cases of the last op, each as "schedule queries keys unaligned".
  std::string cases(AttentionOp op,
                    ScheduleTarget target = ScheduleTarget::GPU) {
    std::string text;
    llvm::raw_string_ostream os(text);
    for (const ScheduleCase &choice : getScheduleCases(op, target)) {
      os << choice.schedule.getFamily();
      if (choice.maxQueries)
        os << " q<=" << *choice.maxQueries;
      if (choice.minKeys)
        os << " k>=" << *choice.minKeys;
      if (choice.unaligned)
        os << " unaligned";
      os << ";";
    }
    return text;
  }

  /// The error of `verifyScheduleCases`; empty if there is none.
  std::string error(AttentionOp op) {
    std::string message;
    ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
      message = diagnostic.str();
      return success();
    });
    LogicalResult result =
        verifyScheduleCases(op, getScheduleCases(op, ScheduleTarget::GPU));
    EXPECT_EQ(succeeded(result), message.empty());
    return message;
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
};

TEST_F(ScheduleCasesTest, TypesDecideWhatTheyCan) {
  const std::string list = when("max_queries = 8, min_keys = 9", kSplit) +
                           ", " + when("unaligned = true", kElements) + ", " +
                           kForward;
  EXPECT_EQ(cases(parse("?", "?", 64, list)),
            "gpu_split_kv q<=8 k>=9;gpu_forward unaligned;gpu_forward;");
  EXPECT_EQ(cases(parse("?", "9", 64, list)),
            "gpu_split_kv q<=8;gpu_forward unaligned;gpu_forward;");
  EXPECT_EQ(cases(parse("8", "?", 64, list)),
            "gpu_split_kv k>=9;gpu_forward unaligned;gpu_forward;");
  // All calls, none.
  EXPECT_EQ(cases(parse("8", "9", 64, list)), "gpu_split_kv;");
  EXPECT_EQ(cases(parse("9", "?", 64, list)),
            "gpu_forward unaligned;gpu_forward;");
  EXPECT_EQ(cases(parse("?", "8", 64, list)),
            "gpu_forward unaligned;gpu_forward;");
  // Rows of 33 columns are never copied by 16 bytes.
  EXPECT_EQ(cases(parse("9", "?", 33, list)), "gpu_forward;");
  EXPECT_EQ(getScheduleCases(parse("9", "?", 33, list), ScheduleTarget::GPU)
                .front()
                .schedule,
            parseAttribute(kElements, &context));
}

TEST_F(ScheduleCasesTest, ATargetSeesItsOwnAndLinalg) {
  const std::string list = when("max_queries = 4", "#diffattn.linalg") + ", " +
                           kCpu + ", " + kForward;
  AttentionOp op = parse("?", "?", 64, list);
  EXPECT_EQ(cases(op), "linalg q<=4;gpu_forward;");
  EXPECT_EQ(cases(op, ScheduleTarget::CPU), "linalg q<=4;cpu_prefill;");
  EXPECT_EQ(cases(op, ScheduleTarget::Any), "linalg q<=4;cpu_prefill;");
  EXPECT_EQ(cases(parse("?", "?", 64, kCpu)), "");
  EXPECT_EQ(cases(parse("?", "?", 64, "")), "");
}

TEST_F(ScheduleCasesTest, WhatNoKernelComputesIsAnError) {
  EXPECT_EQ(error(parse("?", "?", 64, kForward)), "");
  EXPECT_EQ(error(parse("8", "?", 64, kSplit)), "");
  for (const auto &[queries, list, expected] :
       {std::tuple<std::string, std::string, std::string>{
            "?", kSplit, "queries for gpu_split_kv, but got any number"},
        {"9", kSplit, "queries for gpu_split_kv, but got 9"},
        {"?", when("max_queries = 16", kSplit) + ", " + kForward,
         "queries for gpu_split_kv, but got 16"},
        {"?", when("max_queries = 8", kSplit), "schedules for every call"},
        {"?", when("max_queries = 8", kSplit) + ", #diffattn.linalg",
         "a kernel for every call, but got linalg for some"}})
    EXPECT_NE(error(parse(queries, "?", 64, list)).find(expected),
              std::string::npos)
        << error(parse(queries, "?", 64, list));
  // The number of queries is known, whatever the condition says.
  EXPECT_EQ(error(parse("3", "?", 64,
                        when("max_queries = 16", kSplit) + ", " + kForward)),
            "");
}

TEST_F(ScheduleCasesTest, WhatIsAppendedStandsBehind) {
  AttentionOp op = parse("?", "?", 64, when("max_queries = 8", kSplit));
  EXPECT_FALSE(takeEveryCall(getScheduleCases(op, ScheduleTarget::GPU)));
  appendSchedules(op, parseAttribute(kForward, &context));
  EXPECT_EQ(cases(op), "gpu_split_kv q<=8;gpu_forward;");
  EXPECT_TRUE(takeEveryCall(getScheduleCases(op, ScheduleTarget::GPU)));
  op = parse("?", "?", 64, "");
  appendSchedules(op, parseAttribute(kForward, &context));
  EXPECT_EQ(cases(op), "gpu_forward;");
}

} // namespace
