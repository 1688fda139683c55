//===- KnownAttributes.h - names of properties of ops -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_IR_KNOWNATTRIBUTES_H
#define DIFFATTN_LIB_IR_KNOWNATTRIBUTES_H

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/OperationSupport.h"

namespace mlir::diffattn {

/// Fails where `properties`, as the generic form `<{...}>` has them, holds a
/// name that is none of the op's `attributes`.
LogicalResult
checkKnownProperties(Attribute properties, ArrayRef<StringRef> attributes,
                     llvm::function_ref<InFlightDiagnostic()> emitError);

/// `Op` as it is registered. The code that MLIR generates drops properties with
/// unknown names in silence; by the verifier they are gone.
template <typename Op>
struct WithKnownProperties : Op {
  using Op::Op;

  static TypeID resolveTypeID() { return TypeID::get<Op>(); }

  template <typename Properties>
  static LogicalResult
  setPropertiesFromAttr(Properties &properties, Attribute attribute,
                        llvm::function_ref<InFlightDiagnostic()> emitError) {
    if (failed(checkKnownProperties(attribute, Op::getAttributeNames(),
                                    emitError)))
      return failure();
    return Op::setPropertiesFromAttr(properties, attribute, emitError);
  }
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_IR_KNOWNATTRIBUTES_H
