//===- PairExchange.h - exchange between two warps --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_PAIREXCHANGE_H
#define DIFFATTN_LIB_CODEGEN_NVVM_PAIREXCHANGE_H

#include "AttentionKernel.h"

namespace mlir::diffattn::gpucode {

/// The exchange between two warps that share rows, each with the softmax of one
/// map. Every lane writes to memory of its own and reads that of the same lane
/// of the other warp, 16, 8 or 4 bytes at a time and next to its neighbours':
/// without bank conflicts.
class PairExchange {
public:
  /// `rowGroup` numbers the pairs of a block.
  PairExchange(AttentionKernel &kernel, Value rowGroup);

  /// Gives the partner this warp's probabilities and factors of each row tile,
  /// and takes the partner's. Safe once a tile: the memory is overwritten only
  /// after the block's barrier of the next tile.
  SmallVector<OnlineSoftmax::Step> steps(ArrayRef<OnlineSoftmax::Step> own);
  /// Exchanges numbers with the partner after the loop. May be called again: it
  /// first waits until both warps have read the numbers before.
  SmallVector<Value> numbers(ArrayRef<Value> own);

private:
  Value slot(Value ofWarp);
  void meet() { b.namedBarrier(barrierId, 64); }

  AttentionKernel &kernel;
  GpuBuilder &b;
  Value barrierId;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_PAIREXCHANGE_H
