//===- ExecutionTarget.h - where compiled code runs -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_COMPILER_EXECUTIONTARGET_H
#define DIFFATTN_COMPILER_EXECUTIONTARGET_H

#include "DiffAttn/Compiler/Error.h"

#include <string>

namespace mlir::diffattn {

/// The device that runs the kernels of attention: the CPU itself, a GPU
/// simulated on it, or an NVIDIA GPU.
enum class ExecutionDevice { Cpu, CudaSim, Cuda };

/// A target as users write it:
///
///     cpu, cpu:<isa>     a name of getCpuIsaNames(), native if none is given
///     cuda-sim:<chip>    a chip, as sm_90a; sm_80 if none is named
///     cuda:<chip>@<n>    n is the number of the GPU, 0 if none is given
///     cuda:<chip>/<isa>  both with an instruction set for the host's code
struct ExecutionTarget {
  ExecutionDevice device = ExecutionDevice::Cpu;
  /// Instruction set of the code for the CPU.
  std::string isa = "native";
  /// Chip of the kernels; empty on the CPU.
  std::string chip;
  /// Whether the text names the chip.
  bool chipNamed = false;
  /// Number of the GPU.
  int32_t ordinal = 0;
};

/// The target that `text` names, or an error of class Usage.
llvm::Expected<ExecutionTarget> parseTarget(llvm::StringRef text);

} // namespace mlir::diffattn

#endif // DIFFATTN_COMPILER_EXECUTIONTARGET_H
