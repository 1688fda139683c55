//===- Simulator.cpp - runs GPU kernels on the CPU ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Testing/Simulator/Simulator.h"
#include "Block.h"
#include "Lowering.h"
#include "Runtime.h"

#include "llvm/Bitcode/BitcodeReader.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/ExecutionEngine/Orc/AbsoluteSymbols.h"
#include "llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/TargetParser/Host.h"

#include <cstring>
#include <thread>

using namespace llvm;
using namespace mlir::diffattn::sim;

/// The CPU that code is made for: the least one that simulates well, so that
/// results are the same on every machine.
static constexpr StringLiteral kHostCpu = "x86-64-v3";

struct Simulator::Impl {
  SimChip chip;
  Lowered lowered;
  std::unique_ptr<orc::LLJIT> jit;
  Buffers buffers;
  uint32_t launches = 0;
};

KernelArgument KernelArgument::map(const TensorMapHandle &handle) {
  return {reinterpret_cast<uint64_t>(&handle), sizeof(handle)};
}

KernelArgument KernelArgument::f32(float value) {
  KernelArgument argument;
  memcpy(&argument.bits, &value, sizeof(value));
  argument.bytes = sizeof(value);
  return argument;
}

static Error failure(const Twine &message) {
  return createStringError(inconvertibleErrorCode(), message);
}

/// A copy of `module` in a context of its own. Through bitcode, because a
/// module cannot change its context.
static Expected<orc::ThreadSafeModule> copyModule(const Module &module) {
  SmallVector<char, 0> bitcode;
  raw_svector_ostream os(bitcode);
  WriteBitcodeToFile(module, os);
  auto context = std::make_unique<LLVMContext>();
  Expected<std::unique_ptr<Module>> copy = parseBitcodeFile(
      MemoryBufferRef(StringRef(bitcode.data(), bitcode.size()),
                      module.getModuleIdentifier()),
      *context);
  if (!copy)
    return copy.takeError();
  return orc::ThreadSafeModule(std::move(*copy), std::move(context));
}

Simulator::Simulator(std::unique_ptr<Impl> impl) : impl(std::move(impl)) {}
Simulator::~Simulator() = default;

Expected<std::unique_ptr<Simulator>> Simulator::create(const Module &module,
                                                       const SimChip &chip) {
  if (!hostCanSimulate())
    return failure(
        "expected a CPU with AVX2, FMA, F16C and BMI2 to simulate on");
  InitializeNativeTarget();
  InitializeNativeTargetAsmPrinter();
  auto impl = std::make_unique<Impl>();
  impl->chip = chip;

  Expected<orc::ThreadSafeModule> copy = copyModule(module);
  if (!copy)
    return copy.takeError();
  orc::JITTargetMachineBuilder machine((Triple(sys::getDefaultTargetTriple())));
  machine.setCPU(kHostCpu.str());
  // The runtime is what takes time in a run, compiling is what takes it in a
  // test: better code was seen to cost three times as much and to gain nothing.
  machine.setCodeGenOptLevel(CodeGenOptLevel::None);
  Expected<std::unique_ptr<orc::LLJIT>> jit =
      orc::LLJITBuilder()
          .setJITTargetMachineBuilder(machine)
          .setPlatformSetUp(orc::setUpInactivePlatform)
          .setLinkProcessSymbolsByDefault(false)
          .create();
  if (!jit)
    return jit.takeError();
  impl->jit = std::move(*jit);

  Error error = copy->withModuleDo([&](Module &kernels) -> Error {
    kernels.setDataLayout(impl->jit->getDataLayout());
    kernels.setTargetTriple(impl->jit->getTargetTriple());
    Expected<Lowered> lowered = lowerKernels(kernels, chip.capability);
    if (!lowered)
      return lowered.takeError();
    impl->lowered = std::move(*lowered);
    std::string message;
    raw_string_ostream os(message);
    if (verifyModule(kernels, &os))
      return failure("expected lowered kernels to be valid LLVM IR, but " +
                     message);
    return Error::success();
  });
  if (error)
    return std::move(error);

  orc::SymbolMap symbols;
  for (auto [name, address] : getRuntimeSymbols())
    symbols[impl->jit->mangleAndIntern(name)] = {
        orc::ExecutorAddr::fromPtr(address),
        JITSymbolFlags::Exported | JITSymbolFlags::Callable};
  if (Error error = impl->jit->getMainJITDylib().define(
          orc::absoluteSymbols(std::move(symbols))))
    return std::move(error);
  if (Error error = impl->jit->addIRModule(std::move(*copy)))
    return std::move(error);
  // Look everything up now: a kernel that cannot be compiled must not wait for
  // its launch to say so.
  for (const LoweredKernel &kernel : impl->lowered.kernels)
    if (auto address = impl->jit->lookup(kernel.entry); !address)
      return address.takeError();
  for (const LoweredConstant &constant : impl->lowered.constants) {
    auto address = impl->jit->lookup(constant.symbol);
    if (!address)
      return address.takeError();
    impl->buffers.addConstant(address->toPtr<const void *>(), constant.bytes,
                              constant.symbol);
  }
  return std::unique_ptr<Simulator>(new Simulator(std::move(impl)));
}

uint64_t Simulator::registerBuffer(void *data, uint64_t bytes, StringRef name,
                                   BufferUse use) {
  return impl->buffers.add(data, bytes, name, use);
}

void Simulator::releaseBuffer(uint64_t deviceAddress) {
  impl->buffers.remove(deviceAddress);
}

void Simulator::setInitialized(uint64_t deviceAddress) {
  if (Buffer *buffer = impl->buffers.find(deviceAddress))
    buffer->use.initialized = true;
}

bool Simulator::hasKernel(StringRef name) const {
  return any_of(impl->lowered.kernels, [&](const LoweredKernel &kernel) {
    return kernel.name == name;
  });
}

std::vector<std::string> Simulator::getKernelNames() const {
  std::vector<std::string> names;
  for (const LoweredKernel &kernel : impl->lowered.kernels)
    names.push_back(kernel.name);
  return names;
}

ArrayRef<KernelParameter> Simulator::getParameters(StringRef name) const {
  return find_if(
             impl->lowered.kernels,
             [&](const LoweredKernel &kernel) { return kernel.name == name; })
      ->parameters;
}

/// Bytes of a thread's stack that calls of the runtime may take.
static constexpr uint64_t kCallBytes = 16 << 10;

/// Checks a launch as a driver does before it starts a kernel.
static Error checkLaunch(const LoweredKernel &kernel, const SimChip &chip,
                         const LaunchShape &shape,
                         ArrayRef<KernelArgument> arguments,
                         uint64_t staticBytes, uint64_t stackBytes) {
  const uint64_t threads = shape.block.count();
  if (threads == 0 || threads > chip.threadsPerBlock)
    return failure("expected a block of 1 to " + Twine(chip.threadsPerBlock) +
                   " threads, but got " + Twine(threads));
  if (shape.grid.count() == 0 || shape.grid.y > 65535 || shape.grid.z > 65535 ||
      shape.grid.x > INT32_MAX)
    return failure("expected a grid of at least one block and at most "
                   "2147483647 x 65535 x 65535, but got " +
                   Twine(shape.grid.x) + " x " + Twine(shape.grid.y) + " x " +
                   Twine(shape.grid.z));
  const std::array<uint32_t, 3> block = {shape.block.x, shape.block.y,
                                         shape.block.z};
  if (kernel.requiredBlock[0] && kernel.requiredBlock != block)
    return failure("expected the block of kernel @" + kernel.name + " to be " +
                   Twine(kernel.requiredBlock[0]) + " x " +
                   Twine(kernel.requiredBlock[1]) + " x " +
                   Twine(kernel.requiredBlock[2]) + ", but got " +
                   Twine(block[0]) + " x " + Twine(block[1]) + " x " +
                   Twine(block[2]));
  if (kernel.maxThreads && threads > kernel.maxThreads)
    return failure("expected at most " + Twine(kernel.maxThreads) +
                   " threads for kernel @" + kernel.name + ", but got " +
                   Twine(threads));
  if (kernel.stackBytes + kCallBytes > stackBytes)
    return failure("expected at most " +
                   Twine(stackBytes - std::min(stackBytes, kCallBytes)) +
                   " bytes of variables in a thread, but kernel @" +
                   kernel.name + " has " + Twine(kernel.stackBytes));
  const std::array<uint32_t, 3> &cluster = kernel.cluster;
  const uint64_t ranks = uint64_t(cluster[0]) * cluster[1] * cluster[2],
                 most = chip.capability >= 90 ? kMaxRanks : 1;
  if (ranks < 1 || ranks > most)
    return failure("expected a cluster of 1 to " + Twine(most) + " blocks on " +
                   chip.name + ", but kernel @" + kernel.name + " has " +
                   Twine(ranks));
  if (shape.grid.x % cluster[0] || shape.grid.y % cluster[1] ||
      shape.grid.z % cluster[2])
    return failure("expected a grid of whole clusters of " + Twine(cluster[0]) +
                   " x " + Twine(cluster[1]) + " x " + Twine(cluster[2]) +
                   " blocks, but got " + Twine(shape.grid.x) + " x " +
                   Twine(shape.grid.y) + " x " + Twine(shape.grid.z));
  if (ranks > 1 && threads % 128)
    return failure("expected blocks of whole warpgroups in a cluster, which is "
                   "what the simulator knows, but got " +
                   Twine(threads) + " threads");
  const uint64_t shared = staticBytes + shape.dynamicSharedBytes;
  if (shared > chip.sharedBytesPerBlock)
    return failure("expected at most " + Twine(chip.sharedBytesPerBlock) +
                   " bytes of shared memory on " + chip.name +
                   ", but kernel @" + kernel.name + " takes " + Twine(shared));
  if (arguments.size() != kernel.parameters.size())
    return failure("expected " + Twine(kernel.parameters.size()) +
                   " arguments for kernel @" + kernel.name + ", but got " +
                   Twine(arguments.size()));
  for (auto [i, argument] : enumerate(arguments))
    if (argument.bytes != kernel.parameters[i].bytes)
      return failure("expected argument " + Twine(i) + " of kernel @" +
                     kernel.name + " to have " +
                     Twine(kernel.parameters[i].bytes) + " bytes, but got " +
                     Twine(argument.bytes));
  return Error::success();
}

Expected<LaunchReport> Simulator::launch(StringRef name,
                                         const LaunchShape &shape,
                                         ArrayRef<KernelArgument> arguments,
                                         const SimOptions &options) {
  auto kernel =
      find_if(impl->lowered.kernels,
              [&](const LoweredKernel &kernel) { return kernel.name == name; });
  if (kernel == impl->lowered.kernels.end())
    return failure("expected one of the kernels " +
                   join(getKernelNames(), ", ") + ", but got " + name);
  uint64_t staticBytes = 0;
  Launch launch{impl->lowered.sites, impl->buffers, shape, options};
  for (unsigned index : kernel->arrays) {
    const SharedArray &array = impl->lowered.arrays[index];
    staticBytes += array.bytes;
    launch.shared.push_back({array.offset, array.bytes});
    launch.sharedEnd = std::max(launch.sharedEnd, array.offset + array.bytes);
  }
  if (Error error = checkLaunch(*kernel, impl->chip, shape, arguments,
                                staticBytes, options.stackBytesPerThread))
    return std::move(error);
  if (shape.dynamicSharedBytes) {
    launch.shared.push_back(
        {impl->lowered.dynamicOffset, shape.dynamicSharedBytes});
    launch.sharedEnd = impl->lowered.dynamicOffset + shape.dynamicSharedBytes;
  }
  launch.cluster = {kernel->cluster[0], kernel->cluster[1], kernel->cluster[2]};
  launch.ranks = launch.cluster.count();
  // As aligned as a swizzle, with bytes after it that nothing may touch.
  if (launch.ranks > 1)
    launch.window = alignTo(launch.sharedEnd + 64, 1024);
  Expected<orc::ExecutorAddr> entry = impl->jit->lookup(kernel->entry);
  if (!entry)
    return entry.takeError();
  launch.entry = entry->toPtr<void (*)(const uint64_t *)>();
  launch.number = ++impl->launches;
  launch.wgmmas = impl->lowered.wgmmas;
  launch.startsEarly = kernel->waitsForKernels;
  launch.asynchronous = any_of(impl->lowered.sites, [](const Site &site) {
    return site.isAsynchronous();
  });
  // An argument that is passed by value lies at an address of its own.
  std::vector<uint64_t> words;
  std::vector<TensorMapHandle> objects;
  objects.reserve(arguments.size());
  for (const KernelArgument &argument : arguments) {
    words.push_back(argument.bits);
    if (argument.bytes != sizeof(TensorMapHandle))
      continue;
    TensorMapHandle &object = objects.emplace_back();
    memcpy(&object, reinterpret_cast<const void *>(argument.bits),
           sizeof(object));
    words.back() = reinterpret_cast<uint64_t>(&object);
  }
  launch.objects = objects;
  launch.arguments = words.data();

  const uint64_t blocks = shape.grid.count() / launch.ranks;
  const unsigned workers =
      std::max<uint64_t>(1, std::min<uint64_t>(options.workers, blocks));
  std::vector<WorkerStats> stats(workers);
  auto work = [&](unsigned worker) {
    stats[worker] = runBlocks(launch, blocks, worker);
  };
  std::vector<std::thread> others;
  for (unsigned worker = 1; worker < workers; ++worker)
    others.emplace_back(work, worker);
  work(0);
  for (std::thread &other : others)
    other.join();

  LaunchReport report;
  report.faults = std::move(launch.faults);
  report.stats.buffers.resize(impl->buffers.size());
  for (size_t i = 0; i < impl->buffers.size(); ++i)
    report.stats.buffers[i].name = impl->buffers.get(i).name;
  for (const WorkerStats &worker : drop_begin(stats))
    stats.front().add(worker);
  addStats(report.stats, stats.front().totals);
  for (auto [number, site] : enumerate(impl->lowered.sites)) {
    const WorkerStats::SiteCounts &counts = stats.front().sites[number];
    if (site.touchesMemory() && counts.accesses)
      report.stats.sites.push_back({site.where, counts.accesses,
                                    counts.wavefronts, counts.conflicts,
                                    counts.sectors});
  }
  return report;
}
