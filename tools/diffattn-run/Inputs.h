//===- Inputs.h - arguments from the command line ---------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUN_INPUTS_H
#define DIFFATTN_RUN_INPUTS_H

#include "DiffAttn/Compiler/CompiledProgram.h"

namespace mlir::diffattn {

/// The arguments of a function by `--input`, once for each:
///   x.npy                 an array from a file
///   2x5xi64=1,2,...       elements in row-major order, or one for all
///   f32=0.5               a scalar
///   random:2x3xf32        floats in [-1, 1), integers in [0, 10)
///   random:2x3xi64:0:99   integers in [0, 99], or floats in [0, 99)
/// Without any, random ones, if all sizes are static. Errors name the argument.
llvm::Expected<std::vector<diffattn_rt::HostArray>>
makeArguments(const diffattn_rt::FunctionSignature &function,
              llvm::ArrayRef<std::string> inputs, uint64_t seed);

} // namespace mlir::diffattn

#endif // DIFFATTN_RUN_INPUTS_H
