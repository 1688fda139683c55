//===- Trace.h - spans within the runtime -----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_RUNTIME_SUPPORT_TRACE_H
#define DIFFATTN_LIB_RUNTIME_SUPPORT_TRACE_H

#include <atomic>

namespace diffattn_rt {

/// Whether spans are recorded.
extern std::atomic<bool> isTracing;

/// The text of the calling thread's innermost span; null: there is none, or
/// spans are not recorded. Valid while the recording goes on.
const char *openSpan();

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_SUPPORT_TRACE_H
