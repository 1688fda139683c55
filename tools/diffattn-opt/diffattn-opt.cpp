//===- diffattn-opt.cpp - mlir-opt with our dialect and passes ------------===//
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
#include "mlir/InitAllPasses.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int diffattn_opt_main(int argc, char **argv) {
  mlir::diffattn::guardStandardStreams({"diffattn-opt: error: ", 1});
  mlir::diffattn::reportCrashes(argv[0]);
  mlir::diffattn::endWithoutReader();
  mlir::registerAllPasses();
  mlir::diffattn::registerAllPasses();
  mlir::DialectRegistry registry;
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  mlir::diffattn::registerAllDialects(registry);
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "diffattn optimizer driver\n", registry));
}
