//===- Versions.cpp - which versions run here -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Versions.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Target/CpuTarget.h"
#include "DiffAttn/Target/HostFacts.h"

#include "llvm/Config/llvm-config.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/TargetParser/Host.h"

#include <thread>

using namespace mlir::diffattn;

std::string mlir::diffattn::getVersionText() {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "diffattn " DIFFATTN_VERSION "\n"
     << "MLIR     " LLVM_VERSION_STRING "\n"
     << "GEMM     "
     << (std::string(diffattn_rt_gemm_library()) == "none"
             ? "our own (oneDNN 2 was not found; Debian: libdnnl-dev to build, "
               "libdnnl2 to run)"
             : diffattn_rt_gemm_library())
     << "\n";
  return text;
}

std::string mlir::diffattn::getMachineText() {
  std::string text;
  llvm::raw_string_ostream os(text);
  CpuTarget native = *getCpuTarget("native");
  os << "CPU      " << llvm::sys::getHostCPUName() << ", "
     << std::thread::hardware_concurrency() << " processors, "
     << diffattn_rt_threads() << " threads by default\n"
     << "ISA      " << native.name << " (native); can run";
  for (const CpuTarget &target : getCpuTargets())
    if (hostSupports(target))
      os << ' ' << target.name;
  for (const CpuTarget &target : getCpuTargets())
    if (hostHasFeatures(target) && !hostSupports(target))
      os << "; not " << target.name
         << ": of tiles the system says: " << getTileRefusal();
  os << "\nmeasured " << writeHostFacts(getHostFacts());
  os << "\ncaches   L1 " << (native.l1Bytes >> 10) << " KiB, L2 "
     << (native.l2Bytes >> 10) << " KiB, L3 share " << (native.l3Bytes >> 10)
     << " KiB\n";
  return text;
}
