//===- diffattn-lsp-server.cpp - language server --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "../CrashMessage.h"
#include "../EntryPoints.h"
#include "../StandardStreams.h"

#include "DiffAttn/InitAll.h"

#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"

int diffattn_lsp_server_main(int argc, char **argv) {
  mlir::diffattn::guardStandardStreams({"diffattn-lsp-server: error: ", 1});
  mlir::diffattn::reportCrashes(argv[0]);
  mlir::diffattn::endWithoutReader();
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  mlir::diffattn::registerAllDialects(registry);
  return mlir::failed(mlir::MlirLspServerMain(argc, argv, registry));
}
