//===- DiagnosticsTest.cpp - diagnostics as text and as JSON --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Diagnostics.h"

#include "llvm/Support/JSON.h"
#include "gtest/gtest.h"

using namespace mlir::diffattn;

namespace {

CompileDiagnostic make(DiagnosticKind kind, std::string file, unsigned line) {
  CompileDiagnostic diagnostic;
  diagnostic.kind = kind;
  diagnostic.category = "diffattn-fuse";
  diagnostic.name = "NotRaised";
  diagnostic.message = "attention is not fused: \"why\"";
  diagnostic.file = std::move(file);
  diagnostic.line = line;
  diagnostic.column = line;
  return diagnostic;
}

TEST(DiagnosticsTest, TextIsOneLine) {
  EXPECT_EQ(make(DiagnosticKind::Missed, "m.mlir", 3).getText(),
            "m.mlir:3:3: remark: attention is not fused: \"why\" "
            "[diffattn-fuse]");
  EXPECT_EQ(make(DiagnosticKind::Warning, "layer", 0).getText(),
            "layer: warning: attention is not fused: \"why\" [diffattn-fuse]");
  EXPECT_EQ(make(DiagnosticKind::Note, "", 0).getText(),
            "note: attention is not fused: \"why\" [diffattn-fuse]");
}

TEST(DiagnosticsTest, WhatWasAppliedIsLeftOut) {
  EXPECT_EQ(printDiagnostics({make(DiagnosticKind::Passed, "m", 1)}), "");
  EXPECT_NE(printDiagnostics({make(DiagnosticKind::Analysis, "m", 1)}), "");
}

TEST(DiagnosticsTest, JsonKeepsEveryPart) {
  for (DiagnosticKind kind :
       {DiagnosticKind::Note, DiagnosticKind::Warning, DiagnosticKind::Missed,
        DiagnosticKind::Analysis, DiagnosticKind::Passed}) {
    CompileDiagnostic before = make(kind, "m.mlir", 4000000000u);
    std::optional<CompileDiagnostic> after = diagnosticFromJSON(toJSON(before));
    ASSERT_TRUE(after);
    EXPECT_EQ(after->kind, before.kind);
    EXPECT_EQ(after->name, before.name);
    EXPECT_EQ(after->getText(), before.getText());
  }
}

TEST(DiagnosticsTest, OtherJsonIsRefused) {
  const std::string good =
      R"({"kind":"missed","category":"c","name":"n","message":"m","file":"f","line":1,"column":1})";
  auto parse = [](std::string text) {
    return diagnosticFromJSON(cantFail(llvm::json::parse(text)));
  };
  EXPECT_TRUE(parse(good));
  for (auto [from, to] :
       {std::pair(R"("missed")", R"("failed")"), std::pair(R"("missed")", "1"),
        std::pair(R"("m")", "null"), std::pair(R"("line":1)", R"("line":-1)"),
        std::pair(R"("line":1)", R"("line":4294967296)"),
        std::pair(R"("line":1)", R"("line":"1")"),
        std::pair(R"("file":"f",)", "")}) {
    std::string bad = good;
    bad.replace(bad.find(from), strlen(from), to);
    EXPECT_FALSE(parse(bad)) << bad;
  }
  EXPECT_FALSE(parse("[]"));
}

} // namespace
