//===- ReuseBuffers.cpp - one buffer for several values -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_REUSEBUFFERSPASS
#include "DiffAttn/Model/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;

namespace {
/// A buffer and the ops of its block that are the first and the last to use it,
/// or a view of it.
struct Life {
  memref::AllocOp buffer;
  Operation *first, *last;
};

/// None if the buffer outlives its block, is freed there, or is not used, or if
/// its address is taken, which no one can follow.
std::optional<Life> getLife(memref::AllocOp buffer) {
  Block *block = buffer->getBlock();
  Life life{buffer, nullptr, nullptr};
  SmallVector<Value> parts = {buffer.getResult()};
  llvm::SmallDenseSet<Value> seen = {buffer.getResult()};
  while (!parts.empty()) {
    for (Operation *user : parts.pop_back_val().getUsers()) {
      // A use in a region of an op is a use by that op.
      Operation *op = block->findAncestorOpInBlock(*user);
      if (!op || op->hasTrait<OpTrait::IsTerminator>() ||
          isa<memref::DeallocOp, memref::ExtractAlignedPointerAsIndexOp>(user))
        return std::nullopt;
      // A view is no use: what reads or writes it is.
      if (op != user || !isa<ViewLikeOpInterface>(op)) {
        if (!life.first || op->isBeforeInBlock(life.first))
          life.first = op;
        if (!life.last || life.last->isBeforeInBlock(op))
          life.last = op;
      }
      for (Operation *maker : {user, op})
        for (Value result : maker->getResults())
          if (isa<BaseMemRefType>(result.getType()) &&
              seen.insert(result).second)
            parts.push_back(result);
    }
  }
  if (!life.first)
    return std::nullopt;
  return life;
}

/// Whether `other` can be in the place of `buffer`.
bool haveOneForm(memref::AllocOp buffer, memref::AllocOp other) {
  return buffer.getType() == other.getType() &&
         buffer.getAlignment() == other.getAlignment() &&
         buffer.getDynamicSizes() == other.getDynamicSizes() &&
         buffer.getSymbolOperands() == other.getSymbolOperands();
}

struct ReuseBuffersPass final
    : diffattn::impl::ReuseBuffersPassBase<ReuseBuffersPass> {
  void runOnOperation() override {
    getOperation()->walk([](Block *block) { reuse(*block); });
  }

private:
  static void reuse(Block &block) {
    SmallVector<Life> lives;
    for (auto buffer : block.getOps<memref::AllocOp>())
      if (std::optional<Life> life = getLife(buffer))
        lives.push_back(*life);
    llvm::sort(lives, [](const Life &a, const Life &b) {
      if (a.first != b.first)
        return a.first->isBeforeInBlock(b.first);
      return a.buffer->isBeforeInBlock(b.buffer);
    });
    // Buffers that are kept, each with the end of what it is used for so far.
    SmallVector<Life> kept;
    for (const Life &life : lives) {
      // The free buffer that was used last is taken, since the caches hold it.
      Life *free = nullptr;
      for (Life &other : kept)
        if (haveOneForm(life.buffer, other.buffer) &&
            other.last->isBeforeInBlock(life.first) &&
            (!free || free->last->isBeforeInBlock(other.last)))
          free = &other;
      if (!free) {
        kept.push_back(life);
        continue;
      }
      memref::AllocOp buffer = life.buffer;
      // Its sizes are there where the kept one is allocated; views of the
      // other may be made before that.
      if (buffer->isBeforeInBlock(free->buffer))
        free->buffer->moveBefore(buffer);
      buffer.replaceAllUsesWith(free->buffer.getResult());
      buffer.erase();
      free->last = life.last;
    }
  }
};
} // namespace
