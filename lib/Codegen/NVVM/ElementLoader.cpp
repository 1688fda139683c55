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
  /// Two neighbours of a row, from column `first` + `within` on: zeros where
  /// there are none. `last`: the first one's column in the lane that is
  /// furthest to the right.
  Value loadWord(const GlobalRows &rows, const RowAddress &row, Value first,
                 int64_t within, int64_t last);

  AttentionKernel &kernel;
  GpuBuilder &b;
};

constexpr int64_t kChunkWords = kChunkBytes / 4;
} // namespace

Value ElementLoader::loadWord(const GlobalRows &rows, const RowAddress &row,
                              Value first, int64_t within, int64_t last) {
  Type half = b.getI16Type();
  Value halves[2];
  for (int64_t i = 0; i < 2; ++i) {
    Value index = b.add(first, within + i);
    Value valid = row.exists;
    if (last + i >= rows.width) {
      Value inside =
          b.compare(LLVM::ICmpPredicate::slt, index, b.i32(rows.width));
      valid = b.andI(valid, inside);
      index = b.minS(index, b.i32(rows.width - 1));
    }
    Value loaded = b.loadConstant(
        half, kernel.stridePointer(half, row.pointer, b.toI64(index),
                                   rows.columnStride));
    Value wide = LLVM::ZExtOp::create(b, b.getI32Type(), loaded);
    halves[i] = b.select(valid, wide, b.i32(0));
  }
  return b.orI(halves[0], LLVM::ShlOp::create(b, halves[1], b.i32(16)));
}

void ElementLoader::copy(const SharedTile &tile, const GlobalRows &rows) {
  ChunkWalk walk(kernel, tile);
  const int64_t lastOfLanes = (walk.lanes - 1) * kChunkElements;
  // Eight elements of a row, as four words.
  auto chunk = [&](Value row, int64_t column) {
    // Elements of a row that does not exist are read and replaced by zeros.
    RowAddress address = findRow(kernel, rows, row);
    SmallVector<Value> words;
    for (int64_t word = 0; word < kChunkWords; ++word) {
      int64_t within = column * walk.lanes * kChunkElements + 2 * word;
      words.push_back(loadWord(rows, address, b.mul(walk.chunk, kChunkElements),
                               within, within + lastOfLanes));
    }
    return b.pack(words);
  };
  Value first = b.add(rows.first, walk.row);
  auto copyRows = [&](int64_t passes, Value firstRow, Value offset) {
    for (int64_t pass = 0; pass < passes; ++pass)
      for (int64_t column = 0; column < walk.columns; ++column)
        b.store(chunk(b.add(firstRow, pass * walk.rowsPerPass), column),
                b.bytes(walk.target(b, tile, pass, column), offset),
                kChunkBytes);
  };
  // A word of each chunk at a time: offsets of all columns of a chunk do not
  // change from tile to tile, and would stay in registers beside the sums.
  auto copyWords = [&](int64_t passes, Value firstRow, Value offset) {
    b.loop(
        b.i32(0), b.i32(kChunkWords), 1, ValueRange(),
        [&](Value word, ValueRange) -> GpuBuilder::Values {
          Value index =
                    b.add(b.mul(walk.chunk, kChunkElements), b.mul(word, 2)),
                place = b.add(offset, b.mul(word, 4));
          for (int64_t pass = 0; pass < passes; ++pass) {
            RowAddress address =
                findRow(kernel, rows, b.add(firstRow, pass * walk.rowsPerPass));
            for (int64_t column = 0; column < walk.columns; ++column) {
              int64_t within = column * walk.lanes * kChunkElements;
              b.store(loadWord(rows, address, index, within,
                               within + lastOfLanes + kChunkElements - 2),
                      b.bytes(walk.target(b, tile, pass, column), place), 4);
            }
          }
          return {};
        },
        /*mayUnroll=*/false);
  };
  auto copyPasses = [&](int64_t passes, Value firstRow, Value offset) {
    if (kernel.spec.isOfGradients())
      copyWords(passes, firstRow, offset);
    else
      copyRows(passes, firstRow, offset);
  };
  walk.whereActive(b, tile, [&] {
    if (walk.passes * walk.columns <= kGpuElementChunks)
      return copyPasses(walk.passes, first, b.i32(0));
    b.loop(b.i32(0), b.i32(walk.passes), walk.repeat(), ValueRange(),
           [&](Value pass, ValueRange) -> GpuBuilder::Values {
             copyPasses(std::min(walk.repeat(), walk.passes),
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
