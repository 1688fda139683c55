//===- DiffAttnOps.td - operations -------------------------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNOPS_TD
#define DIFFATTN_IR_DIFFATTNOPS_TD

include "DiffAttn/IR/DiffAttnAttrs.td"
include "DiffAttn/IR/DiffAttnMasks.td"
include "DiffAttn/IR/DiffAttnMaps.td"
include "DiffAttn/IR/DiffAttnSchedules.td"
include "DiffAttn/IR/DiffAttnTypes.td"
include "DiffAttn/IR/DiffAttnWeightAttr.td"
include "mlir/Interfaces/DestinationStyleOpInterface.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "mlir/Interfaces/TilingInterface.td"
include "mlir/IR/SymbolInterfaces.td"

def DiffAttn_AttentionOp : DiffAttn_MapsOp<"attention", [
    DiffAttn_HeadEpilogueOpInterface,
    DeclareOpInterfaceMethods<TilingInterface,
      ["getLoopIteratorTypes", "getIterationDomain", "getTiledImplementation",
       "getResultTilePosition", "getIterationDomainTileFromResultTile",
       "generateResultTileValue"]>]> {
  let summary = "attention over the difference of two softmax maps";
  let description = [{
    Computes, for each batch `b`, signal head `s` and query `i`, with all sums in
    f32 and one rounding at the end:

    ```
    S1[j] = scale * <q1[s,i], k1[s/(Hs/Hk1),j]>    S2[j] = scale * <q2[g,i], k2[g/(Hn/Hk2),j]>
    S     = softcap * tanh(S / softcap)            if softcap is set
    S     = S + bias[g,i,j]                        (additive)
    A1    = softmax over the visible keys of S1    A2 = the same of S2
    X     = sum_j (A1 - act(lambda) * A2)[j] * v[s/(Hs/Hv),j]
    Y     = out_scale * norm_weight * X / rms(X) * sigmoid(gate)
    ```

    where `g = s/(Hs/Hn)` is the noise head of signal head `s`.
  }] # visibleKeys # [{
    A row that sees no key has a map of zeros.

    q2, k2 and lambda are given together. Without them there is one map, which is
    softmax attention: `X = sum_j A1[j] * v[s/(Hs/Hv),j]`. Its heads are signal heads,
    and a bias is by signal head. lambda_act and integral are of two maps.

    With `integral` (DINT, arXiv 2501.17486) each row also takes what the rows of
    map 1 see on average, so that its weights sum to 1:

    ```
    X[i]  = sum_j (A1 - act(lambda) * A2)[i,j] * v[j]
            + act(lambda) * (1/Tq) * sum_n sum_j A1[n,j] * v[j]
    ```

    No kernel computes that: it is rewritten into `online_attention` and `finalize`.

    With a norm or a gate, `x` asks for X too, as a second destination and result, of
    the output's shape and layout, f32 or of the operands' element type.
    `attention_backward` takes it, and need not compute it again.

    With `sink` and `sink2`, f32 or of the operands' element type, the sum that a row of
    map 1 or map 2 is divided by has `exp(sink[s])` or `exp(sink2[g])` added to it. `lse1`
    and `lse2`, f32, ask for the natural logarithms of these sums as further destinations
    and results; -inf for a row without keys.

    Sequences of different lengths can follow one another along one axis: with
    `cu_seqlens_q` and `cu_seqlens_k`, `[N+1]`, q1, q2, lambda, gate and the result
    are of one batch, and sequence `n` has queries `cu_seqlens_q[n]` to
    `cu_seqlens_q[n+1] - 1`; k1, k2 and v likewise. With `block_table` `[B,M]` keys
    and values lie in pages, k1 `[P,Hk1,S,d]`, k2 `[P,Hk2,S,d]`, v `[P,Hv,S,dv]`: key
    `j` of sequence `b` is row `j mod S` of page `block_table[b, j div S]`, `Tk` is
    `M * S`, and kv_len tells how many keys there are. Each sequence is computed as if
    it were alone, its positions begin at 0, and kv_len and q_offset have one number
    for each.

    Shapes (layout `bhtd`; with `bthd` the second and third axes change places):
    q1 `[B,Hs,Tq,d]`, q2 `[B,Hn,Tq,d]`, k1 `[B,Hk1,Tk,d]`, k2 `[B,Hk2,Tk,d]`,
    v `[B,Hv,Tk,dv]`, lambda `[]`, `[Hs]`, `[B,Tq,Hs]` or `[B,Tq,Hn]`,
    sink `[Hs]`, sink2 `[Hn]`, norm_weight `[dv]`, gate and result `[B,Hs,Tq,dv]`,
    lse1 `[B,Hs,Tq]`, lse2 `[B,Hn,Tq]`.

    q1, k1, q2, k2 and v have one element type. The result has it too, or is f32
    and then not rounded.

    Example:

    ```mlir
    %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : tensor<1x8x512x64xf32>,
           tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>,
           tensor<1x8x512x128xf32>) lambda(%l : tensor<f32>)
           outs(%init : tensor<1x8x512x128xf32>)
           {scale = 0.125 : f32, is_causal, norm = #diffattn.norm<rms>, out_scale = 0.8 : f32}
           -> tensor<1x8x512x128xf32>
    ```
  }];
  let arguments = !con(mapOperands, (ins Optional<DiffAttn_F32Data>:$lambda), biasOperand,
    (ins Optional<DiffAttn_Data>:$norm_weight, Optional<DiffAttn_Data>:$gate), positionOperands,
    sequenceOperands,
    (ins Optional<DiffAttn_Data>:$sink, Optional<DiffAttn_Data>:$sink2,
         Variadic<DiffAttn_Data>:$inits, Optional<DiffAttn_Data>:$x, Optional<DiffAttn_Data>:$lse1,
         Optional<DiffAttn_Data>:$lse2, Optional<DiffAttn_Data>:$o2),
    scoreAttributes, (ins UnitAttr:$integral),
    DiffAttn_EpilogueAttributes.arguments, inputLayouts,
    (ins DefaultValuedAttr<DiffAttn_LayoutAttr, "Layout::BHTD">:$o_layout,
         OptionalAttr<ArrayAttr>:$schedules, OptionalAttr<DiffAttn_SizeBoundsAttr>:$size_bounds));
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = mapClause # [{
    (`lambda` `(` $lambda^ `:` type($lambda) `)`)?
    (`bias` `(` $bias^ `:` type($bias) `)`)?
    (`norm_weight` `(` $norm_weight^ `:` type($norm_weight) `)`)?
    (`gate` `(` $gate^ `:` type($gate) `)`)?
  }] # positionClauses # sequenceClauses # [{
    (`sink` `(` $sink^ `:` type($sink) `)`)?
    (`sink2` `(` $sink2^ `:` type($sink2) `)`)?
    `outs` `(` $inits `:` type($inits) `)` (`x` `(` $x^ `:` type($x) `)`)?
    (`lse1` `(` $lse1^ `:` type($lse1) `)`)?
    (`lse2` `(` $lse2^ `:` type($lse2) `)`)?
    (`o2` `(` $o2^ `:` type($o2) `)`)?
    attr-dict (`->` type($results)^)?
  }];
  let builders = [
    /// The common form: no bias, norm or gate, every layout bhtd. On tensors the
    /// result has the type of `init`, on memrefs there is none. With one map, q2,
    /// k2 and lambda are null.
    OpBuilder<(ins "Value":$q1, "Value":$k1, "Value":$q2, "Value":$k2, "Value":$v,
                   "Value":$lambda, "Value":$init, "float":$scale,
                   CArg<"bool", "false">:$isCausal)>];
  let hasCanonicalizer = 1;
  let extraClassDeclaration = [{
    /// The destinations of the output and, if they are asked for, of X, lse1, lse2
    /// and O2.
    MutableOperandRange getDpsInitsMutable();
    /// The destination of the output, which is the first one.
    Value getInit() { return getInits().front(); }
    OpOperand &getInitMutable() { return getInitsMutable()[0]; }
    /// The output on tensors; null on memrefs.
    Value getResult() { return getResults().empty() ? Value() : getResults().front(); }

    /// The number of keys of a batch: of paged ones, of all its pages.
    int64_t getKeyCount();

    /// The name of the first of sink, sink2, lse1 and lse2 that is given; empty: none.
    ::llvm::StringRef getSumOperand();

    /// The name of the first destination of rows beside the output, x or o2, that is
    /// given; empty: none.
    ::llvm::StringRef getSavedRows();

    /// The type of the result for queries and values of these types: batch, heads
    /// and length of q1, width of v, in `oLayout`; elements as those of q1.
    static RankedTensorType inferResultType(ShapedType q1, ShapedType v,
                                            Layout qLayout = Layout::BHTD,
                                            Layout oLayout = Layout::BHTD);
  }];
}

def DiffAttn_LayerWeightOp : DiffAttn_Op<"layer_weight", [
    Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "one layer's weight, by the pattern of its name";
  let description = [{
    Reads the weight that `pattern` names for layer `layer`. The pattern is the
    symbol of an `ml_program.global` with an extern value whose name holds `{}`
    in place of the number of the layer; the global's type is the type of each
    layer's weight. Lowering turns it into a load from a table of pointers, so a
    loop over the layers needs one function for all of them.

    Example:

    ```mlir
    %w = diffattn.layer_weight @"layers.{}.q_proj.weight"[%layer] : tensor<256x256xf32>
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$pattern, Index:$layer);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$pattern `[` $layer `]` attr-dict `:` type($result)";
}

// Ops that only the lowering makes.
include "DiffAttn/IR/GemmOps.td"
// After AttentionOp, whose axes their C++ uses.
include "DiffAttn/IR/OnlineOps.td"
include "DiffAttn/IR/BackwardOps.td"

#endif // DIFFATTN_IR_DIFFATTNOPS_TD
