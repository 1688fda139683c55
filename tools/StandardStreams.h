//===- StandardStreams.h - closed, full and broken streams ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TOOLS_STANDARDSTREAMS_H
#define DIFFATTN_TOOLS_STANDARDSTREAMS_H

#include <csignal>

namespace mlir::diffattn {

/// Exit status of a program that writes to a pipe whose reader has gone: the
/// one that a shell reports of SIGPIPE. Nothing is printed, since `| head` is
/// no mistake.
inline constexpr int kReaderHasGone = 128 + SIGPIPE;

struct StandardStreamOptions {
  /// Beginning of an error message, as "diffattn-opt: error: ".
  const char *messagePrefix;
  /// Exit status where standard output cannot be written.
  int failureCode;
};

/// To be called first in a program. A file that is opened later does not get
/// the number of a stream that the caller closed. When the process ends by
/// exit(), standard output is flushed, and a failure becomes `failureCode` and
/// a message or, without a reader, kReaderHasGone; standard error may fail.
void guardStandardStreams(const StandardStreamOptions &options);

/// From now on the first write to a pipe without a reader removes the files
/// registered with LLVM for removal and ends the process with kReaderHasGone,
/// also where the caller ignores or blocks SIGPIPE. To be called after
/// `reportCrashes`: a handler that LLVM installs for the signal, when it
/// installs its others, would take the place of this one.
void endWithoutReader();

} // namespace mlir::diffattn

#endif // DIFFATTN_TOOLS_STANDARDSTREAMS_H
