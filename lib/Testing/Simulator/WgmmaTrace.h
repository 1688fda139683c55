//===- WgmmaTrace.h - who touches the registers of a wgmma ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_WGMMATRACE_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_WGMMATRACE_H

#include "Site.h"

#include "DiffAttn/Target/PtxAsm.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <memory>

namespace llvm {
class CallInst;
class Function;
class InlineAsm;
class Instruction;
class Value;
} // namespace llvm

namespace mlir::diffattn::sim {

/// Reads the inline assembly of the table, each text once.
class PtxAsmReader {
public:
  /// Null if `value` is no call of an assembly of the table.
  const PtxAsm *read(const llvm::Value *value);

private:
  llvm::DenseMap<const llvm::InlineAsm *, std::unique_ptr<PtxAsm>> known;
};

/// `place` is the instruction before which a use counts, `cause` the one that
/// makes it.
using WgmmaNote =
    llvm::function_ref<void(llvm::Instruction *place, llvm::Instruction &cause,
                            RegisterUse use, llvm::CallInst &wgmma)>;

/// Calls `note` for each place of `function` where registers of a wgmma are
/// used. A register is computed where an instruction that is no assembly of the
/// table makes the value, and taken where one gets it out of a wait or a tie.
void traceWgmmas(llvm::Function &function, PtxAsmReader &reader,
                 WgmmaNote note);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_WGMMATRACE_H
