//===- StandardStreams.cpp - closed, full and broken streams --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "StandardStreams.h"

#include "llvm/Support/Signals.h"
#include "llvm/Support/raw_ostream.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

using namespace mlir::diffattn;

static StandardStreamOptions streamOptions;

/// Writes into a closed standard output fail, those into a closed standard
/// error are lost.
static void holdClosedStreams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF)
      (void)::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

/// Runs before the streams are destroyed, where LLVM would end the process for
/// any error with a text of its own.
static void checkStreams() {
  llvm::raw_fd_ostream &out = llvm::outs();
  out.flush();
  const std::error_code code = out.error();
  out.clear_error();
  if (code == std::errc::broken_pipe)
    ::_exit(kReaderHasGone);
  if (code) {
    llvm::errs() << streamOptions.messagePrefix
                 << "expected to write to standard output, but got: "
                 << code.message() << "\n";
    ::_exit(streamOptions.failureCode);
  }
  // An error of standard error cannot be reported, and must not end the process
  // in another way.
  llvm::errs().clear_error();
}

void mlir::diffattn::guardStandardStreams(
    const StandardStreamOptions &options) {
  holdClosedStreams();
  streamOptions = options;
  // Destructors and functions for the end run in the opposite order.
  (void)llvm::outs();
  (void)llvm::errs();
  std::atexit(checkStreams);
}

static void endOnSignal(int) {
  llvm::sys::RunInterruptHandlers();
  ::_exit(kReaderHasGone);
}

void mlir::diffattn::endWithoutReader() {
  struct sigaction action = {};
  action.sa_handler = endOnSignal;
  ::sigaction(SIGPIPE, &action, nullptr);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}
