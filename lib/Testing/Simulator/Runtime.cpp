//===- Runtime.cpp - functions that compiled kernels call -----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Runtime.h"
#include "Block.h"

#include <cmath>
#include <cstring>

using namespace mlir::diffattn::sim;

static void *simAccess(uint64_t address, uint64_t bytes, uint32_t site) {
  return Block::current()->access(address, bytes, site);
}

static void simCollective(uint32_t site, const uint32_t *in, uint32_t *out) {
  Block::current()->collective(site, in, out);
}

static void simAsynchronous(uint32_t site, const uint32_t *in, uint32_t *out) {
  Block::current()->asynchronous(site, in, out);
}

static void simRegisters(uint32_t use, uint32_t site, uint32_t wgmma) {
  Block::current()->useRegisters(static_cast<RegisterUse>(use), site, wgmma);
}

static void simCopy(uint64_t destination, uint64_t source, uint32_t bytes,
                    uint32_t site) {
  Block::current()->copyAsync(destination, source, bytes, site);
}

static void simCommit() { Block::current()->commitCopies(); }

static void simWait(int64_t newest) { Block::current()->waitForCopies(newest); }

static uint32_t simRegister(uint32_t which) {
  return Block::current()->specialRegister(which);
}

static float simApproximate(uint32_t function, float x, uint32_t flush) {
  return Block::current()->approximation(static_cast<Approx>(function), x,
                                         flush);
}

static float simDivide(float a, float b, uint32_t flush) {
  return Block::current()->division(a, b, flush);
}

static uint32_t simRound(uint32_t mode, float value) {
  switch (mode) {
  case 0:
    return floatToHalf(value);
  case 1:
    return floatToBfloat(value);
  case 2:
    return floatToHalfTowardZero(value);
  default:
    return floatToBfloatTowardZero(value);
  }
}

/// Each result byte is chosen from the eight of b:a by four bits; the fourth
/// one fills it with its sign.
static uint32_t simPermute(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t bytes = a | uint64_t(b) << 32;
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    unsigned choice = selector >> (4 * i) & 15;
    uint32_t byte = bytes >> (8 * (choice & 7)) & 0xff;
    if (choice & 8)
      byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}

static void simStep(uint32_t site) { Block::current()->step(site); }

static void simTrap(uint32_t site) { Block::current()->trap(site); }

static void simUndefined(uint32_t isFault, int64_t offset, uint32_t site) {
  if (isFault)
    Block::current()->stopUndefined(site, offset);
}

static void simIndex(uint32_t isOutside, int64_t index, uint32_t site) {
  if (isOutside)
    Block::current()->reportIndex(index, site);
}

static void simGridWait() { Block::current()->waitForKernels(); }

static void simExit() { Block::current()->exitThread(); }

llvm::ArrayRef<std::pair<llvm::StringLiteral, void *>>
mlir::diffattn::sim::getRuntimeSymbols() {
  static float (*const fusedSingle)(float, float, float) = &std::fma;
  static const std::pair<llvm::StringLiteral, void *> symbols[] = {
      {"diffattn_sim_access", reinterpret_cast<void *>(&simAccess)},
      {"diffattn_sim_collective", reinterpret_cast<void *>(&simCollective)},
      {"diffattn_sim_asynchronous", reinterpret_cast<void *>(&simAsynchronous)},
      {"diffattn_sim_registers", reinterpret_cast<void *>(&simRegisters)},
      {"diffattn_sim_copy", reinterpret_cast<void *>(&simCopy)},
      {"diffattn_sim_commit", reinterpret_cast<void *>(&simCommit)},
      {"diffattn_sim_wait", reinterpret_cast<void *>(&simWait)},
      {"diffattn_sim_register", reinterpret_cast<void *>(&simRegister)},
      {"diffattn_sim_approximate", reinterpret_cast<void *>(&simApproximate)},
      {"diffattn_sim_divide", reinterpret_cast<void *>(&simDivide)},
      {"diffattn_sim_round", reinterpret_cast<void *>(&simRound)},
      {"diffattn_sim_permute", reinterpret_cast<void *>(&simPermute)},
      {"diffattn_sim_step", reinterpret_cast<void *>(&simStep)},
      {"diffattn_sim_trap", reinterpret_cast<void *>(&simTrap)},
      {"diffattn_sim_undefined", reinterpret_cast<void *>(&simUndefined)},
      {"diffattn_sim_index", reinterpret_cast<void *>(&simIndex)},
      {"diffattn_sim_grid_wait", reinterpret_cast<void *>(&simGridWait)},
      {"diffattn_sim_exit", reinterpret_cast<void *>(&simExit)},
      // Functions that LLVM calls on x86 for common intrinsics.
      {"fmaf", reinterpret_cast<void *>(fusedSingle)},
      {"memcpy", reinterpret_cast<void *>(&memcpy)},
      {"memmove", reinterpret_cast<void *>(&memmove)},
      {"memset", reinterpret_cast<void *>(&memset)},
  };
  return symbols;
}
