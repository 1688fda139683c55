//===- CpAsyncLoader.cpp - tiles by cp.async ------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

namespace {
class CpAsyncLoader final : public TileLoader {
public:
  explicit CpAsyncLoader(AttentionKernel &kernel)
      : kernel(kernel), b(kernel.b) {}
  void copy(const SharedTile &tile, const GlobalRows &rows) override;
  void commit() override { NVVM::CpAsyncCommitGroupOp::create(b); }
  void wait(int64_t groupsLeft) override {
    NVVM::CpAsyncWaitGroupOp::create(b, groupsLeft);
  }

private:
  AttentionKernel &kernel;
  GpuBuilder &b;
};
} // namespace

void CpAsyncLoader::copy(const SharedTile &tile, const GlobalRows &rows) {
  ChunkWalk walk(kernel, tile);
  Value first = b.add(rows.first, walk.row);
  int64_t chunks = rows.width / kChunkElements;
  Value ofChunk = b.toI64(b.mul(walk.chunk, kChunkBytes));
  Value source, passBytes;
  // Rows of one batch lie in steps.
  if (!rows.pages) {
    Value rowBytes = b.mul(rows.rowStride, kElementBytes);
    source =
        b.bytes(b.bytes(rows.base, b.mul(b.toI64(first), rowBytes)), ofChunk);
    passBytes = b.mul(rowBytes, walk.rowsPerPass);
  }
  walk.whereActive(b, tile, [&] {
    Value pointer = source;
    for (int64_t pass = 0; pass < walk.passes; ++pass) {
      if (pass && !rows.pages)
        pointer = b.bytes(pointer, passBytes);
      Value row = b.add(first, pass * walk.rowsPerPass);
      Value exists;
      if (rows.pages) {
        RowAddress address = findRow(kernel, rows, row);
        pointer = b.bytes(address.pointer, ofChunk);
        exists = address.exists;
      } else {
        exists = b.compare(LLVM::ICmpPredicate::slt, row, rows.limit);
      }
      Value valid = b.select(exists, b.i32(kChunkBytes), b.i32(0));
      for (int64_t column = 0; column < walk.columns; ++column) {
        Value bytes = valid;
        if (column * walk.lanes >= chunks)
          bytes = b.i32(0);
        else if ((column + 1) * walk.lanes > chunks)
          bytes = b.select(b.compare(LLVM::ICmpPredicate::ult, walk.chunk,
                                     b.i32(chunks - column * walk.lanes)),
                           valid, b.i32(0));
        NVVM::CpAsyncOp::create(
            b, walk.target(b, tile, pass, column),
            b.bytes(pointer, column * walk.lanes * kChunkBytes), kChunkBytes,
            NVVM::LoadCacheModifierKind::CG, bytes);
      }
    }
  });
}

std::unique_ptr<TileLoader>
mlir::diffattn::gpucode::createCpAsyncLoader(AttentionKernel &kernel) {
  return std::make_unique<CpAsyncLoader>(kernel);
}
