//===- SharedTiles.cpp - tiles in shared memory ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "AttentionKernel.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

/// Bytes of an element, and elements of a chunk.
static constexpr int64_t kElementBytes = 2, kChunkElements = 8,
                         kChunkBytes = 16;

/// Chunks that a thread copies by element at once. Loads of more of them, all
/// under way, take more registers than there are.
static constexpr int64_t kUnrolledChunks = 8;

Value SharedTile::swizzle(GpuBuilder &b, Value row) const {
  // f(r) = r & 7, or (r >> 1) & 3 where two rows share 128 bytes.
  if (swizzleMask() == 7)
    return b.mul(b.andI(row, 7), kChunkBytes);
  return b.mul(b.andI(b.divU(row, 2), 3), kChunkBytes);
}

void AttentionKernel::copyTile(const SharedTile &tile, const GlobalRows &rows) {
  if (spec.elementwise)
    copyTileElements(tile, rows);
  else
    copyTileAsync(tile, rows);
}

namespace {
/// How threads share out the chunks of a tile: 8 lanes to a row, or 4 where two
/// rows share 128 bytes, so that a quarter warp writes every bank once.
struct ChunkWalk {
  ChunkWalk(AttentionKernel &kernel, const SharedTile &tile)
      : lanes(tile.swizzleMask() + 1),
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
      Value offset =
          b.add(b.mul(at, tile.pitch),
                b.xorI(b.mul(chunk, kChunkBytes), tile.swizzle(b, at)));
      targets.push_back(b.bytes(tile.base, offset));
    }
    partial = rowsPerPass > tile.rows;
  }
  /// Runs `body` in the threads that have a row of the first pass.
  void whereActive(GpuBuilder &b, const SharedTile &tile,
                   function_ref<void()> body) {
    if (partial)
      b.branch(b.compare(LLVM::ICmpPredicate::ult, row, b.i32(tile.rows)),
               body);
    else
      body();
  }
  /// Passes after which the swizzle repeats.
  int64_t repeat() const { return static_cast<int64_t>(targets.size()); }
  /// Where the chunk of (pass, column) goes.
  Value target(GpuBuilder &b, const SharedTile &tile, int64_t pass,
               int64_t column) {
    return b.bytes(targets[pass % repeat()],
                   pass / repeat() * repeat() * rowsPerPass * tile.pitch +
                       column * lanes * kChunkBytes);
  }

  int64_t lanes, rowsPerPass, passes, columns;
  Value chunk, row;
  SmallVector<Value> targets;
  /// Fewer rows than a pass of all threads has.
  bool partial;
};
} // namespace

void AttentionKernel::copyTileAsync(const SharedTile &tile,
                                    const GlobalRows &rows) {
  ChunkWalk walk(*this, tile);
  Value first = b.add(rows.first, walk.row);
  int64_t chunks = rows.width / kChunkElements;
  Value rowBytes = b.mul(rows.rowStride, kElementBytes);
  Value source = b.bytes(b.bytes(rows.base, b.mul(b.toI64(first), rowBytes)),
                         b.toI64(b.mul(walk.chunk, kChunkBytes)));
  Value passBytes = b.mul(rowBytes, walk.rowsPerPass);
  walk.whereActive(b, tile, [&] {
    Value pointer = source;
    for (int64_t pass = 0; pass < walk.passes; ++pass) {
      if (pass)
        pointer = b.bytes(pointer, passBytes);
      Value row = b.add(first, pass * walk.rowsPerPass);
      Value valid =
          b.select(b.compare(LLVM::ICmpPredicate::slt, row, rows.limit),
                   b.i32(kChunkBytes), b.i32(0));
      for (int64_t column = 0; column < walk.columns; ++column) {
        Value bytes = valid;
        if (column * walk.lanes >= chunks)
          bytes = b.i32(0);
        else if ((column + 1) * walk.lanes > chunks)
          bytes = b.select(b.compare(LLVM::ICmpPredicate::ult, walk.chunk,
                                     b.i32(chunks - column * walk.lanes)),
                           valid, b.i32(0));
        b.copyAsync(walk.target(b, tile, pass, column),
                    b.bytes(pointer, column * walk.lanes * kChunkBytes), bytes);
      }
    }
  });
}

void AttentionKernel::copyTileElements(const SharedTile &tile,
                                       const GlobalRows &rows) {
  ChunkWalk walk(*this, tile);
  Type half = b.getI16Type();
  // Eight elements of a row, as four words.
  auto chunk = [&](Value row, int64_t column) {
    Value rowValid = b.compare(LLVM::ICmpPredicate::slt, row, rows.limit);
    // A row beyond the limit reads the last one and throws it away.
    Value readRow = b.minS(row, b.add(rows.limit, -1));
    Value source =
        stridePointer(half, rows.base, b.toI64(readRow), rows.rowStride);
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
        Value loaded =
            b.loadConstant(half, stridePointer(half, source, b.toI64(index),
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
    if (walk.passes * walk.columns <= kUnrolledChunks)
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

MatrixReader::MatrixReader(AttentionKernel &kernel, int64_t pitch,
                           Pattern pattern, Value chunk)
    : kernel(kernel), pitch(pitch), mask(pitch % 128 == 0 ? 7 : 3) {
  GpuBuilder &b = kernel.b;
  Value lane = kernel.lane;
  if (pattern == RowsFirst) {
    row = b.remU(lane, 16);
    half = b.divU(lane, 16);
  } else {
    row = b.add(b.remU(lane, 8), b.mul(b.divU(lane, 16), 8));
    half = b.remU(b.divU(lane, 8), 2);
  }
  if (chunk)
    half = b.add(half, chunk);
}

Fragment MatrixReader::read(Value tileBase, int64_t rowBlock, int64_t chunk,
                            bool transpose) {
  GpuBuilder &b = kernel.b;
  // (half + chunk) ^ f = (half ^ f) ^ (chunk & mask) + (chunk & ~mask), since
  // half and chunk have no bit in common.
  Value &offset = offsets[chunk & mask];
  if (!offset) {
    SharedTile tile{tileBase, 0, 0, pitch};
    Value swizzled =
        b.xorI(b.xorI(b.mul(half, kChunkBytes), tile.swizzle(b, row)),
               (chunk & mask) * kChunkBytes);
    offset = b.add(b.mul(row, pitch), swizzled);
  }
  Value pointer =
      b.bytes(b.bytes(tileBase, offset),
              rowBlock * 16 * pitch + (chunk & ~mask) * kChunkBytes);
  return b.loadMatrix(pointer, transpose);
}
