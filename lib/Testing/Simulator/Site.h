//===- Site.h - instructions that call the runtime --------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_SITE_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_SITE_H

#include "DiffAttn/Testing/Simulator/Report.h"

namespace mlir::diffattn::sim {

/// Shared memory as kernels see it: an address is the base plus an offset. The
/// base fits into 32 bits, and is more aligned than any array, so that an array
/// is exactly as aligned as its offset.
inline constexpr uint64_t kSharedBase = 0x0100'0000;
inline constexpr uint64_t kSharedWindow = 0x0100'0000;

/// The shared memory of the blocks of a cluster, one window after the other, as
/// mapa names it.
inline constexpr uint64_t kClusterBase = kSharedBase + kSharedWindow;
inline constexpr unsigned kMaxRanks = 8;

/// Addresses of buffers: a tag that no pointer of this machine has, the number
/// of the buffer, and an offset from the middle of 2^40 bytes, so that overruns
/// on either side stay in the same window.
inline constexpr uint64_t kGlobalTag = uint64_t(1) << 62;
inline constexpr unsigned kGlobalWindowBits = 40;
inline constexpr uint64_t kGlobalMiddle = uint64_t(1)
                                          << (kGlobalWindowBits - 1);

enum class OpKind : uint8_t {
  Load,
  Store,
  Atomic,
  CopyAsync,
  CopyCommit,
  CopyWait,
  LdMatrix,
  StMatrix,
  Mma,
  Shuffle,
  Vote,
  Match,
  Redux,
  Elect,
  WarpSync,
  BarrierSync,
  BarrierArrive,
  BarrierReduce,
  Step,
  Trap,
  Division,
  Unreachable,
  LocalAccess,
  IndexCheck,
  MbarrierInit,
  MbarrierInval,
  MbarrierArrive,
  MbarrierExpect,
  MbarrierWait,
  MbarrierFence,
  ProxyFence,
  TensorLoad,
  TensorStore,
  BulkLoad,
  BulkCommit,
  BulkWait,
  Wgmma,
  WgmmaFence,
  WgmmaCommit,
  WgmmaWait,
  SetRegisters,
  ClusterArrive,
  ClusterWait,
};

enum class ShuffleMode : uint8_t { Up, Down, Butterfly, Index };
enum class VoteMode : uint8_t { All, Any, Uniform, Ballot };
enum class ReduxMode : uint8_t { Add, Min, Max, UMin, UMax, And, Or, Xor };
enum class BarrierReduction : uint8_t { Popc, And, Or };
enum class MmaType : uint8_t { F16, BF16, TF32 };
/// Use by a thread of registers that a wgmma reads or writes.
enum class RegisterUse : uint8_t {
  /// Computes an accumulator, or a register of A.
  ComputesSum,
  ComputesA,
  /// Gets accumulators out of a wait or a tie and reads them.
  Takes,
  /// Reads accumulators that went through no wait.
  Bypasses,
};

/// A site stands for one instruction of the module. Its number names it in
/// calls to the runtime; a return address could not, because code may be
/// copied.
struct Site {
  OpKind kind = OpKind::Step;
  /// The address space that the IR gives a pointer; 0 is generic.
  uint8_t space = 0;
  /// A ShuffleMode, VoteMode, ReduxMode or BarrierReduction; how many groups a
  /// wait of wgmma or of bulk copies leaves under way.
  uint8_t mode = 0;
  /// Whether all threads of a warp must execute it together.
  bool aligned = false;
  /// ldmatrix and stmatrix: transposed. Barriers: all threads of the block.
  /// match: all. Shuffle and match: with predicate.
  bool transposed = false, wholeBlock = false, matchAll = false;
  /// mma.
  MmaType type = MmaType::F16;
  bool halfAccumulator = false;
  uint8_t depth = 16;
  /// ldmatrix and stmatrix.
  uint8_t matrices = 0;
  /// wgmma: its number among those of the module, columns of B, and whether A
  /// comes from registers.
  uint16_t number = 0, columns = 0;
  bool fromRegisters = false;
  /// Tensor copies: axes. Waits for bulk copies: whether reading ends it.
  uint8_t rank = 0;
  bool readsOnly = false;
  /// Tensor copies: into several blocks. Arrivals at the cluster: releases
  /// nothing.
  bool multicast = false, relaxed = false;
  /// Loads, stores, copies: size and the alignment that the IR promises. match:
  /// bytes of the value.
  uint32_t bytes = 0;
  uint32_t alignment = 1;
  /// Whether an atomic adds floating-point numbers.
  bool addsFloats = false;
  /// Whether the kernel promised that nothing writes this memory.
  bool invariant = false;
  /// Words that a collective takes and gives.
  uint8_t words = 0, results = 0;
  SourcePoint where = {};

  bool isMbarrier() const {
    return kind >= OpKind::MbarrierInit && kind <= OpKind::MbarrierWait;
  }
  /// Whether it needs what sm_90 has beside the threads.
  bool isAsynchronous() const { return kind >= OpKind::MbarrierInit; }
  bool isWgmmaFamily() const {
    return kind >= OpKind::Wgmma && kind <= OpKind::WgmmaWait;
  }

  bool touchesMemory() const {
    return kind <= OpKind::CopyAsync || kind == OpKind::LdMatrix ||
           kind == OpKind::StMatrix;
  }
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_SITE_H
