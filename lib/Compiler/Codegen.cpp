//===- Codegen.cpp - from LLVM IR to machine code -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Codegen.h"

#include "DiffAttn/Runtime/Support/TraceSpan.h"
#include "DiffAttn/Target/CpuTarget.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Analysis/LoopAnalysisManager.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"

#include <mutex>

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

llvm::Error mlir::diffattn::addEntryPoints(llvm::Module &module,
                                           const Signature &signature) {
  llvm::LLVMContext &context = module.getContext();
  llvm::IRBuilder<> builder(context);
  llvm::Type *pointer = builder.getPtrTy();
  for (const FunctionSignature &function : signature.functions) {
    llvm::Function *callee =
        module.getFunction("_mlir_ciface_" + function.name);
    if (!callee || callee->isDeclaration())
      return makeError(ErrorClass::Compile,
                       "function '" + function.name +
                           "': expected the pipeline to give it a C interface");
    std::string name = getEntryPointName(function.name);
    // LLVM would give the second of two another name, which no one looks up.
    if (module.getNamedValue(name))
      return makeError(ErrorClass::Compile,
                       "expected no function or global named '" + name +
                           "', which is the entry point of '" + function.name +
                           "'");
    auto *entry = llvm::Function::Create(
        llvm::FunctionType::get(builder.getVoidTy(), {pointer}, false),
        llvm::GlobalValue::ExternalLinkage, name, module);
    builder.SetInsertPoint(llvm::BasicBlock::Create(context, "entry", entry));
    auto slot = [&](unsigned i) -> llvm::Value * {
      llvm::Value *at =
          builder.CreateConstGEP1_64(pointer, entry->getArg(0), i);
      return builder.CreateLoad(pointer, at);
    };
    llvm::SmallVector<llvm::Value *> arguments;
    for (llvm::Argument &argument : callee->args()) {
      llvm::Value *at = slot(argument.getArgNo());
      // Descriptors are passed by address, scalars by value.
      arguments.push_back(argument.getType()->isPointerTy()
                              ? at
                              : builder.CreateLoad(argument.getType(), at));
    }
    llvm::CallInst *call = builder.CreateCall(callee, arguments);
    if (!call->getType()->isVoidTy())
      builder.CreateStore(call, slot(callee->arg_size()));
    builder.CreateRetVoid();
  }
  return llvm::Error::success();
}

CodegenCpu mlir::diffattn::getCodegenCpu(llvm::StringRef isa) {
  CodegenCpu result;
  llvm::SmallVector<std::string> features;
  CpuTarget target = *getCpuTarget(isa);
  for (llvm::StringRef feature : target.tuning)
    features.push_back(feature.str());
  if (isa == "native") {
    result.cpu = llvm::sys::getHostCPUName().str();
    for (const auto &feature : llvm::sys::getHostCPUFeatures())
      features.push_back((feature.second ? "+" : "-") + feature.first().str());
  } else {
    result.cpu = target.codegenCpu.str();
    for (llvm::StringRef feature : target.features)
      features.push_back(feature.str());
  }
  llvm::sort(features); // the string is part of a key
  result.features = llvm::join(features, ",");
  return result;
}

static llvm::Expected<std::unique_ptr<llvm::TargetMachine>>
makeTargetMachine(llvm::StringRef isa, llvm::CodeGenOptLevel level) {
  static std::once_flag initialized;
  std::call_once(initialized, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::InitializeNativeTargetAsmParser(); // bundles have assembly of ours
  });
  llvm::Triple triple(llvm::sys::getProcessTriple());
  std::string message;
  const llvm::Target *target =
      llvm::TargetRegistry::lookupTarget(triple, message);
  if (!target)
    return makeError(ErrorClass::Compile,
                     "expected LLVM to have a target for this machine, but "
                     "got: " +
                         message);
  CodegenCpu cpu = getCodegenCpu(isa);
  return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(
      triple, cpu.cpu, cpu.features, llvm::TargetOptions(), llvm::Reloc::PIC_,
      llvm::CodeModel::Small, level));
}

/// Kernels are already in the shape that they should run in, and loops over
/// elements are vectorized. These passes take memref descriptors apart,
/// simplify addresses and branches, and move invariant code out of loops, once
/// each. LLVM's own O2 does most of it several times, which takes 1.7 times as
/// long and gives code that is no faster.
static constexpr llvm::StringLiteral kPasses =
    "ipsccp,globalopt,"
    "cgscc(inline,function("
    "sroa<modify-cfg>,early-cse<memssa>,simplifycfg,"
    "instcombine<no-verify-fixpoint>,"
    "loop-mssa(loop-instsimplify,loop-simplifycfg,loop-rotate,licm),"
    "simplifycfg,loop(loop-idiom,indvars,loop-deletion),"
    "gvn,bdce,dse,loop-mssa(licm),simplifycfg,"
    "instcombine<no-verify-fixpoint>)),"
    "globaldce,"
    "function("
    "loop-vectorize<interleave-forced-only>,"
    "simplifycfg<forward-switch-cond;switch-to-lookup;no-keep-loops;"
    "hoist-common-insts;sink-common-insts>,"
    "loop-mssa(licm),instsimplify,simplifycfg)";

/// Takes memref descriptors apart, which code generation without optimizations
/// would copy part by part.
static constexpr llvm::StringLiteral kQuickPasses =
    "function(sroa,early-cse,simplifycfg),globaldce";

static void optimize(llvm::Module &module, llvm::TargetMachine &machine,
                     llvm::StringRef pipeline) {
  const TraceSpan span("compile", "optimize LLVM IR");
  llvm::PassBuilder builder(&machine);
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graph;
  llvm::ModuleAnalysisManager modules;
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(graph);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, graph, modules);
  llvm::ModulePassManager passes;
  llvm::cantFail(builder.parsePassPipeline(passes, pipeline));
  passes.run(module, modules);
}

llvm::Expected<std::string> mlir::diffattn::generateCode(llvm::Module &module,
                                                         llvm::StringRef isa,
                                                         CodegenOutput output,
                                                         bool quick) {
  // Optimizations keep tiles of AMX in their registers.
  quick &= getCpuTarget(isa)->name != "amx";
  auto machine = makeTargetMachine(isa, quick ? llvm::CodeGenOptLevel::None
                                              : llvm::CodeGenOptLevel::Default);
  if (!machine)
    return machine.takeError();
  module.setTargetTriple((*machine)->getTargetTriple());
  module.setDataLayout((*machine)->createDataLayout());
  std::string broken;
  llvm::raw_string_ostream brokenStream(broken);
  if (llvm::verifyModule(module, &brokenStream))
    return makeError(ErrorClass::Compile,
                     "expected LLVM IR that verifies, but got: " + broken);
  optimize(module, **machine, quick ? kQuickPasses : kPasses);
  if (output == CodegenOutput::LLVMIR) {
    std::string text;
    llvm::raw_string_ostream(text) << module;
    return text;
  }
  const TraceSpan span("compile", "generate machine code");
  llvm::SmallVector<char, 0> code;
  llvm::raw_svector_ostream stream(code);
  llvm::legacy::PassManager emit;
  auto type = output == CodegenOutput::Assembly
                  ? llvm::CodeGenFileType::AssemblyFile
                  : llvm::CodeGenFileType::ObjectFile;
  if ((*machine)->addPassesToEmitFile(emit, stream, nullptr, type))
    return makeError(ErrorClass::Compile,
                     "expected LLVM to generate code for this machine");
  emit.run(module);
  return std::string(code.begin(), code.end());
}
