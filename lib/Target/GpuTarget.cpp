//===- GpuTarget.cpp - facts of NVIDIA GPUs -------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/GpuTarget.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>

using namespace mlir;
using namespace mlir::diffattn;

// CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability". Rates of the tensor cores: data sheets; for sm_90, 62 % of it,
// which mma.sync is known to reach of wgmma's. Rates of the L2: two thirds of
// its peak, shared by all multiprocessors.
static const GpuTarget kGpuTargets[] = {
    {"sm_80", "sm_80", 80, 164 << 10, 163 << 10, 2048, 32, 2, 0.5, 32, true},
    {"sm_86", "sm_86", 80, 100 << 10, 99 << 10, 1536, 16, 4, 0.25, 14, true},
    {"sm_89", "sm_89", 80, 100 << 10, 99 << 10, 1536, 24, 4, 0.25, 14, true},
    {"sm_90", "sm_90", 80, 228 << 10, 227 << 10, 2048, 32, 1.6, 0.25, 25, true,
     false, true},
    {"sm_90a", "sm_90a", 80, 228 << 10, 227 << 10, 2048, 32, 1.6, 0.25, 25,
     true, true, true},
};

/// A chip of a compute capability, and the letters that may follow its number:
/// they promise features of one chip or family alone. The code here uses those
/// of sm_90a, which has a table of its own, and no others.
struct ChipName {
  StringLiteral number, letters;
};
static constexpr ChipName kChipNames[] = {
    {"80", ""},    {"86", ""},    {"87", ""},    {"88", ""},    {"89", ""},
    {"90", ""},    {"90a", ""},   {"100", "af"}, {"101", "af"}, {"103", "af"},
    {"110", "af"}, {"120", "af"}, {"121", "af"}};

ArrayRef<StringRef> mlir::diffattn::getGpuChipNames() {
  static const StringRef kNames[] = {"sm_80", "sm_86", "sm_89", "sm_90",
                                     "sm_90a"};
  return kNames;
}

std::optional<GpuTarget> mlir::diffattn::getGpuTarget(StringRef chip,
                                                      std::string &error) {
  for (const GpuTarget &target : kGpuTargets)
    if (chip == target.chip)
      return target;
  StringRef name = chip;
  bool hasPrefix = name.consume_front("sm_");
  for (const ChipName &known : kChipNames) {
    StringRef letter = name;
    if (!hasPrefix || !letter.consume_front(known.number) ||
        letter.size() > 1 || !known.letters.contains(letter))
      continue;
    std::string number = "sm_" + known.number.str();
    for (const GpuTarget &target : kGpuTargets)
      if (number == target.chip)
        return target;
    GpuTarget target = kGpuTargets[0];
    target.tuned = false;
    target.binaryChip = number;
    return target;
  }
  auto names = llvm::map_range(kChipNames, [](const ChipName &known) {
    return "sm_" + known.number.str();
  });
  error = "expected a chip of " + llvm::join(names, ", ") + ", but got \"" +
          chip.str() + "\"";
  return std::nullopt;
}

StringRef mlir::diffattn::getNativeGpuChip(StringRef chip) {
  for (const GpuTarget &target : kGpuTargets) {
    StringRef letter = target.chip;
    if (letter.consume_front(chip) && letter == "a")
      return target.chip;
  }
  return chip;
}

bool mlir::diffattn::runsOnWgmmaChip(const GpuTarget &target) {
  const StringRef native = getNativeGpuChip(target.chip);
  return llvm::any_of(kGpuTargets, [&](const GpuTarget &known) {
    return known.chip == native && known.hasWgmma;
  });
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
