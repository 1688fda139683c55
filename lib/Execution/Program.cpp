//===- Program.cpp - compiled code, ready to run --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Execution/Program.h"
#include "Codegen.h"
#include "SimulatedDevice.h"

#include "DiffAttn/Runtime/Runtime.h"
#include "DiffAttn/Target/CpuTarget.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ExecutionEngine/Orc/AbsoluteSymbols.h"
#include "llvm/ExecutionEngine/Orc/ExecutionUtils.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/TargetParser/Host.h"

#include <dlfcn.h>

using namespace mlir;
using namespace mlir::diffattn;
using llvm::Twine;
namespace orc = llvm::orc;

struct Program::Impl {
  Signature signature;
  std::unique_ptr<orc::LLJIT> jit;
  llvm::StringMap<EntryPoint> entries;
  bool bound = false;
  std::vector<diffattn_weight> table;
  std::vector<HostArray> owned;
  std::unique_ptr<SimulatedDevice> device;

  llvm::Expected<EntryPoint> lookup(llvm::StringRef name);
  void releasePacked() {
    for (diffattn_weight &weight : table)
      diffattn_rt_weight_release(&weight);
  }
};

Program::Program(std::unique_ptr<Impl> impl) : impl(std::move(impl)) {}
Program::~Program() { impl->releasePacked(); }

const Signature &Program::getSignature() const { return impl->signature; }

bool Program::hasWeights() const {
  return impl->bound || impl->signature.weights.empty();
}

/// Folds LLVM's errors into ours: they are faults of the object or the system.
static llvm::Error linkError(llvm::Error error) {
  return makeError(ErrorClass::Compile,
                   "expected the compiled code to link, but got: " +
                       llvm::toString(std::move(error)));
}

/// The file that the runtime was loaded from: compiled code must use the very
/// instance that this library uses.
static std::string getRuntimePath() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void *>(&diffattn_rt_gemm), &info) &&
      info.dli_fname)
    return info.dli_fname;
  return "libDiffAttnRuntime.so";
}

llvm::Expected<std::unique_ptr<Program>> Program::load(CompiledModule module,
                                                       llvm::StringRef target) {
  llvm::Expected<ExecutionTarget> parsed = parseTarget(target);
  if (!parsed)
    return parsed.takeError();
  CpuTarget cpu = *getCpuTarget(parsed->isa);
  if (!hostSupports(cpu.isa))
    return makeError(ErrorClass::Usage,
                     "expected a CPU that runs " + parsed->isa +
                         " code, but this one lacks some of " +
                         llvm::join(cpu.getFeatures(), " ") +
                         " (code can still be emitted)");
  static const bool initialized = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    return true;
  }();
  (void)initialized;
  auto impl = std::make_unique<Impl>();
  impl->signature = std::move(module.signature);
  // Sized once: compiled code and packed weights keep addresses into it. One
  // slot more than none, so that it has an address.
  impl->table.resize(impl->signature.getNumWeightSlots() + 1);
  auto jit = orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(orc::JITTargetMachineBuilder(
                     llvm::Triple(llvm::sys::getProcessTriple())))
                 .create();
  if (!jit)
    return linkError(jit.takeError());
  impl->jit = std::move(*jit);
  orc::JITDylib &library = impl->jit->getMainJITDylib();
  char prefix = impl->jit->getDataLayout().getGlobalPrefix();
  for (const std::string &path : {getRuntimePath(), std::string("libm.so.6")}) {
    auto generator =
        orc::DynamicLibrarySearchGenerator::Load(path.c_str(), prefix);
    if (!generator)
      return linkError(generator.takeError());
    library.addGenerator(std::move(*generator));
  }
  orc::SymbolMap symbols;
  symbols[impl->jit->mangleAndIntern("diffattn_weights")] = {
      orc::ExecutorAddr::fromPtr(impl->table.data()),
      llvm::JITSymbolFlags::Exported};
  diffattn_named_function conversions[5];
  diffattn_rt_float_conversions(conversions);
  for (const diffattn_named_function &function : conversions)
    symbols[impl->jit->mangleAndIntern(function.name)] = {
        orc::ExecutorAddr::fromPtr(function.address),
        llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
  if (!module.kernels.empty()) {
    auto device = SimulatedDevice::create(module.kernels, parsed->chip);
    if (!device)
      return device.takeError();
    impl->device = std::move(*device);
    for (auto [name, address] : impl->device->getSymbols())
      symbols[impl->jit->mangleAndIntern(name)] = {
          orc::ExecutorAddr::fromPtr(address), llvm::JITSymbolFlags::Exported};
    auto context = std::make_unique<llvm::LLVMContext>();
    auto allocator =
        SimulatedDevice::makeAllocator(*context, impl->jit->getDataLayout());
    if (llvm::Error error = impl->jit->addIRModule(
            orc::ThreadSafeModule(std::move(allocator), std::move(context))))
      return linkError(std::move(error));
  }
  if (llvm::Error error = library.define(orc::absoluteSymbols(symbols)))
    return linkError(std::move(error));
  if (llvm::Error error = impl->jit->addObjectFile(
          llvm::MemoryBuffer::getMemBufferCopy(module.object, "diffattn")))
    return linkError(std::move(error));
  for (const FunctionSignature &function : impl->signature.functions) {
    auto symbol = impl->jit->lookup(getEntryPointName(function.name));
    if (!symbol)
      return linkError(symbol.takeError());
    impl->entries[function.name] = symbol->toPtr<EntryPoint>();
  }
  return std::unique_ptr<Program>(new Program(std::move(impl)));
}

llvm::Error Program::bindWeights(const WeightFiles &files,
                                 const Progress &progress) {
  std::vector<diffattn_weight> slots;
  std::vector<HostArray> owned;
  if (llvm::Error error =
          bindWeightSlots(impl->signature, files, progress, slots, owned))
    return error;
  impl->releasePacked();
  // In its place: compiled code has the table's address.
  llvm::copy(slots, impl->table.begin());
  impl->owned = std::move(owned);
  impl->bound = true;
  return llvm::Error::success();
}

llvm::Error Program::checkArguments(llvm::StringRef entry,
                                    ArrayRef<ArrayView> args) const {
  if (Failure failure = diffattn::checkArguments(impl->signature, entry, args))
    return toError(failure);
  if (!hasWeights())
    return makeError(ErrorClass::Weights,
                     "expected weight files, because the module declares "
                     "weights (the first is '" +
                         impl->signature.weights[0].name + "')");
  return llvm::Error::success();
}

/// Tells a simulated GPU which memory the arguments and the weights are.
static void describeMemory(SimulatedDevice &device,
                           const FunctionSignature &function,
                           ArrayRef<ArrayView> args, ArrayRef<HostArray> copies,
                           ArrayRef<diffattn_weight> weights) {
  device.forgetMemory();
  for (auto [i, array] : llvm::enumerate(args)) {
    int64_t low = 0, high = 0, step = 1;
    bool empty = false;
    for (size_t axis = array.shape.size(); axis-- > 0;) {
      int64_t stride = array.strides ? (*array.strides)[axis] : step;
      int64_t reach = (array.shape[axis] - 1) * stride;
      (reach < 0 ? low : high) += reach;
      empty |= array.shape[axis] == 0;
      step *= array.shape[axis];
    }
    if (function.arguments[i].kind == ValueType::Scalar || empty)
      continue;
    int64_t bytes = getDTypeBytes(array.dtype);
    device.addMemory(static_cast<char *>(array.data) + low * bytes,
                     (high - low + 1) * bytes, "argument " + std::to_string(i));
  }
  for (const HostArray &copy : copies)
    device.addMemory(copy.data.get(), copy.getNumBytes(), "argument");
  for (auto [i, weight] : llvm::enumerate(weights))
    if (weight.data)
      device.addMemory(weight.data,
                       weight.rows * weight.cols * getDTypeBytes(weight.dtype),
                       "weight " + std::to_string(i));
}

llvm::Expected<std::vector<CallResult>> Program::call(llvm::StringRef entry,
                                                      ArrayRef<ArrayView> args,
                                                      int64_t threads) {
  if (llvm::Error error = checkArguments(entry, args))
    return error;
  const FunctionSignature &function = *impl->signature.find(entry);
  PreparedCall call(function, args);
  if (Failure failure = call.prepare())
    return toError(failure);
  if (impl->device)
    describeMemory(*impl->device, function, args, call.getCopies(),
                   impl->table);
  std::vector<CallResult> results;
  if (Failure failure = call.run(impl->entries[entry], threads, results))
    return toError(failure);
  return results;
}
