//===- CorePlugin.cpp - dialect and attention for a stock mlir-opt -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "HostCheck.h"

#include "DiffAttn/InitCore.h"

#include "mlir/Tools/Plugins/DialectPlugin.h"
#include "mlir/Tools/Plugins/PassPlugin.h"
#include "llvm/Config/llvm-config.h"

using namespace mlir;

extern "C" __attribute__((visibility("default"))) DialectPluginLibraryInfo
mlirGetDialectPluginInfo() {
  return {diffattn::checkHost(), "DiffAttn", LLVM_VERSION_STRING,
          [](DialectRegistry *registry) {
            diffattn::registerAllDialects(*registry);
          }};
}

extern "C" __attribute__((visibility("default"))) PassPluginLibraryInfo
mlirGetPassPluginInfo() {
  return {diffattn::checkHost(), "DiffAttn", LLVM_VERSION_STRING,
          [] { diffattn::registerCorePasses(); }};
}
