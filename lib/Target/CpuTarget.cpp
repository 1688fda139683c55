//===- CpuTarget.cpp - facts of CPUs --------------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/CpuTarget.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
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
static constexpr StringRef kAvx2Features[] = {"+avx2", "+fma", "+f16c"};
static constexpr StringRef kIsaNames[] = {"native", "avx512bf16", "avx512",
                                          "avx2", "generic"};

ArrayRef<StringRef> CpuTarget::getFeatures() const {
  switch (isa) {
  case CpuIsa::AVX512BF16:
    return kAvx512Bf16Features;
  case CpuIsa::AVX512:
    return kAvx512Features;
  case CpuIsa::AVX2:
    return kAvx2Features;
  case CpuIsa::Generic:
    return {};
  }
  llvm_unreachable("all ISAs are listed");
}

ArrayRef<StringRef> mlir::diffattn::getCpuIsaNames() { return kIsaNames; }

StringRef mlir::diffattn::stringifyCpuIsa(CpuIsa isa) {
  return kIsaNames[static_cast<int>(isa) + 1];
}

static CpuTarget makeTarget(CpuIsa isa) {
  CpuTarget target;
  target.isa = isa;
  switch (isa) {
  case CpuIsa::AVX512BF16:
  case CpuIsa::AVX512:
    target.vectorBytes = 64;
    target.vectorRegisters = 32;
    target.hasHalfConversion = true;
    target.fastBf16Dot = isa == CpuIsa::AVX512BF16;
    break;
  case CpuIsa::AVX2:
    target.vectorBytes = 32;
    target.hasHalfConversion = true;
    break;
  case CpuIsa::Generic:
    break;
  }
  return target;
}

bool mlir::diffattn::hostSupports(CpuIsa isa) {
  llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  return llvm::all_of(makeTarget(isa).getFeatures(), [&](StringRef feature) {
    return features.lookup(feature.drop_front());
  });
}

/// Zen 4 and later run VDPBF16PS twice as fast as an FMA; Sapphire Rapids and
/// Cooper Lake run it at half the rate.
static bool hostHasFastBf16Dot() {
  return hostSupports(CpuIsa::AVX512BF16) &&
         llvm::sys::getHostCPUName().starts_with("znver");
}

static void readCaches(CpuTarget &target) {
#ifdef _SC_LEVEL1_DCACHE_SIZE
  // A virtual machine may hide a level: what is not known keeps its default.
  if (long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE); bytes > 0)
    target.l1Bytes = bytes;
  if (long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0)
    target.l2Bytes = bytes;
  // Eight cores share a last-level cache on most servers.
  if (long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE); bytes > 0)
    target.l3Bytes = bytes / 8;
#endif
}

std::optional<CpuTarget> mlir::diffattn::getCpuTarget(StringRef name) {
  if (name == "native") {
    CpuIsa isa = CpuIsa::Generic;
    if (hostHasFastBf16Dot())
      isa = CpuIsa::AVX512BF16;
    else if (hostSupports(CpuIsa::AVX512))
      isa = CpuIsa::AVX512;
    else if (hostSupports(CpuIsa::AVX2))
      isa = CpuIsa::AVX2;
    CpuTarget target = makeTarget(isa);
    readCaches(target);
    return target;
  }
  for (CpuIsa isa :
       {CpuIsa::AVX512BF16, CpuIsa::AVX512, CpuIsa::AVX2, CpuIsa::Generic})
    if (stringifyCpuIsa(isa) == name)
      return makeTarget(isa);
  return std::nullopt;
}
