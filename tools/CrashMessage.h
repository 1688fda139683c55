//===- CrashMessage.h - crashes of tools as errors --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TOOLS_CRASHMESSAGE_H
#define DIFFATTN_TOOLS_CRASHMESSAGE_H

namespace mlir::diffattn {

/// From now on a crash on any thread ends the process with exit code 1 and,
/// after the stack trace, an error that names what was read or run: upstream's
/// parsers and passes crash on some modules that they should refuse.
void reportCrashes(const char *tool);

} // namespace mlir::diffattn

#endif // DIFFATTN_TOOLS_CRASHMESSAGE_H
