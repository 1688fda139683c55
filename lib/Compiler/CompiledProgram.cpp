//===- CompiledProgram.cpp - compiled code, ready to run ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/CompiledProgram.h"
#include "Codegen.h"

#include "DiffAttn/Runtime/ABI/Table.h"
#include "DiffAttn/Runtime/Support/TraceSpan.h"
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
using namespace diffattn_rt;
namespace orc = llvm::orc;

struct CompiledProgram::Impl {
  Signature signature;
  std::unique_ptr<orc::LLJIT> jit;
  llvm::StringMap<EntryPoint> entries;
  bool bound = false;
  std::vector<diffattn_weight> table;
  std::vector<HostArray> owned;
  /// Null for programs on the CPU alone.
  std::unique_ptr<DeviceProgram> device;

  /// Frees what constants were packed into; null if none can be.
  void (*releaseConstants)() = nullptr;

  /// Names of symbols that were not found; the error of a lookup names those
  /// that needed them.
  std::string missing;

  void releasePacked() {
    for (diffattn_weight &weight : table)
      diffattn_rt_weight_release(&weight);
  }
};

CompiledProgram::CompiledProgram(std::unique_ptr<Impl> impl)
    : impl(std::move(impl)) {}
CompiledProgram::~CompiledProgram() {
  impl->releasePacked();
  if (impl->releaseConstants)
    impl->releaseConstants();
}

const Signature &CompiledProgram::getSignature() const {
  return impl->signature;
}

bool CompiledProgram::hasWeights() const {
  return impl->bound || impl->signature.weights.empty();
}

DeviceProgram *CompiledProgram::getDevice() const { return impl->device.get(); }

/// A note with the system's reason for refusing tiles to this process; empty if
/// it does not refuse them.
static std::string getTileNote(const CpuTarget &cpu) {
  std::string refusal = cpu.has("amx-tile") ? getTileRefusal() : "";
  return refusal.empty() ? "" : "; of tiles the system says: " + refusal;
}

/// Folds LLVM's errors into ours: they are faults of the object or the system.
static llvm::Error linkError(llvm::Error error) {
  return makeError(ErrorClass::Compile,
                   "expected the compiled code to link, but got: " +
                       llvm::toString(std::move(error)));
}

/// The names that a linker's error is about; empty for others.
static std::string getMissing(llvm::Error error) {
  std::string names;
  llvm::handleAllErrors(
      std::move(error),
      [&](const orc::SymbolsNotFound &notFound) {
        llvm::ListSeparator comma;
        for (const orc::SymbolStringPtr &symbol : notFound.getSymbols())
          names += (llvm::StringRef(comma) + "'" + *symbol + "'").str();
      },
      [](const llvm::ErrorInfoBase &) {});
  return names;
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

/// The device that `code` runs on, with its kernels and constants.
static llvm::Expected<std::unique_ptr<DeviceProgram>>
loadOnDevice(const DeviceCode &code, const ExecutionTarget &target,
             const CudaLibraries &libraries, diffattn_weight *constantSlots) {
  auto device = code.hostAccess
                    ? openSimulatedDevice(target.chip, /*hostAccess=*/true)
                    : openDevice(target, libraries);
  if (!device)
    return device.takeError();
  std::unique_ptr<DeviceProgram> program;
  if (Failure failure = DeviceProgram::create(code, std::move(*device),
                                              constantSlots, program))
    return toError(failure);
  return program;
}

llvm::Expected<std::unique_ptr<CompiledProgram>>
CompiledProgram::load(CompiledModule module, llvm::StringRef target,
                      const CudaLibraries &libraries) {
  const TraceSpan span("compile", "link");
  llvm::Expected<ExecutionTarget> parsed = parseTarget(target);
  if (!parsed)
    return parsed.takeError();
  CpuTarget cpu = *getCpuTarget(parsed->isa);
  if (!hostSupports(cpu))
    return makeError(ErrorClass::Usage,
                     "expected a CPU that runs " + parsed->isa +
                         " code, but this one lacks some of " +
                         llvm::join(cpu.features, " ") + getTileNote(cpu) +
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
  const int64_t weights = impl->signature.getNumWeightSlots();
  impl->table.resize(weights +
                     (module.device ? module.device->constants.size() : 0) + 1);
  if (module.device) {
    auto device = loadOnDevice(*module.device, *parsed, libraries,
                               impl->table.data() + weights);
    if (!device)
      return device.takeError();
    impl->device = std::move(*device);
  }
  auto jit = orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(orc::JITTargetMachineBuilder(
                     llvm::Triple(llvm::sys::getProcessTriple())))
                 .create();
  if (!jit)
    return linkError(jit.takeError());
  impl->jit = std::move(*jit);
  impl->jit->getExecutionSession().setErrorReporter(
      [&missing = impl->missing](llvm::Error error) {
        missing += getMissing(std::move(error));
      });
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
  symbols[impl->jit->mangleAndIntern(DIFFATTN_WEIGHTS_SYMBOL)] = {
      orc::ExecutorAddr::fromPtr(impl->table.data()),
      llvm::JITSymbolFlags::Exported};
  diffattn_named_function conversions[5];
  diffattn_rt_float_conversions(conversions);
  for (const diffattn_named_function &function : conversions)
    symbols[impl->jit->mangleAndIntern(function.name)] = {
        orc::ExecutorAddr::fromPtr(function.address),
        llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
  if (llvm::Error error = library.define(orc::absoluteSymbols(symbols)))
    return linkError(std::move(error));
  if (llvm::Error error = impl->jit->addObjectFile(
          llvm::MemoryBuffer::getMemBufferCopy(module.object, "diffattn")))
    return linkError(std::move(error));
  for (const FunctionSignature &function : impl->signature.functions) {
    auto symbol = impl->jit->lookup(getEntryPointName(function.name));
    if (!symbol && !impl->missing.empty()) {
      llvm::consumeError(symbol.takeError());
      return makeError(ErrorClass::Compile,
                       "expected functions that the module, the runtime or the "
                       "C library has, but the code calls " +
                           impl->missing);
    }
    if (!symbol)
      return linkError(symbol.takeError());
    impl->entries[function.name] = symbol->toPtr<EntryPoint>();
  }
  if (auto release = impl->jit->lookup(DIFFATTN_RELEASE_SYMBOL))
    impl->releaseConstants = release->toPtr<void (*)()>();
  else // only objects with products of constants have it
    llvm::consumeError(release.takeError());
  return std::unique_ptr<CompiledProgram>(new CompiledProgram(std::move(impl)));
}

llvm::Error CompiledProgram::bindWeights(const WeightFiles &files,
                                         const Progress &progress) {
  const TraceSpan span("load", "bind weights");
  std::vector<diffattn_weight> slots;
  std::vector<HostArray> owned;
  // On a device it is the copies that take time.
  if (llvm::Error error =
          bindWeightSlots(impl->signature, files,
                          impl->device ? nullptr : progress, slots, owned))
    return error;
  if (impl->device) {
    // The device's copies are written over.
    impl->bound = false;
    if (Failure failure =
            impl->device->loadWeights(impl->signature, slots.data(), progress))
      return toError(failure);
    owned.clear();
  }
  impl->releasePacked();
  // In its place: compiled code has the table's address.
  llvm::copy(slots, impl->table.begin());
  impl->owned = std::move(owned);
  impl->bound = true;
  return llvm::Error::success();
}

Failure CompiledProgram::checkReady() const {
  return hasWeights() ? Failure() : missWeightFiles(impl->signature);
}

EntryPoint
CompiledProgram::getEntryPoint(const FunctionSignature &function) const {
  return impl->entries.lookup(function.name);
}

std::pair<std::string, std::string> CompiledProgram::describeNoDevice() const {
  return {"a program on a device (target cuda or cuda-sim)", "one for the CPU"};
}
