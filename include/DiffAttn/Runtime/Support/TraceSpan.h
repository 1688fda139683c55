//===- TraceSpan.h - a span of a trace while a scope lasts ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_SUPPORT_TRACESPAN_H
#define DIFFATTN_RUNTIME_SUPPORT_TRACESPAN_H

#include "DiffAttn/Runtime/ABI/Trace.h"

#include <string>
#include <string_view>

namespace diffattn_rt {

/// A span of the calling thread for the lifetime of the object, where spans are
/// recorded. Spans that a failed call or a caught crash left open inside of it
/// end with it.
class TraceSpan {
public:
  TraceSpan(std::string_view category, std::string_view name)
      : depth(diffattn_rt_trace_depth()) {
    if (depth < 0)
      return;
    std::string label(category);
    (label += '\n') += name;
    diffattn_rt_trace_begin(label.c_str(), 0, 0);
  }
  ~TraceSpan() {
    if (depth >= 0)
      diffattn_rt_trace_end_to(depth);
  }
  TraceSpan(const TraceSpan &) = delete;
  TraceSpan &operator=(const TraceSpan &) = delete;

private:
  const int32_t depth;
};

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_SUPPORT_TRACESPAN_H
