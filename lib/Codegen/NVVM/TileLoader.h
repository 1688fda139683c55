//===- TileLoader.h - copies of tiles to shared memory ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_TILELOADER_H
#define DIFFATTN_LIB_CODEGEN_NVVM_TILELOADER_H

#include "DiffAttn/Codegen/NVVM/GpuBuilder.h"

#include <memory>

namespace mlir::diffattn::gpucode {
struct AttentionKernel;
class PageTable;

/// Rows of 16-bit numbers in shared memory. The 16-byte chunk c of row r lies
/// at r * pitch + 16 * (c ^ f(r)), so that neither ldmatrix nor cp.async has
/// bank conflicts.
struct SharedTile {
  Value base; // !llvm.ptr<3>
  int64_t rows, width, pitch;
  /// Bits of the chunk number that f changes.
  static int64_t swizzleMask(int64_t pitch) { return pitch % 128 == 0 ? 7 : 3; }
  /// f(row), shifted by 16 bytes.
  static Value swizzle(GpuBuilder &b, int64_t pitch, Value row);
};

/// Rows in global memory.
struct GlobalRows {
  Value base;                    // !llvm.ptr<1>, of batch and head
  Value rowStride, columnStride; // i64; the latter only for copies by element
  Value first,
      limit; // i32: the tile's first row; rows from `limit` on are zeros
  int64_t width;
  /// The pages in which rows lie, where `base` is that of the first page; null
  /// for dense rows.
  PageTable *pages = nullptr;
  Value pageStride = {}; // i64
};

/// The address of a row, and whether the row exists: if not, the address is
/// that of some other row.
struct RowAddress {
  Value pointer, exists;
};
RowAddress findRow(AttentionKernel &kernel, const GlobalRows &rows, Value row);

/// Copies tiles from global to shared memory, in groups, by all threads of the
/// block. A new kind of copy is a class and a line of `create`.
class TileLoader {
public:
  static std::unique_ptr<TileLoader> create(AttentionKernel &kernel);
  virtual ~TileLoader() = default;

  /// Starts the copy of `rows` to `tile`: zeros beyond the limit and beyond the
  /// width.
  virtual void copy(const SharedTile &tile, const GlobalRows &rows) = 0;
  /// Ends a group, which may be empty.
  virtual void commit() = 0;
  /// Waits until this thread's part of all groups but the last `groupsLeft` has
  /// arrived. Other threads see it after the block's next barrier.
  virtual void wait(int64_t groupsLeft) = 0;
};

/// A loader of 16 bytes at a time by cp.async: pointers, strides and widths are
/// multiples of that.
std::unique_ptr<TileLoader> createCpAsyncLoader(AttentionKernel &kernel);
/// A loader of single elements, for any strides and widths. `copy` is
/// synchronous.
std::unique_ptr<TileLoader> createElementLoader(AttentionKernel &kernel);

/// Bytes of an element, and of a chunk with its elements.
constexpr int64_t kElementBytes = 2, kChunkBytes = 16,
                  kChunkElements = kChunkBytes / kElementBytes;

/// The assignment of a tile's chunks to threads: 8 lanes to a row, or 4 where
/// two rows share 128 bytes, so that a quarter warp writes every bank once.
struct ChunkWalk {
  ChunkWalk(AttentionKernel &kernel, const SharedTile &tile);
  /// Runs `body` in the threads that have a row of the first pass.
  void whereActive(GpuBuilder &b, const SharedTile &tile,
                   function_ref<void()> body);
  /// Passes after which the swizzle repeats.
  int64_t repeat() const { return static_cast<int64_t>(targets.size()); }
  /// The address of the chunk of (pass, column).
  Value target(GpuBuilder &b, const SharedTile &tile, int64_t pass,
               int64_t column);

  int64_t lanes, rowsPerPass, passes, columns;
  Value chunk, row;
  SmallVector<Value> targets;
  /// Fewer rows than a pass of all threads has.
  bool partial;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_TILELOADER_H
