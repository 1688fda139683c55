//===- Simulator.h - runs GPU kernels on the CPU ----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Takes the LLVM IR that goes to NVPTX, turns it into code of this machine and
// runs every lane of every warp, with checks that a GPU does not make.
// docs/simulator.md says what a clean run proves and what it does not.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TESTING_SIMULATOR_SIMULATOR_H
#define DIFFATTN_TESTING_SIMULATOR_SIMULATOR_H

#include "DiffAttn/Testing/Simulator/Report.h"
#include "DiffAttn/Testing/Simulator/TensorMap.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/Error.h"

#include <memory>

namespace llvm {
class Module;
} // namespace llvm

namespace mlir::diffattn::sim {

/// Properties of a chip that the simulator reads. The numbers come from Target.
struct SimChip {
  std::string name = "sm_80";
  /// Compute capability times ten: 80 for sm_80.
  unsigned capability = 80;
  /// Shared memory that one block may use, static and dynamic.
  uint32_t sharedBytesPerBlock = 163 << 10;
  uint32_t threadsPerBlock = 1024;
};

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t(x) * y * z; }
};

struct LaunchShape {
  Dim3 grid;
  Dim3 block;
  uint32_t dynamicSharedBytes = 0;
};

/// One argument of a kernel: its bits, and how many bytes of them count.
struct KernelArgument {
  uint64_t bits = 0;
  uint32_t bytes = 8;

  static KernelArgument pointer(uint64_t deviceAddress) {
    return {deviceAddress, 8};
  }
  static KernelArgument i64(int64_t value) {
    return {static_cast<uint64_t>(value), 8};
  }
  static KernelArgument i32(int32_t value) {
    return {static_cast<uint32_t>(value), 4};
  }
  static KernelArgument f32(float value);
  /// A tensor map, which is passed by value: `handle` must live until the
  /// launch has begun.
  static KernelArgument map(const TensorMapHandle &handle);
};

/// One parameter of a kernel: a scalar of up to 8 bytes, or a tensor map of
/// 128.
struct KernelParameter {
  uint32_t bytes = 8;
  bool isPointer = false;
};

/// When the bytes of an asynchronous copy appear: as soon as it is issued, or
/// not before the thread waits for it (until then the destination holds NaNs).
/// Both are legal on a GPU.
enum class CopyTiming : uint8_t { Early, Late };

struct SimOptions {
  /// The order in which threads run: 0 is round robin, every other number
  /// another order. Results must not depend on it.
  uint64_t seed = 0;
  CopyTiming copies = CopyTiming::Late;
  bool checkRaces = true;
  bool checkUninitialized = true;
  /// Whether approximate instructions are off by up to their documented bound,
  /// in a way that `seed` chooses.
  bool perturb = false;
  /// Whether bank conflicts and sectors are counted.
  bool countTraffic = true;
  /// Blocks that run at once, each on a thread of its own.
  unsigned workers = 1;
  /// Blocks that each of those threads runs by turns, in an order that `seed`
  /// chooses. With 1 it runs one block after the other, which is fastest, but
  /// not what kernels meet whose blocks share out their work among each other.
  unsigned residentBlocks = 1;
  /// The launch stops when so many different faults were found.
  unsigned maxFaults = 16;
  /// Memory accesses and loop iterations of one block between two moments when
  /// threads meet.
  uint64_t maxSteps = 200'000'000;
  /// Only what is touched of it takes memory.
  uint32_t stackBytesPerThread = 256 << 10;
};

/// How a buffer may be used.
struct BufferUse {
  bool writable = true;
  /// Whether its first contents count as written.
  bool initialized = true;
};

class Simulator {
public:
  /// Compiles all kernels of `module`, which stays untouched. Fails on an
  /// instruction, an intrinsic or an inline assembly that the simulator does
  /// not support, and on a CPU without AVX2, FMA and F16C.
  static llvm::Expected<std::unique_ptr<Simulator>>
  create(const llvm::Module &module, const SimChip &chip);
  ~Simulator();

  /// Makes `bytes` bytes at `data` reachable for kernels and returns their
  /// address there. It is as aligned as `data` is, up to 4096, and so far from
  /// every other buffer that running out of one cannot hit the next.
  uint64_t registerBuffer(void *data, uint64_t bytes, llvm::StringRef name,
                          BufferUse use = {});
  void releaseBuffer(uint64_t deviceAddress);
  /// From here on all of the buffer counts as written: what a copy or a fill of
  /// the host has done.
  void setInitialized(uint64_t deviceAddress);

  /// Whether there is such a kernel, and all their names.
  bool hasKernel(llvm::StringRef name) const;
  std::vector<std::string> getKernelNames() const;
  /// Parameters of kernel `name`, which must exist.
  llvm::ArrayRef<KernelParameter> getParameters(llvm::StringRef name) const;

  /// Runs the whole grid. An error is a launch that a driver would refuse; what
  /// goes wrong inside is in the report.
  llvm::Expected<LaunchReport> launch(llvm::StringRef kernel,
                                      const LaunchShape &shape,
                                      llvm::ArrayRef<KernelArgument> arguments,
                                      const SimOptions &options = {});

private:
  struct Impl;
  explicit Simulator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl;
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_TESTING_SIMULATOR_SIMULATOR_H
