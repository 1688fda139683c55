//===- FaultInjection.cpp - breaks kernels in known ways ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "FaultInjection.h"

#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Support/ErrorHandling.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Cloning.h"

using namespace llvm;
using namespace mlir::diffattn::sim;

static constexpr Injection kAll[] = {
    Injection::DropWait,          Injection::WeakenWait,
    Injection::DropBarrier,       Injection::RefillEarly,
    Injection::WrongSwizzle,      Injection::RowOutOfBounds,
    Injection::SharedOutOfBounds, Injection::MisalignedRow,
    Injection::MisalignedCopy,    Injection::WrongLane,
    Injection::HalfWarp,          Injection::DropCopy};

ArrayRef<Injection> mlir::diffattn::sim::getAllInjections() { return kAll; }

StringRef mlir::diffattn::sim::stringifyInjection(Injection injection) {
  switch (injection) {
  case Injection::DropWait:
    return "DropWait";
  case Injection::WeakenWait:
    return "WeakenWait";
  case Injection::DropBarrier:
    return "DropBarrier";
  case Injection::RefillEarly:
    return "RefillEarly";
  case Injection::WrongSwizzle:
    return "WrongSwizzle";
  case Injection::RowOutOfBounds:
    return "RowOutOfBounds";
  case Injection::SharedOutOfBounds:
    return "SharedOutOfBounds";
  case Injection::MisalignedRow:
    return "MisalignedRow";
  case Injection::MisalignedCopy:
    return "MisalignedCopy";
  case Injection::WrongLane:
    return "WrongLane";
  case Injection::HalfWarp:
    return "HalfWarp";
  case Injection::DropCopy:
    return "DropCopy";
  case Injection::VoteAll:
    return "VoteAll";
  }
  return "unknown";
}

static bool isCopy(StringRef name) {
  return name.starts_with("cp.async.cg.") || name.starts_with("cp.async.ca.");
}

/// The ldmatrix that comes next in the order of blocks, or null.
static Instruction *nextLdMatrix(Instruction &from) {
  bool after = false;
  for (Instruction &instruction : instructions(*from.getFunction())) {
    after |= &instruction == &from;
    auto *call = dyn_cast<IntrinsicInst>(&instruction);
    if (after && call &&
        call->getCalledFunction()->getName().contains(".ldmatrix."))
      return call;
  }
  return nullptr;
}

/// Whether a copy, or a call that may hold one, stands between `barrier` and
/// the next ldmatrix.
static bool isBeforeCopies(Instruction &barrier) {
  Instruction *end = nextLdMatrix(barrier);
  bool after = false;
  for (Instruction &instruction : instructions(*barrier.getFunction())) {
    if (&instruction == end)
      return false;
    after |= &instruction == &barrier;
    auto *call = dyn_cast<CallInst>(&instruction);
    Function *callee = call ? call->getCalledFunction() : nullptr;
    if (!after || !callee)
      continue;
    StringRef name = callee->getName();
    if (!callee->isDeclaration() ||
        (name.consume_front("llvm.nvvm.") && isCopy(name)))
      return end;
  }
  return false;
}

static bool applies(IntrinsicInst &call, Injection injection) {
  StringRef name = call.getCalledFunction()->getName();
  if (!name.consume_front("llvm.nvvm."))
    return false;
  switch (injection) {
  case Injection::DropWait:
  case Injection::WeakenWait:
    return name == "cp.async.wait.group";
  case Injection::DropBarrier:
    return name.starts_with("barrier.cta.sync.");
  case Injection::RefillEarly:
    return name == "barrier.cta.sync.aligned.all" && isBeforeCopies(call);
  case Injection::WrongSwizzle:
  case Injection::MisalignedRow:
    return name.starts_with("ldmatrix.");
  case Injection::RowOutOfBounds:
  case Injection::SharedOutOfBounds:
  case Injection::MisalignedCopy:
  case Injection::DropCopy:
    return isCopy(name);
  case Injection::WrongLane:
    return name.starts_with("shfl.sync.bfly.");
  case Injection::HalfWarp:
    return name.starts_with("shfl.sync.") || name.starts_with("mma.") ||
           name.starts_with("ldmatrix.") ||
           name.starts_with("barrier.cta.sync.aligned");
  case Injection::VoteAll:
    return name == "vote.any.sync";
  }
  return false;
}

static SmallVector<IntrinsicInst *> findAll(Module &module, StringRef kernel,
                                            Injection injection) {
  SmallVector<IntrinsicInst *> calls;
  for (Instruction &instruction : instructions(*module.getFunction(kernel)))
    if (auto *call = dyn_cast<IntrinsicInst>(&instruction);
        call && applies(*call, injection))
      calls.push_back(call);
  return calls;
}

unsigned mlir::diffattn::sim::countInjections(Module &module, StringRef kernel,
                                              Injection injection) {
  return findAll(module, kernel, injection).size();
}

/// Moves pointer operand `index` by `bytes` in the threads where `chosen`
/// holds.
static void shiftPointer(IRBuilder<> &builder, IntrinsicInst &call,
                         unsigned index, int64_t bytes, Value *chosen) {
  Value *pointer = call.getArgOperand(index);
  Value *moved = builder.CreatePtrAdd(pointer, builder.getInt64(bytes));
  call.setArgOperand(
      index, chosen ? builder.CreateSelect(chosen, moved, pointer) : moved);
}

void mlir::diffattn::sim::inject(Module &module, StringRef kernel,
                                 Injection injection, unsigned index) {
  IntrinsicInst &call = *findAll(module, kernel, injection)[index];
  IRBuilder<> builder(&call);
  auto special = [&](Intrinsic::ID id) {
    return builder.CreateIntrinsic(builder.getInt32Ty(), id, {});
  };
  auto oneThread = [&] {
    return builder.CreateICmpEQ(special(Intrinsic::nvvm_read_ptx_sreg_tid_x),
                                builder.getInt32(5));
  };
  switch (injection) {
  case Injection::DropWait:
  case Injection::DropBarrier:
  case Injection::DropCopy:
    call.eraseFromParent();
    return;
  case Injection::WeakenWait:
    call.setArgOperand(
        0, builder.getInt32(
               cast<ConstantInt>(call.getArgOperand(0))->getZExtValue() + 1));
    return;
  case Injection::RefillEarly:
    call.moveBefore(nextLdMatrix(call)->getIterator());
    return;
  case Injection::WrongSwizzle: {
    Type *type = call.getArgOperand(0)->getType();
    Value *address = builder.CreateXor(
        builder.CreatePtrToInt(call.getArgOperand(0), builder.getInt64Ty()),
        builder.getInt64(16));
    call.setArgOperand(0, builder.CreateIntToPtr(address, type));
    return;
  }
  case Injection::RowOutOfBounds:
    return shiftPointer(builder, call, 1, int64_t(1) << 24, oneThread());
  case Injection::SharedOutOfBounds:
    return shiftPointer(builder, call, 0, 1 << 20, oneThread());
  case Injection::MisalignedCopy:
    return shiftPointer(builder, call, 0, 2, oneThread());
  case Injection::MisalignedRow:
    return shiftPointer(
        builder, call, 0, 2,
        builder.CreateICmpEQ(special(Intrinsic::nvvm_read_ptx_sreg_laneid),
                             builder.getInt32(3)));
  case Injection::VoteAll:
    call.setCalledFunction(Intrinsic::getOrInsertDeclaration(
        &module, Intrinsic::nvvm_vote_all_sync));
    return;
  case Injection::WrongLane:
    call.setArgOperand(2, builder.CreateXor(call.getArgOperand(2), 7));
    return;
  case Injection::HalfWarp: {
    Value *low = builder.CreateICmpULT(
        special(Intrinsic::nvvm_read_ptx_sreg_laneid), builder.getInt32(16));
    Instruction *then = SplitBlockAndInsertIfThen(low, call.getIterator(),
                                                  /*Unreachable=*/false);
    BasicBlock *before = then->getParent()->getSinglePredecessor(),
               *after = call.getParent();
    call.moveBefore(then->getIterator());
    if (call.getType()->isVoidTy())
      return;
    auto *merged = PHINode::Create(call.getType(), 2, "", after->begin());
    call.replaceAllUsesWith(merged);
    merged->addIncoming(&call, then->getParent());
    merged->addIncoming(Constant::getNullValue(call.getType()), before);
    return;
  }
  }
}

void mlir::diffattn::sim::requireValid(const Module &module) {
  std::string message;
  raw_string_ostream os(message);
  if (verifyModule(module, &os))
    report_fatal_error(Twine("expected a valid module, but got ") + message);
}

std::unique_ptr<Module> mlir::diffattn::sim::getBroken(const Module &module,
                                                       StringRef kernel,
                                                       Injection injection,
                                                       unsigned index) {
  std::unique_ptr<Module> broken = CloneModule(module);
  inject(*broken, kernel, injection, index);
  requireValid(*broken);
  return broken;
}

ExpectedOutcome mlir::diffattn::sim::getExpectedOutcome(Injection injection) {
  switch (injection) {
  case Injection::DropWait:
  case Injection::WeakenWait:
    return {{FaultKind::NotArrived}};
  case Injection::DropBarrier:
  case Injection::RefillEarly:
    return {{FaultKind::Race, FaultKind::NotArrived}};
  case Injection::RowOutOfBounds:
  case Injection::SharedOutOfBounds:
    return {{FaultKind::OutOfBounds}};
  case Injection::MisalignedRow:
  case Injection::MisalignedCopy:
    return {{FaultKind::Misaligned}};
  case Injection::HalfWarp:
    return {{FaultKind::Divergence}};
  case Injection::DropCopy:
    // A stage that was filled before still holds other keys.
    return {{FaultKind::Uninitialized}, /*wrong=*/true};
  case Injection::WrongSwizzle:
  case Injection::WrongLane:
  case Injection::VoteAll:
    return {{}, /*wrong=*/true};
  }
  return {};
}
