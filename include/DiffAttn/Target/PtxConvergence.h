//===- PtxConvergence.h - instructions of a whole warp ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TARGET_PTXCONVERGENCE_H
#define DIFFATTN_TARGET_PTXCONVERGENCE_H

namespace llvm {
class CallBase;
class Module;
} // namespace llvm

namespace mlir::diffattn {

/// Whether `call` is an instruction that exchanges data between threads or
/// makes them wait for each other: matrix instructions, shuffles, votes,
/// barriers, and any inline assembly that is not known to be harmless.
bool isWarpCollective(const llvm::CallBase &call);

/// Marks every collective call of `module`, and the functions that hold one,
/// `convergent`. LLVM 22 declares `llvm.nvvm.mma.*` without the mark and MLIR
/// cannot put it on inline assembly; without it the optimizer was seen to copy
/// one mma into both arms of a divergent branch. Call it before any
/// optimization. Returns how many calls are marked.
unsigned markWarpCollectives(llvm::Module &module);

} // namespace mlir::diffattn

#endif // DIFFATTN_TARGET_PTXCONVERGENCE_H
