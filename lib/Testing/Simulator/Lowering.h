//===- Lowering.h - kernels as code that calls the runtime ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_LOWERING_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_LOWERING_H

#include "DiffAttn/Testing/Simulator/Simulator.h"
#include "Site.h"
#include "WgmmaTrace.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/Support/Error.h"

namespace mlir::diffattn::sim {

struct SharedArray {
  std::string name;
  uint32_t offset = 0, bytes = 0;
};

struct LoweredKernel {
  std::string name;
  /// The function that takes a pointer to one word of 8 bytes an argument.
  std::string entry;
  std::vector<KernelParameter> parameters;
  /// The static arrays that it can reach, by number.
  std::vector<unsigned> arrays;
  bool usesDynamic = false;
  /// From `nvvm.reqntid` and `nvvm.maxntid`; 0 without them.
  std::array<uint32_t, 3> requiredBlock = {0, 0, 0};
  uint32_t maxThreads = 0;
  /// From `nvvm.cluster_dim`.
  std::array<uint32_t, 3> cluster = {1, 1, 1};
  /// Bytes of variables of a thread, with those of the functions that it calls.
  uint64_t stackBytes = 0;
  /// Whether it waits for the kernels ahead of it.
  bool waitsForKernels = false;
};

struct LoweredConstant {
  std::string symbol;
  uint64_t bytes = 0;
};

struct Lowered {
  std::vector<Site> sites;
  std::vector<LoweredKernel> kernels;
  std::vector<SharedArray> arrays;
  std::vector<LoweredConstant> constants;
  /// Where dynamic shared memory begins.
  uint32_t dynamicOffset = 0;
  unsigned wgmmas = 0;
};

/// Rewrites `module` so that x86 code can be made from it: memory accesses get
/// their address from the runtime, NVVM intrinsics and inline assembly become
/// calls of the runtime, shared arrays become addresses. Fails on instructions
/// that it does not support.
llvm::Expected<Lowered> lowerKernels(llvm::Module &module, unsigned capability);

/// The work on the instructions of one module.
class Lowering {
public:
  Lowering(llvm::Module &module, Lowered &result, unsigned capability);
  llvm::Error lowerFunction(llvm::Function &function);

private:
  // Accesses.cpp.
  llvm::Error lowerAccess(llvm::Instruction &instruction);
  llvm::Error lowerBlockTransfer(llvm::CallInst &call);
  llvm::Value *resolve(llvm::IRBuilder<> &builder, llvm::Value *pointer,
                       llvm::Value *bytes, uint32_t site);

  // Undefined.cpp: checks of what LLVM IR leaves undefined.
  void lowerDivision(llvm::BinaryOperator &division);
  void lowerUnreachable(llvm::UnreachableInst &end);
  /// An access of `bytes` bytes to a variable of the thread.
  llvm::Error lowerLocal(llvm::Instruction &instruction, llvm::Value *address,
                         uint64_t bytes, llvm::StringRef op);
  llvm::Error checkVariable(llvm::AllocaInst &variable) const;
  void checkDefined(llvm::IRBuilder<> &builder, llvm::Value *isFault,
                    llvm::Value *offset, uint32_t site);

  // Intrinsics.cpp. `name` is without "llvm.nvvm.".
  llvm::Error lowerIntrinsic(llvm::CallInst &call);
  llvm::Expected<llvm::Value *> lowerNvvm(llvm::IRBuilder<> &builder,
                                          llvm::CallInst &call,
                                          llvm::StringRef name);
  llvm::Value *lowerArithmetic(llvm::IRBuilder<> &builder, llvm::CallInst &call,
                               llvm::StringRef name);
  llvm::Value *lowerApproximation(llvm::IRBuilder<> &builder,
                                  llvm::CallInst &call, llvm::StringRef name);
  llvm::Expected<llvm::Value *> lowerCopy(llvm::IRBuilder<> &builder,
                                          llvm::CallInst &call,
                                          llvm::StringRef name);

  // CollectiveOps.cpp: fills the site of a collective from its name. Returns
  // false if there is no such collective.
  bool describeCollective(llvm::StringRef name, Site &site) const;
  llvm::Value *callCollective(llvm::IRBuilder<> &builder, llvm::CallInst &call,
                              Site site);
  /// Calls `function` of the runtime with the arguments of `call` as words, and
  /// makes what `call` returns of the words that come back. Null if there are
  /// too many.
  llvm::Value *callWithWords(llvm::IRBuilder<> &builder, llvm::CallInst &call,
                             Site site, llvm::StringRef function);
  llvm::Value *callWithWords(llvm::IRBuilder<> &builder, llvm::CallInst &call,
                             uint32_t site, llvm::StringRef function);

  // AsyncOps.cpp. `name` is without "llvm.nvvm.".
  bool describeAsync(llvm::StringRef name, const llvm::CallInst &call,
                     Site &site) const;
  llvm::Expected<llvm::Value *> lowerAsync(llvm::IRBuilder<> &builder,
                                           llvm::CallInst &call,
                                           llvm::StringRef name);

  /// A wait for the kernels ahead.
  void lowerGridWait(llvm::IRBuilder<> &builder, llvm::CallInst &call);

  // WgmmaOps.cpp.
  llvm::Error lowerAssembly(llvm::CallInst &call);
  uint32_t getWgmmaSite(llvm::CallInst &call);
  void noteRegisters(llvm::Function &function);
  unsigned getWords(llvm::Function &function);

  uint32_t addSite(Site site, const llvm::Instruction &instruction,
                   llvm::StringRef op);
  llvm::Error unsupported(const llvm::Instruction &instruction,
                          const llvm::Twine &what) const;
  llvm::FunctionCallee runtime(llvm::StringRef name, llvm::Type *result,
                               llvm::ArrayRef<llvm::Type *> arguments,
                               bool pure = false);
  llvm::Value *flush(llvm::IRBuilder<> &builder, llvm::Value *value);
  llvm::Value *addressOf(llvm::IRBuilder<> &builder, llvm::Value *pointer);

  llvm::Module &module;
  Lowered &result;
  unsigned capability;
  llvm::LLVMContext &context;
  llvm::Type *voidType, *i32, *i64, *f32, *pointer;
  /// Where the current function puts what collectives take and give.
  llvm::AllocaInst *in = nullptr, *out = nullptr;
  /// How many words these two hold.
  unsigned capacity = 0;
  PtxAsmReader asmReader;
  llvm::DenseMap<llvm::CallInst *, uint32_t> wgmmaSites;
};

/// Bytes of variables that a call of `function` needs at most, in its frame and
/// below; `known` keeps them by function. Fails where a function calls itself,
/// also by way of others.
llvm::Expected<uint64_t>
findStackBytes(llvm::Function &function,
               llvm::DenseMap<llvm::Function *, uint64_t> &known);

/// The words of all that is no wgmma.
inline constexpr unsigned kCollectiveWords = 24;

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_LOWERING_H
