//===- Compile.cpp - from IR to an object ---------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/Compile.h"
#include "Codegen.h"
#include "CrashGuard.h"
#include "SerializeDeviceCode.h"
#include "SourceModule.h"
#include "TracePasses.h"

#include "DiffAttn/Codegen/LlvmErrors.h"
#include "DiffAttn/Codegen/NVVM/GpuLaunch.h"
#include "DiffAttn/Codegen/NVVM/GpuToPtx.h"
#include "DiffAttn/InitAll.h"
#include "DiffAttn/Model/Conversion/HostAccess.h"
#include "DiffAttn/Model/Pipelines/Pipelines.h"
#include "DiffAttn/Runtime/Support/Printable.h"
#include "DiffAttn/Runtime/Support/TraceSpan.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/Transforms/Passes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Remarks.h"
#include "mlir/IR/Verifier.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/All.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <chrono>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

namespace {

/// Forms of a GPU's kernels in the result.
enum class KernelForm { None, Ptx, Cubin };

/// One module as it is lowered, with the diagnostics on it.
class Compilation {
public:
  Compilation(llvm::StringRef ir, const CompileOptions &options,
              const ExecutionTarget &target)
      : options(options), source(getRegistry(), ir, options.inputName),
        context(source.getContext()), module(source.getModule()),
        diagnostics(source.getDiagnostics()) {
    // The reference, which results are checked against, runs on the CPU alone.
    pipeline.target = target.device == ExecutionDevice::Cpu || options.reference
                          ? Target::cpu(target.isa)
                          : Target::cuda(target.chip, target.isa);
    pipeline.prefetchBytes = options.prefetchBytes;
    pipeline.threads = options.threads;
    pipeline.raise = options.raise && !options.reference;
    pipeline.batchInvariance = options.batchInvariance;
    pipeline.unchecked = options.unchecked;
    pipeline.trace = options.trace && !options.reference;
    collectRemarks(context, diagnostics);
  }

  llvm::Error parse();
  /// Runs the stages up to `stage`; none where the module is there already.
  llvm::Error lower(Stage stage);
  /// Takes the GPU's kernels out of the module; empty if there are none.
  llvm::Expected<std::string> takeKernels(KernelForm form);
  /// Takes all that a device needs out of a module in stage gpu.
  llvm::Expected<DeviceCode> takeDeviceCode(ExecutionDevice device);
  /// The constants of a module in stage LLVM, for their slots.
  llvm::Error takeConstants(DeviceCode &code);
  llvm::Expected<Signature> signature() { return readSignature(*module); }
  llvm::Expected<std::vector<WeightDeclaration>> weights() {
    return readWeights(*module);
  }
  llvm::Expected<std::unique_ptr<llvm::Module>>
  translate(const Signature &signature);
  /// The output of `write` for a module of LLVM IR. LLVM ends the process where
  /// it has no code for a construct of the module, as an intrinsic of another
  /// machine; here that is an error.
  llvm::Expected<std::string> generate(
      std::unique_ptr<llvm::Module> llvmModule,
      llvm::function_ref<llvm::Expected<std::string>(llvm::Module &)> write);
  std::string print();
  CompileDiagnostics takeDiagnostics() { return std::move(diagnostics); }

private:
  /// The kernels as optimized LLVM IR, out of the module; null if there are
  /// none.
  llvm::Expected<std::unique_ptr<llvm::Module>>
  translateKernels(const DeviceCodeGenerator &generator, bool locations);
  /// PTX of what `translateKernels` gave.
  llvm::Expected<std::string> writePtx(std::unique_ptr<llvm::Module> kernels,
                                       const DeviceCodeGenerator &generator);
  /// The generator for the target's chip, which is one that there is.
  DeviceCodeGenerator getGenerator() const {
    std::string message;
    return {*getGpuTarget(pipeline.target.chip, message), options.ptxas};
  }
  llvm::LLVMContext &makeLlvmContext() {
    llvmContexts.push_back(std::make_unique<llvm::LLVMContext>());
    llvmContexts.back()->setDiagnosticHandler(
        std::make_unique<KeepLlvmError>(llvmError));
    return *llvmContexts.back();
  }
  /// After a crash in the middle of a change, when none can be destroyed.
  void leakLlvmContexts() {
    for (std::unique_ptr<llvm::LLVMContext> &llvmContext : llvmContexts)
      (void)llvmContext.release();
    llvmContexts.clear();
  }
  /// The dialects of all modules: filling it takes time, so it is done once.
  static const DialectRegistry &getRegistry() {
    static const DialectRegistry registry = [] {
      DialectRegistry made;
      mlir::registerAllDialects(made);
      mlir::registerAllExtensions(made);
      mlir::registerAllToLLVMIRTranslations(made);
      mlir::diffattn::registerAllDialects(made);
      return made;
    }();
    return registry;
  }

  llvm::Error guarded(ErrorClass errorClass, const Twine &what,
                      llvm::function_ref<LogicalResult()> action) {
    return source.guarded(errorClass, what, action,
                          [&] { leakLlvmContexts(); });
  }

  const CompileOptions &options;
  PipelineOptions pipeline;
  NoForks noForks;
  SourceModule source;
  MLIRContext &context;
  OwningOpRef<ModuleOp> &module;
  CompileDiagnostics &diagnostics;
  /// Before the contexts, which write it.
  std::string llvmError;
  std::vector<std::unique_ptr<llvm::LLVMContext>> llvmContexts;
  /// How far down the module is.
  Stage reached = Stage::Input;
};

} // namespace

llvm::Error Compilation::parse() {
  if (options.from != Stage::Input && options.from != Stage::GPU)
    return makeError(ErrorClass::Usage, "expected input or gpu as the stage "
                                        "that the module is in, but got '" +
                                            stringifyStage(options.from) + "'");
  if (options.from == Stage::GPU && options.reference)
    return makeError(ErrorClass::Usage,
                     "expected a module in stage input to make the reference "
                     "from, because in stage gpu the kernels are made");
  if (options.from == Stage::GPU && !pipeline.target.isCUDA())
    return makeError(ErrorClass::Usage,
                     "expected target cuda:<chip> or cuda-sim:<chip> for a "
                     "module in stage gpu, but got '" +
                         options.target + "'");
  reached = options.from;
  const TraceSpan span("compile", "parse");
  return source.parse(noForks);
}

llvm::Error Compilation::lower(Stage stage) {
  if (stage <= reached)
    return llvm::Error::success();
  const TraceSpan span("compile", "lower to " + stringifyStage(stage).str());
  PassManager manager(&context, ModuleOp::getOperationName());
  // Checking after every pass takes a third of the time; the parser has checked
  // what comes in, and what comes out is checked below.
  manager.enableVerifier(false);
  tracePasses(manager);
  std::string hint;
  if (!options.reproducer.empty()) {
    llvm::StringRef folder = llvm::sys::path::parent_path(options.reproducer);
    if (llvm::sys::fs::access(folder.empty() ? "." : folder,
                              llvm::sys::fs::AccessMode::Write)) {
      hint = " (no reproducer: " + options.reproducer + " cannot be written)";
    } else {
      manager.enableCrashReproducerGeneration(options.reproducer);
      hint = " (reproduce with: " + quoteForShell(options.optTool) +
             " --run-reproducer " + quoteForShell(options.reproducer) + ")";
    }
  }
  if (options.reference && reached == Stage::Imported) {
    DecomposePassOptions all;
    all.all = true;
    manager.addPass(createDecomposePass(all));
  }
  buildPipeline(manager, pipeline, stage, reached);
  reached = stage;
  return guarded(ErrorClass::Compile,
                 options.inputName +
                     ": expected a module that the pipeline "
                     "can lower" +
                     hint,
                 [&] {
                   return success(succeeded(manager.run(*module)) &&
                                  succeeded(verify(*module)));
                 });
}

llvm::Expected<std::unique_ptr<llvm::Module>>
Compilation::translateKernels(const DeviceCodeGenerator &generator,
                              bool locations) {
  std::unique_ptr<llvm::Module> kernels;
  if (llvm::Error error =
          guarded(ErrorClass::IR,
                  options.inputName + ": expected launches that fit kernels",
                  [&] { return checkLaunches(*module); }))
    return error;
  llvm::SmallVector<gpu::GPUModuleOp> gpuModules(
      module->getOps<gpu::GPUModuleOp>());
  if (gpuModules.empty())
    return kernels;
  if (gpuModules.size() > 1)
    return makeError(ErrorClass::Compile, "expected one gpu.module, but got " +
                                              Twine(gpuModules.size()));
  if (llvm::Error error = guarded(
          ErrorClass::Compile,
          options.inputName + ": expected kernels that translate to LLVM IR",
          [&] {
            PassManager manager(&context, ModuleOp::getOperationName());
            if (locations)
              manager.addPass(LLVM::createDIScopeForLLVMFuncOpPass());
            if (failed(manager.run(*module)) || failed(listGpuKernels(*module)))
              return failure();
            auto made = generator.makeLLVMIR(gpuModules[0], makeLlvmContext());
            if (failed(made))
              return failure();
            kernels = std::move(*made);
            return success();
          }))
    return error;
  gpuModules[0].erase();
  return kernels;
}

llvm::Expected<std::string> Compilation::generate(
    std::unique_ptr<llvm::Module> llvmModule,
    llvm::function_ref<llvm::Expected<std::string>(llvm::Module &)> write) {
  std::optional<llvm::Expected<std::string>> written;
  const bool lives = runGuarded([&] { written.emplace(write(*llvmModule)); });
  if (lives && llvmError.empty())
    return std::move(*written);
  if (!lives) {
    (void)llvmModule.release();
    leakLlvmContexts();
  } else if (!*written) {
    llvm::consumeError(written->takeError());
  }
  return makeError(ErrorClass::Compile,
                   options.inputName +
                       ": expected LLVM to generate code for the module, but " +
                       (llvmError.empty()
                            ? "it crashed"
                            : "got: " + printable(llvmError, Lines::Keep)));
}

llvm::Expected<std::string>
Compilation::writePtx(std::unique_ptr<llvm::Module> kernels,
                      const DeviceCodeGenerator &generator) {
  const TraceSpan span("compile", "generate PTX");
  return generate(std::move(kernels),
                  [&](llvm::Module &kernels) -> llvm::Expected<std::string> {
                    llvm::Expected<std::string> ptx =
                        generator.makePtx(kernels);
                    if (!ptx)
                      return makeError(ErrorClass::Compile,
                                       llvm::toString(ptx.takeError()));
                    return ptx;
                  });
}

llvm::Expected<std::string> Compilation::takeKernels(KernelForm form) {
  if (!pipeline.target.isCUDA())
    return std::string();
  const DeviceCodeGenerator generator = getGenerator();
  auto kernels = translateKernels(generator, /*locations=*/false);
  if (!kernels)
    return kernels.takeError();
  if (!*kernels || form == KernelForm::None)
    return std::string();
  llvm::Expected<std::string> ptx = writePtx(std::move(*kernels), generator);
  if (!ptx || form == KernelForm::Ptx)
    return ptx;
  llvm::Expected<Cubin> cubin = generator.makeCubin(*ptx);
  if (!cubin)
    return makeError(ErrorClass::Compile, llvm::toString(cubin.takeError()));
  return std::move(cubin->data);
}

llvm::Expected<DeviceCode> Compilation::takeDeviceCode(ExecutionDevice device) {
  DeviceCode code;
  const DeviceCodeGenerator generator = getGenerator();
  const std::string &chip = generator.getTarget().chip;
  const bool simulated = device == ExecutionDevice::CudaSim;
  Operation *host = findHostAccess(*module);
  code.hostAccess = host != nullptr;
  if (host)
    if (llvm::Error error = guarded(
            ErrorClass::Compile,
            options.inputName + ": expected a module of which nothing but "
                                "control flow is left for the host",
            [&] {
              const std::string text =
                  "expected an op that becomes a kernel, a product or a copy "
                  "on the GPU, but '" +
                  host->getName().getStringRef().str() + "' runs on the host";
              if (!simulated)
                return LogicalResult(emitError(host->getLoc()) << text);
              remark::missed(host->getLoc(),
                             remark::RemarkOpts::name("HostAccess")
                                 .category("diffattn-gpu"))
                  << remark::reason("{0}", text);
              return success();
            }))
      return error;
  // A fault of the simulator names the line of the kernel that it is in.
  auto kernels = translateKernels(generator, simulated);
  if (!kernels)
    return kernels.takeError();
  if (!*kernels)
    return code;
  code.kernels = describeKernels(*listGpuKernels(*module), **kernels);
  if (simulated) {
    DeviceCode::Image image{chip, DIFFATTN_IMAGE_BITCODE, 0, ""};
    llvm::raw_string_ostream os(image.data);
    llvm::WriteBitcodeToFile(**kernels, os);
    code.images.push_back(std::move(image));
    return code;
  }
  llvm::Expected<std::string> ptx = writePtx(std::move(*kernels), generator);
  if (!ptx)
    return ptx.takeError();
  // Without an assembler the driver compiles the PTX when the program is
  // loaded.
  if (llvm::Expected<Cubin> cubin = generator.makeCubin(*ptx))
    code.images.push_back(
        {chip, DIFFATTN_IMAGE_CUBIN, kCubinDriver, std::move(cubin->data)});
  else
    diagnostics.push_back(
        {DiagnosticKind::Note, "diffattn-gpu", "NoMachineCode",
         "no machine code for " + chip + ", the driver will compile PTX: " +
             llvm::toString(cubin.takeError()),
         /*file=*/""});
  code.images.push_back(
      {chip, DIFFATTN_IMAGE_PTX, kPtxDriver, std::move(*ptx)});
  return code;
}

llvm::Error Compilation::takeConstants(DeviceCode &code) {
  auto list = (*module)->getAttrOfType<ArrayAttr>("diffattn.constants");
  if (!list)
    return llvm::Error::success();
  for (Attribute value : list) {
    llvm::Expected<std::string> bytes = getElementBytes(value);
    if (!bytes)
      return bytes.takeError();
    code.constants.push_back(std::move(*bytes));
  }
  return llvm::Error::success();
}

std::string Compilation::print() {
  std::string text;
  llvm::raw_string_ostream os(text);
  module->print(os, OpPrintingFlags().printNameLocAsPrefix());
  os << '\n';
  return text;
}

llvm::Expected<std::unique_ptr<llvm::Module>>
Compilation::translate(const Signature &signature) {
  const TraceSpan span("compile", "translate to LLVM IR");
  std::unique_ptr<llvm::Module> result;
  if (llvm::Error error = guarded(
          ErrorClass::Compile,
          options.inputName + ": expected a module that translates to LLVM IR",
          [&] {
            result = translateModuleToLLVMIR(*module, makeLlvmContext());
            return success(static_cast<bool>(result));
          }))
    return error;
  if (llvm::Error error = addEntryPoints(*result, signature))
    return error;
  return result;
}

/// The rest of the way to `stage`, once its names are known to be right.
static llvm::Expected<std::string> emit(Compilation &compilation,
                                        const ExecutionTarget &target,
                                        Stage stage, bool quick) {
  if (llvm::Error error = compilation.parse())
    return error;
  // Arguments that are weights are no part of the signature.
  if (llvm::Error error = compilation.lower(std::min(stage, Stage::Imported)))
    return error;
  llvm::Expected<Signature> signature = compilation.signature();
  if (!signature)
    return signature.takeError();
  const bool isKernels = stage == Stage::PTX || stage == Stage::Cubin;
  const Stage last = isKernels ? Stage::GPU : std::min(stage, Stage::LLVM);
  if (llvm::Error error = compilation.lower(last))
    return error;
  if (isKernels) {
    auto kernels = compilation.takeKernels(
        stage == Stage::PTX ? KernelForm::Ptx : KernelForm::Cubin);
    if (kernels && kernels->empty())
      return makeError(ErrorClass::Compile,
                       "expected an op that becomes a kernel, but found none "
                       "in the module\n" +
                           printDiagnostics(compilation.takeDiagnostics()));
    return kernels;
  }
  if (stage == last)
    return compilation.print();
  if (auto kernels = compilation.takeKernels(KernelForm::None); !kernels)
    return kernels.takeError();
  auto module = compilation.translate(*signature);
  if (!module)
    return module.takeError();
  CodegenOutput output = stage == Stage::LLVMIR     ? CodegenOutput::LLVMIR
                         : stage == Stage::Assembly ? CodegenOutput::Assembly
                                                    : CodegenOutput::Object;
  return compilation.generate(std::move(*module), [&](llvm::Module &module) {
    return generateCode(module, target.isa, output, quick);
  });
}

/// The target, if the options are for it.
static llvm::Expected<ExecutionTarget>
checkTarget(const CompileOptions &options) {
  llvm::Expected<ExecutionTarget> target = parseTarget(options.target);
  if (target && target->device != ExecutionDevice::Cpu &&
      options.batchInvariance == BatchInvariance::Always)
    return makeError(ErrorClass::Usage,
                     "expected a CPU as the target of batch-invariant code, "
                     "because cuBLASLt chooses the order of sums by the number "
                     "of rows, but got '" +
                         options.target + "'");
  return target;
}

llvm::Expected<std::string>
mlir::diffattn::emitStage(llvm::StringRef ir, const CompileOptions &options,
                          llvm::StringRef word,
                          CompileDiagnostics *diagnostics) {
  llvm::Expected<ExecutionTarget> target = checkTarget(options);
  if (!target)
    return target.takeError();
  std::optional<Stage> stage = symbolizeStage(word);
  if (!stage)
    return makeError(ErrorClass::Usage,
                     "expected a stage of " +
                         llvm::join(getEnumWords<Stage>(), ", ") +
                         ", but got '" + word + "'");
  if ((stage == Stage::PTX || stage == Stage::Cubin) &&
      target->device == ExecutionDevice::Cpu)
    return makeError(
        ErrorClass::Usage,
        "expected target cuda:<chip> or cuda-sim:<chip> for stage " + word +
            ", but got '" + options.target + "'");
  Compilation compilation(ir, options, *target);
  auto result = emit(compilation, *target, *stage, options.quickCode);
  if (result && diagnostics)
    *diagnostics = compilation.takeDiagnostics();
  return result;
}

llvm::Expected<CompiledModule>
mlir::diffattn::compileModule(llvm::StringRef ir,
                              const CompileOptions &options) {
  const TraceSpan span("compile", "compile");
  auto start = std::chrono::steady_clock::now();
  llvm::Expected<ExecutionTarget> target = checkTarget(options);
  if (!target)
    return target.takeError();
  Compilation compilation(ir, options, *target);
  if (llvm::Error error = compilation.parse())
    return error;
  if (llvm::Error error = compilation.lower(Stage::Imported))
    return error;
  llvm::Expected<Signature> signature = compilation.signature();
  if (!signature)
    return signature.takeError();
  if (options.checkSignature)
    if (llvm::Error error = options.checkSignature(*signature))
      return error;
  if (llvm::Error error = compilation.lower(Stage::GPU))
    return error;
  // Weights that code for a device reads as one matrix have to lie so.
  auto weights = compilation.weights();
  if (!weights)
    return weights.takeError();
  signature->weights = std::move(*weights);
  std::optional<DeviceCode> device;
  if (target->device != ExecutionDevice::Cpu && !options.reference) {
    auto taken = compilation.takeDeviceCode(target->device);
    if (!taken)
      return taken.takeError();
    device = std::move(*taken);
  }
  if (llvm::Error error = compilation.lower(Stage::LLVM))
    return error;
  if (device)
    if (llvm::Error error = compilation.takeConstants(*device))
      return error;
  auto module = compilation.translate(*signature);
  if (!module)
    return module.takeError();
  auto object =
      compilation.generate(std::move(*module), [&](llvm::Module &module) {
        return generateCode(module, target->isa, CodegenOutput::Object,
                            options.quickCode);
      });
  if (!object)
    return object.takeError();
  CompiledModule result;
  result.signature = std::move(*signature);
  result.object = std::move(*object);
  result.device = std::move(device);
  result.diagnostics = compilation.takeDiagnostics();
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  return result;
}
