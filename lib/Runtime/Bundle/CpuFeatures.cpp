//===- CpuFeatures.cpp - features of this CPU -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "CpuFeatures.h"

#include "DiffAttn/Runtime/ABI/TilePermission.h"

#include <cpuid.h>
#include <cstdint>

using namespace diffattn_rt;

namespace {

enum Register { EAX, EBX, ECX, EDX };

/// Bits of XCR0 for the parts of the register file that the system must save.
constexpr uint64_t kNone = 0, kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;

struct Feature {
  const char *name; // as LLVM calls it
  unsigned leaf, subleaf;
  Register where;
  int bit;
  uint64_t saved;
};

/// Intel's manual, volume 2, CPUID; AMD's, volume 3, appendix E.
constexpr Feature kFeatures[] = {
    {"sse3", 1, 0, ECX, 0, kNone},
    {"ssse3", 1, 0, ECX, 9, kNone},
    {"fma", 1, 0, ECX, 12, kYmm},
    {"cx16", 1, 0, ECX, 13, kNone},
    {"sse4.1", 1, 0, ECX, 19, kNone},
    {"sse4.2", 1, 0, ECX, 20, kNone},
    {"crc32", 1, 0, ECX, 20, kNone},
    {"movbe", 1, 0, ECX, 22, kNone},
    {"popcnt", 1, 0, ECX, 23, kNone},
    {"xsave", 1, 0, ECX, 26, kNone},
    {"avx", 1, 0, ECX, 28, kYmm},
    {"f16c", 1, 0, ECX, 29, kYmm},
    {"bmi", 7, 0, EBX, 3, kNone},
    {"avx2", 7, 0, EBX, 5, kYmm},
    {"bmi2", 7, 0, EBX, 8, kNone},
    {"avx512f", 7, 0, EBX, 16, kZmm},
    {"avx512dq", 7, 0, EBX, 17, kZmm},
    {"avx512cd", 7, 0, EBX, 28, kZmm},
    {"avx512bw", 7, 0, EBX, 30, kZmm},
    {"avx512vl", 7, 0, EBX, 31, kZmm},
    {"avx512bf16", 7, 1, EAX, 5, kZmm},
    {"amx-bf16", 7, 0, EDX, 22, kTiles},
    {"amx-tile", 7, 0, EDX, 24, kTiles},
    {"sahf", 0x80000001, 0, ECX, 0, kNone},
    {"lzcnt", 0x80000001, 0, ECX, 5, kNone},
};

bool readLeaf(unsigned leaf, unsigned subleaf, unsigned (&out)[4]) {
  return __get_cpuid_count(leaf, subleaf, &out[EAX], &out[EBX], &out[ECX],
                           &out[EDX]) != 0;
}

/// XCR0, or nothing saved where the system does not use XSAVE.
uint64_t savedState() {
  unsigned basic[4];
  constexpr int kOsXSave = 27;
  if (!readLeaf(1, 0, basic) || !(basic[ECX] >> kOsXSave & 1))
    return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

} // namespace

FeatureState diffattn_rt::getCpuFeature(std::string_view name) {
  static const uint64_t saved = savedState();
  for (const Feature &feature : kFeatures) {
    if (name != feature.name)
      continue;
    unsigned words[4];
    bool present = readLeaf(feature.leaf, feature.subleaf, words) &&
                   (words[feature.where] >> feature.bit & 1) &&
                   (saved & feature.saved) == feature.saved;
    if (present && feature.saved == kTiles && requestTiles() != 0)
      return FeatureState::Refused;
    return present ? FeatureState::Present : FeatureState::Missing;
  }
  return FeatureState::Unknown;
}
