//===- Ptxas.h - runs NVIDIA's assembler ------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_NVVM_PTXAS_H
#define DIFFATTN_CODEGEN_NVVM_PTXAS_H

#include "DiffAttn/Target/GpuTarget.h"

#include <optional>
#include <string>
#include <vector>

namespace mlir::diffattn {

/// Places in which `ptxas` is searched.
struct PtxasSearch {
  /// A name to look for in PATH and then in `folders`, or a path with a slash,
  /// which is taken as it is.
  std::string program = "ptxas";
  std::vector<std::string> folders = {"/usr/local/cuda/bin"};
};

/// The path of the assembler; nothing if there is none, and then `error` names
/// every path that was tried and says how to get one.
std::optional<std::string> findPtxas(const PtxasSearch &search,
                                     std::string &error);

/// Resources of one kernel, for each thread, as ptxas reports them.
struct PtxasKernel {
  std::string name;
  int64_t registers = 0, spillStoreBytes = 0, spillLoadBytes = 0,
          stackBytes = 0;
};

struct Cubin {
  std::string data;
  std::vector<PtxasKernel> kernels;
  /// Warnings C7500 to C7599: `wgmma` products that ptxas serialized, and
  /// `setmaxnreg` that it ignored.
  std::vector<std::string> warnings;
};

/// Runs ptxas as a process, for `target.binaryChip`. On failure `error` says
/// what was missing, or has the output of ptxas.
std::optional<Cubin> assemblePtx(StringRef ptx, const GpuTarget &target,
                                 const PtxasSearch &search, std::string &error);

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_NVVM_PTXAS_H
