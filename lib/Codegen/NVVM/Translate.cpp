//===- Translate.cpp - from a GPU module to PTX ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuToPtx.h"
#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Target/PtxConvergence.h"

#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/GPU/GPUToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/Vectorize/LoadStoreVectorizer.h"

#include <mutex>

using namespace mlir;
using namespace mlir::diffattn;

void mlir::diffattn::registerGpuTranslations(DialectRegistry &registry) {
  registerBuiltinDialectTranslation(registry);
  registerGPUDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registerNVVMDialectTranslation(registry);
}

static std::unique_ptr<llvm::TargetMachine>
createTargetMachine(const GpuTarget &target) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
  llvm::Triple triple("nvptx64-nvidia-cuda");
  std::string error;
  const llvm::Target *nvptx = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!nvptx)
    return nullptr;
  return std::unique_ptr<llvm::TargetMachine>(nvptx->createTargetMachine(
      triple, target.chip, "+ptx" + std::to_string(target.ptxVersion),
      llvm::TargetOptions(), std::nullopt, std::nullopt,
      llvm::CodeGenOptLevel::Default));
}

/// Whether the back end has instructions for `function`; it ends the process at
/// an intrinsic that it would lower to a call of a library.
static bool isInstruction(const llvm::Function &function) {
  switch (function.getIntrinsicID()) {
  case llvm::Intrinsic::not_intrinsic:
  case llvm::Intrinsic::acos:
  case llvm::Intrinsic::asin:
  case llvm::Intrinsic::atan:
  case llvm::Intrinsic::atan2:
  case llvm::Intrinsic::cos:
  case llvm::Intrinsic::cosh:
  case llvm::Intrinsic::exp:
  case llvm::Intrinsic::exp10:
  case llvm::Intrinsic::frexp:
  case llvm::Intrinsic::ldexp:
  case llvm::Intrinsic::log:
  case llvm::Intrinsic::log10:
  case llvm::Intrinsic::log2:
  case llvm::Intrinsic::modf:
  case llvm::Intrinsic::pow:
  case llvm::Intrinsic::powi:
  case llvm::Intrinsic::sin:
  case llvm::Intrinsic::sincos:
  case llvm::Intrinsic::sincospi:
  case llvm::Intrinsic::sinh:
  case llvm::Intrinsic::tan:
  case llvm::Intrinsic::tanh:
    return false;
  case llvm::Intrinsic::exp2:
    return function.getReturnType()->getScalarType()->isFloatTy();
  default:
    return true;
  }
}

/// Kernels are whole: no device library is linked, since not every machine has
/// one.
static LogicalResult checkCalls(gpu::GPUModuleOp module,
                                const llvm::Module &translated) {
  for (const llvm::Function &function : translated)
    if (function.isDeclaration() && !function.use_empty() &&
        !isInstruction(function))
      return module.emitError()
             << "expected kernels that call nothing outside of their module, "
                "because no device library is linked, but got a call of "
             << function.getName();
  return success();
}

FailureOr<std::unique_ptr<llvm::Module>>
mlir::diffattn::translateGpuModule(gpu::GPUModuleOp module,
                                   const GpuTarget &target,
                                   llvm::LLVMContext &context) {
  std::unique_ptr<llvm::TargetMachine> machine = createTargetMachine(target);
  if (!machine)
    return module.emitError()
           << "expected LLVM to be built with the NVPTX target";
  std::unique_ptr<llvm::Module> translated =
      translateModuleToLLVMIR(module, context);
  if (!translated)
    return module.emitError()
           << "expected only ops that translate to LLVM IR in the module";
  translated->setTargetTriple(machine->getTargetTriple());
  translated->setDataLayout(machine->createDataLayout());
  if (failed(checkCalls(module, *translated)))
    return failure();
  markWarpCollectives(*translated);
  return translated;
}

LogicalResult mlir::diffattn::optimizeGpuModule(llvm::Module &module,
                                                const GpuTarget &target) {
  std::unique_ptr<llvm::TargetMachine> machine = createTargetMachine(target);
  if (!machine)
    return failure();
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager callGraph;
  llvm::ModuleAnalysisManager modules;
  llvm::PipelineTuningOptions tuning;
  // A tile's loop is as long as it should be.
  tuning.LoopUnrolling = false;
  llvm::PassBuilder builder(machine.get(), tuning);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(callGraph);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, callGraph, modules);
  llvm::ModulePassManager passes =
      builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2);
  // O2 takes vectors apart, and the back end puts their loads together again:
  // do that here, so that counts of accesses in the IR are those of the chip.
  passes.addPass(
      llvm::createModuleToFunctionPassAdaptor(llvm::LoadStoreVectorizerPass()));
  passes.run(module, modules);
  return success();
}

FailureOr<std::string> mlir::diffattn::emitPtx(llvm::Module &module,
                                               const GpuTarget &target) {
  std::unique_ptr<llvm::TargetMachine> machine = createTargetMachine(target);
  if (!machine)
    return failure();
  llvm::SmallString<0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, stream, nullptr,
                                   llvm::CodeGenFileType::AssemblyFile))
    return failure();
  passes.run(module);
  return std::string(text);
}

FailureOr<std::unique_ptr<llvm::Module>>
DeviceCodeGenerator::makeLLVMIR(gpu::GPUModuleOp kernels,
                                llvm::LLVMContext &context) const {
  FailureOr<std::unique_ptr<llvm::Module>> translated =
      translateGpuModule(kernels, target, context);
  if (failed(translated))
    return failure();
  if (failed(optimizeGpuModule(**translated, target)))
    return kernels.emitError()
           << "expected LLVM to optimize for " << target.chip;
  return translated;
}

llvm::Expected<std::string>
DeviceCodeGenerator::makePtx(llvm::Module &kernels) const {
  FailureOr<std::string> ptx = emitPtx(kernels, target);
  if (failed(ptx))
    return llvm::createStringError("expected LLVM to write PTX for " +
                                   target.chip);
  return std::move(*ptx);
}

llvm::Expected<Cubin> DeviceCodeGenerator::makeCubin(StringRef ptx) const {
  std::string error;
  std::optional<Cubin> cubin = assemblePtx(ptx, target, search, error);
  if (!cubin)
    return llvm::createStringError(error);
  return std::move(*cubin);
}
