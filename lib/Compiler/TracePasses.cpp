//===- TracePasses.cpp - spans of compile passes --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "TracePasses.h"

#include "DiffAttn/Runtime/ABI/Trace.h"

#include "mlir/IR/SymbolTable.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassInstrumentation.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {
class PassSpans final : public PassInstrumentation {
public:
  void runBeforePass(Pass *pass, Operation *op) override {
    // A pass without an argument only runs others on each function.
    StringRef name = pass->getArgument();
    auto symbol =
        op->getAttrOfType<StringAttr>(SymbolTable::getSymbolAttrName());
    const std::string what =
        ("pass\n" + (name.empty() ? "passes of functions" : name) + "\n\n" +
         (symbol ? symbol.getValue() : StringRef()))
            .str();
    diffattn_rt_trace_begin(what.c_str(), 0, 0);
  }
  void runAfterPass(Pass *, Operation *) override { diffattn_rt_trace_end(); }
  void runAfterPassFailed(Pass *, Operation *) override {
    diffattn_rt_trace_end();
  }
};
} // namespace

void mlir::diffattn::tracePasses(PassManager &manager) {
  if (diffattn_rt_trace_depth() >= 0)
    manager.addInstrumentation(std::make_unique<PassSpans>());
}
