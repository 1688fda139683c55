//===- KVPipeline.h - tiles of keys and values under way --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_KVPIPELINE_H
#define DIFFATTN_LIB_CODEGEN_NVVM_KVPIPELINE_H

#include "AttentionKernel.h"

namespace mlir::diffattn::gpucode {

/// The multi-buffered pipeline through which K1, K2 and V of one head come into
/// shared memory, a tile of keys at a time. A stage is an i32, its offset in
/// bytes from the first one.
///
/// Safety. (1) A stage is read only after this thread's wait for its copies and
/// the block's barrier after it. (2) A stage is refilled only after the barrier
/// of the next tile, which every warp passes after its last read.
class KVPipeline {
public:
  /// Of the heads that signal head `head`, with noise head `noiseHead`, reads
  /// in `batch`.
  KVPipeline(AttentionKernel &kernel, Value batch, Value head, Value noiseHead);

  /// Starts the copies of the first tiles from `tile`, all stages but one.
  void fill(Value tile, Value endTile);
  /// Waits for `tile`, which lies in `stage`, and starts the copy of the one
  /// that takes the place of the last tile. After it, all warps may read.
  void advance(Value tile, Value stage, Value endTile);
  /// The stage after `stage`.
  Value following(Value stage);

  /// Addresses in shared memory: K of the first map (or of the only K), what
  /// lies between the maps, and V.
  Value keys(Value stage);
  Value values(Value stage);

private:
  void issue(Value tile, Value stage);

  AttentionKernel &kernel;
  GpuBuilder &b;
  int64_t stages, tileKeys;
  Value key1, key2, value;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_KVPIPELINE_H
