//===- DiffAttnBase.td - dialect and base classes ----------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNBASE_TD
#define DIFFATTN_IR_DIFFATTNBASE_TD

include "mlir/IR/OpBase.td"

def DiffAttn_Dialect : Dialect {
  let name = "diffattn";
  let cppNamespace = "::mlir::diffattn";
  let summary = "differential attention as one high-level op";
  let description = [{
    Differential attention subtracts two softmax maps before it multiplies by
    the values. The dialect has the whole contract as one op
    (`diffattn.attention`), the pieces that its lowerings need (a step over a
    range of keys, a merge, an end), and the access to the weights of a model.
    docs/spec.md is the contract; its labels stand beside each check.
  }];
  let useDefaultAttributePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::tensor::TensorDialect"];
}

/// Attributes without a dialect's prefix, and those of this dialect, are known
/// ones: a misspelt attribute is an error, not a wrong result. Structural, so
/// that a misspelt name is reported before the right one is missed.
def DiffAttn_KnownAttributes : NativeOpTrait<"KnownAttributes">, StructuralOpTrait {
  let cppNamespace = "::mlir::diffattn";
}

class DiffAttn_Op<string mnemonic, list<Trait> traits = []>
    : Op<DiffAttn_Dialect, mnemonic, [DiffAttn_KnownAttributes] # traits>;

#endif // DIFFATTN_IR_DIFFATTNBASE_TD
