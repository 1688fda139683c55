//===- CpuTarget.cpp - facts of CPUs --------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/CpuTarget.h"

#include "DiffAttn/Runtime/ABI/TilePermission.h"
#include "DiffAttn/Target/HostFacts.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/Errno.h"
#include "llvm/TargetParser/Host.h"

#include <unistd.h>

using namespace mlir;
using namespace mlir::diffattn;

static constexpr StringRef kAvx512Features[] = {
    "+avx512f",  "+avx512bw", "+avx512dq", "+avx512vl",
    "+avx512cd", "+avx2",     "+fma",      "+f16c"};
static constexpr StringRef kAvx512Bf16Features[] = {
    "+avx512bf16", "+avx512f", "+avx512bw", "+avx512dq", "+avx512vl",
    "+avx512cd",   "+avx2",    "+fma",      "+f16c"};
static constexpr StringRef kAmxFeatures[] = {
    "+amx-bf16", "+amx-tile", "+avx512f", "+avx512bw", "+avx512dq",
    "+avx512vl", "+avx512cd", "+avx2",    "+fma",      "+f16c"};
static constexpr StringRef kAvx2Features[] = {"+avx2", "+fma", "+f16c"};
static constexpr StringRef kWideVectors[] = {"-prefer-256-bit"};

/// Intel's cores with AVX-512 gain from it, Zen 4 does not. `native` measures
/// it (HostFacts.h).
static constexpr int64_t kPrefetchBytes = 4096;

/// The targets, best first. `isFastHere` tests those that are not the best on
/// every CPU with their features.
static const CpuTarget kCpuTargets[] = {
    {"amx", "x86-64-v4", kWideVectors, kAmxFeatures, 64, 32,
     /*emulatesTiles=*/false, kPrefetchBytes},
    {"avx512bf16", "x86-64-v4", kWideVectors, kAvx512Bf16Features, 64, 32},
    {"avx512", "x86-64-v4", kWideVectors, kAvx512Features, 64, 32,
     /*emulatesTiles=*/false, kPrefetchBytes},
    {"avx2", "x86-64-v3", {}, kAvx2Features, 32, 16},
    {"generic", "x86-64", {}, {}, 16, 16},
    {"amx-emulated",
     "x86-64-v3",
     {},
     kAvx2Features,
     64,
     32,
     /*emulatesTiles=*/true},
};

bool CpuTarget::has(StringRef feature) const {
  return llvm::any_of(features, [&](StringRef listed) {
    return listed.drop_front() == feature;
  });
}

ArrayRef<CpuTarget> mlir::diffattn::getCpuTargets() { return kCpuTargets; }

ArrayRef<StringRef> mlir::diffattn::getCpuIsaNames() {
  static const SmallVector<StringRef> names = [] {
    SmallVector<StringRef> result{"native"};
    for (const CpuTarget &target : kCpuTargets)
      result.push_back(target.name);
    return result;
  }();
  return names;
}

bool mlir::diffattn::hostHasFeatures(const CpuTarget &target) {
  llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  return llvm::all_of(target.features, [&](StringRef feature) {
    return features.lookup(feature.drop_front());
  });
}

bool mlir::diffattn::hostSupports(const CpuTarget &target) {
  return hostHasFeatures(target) &&
         (!target.has("amx-tile") || getTileRefusal().empty());
}

std::string mlir::diffattn::getTileRefusal() {
  int error = diffattn_rt::requestTiles();
  return error ? llvm::sys::StrError(error) : "";
}

std::string mlir::diffattn::getNativeRefusal() {
  for (const CpuTarget &target : kCpuTargets)
    if (hostHasFeatures(target) && !hostSupports(target))
      return "this CPU has what " + target.name.str() +
             " needs, but of tiles the system says: " + getTileRefusal();
  return "";
}

/// Whether code for `target` is the best on this machine, which has its
/// features.
static bool isFastHere(const CpuTarget &target) {
  return !target.hasBf16Dot() || getHostFacts().hasFastBf16Dot;
}

static void readCaches(CpuTarget &target) {
#ifdef _SC_LEVEL1_DCACHE_SIZE
  // A virtual machine may hide a level, which then keeps its default.
  if (long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE); bytes > 0)
    target.l1Bytes = bytes;
  if (long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0)
    target.l2Bytes = bytes;
  // Eight cores share a last-level cache on most servers.
  if (long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE); bytes > 0)
    target.l3Bytes = bytes / 8;
#endif
}

int64_t CpuTarget::getBusyPrefetchBytes() const {
  // 8 rows of 128 numbers of 16 bits: less comes too late, more did not gain.
  constexpr int64_t kMinBytes = 2048;
  const bool isBusy = vectorRegisters < 32 && !isPrefetchGiven;
  return isBusy ? std::max(prefetchBytes, kMinBytes) : prefetchBytes;
}

std::optional<CpuTarget> mlir::diffattn::getCpuTarget(StringRef name) {
  const bool native = name == "native";
  for (const CpuTarget &row : kCpuTargets) {
    if (native ? !hostSupports(row) || !isFastHere(row) : row.name != name)
      continue;
    CpuTarget target = row;
    if (native) {
      target.prefetchBytes = getHostFacts().prefetchBytes;
      readCaches(target);
    }
    return target;
  }
  return std::nullopt;
}

llvm::Expected<CpuTarget> mlir::diffattn::getCpuTarget(StringRef name,
                                                       int64_t prefetchBytes) {
  std::optional<CpuTarget> target = getCpuTarget(name);
  if (!target)
    return llvm::createStringError("expected isa to be one of " +
                                   llvm::join(getCpuIsaNames(), ", ") +
                                   ", but got " + name);
  if (prefetchBytes < -1 || prefetchBytes > kMaxPrefetchBytes)
    return llvm::createStringError(
        "expected prefetch-bytes to be between 0 and " +
        llvm::Twine(kMaxPrefetchBytes) + ", or -1, but got " +
        llvm::Twine(prefetchBytes));
  if (prefetchBytes >= 0) {
    target->prefetchBytes = prefetchBytes;
    target->isPrefetchGiven = true;
  }
  return *target;
}
