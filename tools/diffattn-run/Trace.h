//===- Trace.h - a trace of a run -------------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TOOLS_DIFFATTN_RUN_TRACE_H
#define DIFFATTN_TOOLS_DIFFATTN_RUN_TRACE_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/Support/Error.h"

#include <string>

namespace mlir::diffattn {

/// Calls `run`, and gives what was recorded of it as Chrome's JSON, also if it
/// fails.
llvm::Error recordTrace(llvm::function_ref<llvm::Error()> run,
                        std::string &text);

/// Calls `run` and returns its result; a trace of it goes to the file `path`,
/// also if it fails; an empty path: no trace. A file that cannot be written is
/// an error of class output, before anything is run where that can be seen.
llvm::Expected<bool> runTraced(llvm::StringRef path,
                               llvm::function_ref<llvm::Expected<bool>()> run);

} // namespace mlir::diffattn

#endif // DIFFATTN_TOOLS_DIFFATTN_RUN_TRACE_H
