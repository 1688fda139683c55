//===- Trace.h - Spans of work on each thread ---------------------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Spans of time, kept for each thread and written as Chrome's trace JSON. The
// compiler, calls of entry functions, threads of parallel loops, and code that
// is compiled for it (pass diffattn-trace-ops) record them. Code that is not
// holds nothing of this.
//
// Every function may be called from any thread.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_RUNTIME_ABI_TRACE_H
#define DIFFATTN_RUNTIME_ABI_TRACE_H

#include "DiffAttn/Runtime/ABI/Runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/// The most spans that are kept of one thread; later ones are counted.
#define DIFFATTN_RT_MAX_SPANS 1000000

/// Drops earlier spans, and records from here on.
DIFFATTN_RT_EXPORT void diffattn_rt_trace_start(void);
/// Ends the recording; spans that are open end here.
DIFFATTN_RT_EXPORT void diffattn_rt_trace_stop(void);

/// Opens a span of the calling thread, inside of its open ones, if spans are
/// recorded. `what` is copied: lines of category, name, and where they are
/// known place and function. `flops` and `bytes` are operations and bytes of
/// memory that it has to do with; 0: not counted.
DIFFATTN_RT_EXPORT void diffattn_rt_trace_begin(const char *what, int64_t flops,
                                                int64_t bytes);
/// Closes the span of the calling thread that was opened last; where none is
/// open it does nothing.
DIFFATTN_RT_EXPORT void diffattn_rt_trace_end(void);

/// The number of open spans of the calling thread; -1: none are recorded.
DIFFATTN_RT_EXPORT int32_t diffattn_rt_trace_depth(void);
/// Closes spans of the calling thread until `depth` are open. A call that
/// failed leaves some.
DIFFATTN_RT_EXPORT void diffattn_rt_trace_end_to(int32_t depth);

/// Writes the recorded spans as JSON, in parts, to `write`: an object with
/// `traceEvents`, whose times are microseconds since the start, and in
/// `otherData` `wall_us`, from start to stop or until now, and
/// `spans_left_out`, those beyond DIFFATTN_RT_MAX_SPANS.
DIFFATTN_RT_EXPORT void diffattn_rt_trace_write(
    void (*write)(void *to, const char *text, int64_t bytes), void *to);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // DIFFATTN_RUNTIME_ABI_TRACE_H
