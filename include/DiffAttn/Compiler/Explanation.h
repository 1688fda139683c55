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
  /// Of the schedule (docs/spec.md#schedules): "cpu_prefill".
  std::string name;
  /// What calls it is for: "max_queries = 8, min_keys = 9"; empty: for those
  /// that none before it takes.
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
  /// Of all of them together.
  double ms = 0;
  /// 10^9 operations, and bytes that it reads and writes, a second; none where
  /// they are not counted (docs/seeing.md).
  std::optional<double> gflops, gbs;
  /// Of the time, what the nearer roof takes, and which one that is: "compute"
  /// or "memory"; empty: none.
  std::optional<double> share;
  std::string bound;
};

/// One attention, or what could be one; with times also one product, or all
/// else that a run does.
struct ExplainedRow {
  /// "model.mlir:3:8"; empty if it is not known.
  std::string place;
  /// Of the module; empty if its text is not known.
  std::string function;
  /// Whether it was found in other ops.
  bool isRaised = false;
  /// The first that takes a call computes it; none: it is no kernel.
  std::vector<ExplainedKernel> kernels;
  /// Why it is not fused or no kernel, and what else the compiler said.
  std::vector<std::string> said;
  /// "attention", "product" or "other".
  std::string op = "attention";
  /// The op with the sizes that its code is made for; empty without times.
  std::string sizes;
  /// None: it was not timed, or did not run.
  std::optional<ExplainedTimes> time;
};

/// A diagnostic, as an explanation reads it.
struct SaidOfPlace {
  DiagnosticKind kind = DiagnosticKind::Note;
  std::string category, name, message, place;
};

/// Spans of one run of a module, as events of Chrome's JSON.
struct SpansOfRun {
  llvm::json::Array events;
};

/// What an explanation is made of.
struct ExplanationFacts {
  /// What the module is called in places, and its text; empty: not known.
  std::string name, module;
  std::vector<SaidOfPlace> said;
  /// Of them, the least time of each op counts. Without runs there are no
  /// times.
  std::vector<SpansOfRun> runs;
  /// What rows with times are held to.
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

std::vector<SaidOfPlace> getSaid(const CompileDiagnostics &diagnostics);

llvm::json::Value toJSON(const ExplainedKernel &kernel);
llvm::json::Value toJSON(const ExplainedTimes &times);
llvm::json::Value toJSON(const ExplainedRow &row);

/// Facts as `diffattn_explain` takes them, and rows as it gives them. An error
/// of class usage says what was expected.
llvm::Expected<ExplanationFacts> readExplanationFacts(llvm::StringRef text);
llvm::Expected<Explanation> readExplanation(llvm::StringRef text);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_EXPLANATION_H
