//===- PtxConvergence.cpp - instructions of a whole warp ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/PtxConvergence.h"
#include "DiffAttn/Target/PtxAsm.h"

#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"

using namespace llvm;

/// Families of intrinsics below `llvm.nvvm.` of which every member is a
/// collective.
static constexpr StringLiteral kFamilies[] = {
    "mma.",    "wmma.", "wgmma.",      "ldmatrix.", "stmatrix.",
    "shfl.",   "vote.", "match.",      "redux.",    "elect.",
    "barrier", "bar.",  "setmaxnreg.", "activemask"};

bool mlir::diffattn::isWarpCollective(const CallBase &call) {
  if (call.isInlineAsm()) {
    // An assembly outside the table may hold any instruction.
    const auto *assembly = cast<InlineAsm>(call.getCalledOperand());
    std::optional<PtxAsm> known =
        parsePtxAsm(assembly->getAsmString(), assembly->getConstraintString());
    return !known || (!known->tie && !known->check && !known->gridWait);
  }
  const Function *callee = call.getCalledFunction();
  if (!callee)
    return false;
  StringRef name = callee->getName();
  return name.consume_front("llvm.nvvm.") &&
         any_of(kFamilies,
                [&](StringRef family) { return name.starts_with(family); });
}

unsigned mlir::diffattn::markWarpCollectives(Module &module) {
  unsigned marked = 0;
  for (Function &function : module)
    for (Instruction &instruction : instructions(function)) {
      auto *call = dyn_cast<CallBase>(&instruction);
      if (!call || !isWarpCollective(*call))
        continue;
      call->addFnAttr(llvm::Attribute::Convergent);
      function.addFnAttr(llvm::Attribute::Convergent);
      ++marked;
    }
  return marked;
}
