//===- Program.cpp - functions that can be called -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Program.h"

#include "DiffAttn/Runtime/Support/TraceSpan.h"

using namespace diffattn_rt;

Program::~Program() = default;

Failure Program::check(std::string_view entry, ListRef<ArrayView> args) const {
  if (Failure failure = checkArguments(getSignature(), entry, args))
    return failure;
  return checkReady();
}

Failure Program::checkDevice(const std::string &purpose) const {
  if (getDevice())
    return {};
  const auto [expected, got] = describeNoDevice();
  return {ErrorClass::Usage,
          "expected " + expected + purpose + ", but got " + got};
}

Failure Program::call(std::string_view entry, ListRef<ArrayView> args,
                      int64_t threads, std::vector<CallResult> &results) {
  if (Failure failure = check(entry, args))
    return failure;
  const TraceSpan span("function", entry);
  const FunctionSignature &function = *getSignature().find(entry);
  PreparedCall call(function, args);
  if (Failure failure = call.prepare())
    return failure;
  return call.run(getEntryPoint(function), threads, results, getDevice());
}

Failure Program::capture(std::string_view entry, ListRef<ArrayView> args,
                         std::unique_ptr<CapturedCall> &call) {
  if (Failure failure = checkDevice(" to capture calls of"))
    return failure;
  if (Failure failure = check(entry, args))
    return failure;
  const FunctionSignature &function = *getSignature().find(entry);
  return CapturedCall::create(*getDevice(), function, getEntryPoint(function),
                              args, call);
}
