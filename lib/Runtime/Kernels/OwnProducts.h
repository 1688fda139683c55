//===- OwnProducts.h - Common parts of the runtime's products ---*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_KERNELS_OWNPRODUCTS_H
#define DIFFATTN_LIB_RUNTIME_KERNELS_OWNPRODUCTS_H

#include "../Support/Internal.h"

#include <algorithm>
#include <cstdlib>
#include <sys/mman.h>

namespace diffattn_rt {

inline int64_t divideCeil(int64_t x, int64_t y) { return (x + y - 1) / y; }

/// `count` elements of the thread's arena.
template <typename T>
T *allocate(int64_t count) {
  return static_cast<T *>(diffattn_rt_alloc(count * int64_t(sizeof(T))));
}

/// Allocates memory of a packed weight, for `free`: huge pages where it fills
/// one. Null if there is none.
inline void *allocatePanels(int64_t bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  const int64_t unit = bytes >= kHugePage ? kHugePage : 64;
  bytes = (bytes + unit - 1) / unit * unit;
  void *data = aligned_alloc(unit, bytes);
  if (data && unit == kHugePage)
    madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

/// The packed weight of `p` in `form`, made by `make` if its slot is empty;
/// null if it may not be packed, there is no memory, or it is in another form.
template <typename Make>
PackedWeight *packOnce(const Product &p, PackedWeight::Form form, Make make) {
  if (!p.weight || p.weight->flags & DIFFATTN_WEIGHT_NO_PACK)
    return nullptr;
  std::lock_guard<std::mutex> lock(packMutex);
  if (!p.weight->packed)
    p.weight->packed = static_cast<PackedWeight *>(make());
  auto *packed = static_cast<PackedWeight *>(p.weight->packed);
  return packed && packed->fits(form, p) ? packed : nullptr;
}

/// The part of C that one work item computes: rows [i, i + m) and columns
/// [j, j + n) of one matrix of the batch.
struct ProductTile {
  int64_t batch, i, m, j, n;
};

/// Stores sums of the rows [i, i + rows) of `tile`, as far as it has them, and
/// of its columns [j, j + n); `sums` lie `ld` elements from row to row.
inline void storeRows(const Product &p, const ProductTile &tile, int64_t i,
                      int64_t rows, int64_t j, int64_t n, const float *sums,
                      int64_t ld) {
  const int64_t size = static_cast<int64_t>(dtypeSize(p.dtC));
  char *C = static_cast<char *>(p.C) +
            (tile.batch * p.strideC + (tile.i + i) * p.ldc + tile.j + j) * size;
  for (int64_t row = 0; row < std::min(rows, tile.m - i); ++row)
    storeRow(p, n, sums + row * ld, C + row * p.ldc * size);
}

/// Calls `body` for each tile of `rows` rows and `columns` columns, and for
/// smaller ones at the ends, on up to `maxThreads` threads.
template <typename Body>
void forTiles(const Product &p, int64_t rows, int64_t columns,
              int64_t maxThreads, Body body) {
  const int64_t rowTiles = divideCeil(p.M, rows),
                columnTiles = divideCeil(p.N, columns);
  auto tile = [&](int64_t index) {
    ProductTile t;
    t.batch = index / (rowTiles * columnTiles);
    t.i = index / columnTiles % rowTiles * rows;
    t.j = index % columnTiles * columns;
    t.m = std::min(p.M - t.i, rows);
    t.n = std::min(p.N - t.j, columns);
    body(t);
  };
  parallelFor(p.batch * rowTiles * columnTiles, maxThreads, tile);
}

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_KERNELS_OWNPRODUCTS_H
