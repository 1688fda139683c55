//===- ElementLoader.cpp - tiles element by element -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

namespace {
class ElementLoader final : public TileLoader {
public:
  explicit ElementLoader(AttentionKernel &kernel)
      : kernel(kernel), b(kernel.b) {}
  void copy(const SharedTile &tile, const GlobalRows &rows) override;
  // Empty groups. ptxas moves no load past them; without, it was seen to take
  // 14 registers more, and a block less on an SM.
  void commit() override { NVVM::CpAsyncCommitGroupOp::create(b); }
  void wait(int64_t groupsLeft) override {
    NVVM::CpAsyncWaitGroupOp::create(b, groupsLeft);
  }

private:
  AttentionKernel &kernel;
  GpuBuilder &b;
};
} // namespace

void ElementLoader::copy(const SharedTile &tile, const GlobalRows &rows) {
  ChunkWalk walk(kernel, tile);
  Type half = b.getI16Type();
  // Eight elements of a row, as four words.
  auto chunk = [&](Value row, int64_t column) {
    // Elements of a row that does not exist are read and replaced by zeros.
    auto [source, rowValid] = findRow(kernel, rows, row);
    SmallVector<Value> words;
    for (int64_t word = 0; word < 4; ++word) {
      Value halves[2];
      for (int64_t i = 0; i < 2; ++i) {
        int64_t within = column * walk.lanes * kChunkElements + 2 * word + i;
        Value index = b.add(b.mul(walk.chunk, kChunkElements), within);
        Value valid = rowValid;
        if (within + (walk.lanes - 1) * kChunkElements >= rows.width) {
          Value inside =
              b.compare(LLVM::ICmpPredicate::slt, index, b.i32(rows.width));
          valid = b.andI(valid, inside);
          index = b.minS(index, b.i32(rows.width - 1));
        }
        Value loaded = b.loadConstant(
            half, kernel.stridePointer(half, source, b.toI64(index),
                                       rows.columnStride));
        Value wide = LLVM::ZExtOp::create(b, b.getI32Type(), loaded);
        halves[i] = b.select(valid, wide, b.i32(0));
      }
      words.push_back(
          b.orI(halves[0], LLVM::ShlOp::create(b, halves[1], b.i32(16))));
    }
    return b.pack(words);
  };
  Value first = b.add(rows.first, walk.row);
  walk.whereActive(b, tile, [&] {
    auto copyRows = [&](int64_t passes, Value firstRow, Value offset) {
      for (int64_t pass = 0; pass < passes; ++pass)
        for (int64_t column = 0; column < walk.columns; ++column)
          b.store(chunk(b.add(firstRow, pass * walk.rowsPerPass), column),
                  b.bytes(walk.target(b, tile, pass, column), offset),
                  kChunkBytes);
    };
    if (walk.passes * walk.columns <= kGpuElementChunks)
      return copyRows(walk.passes, first, b.i32(0));
    b.loop(b.i32(0), b.i32(walk.passes), walk.repeat(), ValueRange(),
           [&](Value pass, ValueRange) -> GpuBuilder::Values {
             copyRows(std::min(walk.repeat(), walk.passes),
                      b.add(first, b.mul(pass, walk.rowsPerPass)),
                      b.mul(pass, walk.rowsPerPass * tile.pitch));
             return {};
           });
  });
}

std::unique_ptr<TileLoader>
mlir::diffattn::gpucode::createElementLoader(AttentionKernel &kernel) {
  return std::make_unique<ElementLoader>(kernel);
}
