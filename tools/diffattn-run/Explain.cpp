//===- Explain.cpp - where the time of a call goes ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Explain.h"
#include "Progress.h"
#include "Trace.h"

#include "llvm/Support/raw_ostream.h"

#include <chrono>
#include <optional>

using namespace mlir::diffattn;
namespace json = llvm::json;

/// Runs that count at least and at most, and the seconds after which there are
/// no more of them.
static constexpr size_t kLeastRuns = 3, kMostRuns = 20;
static constexpr double kSeconds = 1;

/// The spans of a call.
static llvm::Expected<SpansOfRun>
recordCall(llvm::function_ref<llvm::Error()> call) {
  std::string text;
  if (llvm::Error error = recordTrace(call, text))
    return error;
  auto trace = json::parse(text);
  if (!trace)
    return trace.takeError();
  return SpansOfRun{std::move(*trace->getAsObject()->getArray("traceEvents"))};
}

llvm::Error mlir::diffattn::explainCalls(llvm::function_ref<llvm::Error()> call,
                                         ExplanationFacts facts,
                                         int64_t threads,
                                         ExplainFormat format) {
  using Clock = std::chrono::steady_clock;
  std::optional<Progress> progress(std::in_place, "measuring");
  const auto begin = Clock::now();
  auto isTimeLeft = [&] {
    return std::chrono::duration<double>(Clock::now() - begin).count() <
           kSeconds;
  };
  while (facts.runs.size() < kLeastRuns ||
         (facts.runs.size() < kMostRuns && isTimeLeft())) {
    auto spans = recordCall(call);
    if (!spans)
      return spans.takeError();
    facts.runs.push_back(std::move(*spans));
  }
  auto roof = measureRoof(threads);
  if (!roof)
    return roof.takeError();
  facts.roof = *roof;
  progress.reset();
  const Explanation explanation = explain(facts);
  if (format == ExplainFormat::Text)
    llvm::outs() << explanation.getTable();
  else
    llvm::outs() << llvm::formatv("{0:2}",
                                  json::Value(json::Array(explanation.rows)))
                 << "\n";
  return llvm::Error::success();
}
