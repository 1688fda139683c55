//===- SimulatedDevice.cpp - a GPU that is simulated ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SimulatedDevice.h"

#include "DiffAttn/Runtime/Runtime.h"
#include "DiffAttn/Target/GpuTarget.h"

#include "llvm/Bitcode/BitcodeReader.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/Support/MemoryBuffer.h"

#include <cstring>

using namespace mlir;
using namespace mlir::diffattn;

static constexpr llvm::StringLiteral kAllocate = "diffattn_gpu_allocate";
static constexpr llvm::StringLiteral kWorkspace = "workspace";
static constexpr llvm::StringLiteral kDevice = "diffattn_gpu_device";

/// "sm_80" is compute capability 8.0.
static unsigned getCapability(llvm::StringRef chip) {
  unsigned number = 0;
  chip.consume_front("sm_");
  return chip.consumeInteger(10, number) ? 80 : number;
}

llvm::Expected<std::unique_ptr<SimulatedDevice>>
SimulatedDevice::create(llvm::StringRef kernels, llvm::StringRef chipName) {
  std::string message;
  std::optional<GpuTarget> target = getGpuTarget(chipName, message);
  if (!target)
    return makeError(ErrorClass::Usage, message);
  llvm::LLVMContext context;
  auto module = llvm::parseBitcodeFile(
      llvm::MemoryBufferRef(kernels, "kernels"), context);
  if (!module)
    return makeError(ErrorClass::Compile, llvm::toString(module.takeError()));
  sim::SimChip chip;
  chip.name = target->chip;
  chip.capability = getCapability(target->chip);
  chip.sharedBytesPerBlock = target->sharedBytesPerBlock;
  auto simulator = sim::Simulator::create(**module, chip);
  if (!simulator)
    return makeError(ErrorClass::Compile,
                     llvm::toString(simulator.takeError()));
  std::unique_ptr<SimulatedDevice> device(new SimulatedDevice());
  device->simulator = std::move(*simulator);
  return device;
}

std::vector<std::pair<llvm::StringRef, void *>> SimulatedDevice::getSymbols() {
  return {{"diffattn_gpu_launch", reinterpret_cast<void *>(&launchEntry)},
          {kAllocate, reinterpret_cast<void *>(&allocateEntry)},
          {"diffattn_rt_device_check", reinterpret_cast<void *>(&checkEntry)},
          {kDevice, this}};
}

std::unique_ptr<llvm::Module>
SimulatedDevice::makeAllocator(llvm::LLVMContext &context,
                               const llvm::DataLayout &layout) {
  auto module = std::make_unique<llvm::Module>("allocator", context);
  module->setDataLayout(layout);
  llvm::IRBuilder<> b(context);
  llvm::Type *pointer = b.getPtrTy(), *i64 = b.getInt64Ty();
  auto *function = llvm::Function::Create(
      llvm::FunctionType::get(pointer, {i64}, false),
      llvm::GlobalValue::ExternalLinkage, "diffattn_rt_alloc", *module);
  b.SetInsertPoint(llvm::BasicBlock::Create(context, "", function));
  llvm::FunctionCallee allocate =
      module->getOrInsertFunction(kAllocate, pointer, pointer, i64);
  llvm::Constant *device = module->getOrInsertGlobal(kDevice, b.getInt8Ty());
  b.CreateRet(b.CreateCall(allocate, {device, function->getArg(0)}));
  return module;
}

void SimulatedDevice::forgetMemory() { ranges.clear(); }

void SimulatedDevice::addMemory(void *data, int64_t bytes, std::string name) {
  if (bytes <= 0)
    return;
  std::lock_guard<std::mutex> lock(mutex);
  char *low = static_cast<char *>(data), *high = low + bytes;
  const bool workspace = name == kWorkspace;
  auto next = ranges.lower_bound(low);
  if (next != ranges.begin() &&
      std::prev(next)->first + std::prev(next)->second.bytes > low)
    --next;
  while (next != ranges.end() && next->first < high) {
    // The workspace is a stack: what lay there before is gone. Arguments may be
    // views of one array: they are one range then.
    if (!workspace) {
      low = std::min(low, next->first);
      high = std::max(high, next->first + next->second.bytes);
      name = next->second.name;
    }
    next = ranges.erase(next);
  }
  ranges[low] = {high - low, std::move(name)};
}

void *SimulatedDevice::allocateEntry(SimulatedDevice *device, int64_t bytes) {
  void *data = diffattn_rt_alloc(bytes);
  device->addMemory(data, bytes, kWorkspace.str());
  return data;
}

void SimulatedDevice::checkEntry(const int32_t *status, const char *messages) {
  if (*status == 0)
    return;
  for (int32_t i = 1; i < *status; ++i)
    messages += std::strlen(messages) + 1;
  diffattn_rt_fail(messages);
}

void SimulatedDevice::launchEntry(SimulatedDevice *device, const char *kernel,
                                  const uint32_t *shape,
                                  const uint64_t *arguments) {
  {
    std::string wrong = device->launch(kernel, shape, arguments);
    device->failure = std::move(wrong);
  }
  // Does not come back: nothing here may own memory.
  if (!device->failure.empty())
    diffattn_rt_fail(device->failure.c_str());
}

/// Buffers of one launch, each registered once.
struct SimulatedDevice::Registered {
  sim::Simulator &simulator;
  std::map<char *, uint64_t> addresses;

  uint64_t find(char *data, int64_t bytes, llvm::StringRef name,
                sim::BufferUse use) {
    auto [at, isNew] = addresses.try_emplace(data, 0);
    if (isNew)
      at->second = simulator.registerBuffer(data, bytes, name, use);
    return at->second;
  }
  ~Registered() {
    for (auto [data, address] : addresses)
      simulator.releaseBuffer(address);
  }
};

std::string SimulatedDevice::launch(llvm::StringRef kernel,
                                    const uint32_t *shape,
                                    const uint64_t *arguments) {
  // A grid without blocks is no launch.
  if (uint64_t(shape[0]) * shape[1] * shape[2] == 0)
    return "";
  if (!simulator->hasKernel(kernel))
    return "expected kernel " + kernel.str() + " in the gpu.module";
  Registered registered{*simulator, {}};
  std::vector<sim::KernelArgument> values;
  for (auto [i, parameter] :
       llvm::enumerate(simulator->getParameters(kernel))) {
    uint64_t bits = arguments[i];
    if (parameter.isPointer && bits) {
      char *pointer = reinterpret_cast<char *>(bits);
      auto after = ranges.upper_bound(pointer);
      auto range = after == ranges.begin() ? ranges.end() : std::prev(after);
      if (range != ranges.end() &&
          pointer < range->first + range->second.bytes) {
        bits = registered.find(range->first, range->second.bytes,
                               range->second.name, {}) +
               (pointer - range->first);
      } else {
        // A constant of the compiled code: its page is there, its size is not
        // known.
        constexpr uint64_t kPage = 4096;
        bits = registered.find(pointer, kPage - bits % kPage, "constant",
                               {/*writable=*/false});
      }
    }
    values.push_back({bits, parameter.bytes});
  }
  sim::LaunchShape launchShape;
  launchShape.grid = {shape[0], shape[1], shape[2]};
  launchShape.block = {shape[3], shape[4], shape[5]};
  launchShape.dynamicSharedBytes = shape[6];
  sim::SimOptions options;
  options.workers = std::max<int64_t>(1, diffattn_rt_threads());
  auto report = simulator->launch(kernel, launchShape, values, options);
  if (!report)
    return llvm::toString(report.takeError());
  return report->clean() ? "" : "kernel " + kernel.str() + "\n" + report->str();
}
