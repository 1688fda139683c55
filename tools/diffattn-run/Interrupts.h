//===- Interrupts.h - removal of unfinished files ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TOOLS_RUN_INTERRUPTS_H
#define DIFFATTN_TOOLS_RUN_INTERRUPTS_H

namespace mlir::diffattn {

/// From now on SIGINT, SIGTERM and SIGHUP remove what is half written before
/// they end the process. Those that the caller ignores stay ignored.
void removeUnfinishedOnInterrupt();

} // namespace mlir::diffattn

#endif // DIFFATTN_TOOLS_RUN_INTERRUPTS_H
