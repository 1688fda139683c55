//===- DiffAttnDialect.cpp - the dialect and its attributes ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KnownAttributes.h"

#include "DiffAttn/IR/DiffAttn.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::diffattn;

#include "DiffAttn/IR/DiffAttnDialect.cpp.inc"

#include "DiffAttn/IR/DiffAttnEnums.cpp.inc"

#include "DiffAttn/IR/MapsInterface.cpp.inc"
#include "DiffAttn/IR/MaskInterface.cpp.inc"
#include "DiffAttn/IR/ScheduleInterface.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "DiffAttn/IR/DiffAttnAttrs.cpp.inc"

/// Registers ops under their own type ids.
template <typename... Ops>
static void insertOperations(Dialect &dialect) {
  (RegisteredOperationName::insert<WithKnownProperties<Ops>>(dialect), ...);
}

void DiffAttnDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "DiffAttn/IR/DiffAttnAttrs.cpp.inc"
      >();
  insertOperations<
#define GET_OP_LIST
#include "DiffAttn/IR/DiffAttnOps.cpp.inc"
      >(*this);
}
