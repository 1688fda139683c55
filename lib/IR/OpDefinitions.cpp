//===- OpDefinitions.cpp - the generated half of the ops ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace mlir::diffattn;

#define GET_OP_CLASSES
#include "DiffAttn/IR/DiffAttnOps.cpp.inc"
