//===- DiffAttnWeightAttr.td - weights of models in files --*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNWEIGHTATTR_TD
#define DIFFATTN_IR_DIFFATTNWEIGHTATTR_TD

include "DiffAttn/IR/DiffAttnBase.td"
include "mlir/IR/AttrTypeBase.td"

def DiffAttn_WeightAttr : AttrDef<DiffAttn_Dialect, "Weight"> {
  let mnemonic = "weight";
  let summary = "a weight of a model, and its place in the files";
  let description = [{
    A model declares a weight as an `ml_program.global` with an extern value and attributes
    (`diffattn.source` and so on). `diffattn-bind-weights` replaces the globals by a list of these
    attributes, the module's `diffattn.weights`, in the order of the table of weights.

    - `name`: of the global. With `{}` in it, it stands for the weights of all layers;
    - `type`: of the tensor that the module reads;
    - `source`: its name in the files, where that is another one;
    - `layers`, `first_layer`, `layer_step`: how many layers a name with `{}` stands for, the number
      of the first one in the files, and from one to the next. The table has a slot for each;
    - `transpose`: the files hold it with its two axes exchanged;
    - `row_block_size`, `row_blocks`: block `i` of so many rows is block `row_blocks[i]` of the files;
    - `finite`: the files must hold no NaN and no infinity there, as in scales of quantized weights;
    - `follows`: the name of a weight in whose memory on a device this one goes on, so that the rows of both, layer
      by layer, are those of one matrix. `diffattn-merge-gemms` sets it for weights that it multiplies at once.

    Example:

    ```mlir
    #diffattn.weight<name = "l.{}.qkv", type = tensor<96x64xbf16>, layers = 12, row_block_size = 32,
        row_blocks = [2, 0, 1]>
    ```
  }];
  let parameters = (ins
    StringRefParameter<>:$name,
    "::mlir::RankedTensorType":$type,
    StringRefParameter<"", "\"\"">:$source,
    DefaultValuedParameter<"int64_t", "0">:$layers,
    DefaultValuedParameter<"int64_t", "0">:$first_layer,
    DefaultValuedParameter<"int64_t", "1">:$layer_step,
    DefaultValuedParameter<"bool", "false">:$transpose,
    DefaultValuedParameter<"int64_t", "0">:$row_block_size,
    OptionalParameter<"::mlir::DenseI64ArrayAttr">:$row_blocks,
    DefaultValuedParameter<"bool", "false">:$finite,
    StringRefParameter<"", "\"\"">:$follows);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Slots of the table of weights that it takes.
    int64_t getNumSlots() const { return getLayers() ? getLayers() : 1; }

    /// A copy of this weight whose memory on a device follows the one `name`.
    WeightAttr withFollows(::llvm::StringRef name) const;

    /// The weight that `global`, an `ml_program.global` with an extern value,
    /// declares.
    static ::mlir::FailureOr<WeightAttr>
    ofGlobal(::mlir::Operation *global,
             ::llvm::function_ref<::mlir::InFlightDiagnostic()> emitError);
  }];
}

#endif // DIFFATTN_IR_DIFFATTNWEIGHTATTR_TD
