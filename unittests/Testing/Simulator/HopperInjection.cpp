//===- HopperInjection.cpp - breaks Hopper's kernels ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HopperInjection.h"

#include "DiffAttn/Target/PtxAsm.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/Cloning.h"

using namespace llvm;
using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;

namespace {
struct Row {
  HopperInjection injection;
  StringLiteral name;
  /// How the intrinsic begins below llvm.nvvm.; empty for an assembly.
  StringLiteral head;
};
} // namespace

static constexpr Row kRows[] = {
    {HopperInjection::ExpectMore, "ExpectMore", "mbarrier.arrive.expect.tx."},
    {HopperInjection::ExpectLess, "ExpectLess", "mbarrier.arrive.expect.tx."},
    {HopperInjection::CountMore, "CountMore", "mbarrier.init."},
    {HopperInjection::CountOneLess, "CountOneLess", "mbarrier.init."},
    {HopperInjection::CountLess, "CountLess", "mbarrier.init."},
    {HopperInjection::FlipParity, "FlipParity", "mbarrier.try.wait.parity."},
    {HopperInjection::DropPhaseWait, "DropPhaseWait",
     "mbarrier.try.wait.parity."},
    {HopperInjection::DropArrive, "DropArrive", "mbarrier.arrive.scope."},
    {HopperInjection::DropLoad, "DropLoad", "cp.async.bulk.tensor.g2s.tile."},
    {HopperInjection::ShiftLoad, "ShiftLoad", "cp.async.bulk.tensor.g2s.tile."},
    {HopperInjection::MisalignLoad, "MisalignLoad",
     "cp.async.bulk.tensor.g2s.tile."},
    {HopperInjection::WrongMask, "WrongMask", "cp.async.bulk.tensor.g2s.tile."},
    {HopperInjection::DropMatrixWait, "DropMatrixWait", ""},
    {HopperInjection::WeakenMatrixWait, "WeakenMatrixWait", ""},
    {HopperInjection::DropMatrixFence, "DropMatrixFence", "wgmma.fence."},
    {HopperInjection::DropMatrixCommit, "DropMatrixCommit",
     "wgmma.commit_group."},
    {HopperInjection::PackEarly, "PackEarly", ""},
    {HopperInjection::WrongStride, "WrongStride", ""},
    {HopperInjection::DropProxyFence, "DropProxyFence", "fence.proxy.async"},
    {HopperInjection::DropTurn, "DropTurn", "barrier.cta.arrive."},
    {HopperInjection::WrongTurn, "WrongTurn", "barrier.cta.arrive."},
    {HopperInjection::DropInitFence, "DropInitFence", "fence.mbarrier_init."},
    {HopperInjection::DropStore, "DropStore", "cp.async.bulk.tensor.s2g.tile."},
    {HopperInjection::ShiftStore, "ShiftStore",
     "cp.async.bulk.tensor.s2g.tile."},
    {HopperInjection::MisalignStore, "MisalignStore",
     "cp.async.bulk.tensor.s2g.tile."},
    {HopperInjection::DropStoreWait, "DropStoreWait",
     "cp.async.bulk.wait.group"},
    {HopperInjection::DropClusterWait, "DropClusterWait",
     "barrier.cluster.wait"},
    {HopperInjection::LateWait, "LateWait", ""},
    {HopperInjection::VoteAll, "VoteAll", "vote.any.sync"},
};

static const Row &getRow(HopperInjection injection) {
  return *find_if(kRows,
                  [&](const Row &row) { return row.injection == injection; });
}

StringRef mlir::diffattn::sim::stringifyInjection(HopperInjection injection) {
  return getRow(injection).name;
}

ArrayRef<HopperInjection> mlir::diffattn::sim::getHopperInjections() {
  static const auto all = [] {
    SmallVector<HopperInjection> list;
    for (const Row &row : kRows)
      list.push_back(row.injection);
    return list;
  }();
  return all;
}

static std::optional<PtxAsm> getAsm(const CallInst &call) {
  auto *assembly = dyn_cast<InlineAsm>(call.getCalledOperand());
  return assembly ? parsePtxAsm(assembly->getAsmString(),
                                assembly->getConstraintString())
                  : std::nullopt;
}

/// The conversions of two f32 that pass through `wait` to two numbers of 16
/// bits.
static SmallVector<CallInst *> findPacks(const CallInst &wait) {
  SetVector<CallInst *> packs;
  for (const User *result : wait.users())
    for (const User *user : result->users())
      if (auto *call = dyn_cast<CallInst>(user))
        if (const Function *callee = call->getCalledFunction();
            callee && (callee->getName() == "llvm.nvvm.ff2bf16x2.rn" ||
                       callee->getName() == "llvm.nvvm.ff2f16x2.rn"))
          packs.insert(const_cast<CallInst *>(call));
  return packs.takeVector();
}

static bool applies(const CallInst &call, HopperInjection injection) {
  if (std::optional<PtxAsm> assembly = getAsm(call))
    switch (injection) {
    case HopperInjection::DropMatrixWait:
    case HopperInjection::WeakenMatrixWait:
      return assembly->wait.has_value();
    case HopperInjection::PackEarly:
      return assembly->wait && assembly->wait->integers &&
             !findPacks(call).empty();
    case HopperInjection::WrongStride:
      return assembly->wgmma.has_value();
    case HopperInjection::LateWait:
      return assembly->gridWait.has_value();
    default:
      return false;
    }
  const Function *callee = call.getCalledFunction();
  StringRef head = getRow(injection).head,
            name = callee ? callee->getName() : "";
  if (head.empty() || !name.consume_front("llvm.nvvm.") ||
      !name.starts_with(head))
    return false;
  if (injection == HopperInjection::CountOneLess ||
      injection == HopperInjection::CountLess) {
    auto *count = dyn_cast<ConstantInt>(call.getArgOperand(1));
    return count && count->getZExtValue() > 1;
  }
  // From the back: mask, hint, whether there is a mask, a hint, and the group.
  if (injection == HopperInjection::WrongMask)
    return cast<ConstantInt>(call.getArgOperand(call.arg_size() - 3))->isOne();
  return true;
}

static SmallVector<CallInst *> findAll(Module &module, StringRef kernel,
                                       HopperInjection injection) {
  SmallVector<CallInst *> calls;
  for (Instruction &instruction : instructions(*module.getFunction(kernel)))
    if (auto *call = dyn_cast<CallInst>(&instruction);
        call && applies(*call, injection))
      calls.push_back(call);
  return calls;
}

unsigned mlir::diffattn::sim::countInjections(Module &module, StringRef kernel,
                                              HopperInjection injection) {
  return findAll(module, kernel, injection).size();
}

static void setAsm(CallInst &call, const AsmText &text) {
  auto *old = cast<InlineAsm>(call.getCalledOperand());
  call.setCalledOperand(InlineAsm::get(old->getFunctionType(), text.text,
                                       text.constraints,
                                       /*hasSideEffects=*/true));
}

/// Moves `packs` before `wait`, through which their operands pass.
static void packBefore(CallInst &wait, ArrayRef<CallInst *> packs) {
  for (CallInst *pack : packs) {
    for (Use &half : pack->args())
      if (auto *result = dyn_cast<ExtractValueInst>(half);
          result && result->getAggregateOperand() == &wait)
        half = wait.getArgOperand(result->getIndices().front());
    pack->moveBefore(wait.getIterator());
  }
}

/// Moves `wait` to the end of the kernel; what is reached through it is reached
/// as it came.
static void waitAtEnd(CallInst &wait) {
  for (User *user : make_early_inc_range(wait.users()))
    if (auto *result = dyn_cast<ExtractValueInst>(user))
      result->replaceAllUsesWith(
          wait.getArgOperand(result->getIndices().front()));
  if (!wait.getType()->isStructTy())
    wait.replaceAllUsesWith(wait.getArgOperand(0));
  for (BasicBlock &block : *wait.getFunction())
    if (auto *end = dyn_cast<ReturnInst>(block.getTerminator()))
      wait.clone()->insertBefore(end->getIterator());
  for (User *user : make_early_inc_range(wait.users()))
    cast<Instruction>(user)->eraseFromParent();
  wait.eraseFromParent();
}

void mlir::diffattn::sim::inject(Module &module, StringRef kernel,
                                 HopperInjection injection, unsigned index) {
  CallInst &call = *findAll(module, kernel, injection)[index];
  IRBuilder<> builder(&call);
  auto change = [&](unsigned argument, Instruction::BinaryOps op,
                    uint64_t value) {
    Value *old = call.getArgOperand(argument);
    call.setArgOperand(
        argument,
        builder.CreateBinOp(op, old, ConstantInt::get(old->getType(), value)));
  };
  switch (injection) {
  case HopperInjection::ExpectMore:
    return change(1, Instruction::Add, 16);
  case HopperInjection::ExpectLess:
    return change(1, Instruction::Sub, 16);
  case HopperInjection::CountMore:
    return change(1, Instruction::Add, 1);
  case HopperInjection::CountOneLess:
    return change(1, Instruction::Sub, 1);
  case HopperInjection::CountLess:
    return change(1, Instruction::LShr, 1);
  case HopperInjection::WrongTurn:
    return change(0, Instruction::Xor, 1);
  case HopperInjection::FlipParity:
    return change(1, Instruction::Xor, 1);
  case HopperInjection::ShiftLoad:
    return change(4, Instruction::Add, 1);
  case HopperInjection::ShiftStore:
    return change(3, Instruction::Add, 1);
  case HopperInjection::MisalignLoad:
  case HopperInjection::MisalignStore:
    call.setArgOperand(
        0, builder.CreatePtrAdd(call.getArgOperand(0), builder.getInt64(512)));
    return;
  case HopperInjection::WrongMask:
    return change(call.arg_size() - 5, Instruction::Xor, 1);
  case HopperInjection::WrongStride:
    // The descriptor of B is the last but one.
    return change(call.arg_size() - 2, Instruction::Add,
                  uint64_t(1024 >> 4) << 32);
  case HopperInjection::WeakenMatrixWait: {
    WgmmaWait wait = *getAsm(call)->wait;
    ++wait.pending;
    return setAsm(call, getPtxAsm(wait));
  }
  case HopperInjection::DropMatrixWait: {
    const WgmmaWait wait = *getAsm(call)->wait;
    if (wait.floats + wait.integers)
      return setAsm(call, getPtxAsm(RegisterTie{wait.floats, wait.integers}));
    break;
  }
  case HopperInjection::PackEarly:
    return packBefore(call, findPacks(call));
  case HopperInjection::LateWait:
    return waitAtEnd(call);
  case HopperInjection::VoteAll:
    call.setCalledFunction(Intrinsic::getOrInsertDeclaration(
        &module, Intrinsic::nvvm_vote_all_sync));
    return;
  case HopperInjection::DropPhaseWait:
    call.replaceAllUsesWith(builder.getTrue());
    break;
  default:
    break;
  }
  if (!call.getType()->isVoidTy())
    call.replaceAllUsesWith(PoisonValue::get(call.getType()));
  call.eraseFromParent();
}

std::unique_ptr<Module>
mlir::diffattn::sim::getBroken(const Module &module, StringRef kernel,
                               HopperInjection injection, unsigned index) {
  std::unique_ptr<Module> broken = CloneModule(module);
  inject(*broken, kernel, injection, index);
  requireValid(*broken);
  return broken;
}

ExpectedOutcome
mlir::diffattn::sim::getExpectedOutcome(HopperInjection injection) {
  switch (injection) {
  case HopperInjection::ExpectMore:
  case HopperInjection::CountMore:
  case HopperInjection::DropArrive:
  case HopperInjection::DropLoad:
  case HopperInjection::DropTurn:
    return {{FaultKind::Deadlock}};
  case HopperInjection::ExpectLess:
  case HopperInjection::CountOneLess:
  case HopperInjection::CountLess:
    return {{FaultKind::Deadlock, FaultKind::BarrierMismatch,
             FaultKind::NotArrived, FaultKind::Race}};
  case HopperInjection::FlipParity:
  case HopperInjection::DropPhaseWait:
    return {{FaultKind::Deadlock, FaultKind::NotArrived, FaultKind::Race,
             FaultKind::Uninitialized, FaultKind::BarrierMismatch}};
  case HopperInjection::WrongMask:
  case HopperInjection::WrongTurn:
    return {{FaultKind::Deadlock, FaultKind::BarrierMismatch}};
  case HopperInjection::MisalignLoad:
  case HopperInjection::MisalignStore:
    return {{FaultKind::Misaligned}};
  case HopperInjection::DropMatrixWait:
  case HopperInjection::WeakenMatrixWait:
  case HopperInjection::DropMatrixCommit:
  case HopperInjection::PackEarly:
  case HopperInjection::DropStoreWait:
    return {{FaultKind::InFlight}};
  case HopperInjection::DropMatrixFence:
  case HopperInjection::DropProxyFence:
  case HopperInjection::DropInitFence:
    return {{FaultKind::MissingFence}};
  case HopperInjection::WrongStride:
    return {{FaultKind::Descriptor}, /*wrong=*/true};
  case HopperInjection::DropClusterWait:
    return {{FaultKind::InFlight, FaultKind::BarrierMismatch, FaultKind::Race}};
  case HopperInjection::LateWait:
    return {{FaultKind::Early}};
  case HopperInjection::ShiftLoad:
  case HopperInjection::DropStore:
  case HopperInjection::ShiftStore:
  case HopperInjection::VoteAll:
    return {{}, /*wrong=*/true};
  }
  return {};
}
