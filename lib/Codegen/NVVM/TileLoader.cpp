//===- TileLoader.cpp - copies of tiles to shared memory ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

Value SharedTile::swizzle(GpuBuilder &b, int64_t pitch, Value row) {
  // f(r) = r & 7, or (r >> 1) & 3 where two rows share 128 bytes.
  if (swizzleMask(pitch) == 7)
    return b.mul(b.andI(row, 7), kChunkBytes);
  return b.mul(b.andI(b.divU(row, 2), 3), kChunkBytes);
}

std::unique_ptr<TileLoader> TileLoader::create(AttentionKernel &kernel) {
  return kernel.spec.elementwise ? createElementLoader(kernel)
                                 : createCpAsyncLoader(kernel);
}

RowAddress mlir::diffattn::gpucode::findRow(AttentionKernel &kernel,
                                            const GlobalRows &rows, Value row) {
  GpuBuilder &b = kernel.b;
  Value exists = b.compare(LLVM::ICmpPredicate::slt, row, rows.limit);
  // A row beyond the limit reads the last one.
  row = b.minS(row, b.add(rows.limit, -1));
  Type half = b.getI16Type();
  Value base = rows.base;
  if (rows.pages) {
    PageTable::Place place = rows.pages->find(row);
    base =
        kernel.stridePointer(half, base, b.toI64(place.page), rows.pageStride);
    row = place.row;
    exists = b.andI(exists, place.exists);
  }
  return {kernel.stridePointer(half, base, b.toI64(row), rows.rowStride),
          exists};
}

ChunkWalk::ChunkWalk(AttentionKernel &kernel, const SharedTile &tile)
    : lanes(SharedTile::swizzleMask(tile.pitch) + 1),
      rowsPerPass(kernel.spec.getThreads() / lanes),
      passes(std::max<int64_t>(1, tile.rows / rowsPerPass)),
      columns(tile.pitch / kChunkBytes / lanes) {
  GpuBuilder &b = kernel.b;
  chunk = b.remU(kernel.thread, lanes);
  row = b.divU(kernel.thread, lanes);
  // The swizzle repeats after 8 rows: a pass of fewer rows has more than one
  // place to start.
  for (int64_t first = 0; first < std::max<int64_t>(8, rowsPerPass);
       first += rowsPerPass) {
    Value at = b.add(row, first);
    Value offset = b.add(b.mul(at, tile.pitch),
                         b.xorI(b.mul(chunk, kChunkBytes),
                                SharedTile::swizzle(b, tile.pitch, at)));
    targets.push_back(b.bytes(tile.base, offset));
  }
  partial = rowsPerPass > tile.rows;
}

void ChunkWalk::whereActive(GpuBuilder &b, const SharedTile &tile,
                            function_ref<void()> body) {
  if (partial)
    b.branch(b.compare(LLVM::ICmpPredicate::ult, row, b.i32(tile.rows)), body);
  else
    body();
}

Value ChunkWalk::target(GpuBuilder &b, const SharedTile &tile, int64_t pass,
                        int64_t column) {
  return b.bytes(targets[pass % repeat()],
                 pass / repeat() * repeat() * rowsPerPass * tile.pitch +
                     column * lanes * kChunkBytes);
}
