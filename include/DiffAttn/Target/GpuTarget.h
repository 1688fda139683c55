//===- GpuTarget.h - facts of NVIDIA GPUs -----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TARGET_GPUTARGET_H
#define DIFFATTN_TARGET_GPUTARGET_H

#include "mlir/Support/LLVM.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>

namespace mlir::diffattn {

/// Facts of one GPU architecture. All chips share 65536 registers an SM, 255
/// registers a thread, warps of 32 lanes and 16 named barriers.
struct GpuTarget {
  /// The chip that PTX is written for, for example "sm_80".
  std::string chip;
  /// The chip that a cubin is made for: `chip`, or a newer one than those of
  /// the tables, which takes the PTX of `chip`.
  std::string binaryChip;
  /// PTX version of the code, as LLVM writes it (80 is 8.0).
  int64_t ptxVersion = 80;
  /// Shared memory of one SM, and the most that one block may have of it.
  int64_t sharedBytesPerSM = 0, sharedBytesPerBlock = 0;
  int64_t threadsPerSM = 0, blocksPerSM = 0;
  /// Cycles that a warp scheduler's tensor core needs by mma.sync for 512
  /// multiply-adds of 16-bit numbers accumulated in f32, cycles that the SM
  /// needs for 64 f32 operations, and bytes that it gets from the L2 in a cycle
  /// when all SMs read.
  double mmaCycles = 2, fp32Cycles = 0.5, l2Bytes = 32;
  /// Whether schedules were chosen for this chip; else it gets those of sm_80.
  bool tuned = true;
  /// Whether code may use wgmma, tensor maps and mbarriers.
  bool hasWgmma = false;
  /// Whether a kernel may start before the one ahead of it has ended, and wait
  /// for that itself (programmatic dependent launch).
  bool hasDependentLaunch = false;

  /// The most that a product with sm_90 has: H100 and H200 SXM, GH200.
  static constexpr int64_t kHopperMultiprocessors = 132;
  static constexpr int64_t kRegistersPerSM = 65536;
  static constexpr int64_t kRegistersPerThread = 255;
  static constexpr int64_t kWarpSize = 32;
  /// Bytes that a thread copies at once by cp.async at most; strides of tensor
  /// maps are multiples of it too.
  static constexpr int64_t kCopiedBytes = 16;
  /// Steps along an axis of a tensor map are shorter, in bytes
  /// (cuTensorMapEncodeTiled).
  static constexpr int64_t kMaxMapStride = int64_t(1) << 40;
  /// Shared memory that the driver keeps of each block.
  static constexpr int64_t kReservedSharedBytes = 1024;
};

/// The chips that have tables of their own, oldest first.
ArrayRef<StringRef> getGpuChipNames();

/// The target called `chip`. Another chip than those of the tables gets the
/// code of sm_80, with `tuned` false. Nothing, and a message in `error` with
/// the chips there are, if the name is none or the chip is older than sm_80.
std::optional<GpuTarget> getGpuTarget(StringRef chip, std::string &error);

/// The chip to compile for on a GPU that calls itself `chip`, without a letter:
/// its variant with architecture-specific features (sm_90a) if that has a
/// table, else `chip`.
StringRef getNativeGpuChip(StringRef chip);

/// Whether code for `target` runs on a chip that has wgmma, which code for that
/// chip alone may use.
bool runsOnWgmmaChip(const GpuTarget &target);

/// Blocks that one SM holds at a time, by threads (from 1; a part of a warp
/// counts as a warp), registers and shared memory.
int64_t getGpuOccupancy(const GpuTarget &target, int64_t threads,
                        int64_t registersPerThread, int64_t sharedBytes);

} // namespace mlir::diffattn

#endif // DIFFATTN_TARGET_GPUTARGET_H
