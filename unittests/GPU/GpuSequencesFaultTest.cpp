//===- GpuSequencesFaultTest.cpp - kernels of sequences, broken -----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What kernels of packed sequences and of pages compute from their tables,
// changed by one, is seen: by the simulator, or in the result.
//
//===----------------------------------------------------------------------===//
#include "GpuCase.h"

#include "DiffAttn/Target/PtxAsm.h"

#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

/// The loads of entries of `table`, from its index checks.
SmallVector<llvm::LoadInst *> findLoads(llvm::Module &module, StringRef table) {
  SmallVector<llvm::LoadInst *> loads;
  for (llvm::Function &function : module)
    for (llvm::Instruction &instruction : llvm::instructions(function)) {
      auto *call = dyn_cast<llvm::CallInst>(&instruction);
      if (!call || !call->isInlineAsm())
        continue;
      auto *text = cast<llvm::InlineAsm>(call->getCalledOperand());
      auto known =
          parsePtxAsm(text->getAsmString(), text->getConstraintString());
      if (!known || !known->check || known->check->table != table)
        continue;
      if (auto *load = dyn_cast<llvm::LoadInst>(call->getArgOperand(1)))
        if (!llvm::is_contained(loads, load))
          loads.push_back(load);
    }
  return loads;
}

/// Whether `value` is computed from `start` by at most `depth` instructions
/// other than loads and phis.
bool comesFrom(llvm::Value *value, llvm::Value *start, int depth = 6) {
  if (value == start)
    return true;
  auto *instruction = dyn_cast<llvm::Instruction>(value);
  if (!instruction || !depth || isa<llvm::LoadInst, llvm::PHINode>(instruction))
    return false;
  return llvm::any_of(instruction->operands(), [&](llvm::Value *operand) {
    return comesFrom(operand, start, depth - 1);
  });
}

class GpuSequencesFault : public testing::Test {
protected:
  using Break = llvm::function_ref<unsigned(llvm::Module &)>;
  /// Expects the kernels of `signature` to be right, and to be seen to be wrong
  /// once `change` changed some of their instructions.
  void expectFound(const Signature &signature, const Shape &shape,
                   Break change) {
    CompiledCase compiled(signature);
    Outcome whole = compiled.run(shape, kSeed);
    ASSERT_TRUE(whole.report.clean()) << whole.report.str();
    ASSERT_LE(whole.worst(), 1.0);
    std::unique_ptr<llvm::Module> broken =
        llvm::CloneModule(compiled.getKernels());
    ASSERT_GT(change(*broken), 0u);
    compiled.replaceKernels(*broken);
    Outcome outcome = compiled.run(shape, kSeed);
    EXPECT_TRUE(!outcome.report.clean() || outcome.worst() > 1.0)
        << "error in bounds: " << outcome.worst();
  }

  static Signature pagedSignature() {
    Signature s;
    s.d = 32;
    s.dv = 64;
    s.paged = s.kvLen = true;
    return s;
  }
  static Shape pagedShape() {
    Shape shape{1, 20, 96};
    shape.keyLengths = {90, 60};
    return shape;
  }
  static constexpr unsigned kSeed = 5;
};

TEST_F(GpuSequencesFault, EntryOfTheNeighbouringPage) {
  expectFound(pagedSignature(), pagedShape(), [](llvm::Module &module) {
    SmallVector<llvm::LoadInst *> loads = findLoads(module, "block_table");
    for (llvm::LoadInst *load : loads) {
      llvm::IRBuilder<> b(load);
      load->setOperand(0,
                       b.CreateGEP(load->getType(), load->getPointerOperand(),
                                   b.getInt64(1)));
    }
    return loads.size();
  });
}

TEST_F(GpuSequencesFault, StrideOfPages) {
  expectFound(pagedSignature(), pagedShape(), [](llvm::Module &module) {
    unsigned changed = 0;
    for (llvm::LoadInst *load : findLoads(module, "block_table"))
      for (llvm::Instruction &at : llvm::instructions(*load->getFunction())) {
        if (at.getOpcode() != llvm::Instruction::Mul ||
            !comesFrom(at.getOperand(0), load))
          continue;
        llvm::IRBuilder<> b(&at);
        at.setOperand(1, b.CreateAdd(at.getOperand(1), b.getInt64(8)));
        ++changed;
      }
    return changed;
  });
}

/// The begin of a block's sequence, and that of the next one. A row more is one
/// of the next sequence, which is then stored by two blocks.
TEST_F(GpuSequencesFault, BoundsOffByOne) {
  Signature s;
  s.d = 32;
  s.dv = 64;
  s.packed = true;
  Shape shape;
  shape.queryLengths = {30, 50, 20};
  shape.keyLengths = {60, 40, 33};
  for (const char *table : {"cu_seqlens_q", "cu_seqlens_k"})
    for (size_t fromLast : {1, 2})
      expectFound(s, shape, [&](llvm::Module &module) {
        SmallVector<llvm::LoadInst *> loads = findLoads(module, table);
        if (loads.size() < fromLast)
          return 0u;
        llvm::LoadInst *load = loads[loads.size() - fromLast];
        llvm::IRBuilder<> b(load->getNextNode());
        auto *next = cast<llvm::Instruction>(b.CreateAdd(load, b.getInt64(1)));
        load->replaceUsesWithIf(next, [&](llvm::Use &use) {
          auto *call = dyn_cast<llvm::CallInst>(use.getUser());
          return use.getUser() != next && !(call && call->isInlineAsm());
        });
        return 1u;
      });
}

} // namespace
