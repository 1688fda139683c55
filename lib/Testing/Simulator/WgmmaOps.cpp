//===- WgmmaOps.cpp - the inline assembly of the table --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Lowering.h"

#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"

using namespace llvm;
using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;

uint32_t Lowering::getWgmmaSite(CallInst &call) {
  auto [at, isNew] = wgmmaSites.try_emplace(&call, 0);
  if (!isNew)
    return at->second;
  const Wgmma &wgmma = *asmReader.read(&call)->wgmma;
  Site site;
  site.kind = OpKind::Wgmma;
  site.aligned = true;
  site.type = wgmma.bfloat ? MmaType::BF16 : MmaType::F16;
  site.columns = wgmma.n;
  site.fromRegisters = wgmma.aInRegisters;
  site.transposed = wgmma.transposeB;
  site.number = result.wgmmas++;
  site.words = call.arg_size();
  site.results = wgmma.n / 2;
  const uint32_t number = addSite(
      site, call, ("wgmma.mma_async.m64n" + Twine(wgmma.n) + "k16").str());
  wgmmaSites[&call] = number;
  return number;
}

void Lowering::noteRegisters(Function &function) {
  DenseMap<Instruction *, uint32_t> sites;
  traceWgmmas(
      function, asmReader,
      [&](Instruction *place, Instruction &cause, RegisterUse use,
          CallInst &wgmma) {
        uint32_t &site = sites[&cause];
        if (!site) {
          const PtxAsm *assembly = asmReader.read(&cause);
          site = addSite(Site(), cause,
                         !assembly       ? cause.getOpcodeName()
                         : assembly->tie ? "tie of registers"
                                         : "wgmma.wait_group");
        }
        IRBuilder<>(place).CreateCall(
            runtime("diffattn_sim_registers", voidType, {i32, i32, i32}),
            {ConstantInt::get(i32, uint32_t(use)), ConstantInt::get(i32, site),
             ConstantInt::get(i32, getWgmmaSite(wgmma))});
      });
}

unsigned Lowering::getWords(Function &function) {
  unsigned words = kCollectiveWords;
  for (Instruction &instruction : instructions(function))
    if (const PtxAsm *assembly = asmReader.read(&instruction);
        assembly && assembly->wgmma)
      // Two words for each descriptor.
      words = std::max<unsigned>(words, assembly->wgmma->n / 2 + 8);
  return words;
}

Error Lowering::lowerAssembly(CallInst &call) {
  const PtxAsm *assembly = asmReader.read(&call);
  // A check stands for no instruction, so every chip has it.
  if (!assembly || (capability < 90 && !assembly->check))
    return unsupported(
        call, "the inline assembly \"" +
                  cast<InlineAsm>(call.getCalledOperand())->getAsmString() +
                  "\"");
  IRBuilder<> builder(&call);
  Value *result = nullptr;
  if (assembly->check) {
    Site site;
    site.kind = OpKind::IndexCheck;
    // The place names the table.
    const uint32_t number = addSite(site, call, assembly->check->table);
    builder.CreateCall(runtime("diffattn_sim_index", voidType, {i32, i64, i32}),
                       {builder.CreateZExt(call.getArgOperand(0), i32),
                        call.getArgOperand(1), ConstantInt::get(i32, number)});
  } else if (assembly->wgmma) {
    result = callWithWords(builder, call, getWgmmaSite(call),
                           "diffattn_sim_collective");
  } else {
    if (assembly->gridWait)
      lowerGridWait(builder, call);
    if (assembly->wait) {
      Site site;
      site.kind = OpKind::WgmmaWait;
      site.aligned = true;
      site.mode = assembly->wait->pending;
      builder.CreateCall(
          runtime("diffattn_sim_collective", voidType, {i32, pointer, pointer}),
          {ConstantInt::get(i32, addSite(site, call, "wgmma.wait_group")), in,
           out});
    }
    // The registers stay what they are.
    if (auto *structure = dyn_cast<StructType>(call.getType())) {
      result = PoisonValue::get(structure);
      for (unsigned i = 0; i < structure->getNumElements(); ++i)
        result = builder.CreateInsertValue(result, call.getArgOperand(i), i);
    } else if (!call.getType()->isVoidTy()) {
      result = call.getArgOperand(0);
    }
  }
  if (!call.getType()->isVoidTy())
    call.replaceAllUsesWith(result);
  call.eraseFromParent();
  return Error::success();
}
