//===- GpuTarget.cpp - facts of NVIDIA GPUs -------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/GpuTarget.h"

#include "llvm/ADT/StringExtras.h"

#include <algorithm>

using namespace mlir;
using namespace mlir::diffattn;

// CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability". Rates of the tensor cores: data sheets; sm_90 is given the rate
// of sm_80, since mma.sync does not reach wgmma's.
static const GpuTarget kTargets[] = {
    {"sm_80", "sm_80", 80, 164 << 10, 163 << 10, 2048, 32, 2, 0.5, true},
    {"sm_86", "sm_86", 80, 100 << 10, 99 << 10, 1536, 16, 4, 0.25, true},
    {"sm_89", "sm_89", 80, 100 << 10, 99 << 10, 1536, 24, 4, 0.25, true},
    {"sm_90", "sm_90", 80, 228 << 10, 227 << 10, 2048, 32, 2, 0.25, true},
};

ArrayRef<StringRef> mlir::diffattn::getGpuChipNames() {
  static const StringRef kNames[] = {"sm_80", "sm_86", "sm_89", "sm_90"};
  return kNames;
}

std::optional<GpuTarget> mlir::diffattn::getGpuTarget(StringRef chip,
                                                      std::string &error) {
  for (const GpuTarget &target : kTargets)
    if (chip == target.chip)
      return target;
  StringRef digits = chip;
  unsigned number = 0;
  // A letter at the end promises features of one chip alone; the code here
  // needs none.
  if (digits.consume_front("sm_") && !digits.empty() &&
      (llvm::isDigit(digits.back()) || digits.back() == 'a' ||
       digits.back() == 'f')) {
    if (!llvm::isDigit(digits.back()))
      digits = digits.drop_back();
    if (!digits.getAsInteger(10, number) && number >= 80) {
      for (const GpuTarget &target : kTargets)
        if (digits == StringRef(target.chip).drop_front(3))
          return target;
      GpuTarget target = kTargets[0];
      target.tuned = false;
      target.binaryChip = "sm_" + digits.str();
      return target;
    }
  }
  error = "expected a chip of " + llvm::join(getGpuChipNames(), ", ") +
          " or a newer one, but got \"" + chip.str() + "\"";
  return std::nullopt;
}

int64_t mlir::diffattn::getGpuOccupancy(const GpuTarget &target,
                                        int64_t threads,
                                        int64_t registersPerThread,
                                        int64_t sharedBytes) {
  int64_t warps = (threads + GpuTarget::kWarpSize - 1) / GpuTarget::kWarpSize;
  // Registers are given to warps in units of 256.
  int64_t perWarp =
      (registersPerThread * GpuTarget::kWarpSize + 255) / 256 * 256;
  int64_t byRegisters = perWarp ? GpuTarget::kRegistersPerSM / perWarp / warps
                                : target.blocksPerSM;
  int64_t byShared =
      target.sharedBytesPerSM / (sharedBytes + GpuTarget::kReservedSharedBytes);
  if (sharedBytes > target.sharedBytesPerBlock)
    byShared = 0;
  return std::min({byRegisters, byShared,
                   target.threadsPerSM / (warps * GpuTarget::kWarpSize),
                   target.blocksPerSM});
}
