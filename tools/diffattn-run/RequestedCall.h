//===- RequestedCall.h - the call of a command line -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TOOLS_DIFFATTN_RUN_REQUESTEDCALL_H
#define DIFFATTN_TOOLS_DIFFATTN_RUN_REQUESTEDCALL_H

#include "Options.h"

#include "DiffAttn/Compiler/CompiledProgram.h"

#include <string>
#include <vector>

namespace mlir::diffattn {

/// A call with the entry and arguments of the command line.
struct RequestedCall {
  std::string entry;
  std::vector<diffattn_rt::HostArray> expected, arguments;
};

/// Makes the arguments and reads what results must match. Fails where the
/// module has no such function, or one with other arguments; needs its
/// signature alone, so that nothing is compiled in vain.
llvm::Expected<RequestedCall>
prepareCall(const diffattn_rt::Signature &signature, const Options &options);

std::vector<diffattn_rt::ArrayView>
viewsOf(std::vector<diffattn_rt::HostArray> &arrays);

} // namespace mlir::diffattn

#endif // DIFFATTN_TOOLS_DIFFATTN_RUN_REQUESTEDCALL_H
