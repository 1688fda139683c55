//===- consumer-opt.cpp - a pass of another project -----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/InitAll.h"
#include "DiffAttn/Model/Pipelines/Pipelines.h"

#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

using namespace mlir;

namespace {
/// Gives every attention without a window one of `left` keys to the left.
struct LimitWindowPass : PassWrapper<LimitWindowPass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(LimitWindowPass)

  LimitWindowPass() = default;
  LimitWindowPass(const LimitWindowPass &other) : PassWrapper(other) {}

  StringRef getArgument() const final { return "consumer-limit-window"; }
  StringRef getDescription() const final {
    return "Limit attention to a window of keys";
  }
  Option<int64_t> left{*this, "left", llvm::cl::desc("keys to the left"),
                       llvm::cl::init(128)};

  void runOnOperation() override {
    getOperation().walk([&](diffattn::AttentionOp op) {
      if (!op.getWindowAttr())
        op.setWindow(ArrayRef<int64_t>{left, 0});
    });
  }
};
} // namespace

int main(int argc, char **argv) {
  PassRegistration<LimitWindowPass>();
  // Our pass between theirs: a pipeline of one's own out of public stages.
  PassPipelineRegistration<>("consumer-pipeline",
                             "Limit windows and compile for the CPU",
                             [](OpPassManager &pm) {
                               diffattn::PipelineOptions options;
                               options.threads = 1;
                               diffattn::buildRaisePasses(pm, options);
                               pm.addPass(std::make_unique<LimitWindowPass>());
                               diffattn::buildSchedulePasses(pm, options);
                               diffattn::buildBufferizePasses(pm, options);
                               diffattn::buildLoopPasses(pm, options);
                               diffattn::buildLLVMPasses(pm, options);
                             });
  DialectRegistry registry;
  registerAllDialects(registry);
  registerAllExtensions(registry);
  diffattn::registerAllDialects(registry);
  return asMainReturnCode(
      MlirOptMain(argc, argv, "a consumer of diffattn\n", registry));
}
