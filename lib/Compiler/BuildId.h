//===- BuildId.h - which build this is --------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_BUILDID_H
#define DIFFATTN_LIB_COMPILER_BUILDID_H

#include <string>

namespace mlir::diffattn {

/// The build id that the linker put into the program or library that holds this
/// function; empty if there is none.
std::string getBuildId();

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_BUILDID_H
