//===- GpuToPtxPass.cpp - translates and assembles GPU modules ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/LlvmErrors.h"
#include "DiffAttn/Codegen/NVVM/GpuToPtx.h"
#include "DiffAttn/Codegen/Passes.h"

#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"

namespace mlir::diffattn {
#define GEN_PASS_DEF_GPUTOPTXPASS
#include "DiffAttn/Codegen/Passes.h.inc"
} // namespace mlir::diffattn

using namespace mlir;
using namespace mlir::diffattn;

namespace {
struct GpuToPtxPass final : diffattn::impl::GpuToPtxPassBase<GpuToPtxPass> {
  using GpuToPtxPassBase::GpuToPtxPassBase;

  void getDependentDialects(DialectRegistry &registry) const override {
    GpuToPtxPassBase::getDependentDialects(registry);
    registerGpuTranslations(registry);
  }

  void runOnOperation() override {
    if (!ptx && file.empty()) {
      getOperation().emitError() << "expected `file` with `ptx=false`, which "
                                    "gives LLVM IR alone, but got none";
      return signalPassFailure();
    }
    for (auto module : getOperation().getOps<gpu::GPUModuleOp>())
      if (failed(process(module)))
        return signalPassFailure();
  }

  LogicalResult write(gpu::GPUModuleOp module, StringRef suffix,
                      StringRef text) {
    std::error_code code;
    llvm::raw_fd_ostream stream(file + suffix.str(), code);
    if (!code) {
      stream << text;
      stream.close();
      code = stream.error();
      stream.clear_error();
    }
    if (code)
      return module.emitError() << "expected to write " << file << suffix
                                << ", but got " << code.message();
    return success();
  }

  LogicalResult process(gpu::GPUModuleOp module) {
    std::string name = chip;
    if (name.empty()) {
      if (ArrayAttr targets = module.getTargetsAttr())
        for (Attribute attr : targets)
          if (auto nvvm = dyn_cast<NVVM::NVVMTargetAttr>(attr))
            name = nvvm.getChip().str();
    }
    std::string error;
    std::optional<GpuTarget> target = getGpuTarget(name, error);
    if (!target)
      return module.emitError() << error;

    PtxasSearch search;
    search.program = ptxas;
    DeviceCodeGenerator generator(*target, search);
    std::string llvmError;
    llvm::LLVMContext context;
    context.setDiagnosticHandler(std::make_unique<KeepLlvmError>(llvmError));
    FailureOr<std::unique_ptr<llvm::Module>> kernels =
        writeLLVMIR(module, generator, context);
    if (failed(kernels) || !ptx)
      return success(succeeded(kernels));
    FailureOr<std::string> text =
        writePtx(module, generator, **kernels, llvmError);
    if (failed(text))
      return failure();
    return assemble ? runAssembler(module, *text, generator) : success();
  }

  FailureOr<std::unique_ptr<llvm::Module>>
  writeLLVMIR(gpu::GPUModuleOp module, const DeviceCodeGenerator &generator,
              llvm::LLVMContext &context) {
    FailureOr<std::unique_ptr<llvm::Module>> kernels =
        generator.makeLLVMIR(module, context);
    if (failed(kernels) || file.empty())
      return kernels;
    std::string text;
    llvm::raw_string_ostream stream(text);
    (*kernels)->print(stream, nullptr);
    if (failed(write(module, ".ll", text)))
      return failure();
    return kernels;
  }

  /// `llvmError`: what LLVM reports while it generates code.
  FailureOr<std::string> writePtx(gpu::GPUModuleOp module,
                                  const DeviceCodeGenerator &generator,
                                  llvm::Module &kernels,
                                  const std::string &llvmError) {
    llvm::Expected<std::string> ptx = generator.makePtx(kernels);
    if (!llvmError.empty()) {
      llvm::consumeError(ptx.takeError());
      return module.emitError() << "expected LLVM to generate code for the "
                                   "module, but got: "
                                << llvmError;
    }
    if (!ptx)
      return module.emitError() << llvm::toString(ptx.takeError());
    if (file.empty())
      module->setAttr("diffattn.ptx", StringAttr::get(&getContext(), *ptx));
    else if (failed(write(module, ".ptx", *ptx)))
      return failure();
    return std::move(*ptx);
  }

  LogicalResult runAssembler(gpu::GPUModuleOp module, StringRef ptx,
                             const DeviceCodeGenerator &generator) {
    llvm::Expected<Cubin> cubin = generator.makeCubin(ptx);
    if (!cubin)
      return module.emitError()
             << "expected ptxas to assemble the module, but got: "
             << llvm::toString(cubin.takeError());
    if (!file.empty()) {
      if (failed(write(module, ".cubin", cubin->data)))
        return failure();
    } else {
      module->setAttr("diffattn.cubin",
                      StringAttr::get(&getContext(), cubin->data));
    }
    Builder b(&getContext());
    SmallVector<NamedAttribute> report;
    for (const PtxasKernel &kernel : cubin->kernels) {
      report.push_back(b.getNamedAttr(
          kernel.name,
          b.getDictionaryAttr(
              {b.getNamedAttr("registers",
                              b.getI64IntegerAttr(kernel.registers)),
               b.getNamedAttr("spill_loads",
                              b.getI64IntegerAttr(kernel.spillLoadBytes)),
               b.getNamedAttr("spill_stores",
                              b.getI64IntegerAttr(kernel.spillStoreBytes))})));
      if (noSpills && (kernel.spillStoreBytes || kernel.spillLoadBytes))
        return module.emitError()
               << "expected no spills of " << kernel.name << " on "
               << generator.getTarget().chip << ", but got "
               << kernel.spillStoreBytes << " bytes stored and "
               << kernel.spillLoadBytes << " loaded";
    }
    module->setAttr("diffattn.ptxas", b.getDictionaryAttr(report));
    if (cubin->warnings.empty())
      return success();
    if (noSpills)
      return module.emitError()
             << "expected ptxas to leave products by warpgroups as they are, "
                "but got "
             << cubin->warnings.front();
    SmallVector<StringRef> warnings(cubin->warnings.begin(),
                                    cubin->warnings.end());
    module->setAttr("diffattn.ptxas_warnings", b.getStrArrayAttr(warnings));
    return success();
  }
};
} // namespace
