//===- Explanation.h - what became of a module's ops ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Rows of what the compiler made of each attention, and with times of each
// product too: a view of diagnostics and of spans (ABI/Trace.h) by place.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_EXPLANATION_H
#define DIFFATTN_COMPILER_EXPLANATION_H

#include "DiffAttn/Compiler/Diagnostics.h"
#include "DiffAttn/Compiler/Roof.h"

#include "llvm/Support/JSON.h"

namespace mlir::diffattn {

/// A kernel that an attention became.
struct ExplainedKernel {
  /// Name of the schedule (docs/spec.md#schedules): "cpu_prefill".
  std::string name;
  /// Condition on sizes of the calls that it takes, "max_queries = 8,
  /// min_keys = 9"; empty: it takes all that no kernel before it does.
  std::string when;
  /// How it is cut, as the schedule has it.
  std::string options;

  bool operator==(const ExplainedKernel &other) const {
    return name == other.name && when == other.when && options == other.options;
  }
};

/// How long an op takes in one run.
struct ExplainedTimes {
  int64_t calls = 0;
  /// Time of all calls together.
  double ms = 0;
  /// 10^9 operations, and bytes that it reads and writes, a second; none where
  /// they are not counted (docs/seeing.md).
  std::optional<double> gflops, gbs;
  /// The part of the time that the nearer roof takes, and which one that is:
  /// "compute" or "memory"; empty: none.
  std::optional<double> share;
  std::string bound;
};

/// One attention, or what could be one; with times also one product, or all
/// else that a run does.
struct ExplainedRow {
  /// "model.mlir:3:8"; empty if it is not known.
  std::string place;
  /// Function of the module; empty if the module's text is not known.
  std::string function;
  /// Whether it was found in other ops.
  bool isRaised = false;
  /// The first that takes a call computes it; none: it is no kernel.
  std::vector<ExplainedKernel> kernels;
  /// Reasons why it is not fused or no kernel, and other messages of the
  /// compiler about it.
  std::vector<std::string> messages;
  /// "attention", "product" or "other".
  std::string op = "attention";
  /// The op with the sizes that its code is made for; empty without times.
  std::string sizes;
  /// None: it was not timed, or did not run.
  std::optional<ExplainedTimes> time;
};

/// A diagnostic, as an explanation reads it.
struct PlacedDiagnostic {
  DiagnosticKind kind = DiagnosticKind::Note;
  std::string category, name, message, place;
};

/// Spans of one run of a module, as events of Chrome's JSON.
struct SpansOfRun {
  llvm::json::Array events;
};

/// Inputs of an explanation.
struct ExplanationFacts {
  /// The module's name in places, and its text; empty: not known.
  std::string name, module;
  std::vector<PlacedDiagnostic> diagnostics;
  /// The least time of each op over the runs counts. Without runs there are no
  /// times.
  std::vector<SpansOfRun> runs;
  /// The limits that rows with times are compared with.
  std::optional<Roof> roof;
};

struct Explanation {
  /// In the order of the module.
  std::vector<ExplainedRow> rows;
  std::optional<Roof> roof;

  /// As lines of columns, with times where there is a roof.
  std::string getTable() const;
};

Explanation explain(const ExplanationFacts &facts);

std::vector<PlacedDiagnostic>
getPlacedDiagnostics(const CompileDiagnostics &diagnostics);

llvm::json::Value toJSON(const ExplainedKernel &kernel);
llvm::json::Value toJSON(const ExplainedTimes &times);
llvm::json::Value toJSON(const ExplainedRow &row);

/// Facts as `diffattn_explain` takes them, and rows as it gives them. An error
/// of class usage says what was expected.
llvm::Expected<ExplanationFacts> readExplanationFacts(llvm::StringRef text);
llvm::Expected<Explanation> readExplanation(llvm::StringRef text);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_EXPLANATION_H
