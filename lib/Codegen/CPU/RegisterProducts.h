//===- RegisterProducts.h - products of a block of queries ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products of numbers [key][lane] of a block of queries and keys with rows of
// memory, cut into calls of kernels by how many vectors of columns are left, or
// by how many tiles of queries where a matrix unit multiplies.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_REGISTERPRODUCTS_H
#define DIFFATTN_LIB_CODEGEN_CPU_REGISTERPRODUCTS_H

#include "MicroKernels.h"

namespace mlir::diffattn {

/// Row r of the block takes keys from low + r * lowSlope up to high + r *
/// highSlope, of those of a KV block.
struct RowRange {
  Value low, lowSlope, high, highSlope;
};

/// Rows that a product reads: row 0, how far apart they are, and their columns,
/// whose number `known` is where it is static. `padded`: zeros follow the last
/// column up to a whole vector.
struct ProductRows {
  Value base, stride, columns;
  SpecSize known;
  bool padded;
};

/// `p`, [key][lane] of `queries` lanes and `keys` keys, and rows of sums.
struct BlockProduct {
  Value p;
  ProductRows rows;
  Value out, outStride;
  Value queries, keys;
};

/// out[lane][c] += sum over keys of p[key][lane] * rows[key][c], of the keys
/// that `range` has for a lane. By matrix tiles p is as `getTileProductKernel`
/// reads it, rows are padded, and products are never `careful`.
void emitQueryProduct(KernelBuilder &b, ModuleOp module,
                      CpuPrefillAttr schedule, const ProductAtom &atom,
                      const BlockProduct &product, const RowRange &range,
                      bool careful = false);

/// out[key][c] += sum over lanes of p[key][lane] * rows[lane][c]. Rows are
/// padded; by matrix tiles, as `getTileKeyProductKernel` reads them, and
/// products are never `careful`.
void emitKeyProduct(KernelBuilder &b, ModuleOp module, CpuPrefillAttr schedule,
                    const ProductAtom &atom, const BlockProduct &product,
                    bool careful);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_REGISTERPRODUCTS_H
