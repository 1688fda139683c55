//===- Compile.cpp - from IR to an object ---------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Execution/Compile.h"
#include "Codegen.h"

#include "DiffAttn/Conversion/GpuToPtx.h"
#include "DiffAttn/InitAll.h"
#include "DiffAttn/Pipelines/CpuPipeline.h"
#include "DiffAttn/Target/CpuTarget.h"

#include "mlir/Bytecode/BytecodeReader.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/Transforms/Passes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Verifier.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/All.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/raw_ostream.h"

#include <chrono>

using namespace mlir;
using namespace mlir::diffattn;

/// Deeper nesting would exhaust the parser's stack.
static constexpr int kMostNesting = 256;

std::optional<std::string>
mlir::diffattn::getSimulatedChip(llvm::StringRef target) {
  auto [device, chip] = target.split(':');
  if (device != "cuda-sim")
    return std::nullopt;
  return chip.empty() ? "sm_80" : chip.str();
}

llvm::Expected<std::string>
mlir::diffattn::parseTarget(llvm::StringRef target) {
  if (std::optional<std::string> chip = getSimulatedChip(target)) {
    std::string error;
    if (!getGpuTarget(*chip, error))
      return makeError(ErrorClass::Usage, error);
    return std::string("native");
  }
  auto [device, isa] = target.split(':');
  if (isa.empty())
    isa = "native";
  if (device != "cpu" || !getCpuTarget(isa))
    return makeError(ErrorClass::Usage,
                     "expected target cpu, cpu:<isa> with an isa of " +
                         llvm::join(getCpuIsaNames(), ", ") +
                         ", or cuda-sim:<chip>, but got '" + target + "'");
  return isa.str();
}

static bool nestsTooDeep(llvm::StringRef text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"' || c == '\n')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '/' && text.substr(i, 2) == "//") {
      i = text.find('\n', i);
      if (i == llvm::StringRef::npos)
        return false;
    } else if (c == '(' || c == '[' || c == '{' || c == '<') {
      if (++depth > kMostNesting)
        return true;
    } else if (c == ')' || c == ']' || c == '}' ||
               (c == '>' && i > 0 && text[i - 1] != '-')) {
      --depth;
    }
  }
  return false;
}

namespace {

/// One module on its way down, with the text of what was said about it.
class Compilation {
public:
  Compilation(llvm::StringRef ir, const CompileOptions &options,
              std::string isa)
      : options(options),
        context(makeRegistry(), MLIRContext::Threading::DISABLED), ir(ir) {
    pipeline.isa = std::move(isa);
    pipeline.threads = options.threads;
    pipeline.raise = options.raise && !options.reference;
    if (std::optional<std::string> chip = getSimulatedChip(options.target))
      pipeline.gpuChip = std::move(*chip);
  }

  llvm::Error parse();
  llvm::Error lower(Stage stage);
  /// Takes the GPU's kernels out of the module, as LLVM bitcode.
  llvm::Expected<std::string> takeKernels();
  llvm::Expected<Signature> signature() { return readSignature(*module); }
  llvm::Expected<std::unique_ptr<llvm::Module>>
  translate(llvm::LLVMContext &llvmContext, const Signature &signature);
  std::string print();
  std::string takeDiagnostics() { return std::move(said); }

private:
  static DialectRegistry makeRegistry() {
    DialectRegistry registry;
    mlir::registerAllDialects(registry);
    mlir::registerAllExtensions(registry);
    mlir::registerAllToLLVMIRTranslations(registry);
    mlir::diffattn::registerAllDialects(registry);
    return registry;
  }

  /// Runs `action`; on failure, an error with what was said meanwhile.
  llvm::Error guarded(ErrorClass errorClass, const Twine &what,
                      llvm::function_ref<LogicalResult()> action);

  const CompileOptions &options;
  CpuPipelineOptions pipeline;
  MLIRContext context;
  llvm::StringRef ir;
  llvm::SourceMgr sources;
  std::string said;
  OwningOpRef<ModuleOp> module;
  /// How far down the module is.
  Stage reached = Stage::Input;
};

} // namespace

llvm::Error Compilation::guarded(ErrorClass errorClass, const Twine &what,
                                 llvm::function_ref<LogicalResult()> action) {
  std::string text;
  llvm::raw_string_ostream os(text);
  SourceMgrDiagnosticHandler handler(sources, &context, os);
  if (succeeded(action())) {
    said += text;
    return llvm::Error::success();
  }
  return makeError(errorClass, what + (text.empty() ? "" : "\n" + text));
}

llvm::Error Compilation::parse() {
  bool isText = !isBytecode(llvm::MemoryBufferRef(ir, options.inputName));
  if (isText && nestsTooDeep(ir))
    return makeError(ErrorClass::IR, options.inputName + ": expected at most " +
                                         Twine(kMostNesting) +
                                         " levels of brackets");
  sources.AddNewSourceBuffer(
      llvm::MemoryBuffer::getMemBufferCopy(ir, options.inputName), {});
  if (options.from != "input" && options.from != "gpu")
    return makeError(ErrorClass::Usage, "expected input or gpu as the stage "
                                        "that the module is in, but got '" +
                                            options.from + "'");
  if (options.from == "gpu" && options.reference)
    return makeError(ErrorClass::Usage,
                     "expected a module in stage input to make the reference "
                     "from, because in stage gpu the kernels are made");
  if (options.from == "gpu" && pipeline.gpuChip.empty())
    return makeError(ErrorClass::Usage,
                     "expected target cuda-sim:<chip> for a module in stage "
                     "gpu, but got '" +
                         options.target + "'");
  reached = *parseStage(options.from);
  return guarded(
      ErrorClass::IR, options.inputName + ": expected a module of MLIR", [&] {
        module = parseSourceFile<ModuleOp>(sources, ParserConfig(&context));
        return success(static_cast<bool>(module));
      });
}

llvm::Error Compilation::lower(Stage stage) {
  PassManager manager(&context, ModuleOp::getOperationName());
  // Checking after every pass takes a third of the time; the parser has checked
  // what comes in, and what comes out is checked below.
  manager.enableVerifier(false);
  if (!options.reproducer.empty())
    manager.enableCrashReproducerGeneration(options.reproducer);
  if (options.reference && reached == Stage::Input) {
    DecomposePassOptions all;
    all.all = true;
    manager.addPass(createDecomposePass(all));
  }
  buildCpuPipelineBetween(manager, pipeline, reached, stage);
  reached = stage;
  std::string hint;
  if (!options.reproducer.empty())
    hint = " (reproduce with: diffattn-opt --run-reproducer " +
           options.reproducer + ")";
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

llvm::Expected<std::string> Compilation::takeKernels() {
  std::string bitcode, message;
  std::optional<GpuTarget> target = getGpuTarget(pipeline.gpuChip, message);
  llvm::SmallVector<gpu::GPUModuleOp> found(module->getOps<gpu::GPUModuleOp>());
  if (!target || found.empty())
    return bitcode;
  if (found.size() > 1)
    return makeError(ErrorClass::Compile,
                     "expected one gpu.module, but got " + Twine(found.size()));
  if (llvm::Error error = guarded(
          ErrorClass::Compile,
          options.inputName + ": expected kernels that translate to LLVM IR",
          [&] {
            // A fault names the line of the kernel that it is in.
            PassManager manager(&context, ModuleOp::getOperationName());
            manager.addPass(LLVM::createDIScopeForLLVMFuncOpPass());
            if (failed(manager.run(*module)))
              return failure();
            llvm::LLVMContext llvmContext;
            auto kernels = translateGpuModule(found[0], *target, llvmContext);
            if (failed(kernels) ||
                failed(optimizeGpuModule(**kernels, *target)))
              return failure();
            llvm::raw_string_ostream os(bitcode);
            llvm::WriteBitcodeToFile(**kernels, os);
            return success();
          }))
    return error;
  found[0].erase();
  return bitcode;
}

std::string Compilation::print() {
  std::string text;
  llvm::raw_string_ostream os(text);
  module->print(os);
  os << '\n';
  return text;
}

llvm::Expected<std::unique_ptr<llvm::Module>>
Compilation::translate(llvm::LLVMContext &llvmContext,
                       const Signature &signature) {
  std::unique_ptr<llvm::Module> result;
  if (llvm::Error error = guarded(
          ErrorClass::Compile,
          options.inputName + ": expected a module that translates to LLVM IR",
          [&] {
            result = translateModuleToLLVMIR(*module, llvmContext);
            return success(static_cast<bool>(result));
          }))
    return error;
  if (llvm::Error error = addEntryPoints(*result, signature))
    return error;
  return result;
}

static constexpr llvm::StringRef kStages[] = {
    "input", "raised", "scheduled", "bufferized", "gpu",
    "loops", "llvm",   "llvm-ir",   "assembly",   "object"};

llvm::ArrayRef<llvm::StringRef> mlir::diffattn::getEmitStages() {
  return kStages;
}

llvm::Expected<std::string>
mlir::diffattn::emitStage(llvm::StringRef ir, const CompileOptions &options,
                          llvm::StringRef stage) {
  llvm::Expected<std::string> isa = parseTarget(options.target);
  if (!isa)
    return isa.takeError();
  if (!llvm::is_contained(kStages, stage))
    return makeError(ErrorClass::Usage, "expected a stage of " +
                                            llvm::join(getEmitStages(), ", ") +
                                            ", but got '" + stage + "'");
  Compilation compilation(ir, options, *isa);
  if (llvm::Error error = compilation.parse())
    return error;
  llvm::Expected<Signature> signature = compilation.signature();
  if (!signature)
    return signature.takeError();
  std::optional<Stage> mlirStage = parseStage(stage);
  if (llvm::Error error = compilation.lower(mlirStage.value_or(Stage::LLVM)))
    return error;
  if (mlirStage)
    return compilation.print();
  if (auto kernels = compilation.takeKernels(); !kernels)
    return kernels.takeError();
  llvm::LLVMContext llvmContext;
  auto module = compilation.translate(llvmContext, *signature);
  if (!module)
    return module.takeError();
  CodegenOutput output = stage == "llvm-ir"    ? CodegenOutput::LLVMIR
                         : stage == "assembly" ? CodegenOutput::Assembly
                                               : CodegenOutput::Object;
  return generateCode(**module, *isa, output);
}

llvm::Expected<CompiledModule>
mlir::diffattn::compileModule(llvm::StringRef ir,
                              const CompileOptions &options) {
  auto start = std::chrono::steady_clock::now();
  llvm::Expected<std::string> isa = parseTarget(options.target);
  if (!isa)
    return isa.takeError();
  Compilation compilation(ir, options, *isa);
  if (llvm::Error error = compilation.parse())
    return error;
  llvm::Expected<Signature> signature = compilation.signature();
  if (!signature)
    return signature.takeError();
  if (llvm::Error error = compilation.lower(Stage::GPU))
    return error;
  llvm::Expected<std::string> kernels = compilation.takeKernels();
  if (!kernels)
    return kernels.takeError();
  if (llvm::Error error = compilation.lower(Stage::LLVM))
    return error;
  llvm::LLVMContext llvmContext;
  auto module = compilation.translate(llvmContext, *signature);
  if (!module)
    return module.takeError();
  auto object = generateCode(**module, *isa, CodegenOutput::Object);
  if (!object)
    return object.takeError();
  CompiledModule result;
  result.signature = std::move(*signature);
  result.object = std::move(*object);
  result.kernels = std::move(*kernels);
  result.diagnostics = compilation.takeDiagnostics();
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  return result;
}
