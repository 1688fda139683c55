//===- WgmmaTrace.cpp - who touches the registers of a wgmma --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A wgmma works on registers while its threads go on. In the IR its results
// are values, which are there at once; what a GPU would find in the registers
// depends on where waits and fences are. So calls of the runtime are put where
// registers are computed, taken out of a wait, or used without one.
//
//===----------------------------------------------------------------------===//
#include "WgmmaTrace.h"
#include "Lowering.h"

#include "DiffAttn/Target/PtxAsm.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"

using namespace llvm;
using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;

const PtxAsm *PtxAsmReader::read(const Value *value) {
  auto *call = dyn_cast<CallInst>(value);
  auto *assembly =
      call ? dyn_cast<InlineAsm>(call->getCalledOperand()) : nullptr;
  if (!assembly)
    return nullptr;
  auto [at, isNew] = known.try_emplace(assembly);
  if (isNew)
    if (auto parsed = parsePtxAsm(assembly->getAsmString(),
                                  assembly->getConstraintString()))
      at->second = std::make_unique<PtxAsm>(*parsed);
  return at->second.get();
}

namespace {

using Wgmmas = SmallSetVector<CallInst *, 8>;
using Sources = SmallSetVector<Instruction *, 32>;

/// The result `index` of an assembly of the table, or none.
struct AsmResult {
  CallInst *call = nullptr;
  unsigned index = 0;
};

class Tracer {
public:
  Tracer(PtxAsmReader &reader, WgmmaNote note) : reader(reader), note(note) {}
  void run(Function &function);

private:
  struct Note {
    Instruction *place, *cause;
    RegisterUse use;
    CallInst *wgmma;
  };
  using UsersOf = MapVector<Instruction *, SmallSetVector<CallInst *, 4>>;

  AsmResult getResult(Value *value);
  bool staysInRegisters(const Use &use);
  void forTouches(CallInst &call,
                  function_ref<void(unsigned index, Use &use)> touch);
  CallInst *findWgmma(Value *value);
  void collectChain(CallInst *wgmma, Wgmmas &chain);
  void collectSources(Value *value, SmallPtrSetImpl<Value *> &seen,
                      Sources &sources);
  bool separates(const Instruction &instruction);
  void traceWgmma(CallInst &call, const Wgmma &wgmma);
  void traceWait(CallInst &call);
  void noteSources(Function &function, const UsersOf &sources, RegisterUse use);

  PtxAsmReader &reader;
  WgmmaNote note;
  UsersOf sums, operands;
  SmallVector<Note> notes;
};

} // namespace

AsmResult Tracer::getResult(Value *value) {
  if (auto *extract = dyn_cast<ExtractValueInst>(value)) {
    if (reader.read(extract->getAggregateOperand()))
      return {cast<CallInst>(extract->getAggregateOperand()),
              extract->getIndices().front()};
  } else if (reader.read(value) && !value->getType()->isStructTy()) {
    return {cast<CallInst>(value), 0};
  }
  return {};
}

/// Whether `use` hands a value to a wgmma as an accumulator, or to a wait or a
/// tie.
bool Tracer::staysInRegisters(const Use &use) {
  const PtxAsm *assembly = reader.read(use.getUser());
  return assembly &&
         (!assembly->wgmma || use.getOperandNo() < assembly->wgmma->n / 2);
}

/// The uses of the results of `call` that are none of those, with the number
/// of the result.
void Tracer::forTouches(CallInst &call,
                        function_ref<void(unsigned index, Use &use)> touch) {
  for (Use &use : call.uses()) {
    if (auto *extract = dyn_cast<ExtractValueInst>(use.getUser())) {
      for (Use &inner : extract->uses())
        if (!staysInRegisters(inner))
          touch(extract->getIndices().front(), inner);
    } else if (!staysInRegisters(use)) {
      touch(0, use);
    }
  }
}

/// Where the user of `use` takes the value.
static Instruction *getPlace(const Use &use) {
  auto *user = cast<Instruction>(use.getUser());
  if (auto *phi = dyn_cast<PHINode>(user))
    return phi->getIncomingBlock(use)->getTerminator();
  return user;
}

/// The wgmma whose result `value` is, seen through waits and ties.
CallInst *Tracer::findWgmma(Value *value) {
  for (AsmResult from = getResult(value); from.call;
       from = getResult(from.call->getArgOperand(from.index)))
    if (reader.read(from.call)->wgmma)
      return from.call;
  return nullptr;
}

/// Adds to `chain` the wgmma and those whose sums it goes on from.
void Tracer::collectChain(CallInst *wgmma, Wgmmas &chain) {
  while (wgmma && chain.insert(wgmma))
    wgmma = findWgmma(wgmma->getArgOperand(0));
}

/// The instructions that compute `value`, seen through waits, ties, phis and
/// bitcasts, which LLVM moves from where a register is computed to its use.
void Tracer::collectSources(Value *value, SmallPtrSetImpl<Value *> &seen,
                            Sources &sources) {
  if (!seen.insert(value).second)
    return;
  if (AsmResult from = getResult(value); from.call) {
    if (!reader.read(from.call)->wgmma)
      collectSources(from.call->getArgOperand(from.index), seen, sources);
    return;
  }
  if (auto *phi = dyn_cast<PHINode>(value)) {
    for (Value *incoming : phi->incoming_values())
      collectSources(incoming, seen, sources);
    return;
  }
  if (auto *bits = dyn_cast<BitCastInst>(value))
    return collectSources(bits->getOperand(0), seen, sources);
  if (auto *instruction = dyn_cast<Instruction>(value))
    sources.insert(instruction);
}

/// Whether register uses before and after `instruction` are noted apart.
bool Tracer::separates(const Instruction &instruction) {
  auto *call = dyn_cast<CallInst>(&instruction);
  if (!call)
    return false;
  const Function *callee = call->getCalledFunction();
  return callee ? callee->getName().starts_with("llvm.nvvm.wgmma.")
                : reader.read(call) != nullptr;
}

/// Notes instructions that compute registers of a wgmma: one between two places
/// that separate is enough.
void Tracer::noteSources(Function &function, const UsersOf &sources,
                         RegisterUse use) {
  for (BasicBlock &block : function) {
    SmallPtrSet<CallInst *, 16> noted;
    for (Instruction &instruction : block) {
      if (separates(instruction))
        noted.clear();
      auto it = sources.find(&instruction);
      if (it == sources.end())
        continue;
      for (CallInst *wgmma : it->second)
        if (noted.insert(wgmma).second)
          notes.push_back({&instruction, &instruction, use, wgmma});
    }
  }
}

void Tracer::traceWgmma(CallInst &call, const Wgmma &wgmma) {
  forTouches(call, [&](unsigned, Use &use) {
    notes.push_back({getPlace(use), cast<Instruction>(use.getUser()),
                     RegisterUse::Bypasses, &call});
  });
  auto collect = [&](unsigned first, unsigned count, UsersOf &into) {
    SmallPtrSet<Value *, 32> seen;
    Sources sources;
    for (unsigned i = first; i < first + count; ++i)
      collectSources(call.getArgOperand(i), seen, sources);
    for (Instruction *source : sources)
      into[source].insert(&call);
  };
  collect(0, wgmma.n / 2, sums);
  if (wgmma.aInRegisters)
    collect(wgmma.n / 2, 4, operands);
}

void Tracer::traceWait(CallInst &call) {
  Wgmmas taken;
  forTouches(call, [&](unsigned index, Use &) {
    if (CallInst *wgmma = findWgmma(call.getArgOperand(index)))
      collectChain(wgmma, taken);
  });
  for (CallInst *wgmma : taken)
    notes.push_back({call.getNextNode(), &call, RegisterUse::Takes, wgmma});
}

void Tracer::run(Function &function) {
  for (Instruction &instruction : instructions(function))
    if (const PtxAsm *assembly = reader.read(&instruction)) {
      auto &call = cast<CallInst>(instruction);
      assembly->wgmma ? traceWgmma(call, *assembly->wgmma) : traceWait(call);
    }
  noteSources(function, sums, RegisterUse::ComputesSum);
  noteSources(function, operands, RegisterUse::ComputesA);
  for (const Note &each : notes)
    note(each.place, *each.cause, each.use, *each.wgmma);
}

void mlir::diffattn::sim::traceWgmmas(Function &function, PtxAsmReader &reader,
                                      WgmmaNote note) {
  Tracer(reader, note).run(function);
}
