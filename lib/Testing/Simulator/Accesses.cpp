//===- Accesses.cpp - loads, stores and atomics ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Lowering.h"

#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"

using namespace llvm;
using namespace mlir::diffattn::sim;

Value *Lowering::resolve(IRBuilder<> &builder, Value *address, Value *bytes,
                         uint32_t site) {
  FunctionCallee callee =
      runtime("diffattn_sim_access", pointer, {i64, i64, i32});
  return builder.CreateCall(callee, {addressOf(builder, address), bytes,
                                     ConstantInt::get(i32, site)});
}

static bool isLocal(const Value *address) {
  return address->getType()->getPointerAddressSpace() == 5 ||
         isa<AllocaInst>(getUnderlyingObject(address, /*MaxLookup=*/0));
}

Error Lowering::lowerAccess(Instruction &instruction) {
  Value *address =
      const_cast<Value *>(getLoadStorePointerOperand(&instruction));
  Site site;
  Type *type = nullptr;
  Align alignment;
  StringRef verb;
  if (auto *load = dyn_cast<LoadInst>(&instruction)) {
    site.kind = OpKind::Load;
    type = load->getType();
    alignment = load->getAlign();
    site.invariant = load->hasMetadata(LLVMContext::MD_invariant_load);
    verb = "load";
  } else if (auto *store = dyn_cast<StoreInst>(&instruction)) {
    site.kind = OpKind::Store;
    type = store->getValueOperand()->getType();
    alignment = store->getAlign();
    verb = "store";
  } else if (auto *update = dyn_cast<AtomicRMWInst>(&instruction)) {
    site.kind = OpKind::Atomic;
    address = update->getPointerOperand();
    type = update->getType();
    alignment = update->getAlign();
    site.addsFloats = update->getOperation() == AtomicRMWInst::FAdd ||
                      update->getOperation() == AtomicRMWInst::FSub;
    verb = "atomicrmw";
  } else {
    auto *exchange = cast<AtomicCmpXchgInst>(&instruction);
    site.kind = OpKind::Atomic;
    address = exchange->getPointerOperand();
    type = exchange->getCompareOperand()->getType();
    alignment = exchange->getAlign();
    verb = "cmpxchg";
  }
  instruction.dropUnknownNonDebugMetadata();
  site.space = address->getType()->getPointerAddressSpace();
  site.bytes = module.getDataLayout().getTypeStoreSize(type).getFixedValue();
  site.alignment = alignment.value();
  const std::string op = (verb + " " + Twine(site.bytes) + " bytes").str();
  if (isLocal(address))
    return lowerLocal(instruction, address, site.bytes, op);
  uint32_t number = addSite(site, instruction, op);
  IRBuilder<> builder(&instruction);
  Value *host =
      resolve(builder, address, ConstantInt::get(i64, site.bytes), number);
  for (Use &use : instruction.operands())
    if (use.get() == address &&
        use.getOperandNo() == (isa<StoreInst>(instruction) ? 1u : 0u))
      use.set(host);
  // The runtime has checked it; where it failed, the access goes to memory of
  // no special alignment.
  if (auto *load = dyn_cast<LoadInst>(&instruction))
    load->setAlignment(Align(1));
  if (auto *store = dyn_cast<StoreInst>(&instruction))
    store->setAlignment(Align(1));
  return Error::success();
}

Error Lowering::lowerBlockTransfer(CallInst &call) {
  auto *transfer = cast<MemIntrinsic>(&call);
  IRBuilder<> builder(&call);
  // With a length of 0 the address need not be valid, and a long range has no
  // scratch to go to.
  auto *length = dyn_cast<ConstantInt>(transfer->getLength());
  if (!length)
    return unsupported(call,
                       "a memory transfer of a length that is no constant");
  if (length->getZExtValue() > (1 << 15))
    return unsupported(call, "a memory transfer of more than 32 KiB");
  Value *bytes = builder.CreateZExtOrTrunc(length, i64);
  auto side = [&](Value *address, OpKind kind, MaybeAlign alignment,
                  StringRef op) -> Expected<Value *> {
    if (isLocal(address)) {
      if (Error error = lowerLocal(call, address, length->getZExtValue(), op))
        return error;
      return builder.CreateAddrSpaceCast(address, pointer);
    }
    Site site;
    site.kind = kind;
    site.space = address->getType()->getPointerAddressSpace();
    site.alignment = alignment.valueOrOne().value();
    site.bytes = 1;
    return resolve(builder, address, bytes, addSite(site, call, op));
  };
  if (auto *set = dyn_cast<MemSetInst>(transfer)) {
    Expected<Value *> to =
        side(set->getRawDest(), OpKind::Store, set->getDestAlign(), "memset");
    if (!to)
      return to.takeError();
    builder.CreateMemSet(*to, set->getValue(), bytes, MaybeAlign(1));
  } else {
    auto *move = cast<MemTransferInst>(transfer);
    Expected<Value *> from = side(move->getRawSource(), OpKind::Load,
                                  move->getSourceAlign(), "memcpy from");
    if (!from)
      return from.takeError();
    Expected<Value *> to = side(move->getRawDest(), OpKind::Store,
                                move->getDestAlign(), "memcpy to");
    if (!to)
      return to.takeError();
    builder.CreateMemMove(*to, MaybeAlign(1), *from, MaybeAlign(1), bytes);
  }
  call.eraseFromParent();
  return Error::success();
}
