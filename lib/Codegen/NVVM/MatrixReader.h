//===- MatrixReader.h - operands of mma.sync in shared memory ---*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_MATRIXREADER_H
#define DIFFATTN_LIB_CODEGEN_NVVM_MATRIXREADER_H

#include "AttentionKernel.h"

namespace mlir::diffattn::gpucode {

/// Addresses of ldmatrix in one tile. Lane l names row `row` of a block of 16
/// and chunk `half` of a pair; the rest are constants, which become part of the
/// instructions.
class MatrixReader {
public:
  /// A (16 rows x 16 columns) and, transposed, B from rows along the contracted
  /// axis; B from rows along its columns; A of 8 rows, whose others are zeros.
  enum Pattern { RowsFirst, ColumnsFirst, EightRows };
  /// Panels of 64 columns lie `panelBytes` apart, or, with 0, side by side.
  MatrixReader(AttentionKernel &kernel, int64_t pitch, Pattern pattern,
               Value chunk = {}, int64_t panelBytes = 0);
  /// Reads rows from 16 * rowBlock on and chunks from `chunk` on, whose low
  /// bits are the lane's.
  Fragment read(Value tileBase, int64_t rowBlock, int64_t chunk,
                bool transpose);

private:
  AttentionKernel &kernel;
  int64_t pitch, mask, panelBytes;
  Pattern pattern;
  Value row, half;
  DenseMap<int64_t, Value> offsets;
};

/// c + A B of one mma.sync.m16n8k16, with operands of the 16-bit `type`.
Fragment multiplyFragments(GpuBuilder &b, Type type, const Fragment &a,
                           Value b0, Value b1, const Fragment &c);

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_MATRIXREADER_H
