//===- Interrupts.cpp - removal of unfinished files -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Interrupts.h"

#include "DiffAttn/Compiler/UnfinishedFiles.h"

#include <signal.h>

using namespace mlir::diffattn;

static void endByInterrupt(int signal) {
  removeUnfinishedFiles();
  // Its handler is reset, and it comes again when this one returns.
  ::raise(signal);
}

void mlir::diffattn::removeUnfinishedOnInterrupt() {
  constexpr int kInterrupts[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction action = {};
  action.sa_handler = endByInterrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int signal : kInterrupts)
    sigaddset(&action.sa_mask, signal);
  for (int signal : kInterrupts) {
    struct sigaction before;
    if (::sigaction(signal, nullptr, &before) == 0 &&
        before.sa_handler != SIG_IGN)
      ::sigaction(signal, &action, nullptr);
  }
}
