//===- OnlineOps.td - attention in steps over keys ---------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_ONLINEOPS_TD
#define DIFFATTN_IR_ONLINEOPS_TD

include "DiffAttn/IR/DiffAttnAttrs.td"
include "DiffAttn/IR/DiffAttnMaps.td"
include "DiffAttn/IR/DiffAttnSchedules.td"
include "DiffAttn/IR/DiffAttnTypes.td"
include "mlir/Interfaces/DestinationStyleOpInterface.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "mlir/Interfaces/TilingInterface.td"

def DiffAttn_OnlineAttentionOp : DiffAttn_MapsOp<"online_attention", [
    DeclareOpInterfaceMethods<TilingInterface,
      ["getLoopIteratorTypes", "getIterationDomain", "getTiledImplementation",
       "getResultTilePosition"]>,
    DeclareOpInterfaceMethods<PartialReductionOpInterface,
      ["generateInitialTensorForPartialReduction", "tileToPartialReduction",
       "mergeReductions", "getPartialResultTilePosition"]>]> {
  let summary = "the maps of attention over a range of keys, as running states";
  let description = [{
    Adds a range of keys to the state of each map. With the scores `S` of the map
    as `diffattn.attention` defines them, restricted to these keys, the state
    `(max, sum, acc)` of a row becomes

    ```
    max' = max(max, max_j S[j])
    sum' = sum * exp(max - max') + sum_j exp(S[j] - max')
    acc' = acc * exp(max - max') + sum_j exp(S[j] - max') * v[j]
    ```

    A state that has seen no key is `(-inf, 0, 0)`. States are f32, so nothing is
    rounded between steps; the steps may come in any order, and states of
    different keys are joined by `diffattn.merge`.

    Key `j` of the operands stands at position `k_offset + j` (`k_offset` is 0 by
    default); `kv_len` and masks speak of that position. The number of all keys is
    not known here, so `is_causal` and `window` need `q_offset`.

    Tiles of keys hand the states on (`TilingInterface`), or each range of keys
    begins states of its own and `diffattn.merge` joins them in the order of the
    keys (`PartialReductionOpInterface`, with the ranges in parallel).

    With `kv_split_size = n` the op does the latter itself (split-KV decode): states
    have an axis of ranges in front, and range `r` begins a state of its own with the
    keys from `r * n` to `(r + 1) * n`. The destinations' contents are not read. The
    operands hold all keys then: `k_offset` is not given, and `q_offset` has the
    default of `diffattn.attention`. A `schedule`, of the same size, is that of the GPU
    kernel that computes it. With a schedule and on memrefs, sequences may follow one another,
    and keys lie in pages, as `diffattn.attention` says: `cu_seqlens_q`, `cu_seqlens_k`
    and `block_table`. States of packed sequences are of one batch, as their queries are.

    States: max1 and sum1 `[B,Hs,Tq]`, acc1 `[B,Hs,Tq,dv]`, max2 and sum2
    `[B,Hn,Tq]`, acc2 `[B,Hn,Tq,dv]` if the value heads divide the noise heads,
    else `[B,Hs,Tq,dv]`, since signal heads of one noise head then read different
    values. Without q2 and k2 there is one map, and of the states the first three. A
    schedule is of both.

    Example:

    ```mlir
    %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : tensor<1x8x16x64xf32>,
             tensor<1x8x128x64xf32>, tensor<1x8x16x64xf32>, tensor<1x8x128x64xf32>,
             tensor<1x8x128x128xf32>) k_offset(%c128)
             outs(%max1, %sum1, %acc1, %max2, %sum2, %acc2 : tensor<1x8x16xf32>,
             tensor<1x8x16xf32>, tensor<1x8x16x128xf32>, tensor<1x8x16xf32>,
             tensor<1x8x16xf32>, tensor<1x8x16x128xf32>) {scale = 0.125 : f32}
             -> tensor<1x8x16xf32>, tensor<1x8x16xf32>, tensor<1x8x16x128xf32>,
             tensor<1x8x16xf32>, tensor<1x8x16xf32>, tensor<1x8x16x128xf32>
    ```
  }];
  let arguments = !con(mapOperands, biasOperand, positionOperands, sequenceOperands,
    (ins Optional<Index>:$k_offset, Variadic<DiffAttn_F32Data>:$states),
    scoreAttributes, (ins OptionalAttr<I64Attr>:$kv_split_size,
                          OptionalAttr<DiffAttn_GpuSplitKVAttr>:$schedule), inputLayouts);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = mapClause # [{
    (`bias` `(` $bias^ `:` type($bias) `)`)?
  }] # positionClauses # sequenceClauses # [{
    (`k_offset` `(` $k_offset^ `)`)?
    `outs` `(` $states `:` type($states) `)` attr-dict (`->` type($results)^)?
  }];
  let builders = [
    /// The keys of `op` added to three states of each map, or ranges of them, each
    /// with states of its own.
    OpBuilder<(ins "AttentionOp":$op, "Value":$qOffset, "ValueRange":$states,
      CArg<"std::optional<int64_t>", "{}">:$kvSplitSize)>];
  let extraClassDeclaration = [{
    MutableOperandRange getDpsInitsMutable() { return getStatesMutable(); }
    /// The states, three for each map: those of map 2 only where there is one.
    Value getMax1() { return getStates()[0]; }
    Value getSum1() { return getStates()[1]; }
    Value getAcc1() { return getStates()[2]; }
    Value getMax2() { return getStates()[3]; }
    Value getSum2() { return getStates()[4]; }
    Value getAcc2() { return getStates()[5]; }
    /// Heads of acc2: the noise heads, unless signal heads of one noise head
    /// read different values.
    static int64_t accumulator2Heads(int64_t signal, int64_t noise, int64_t value) {
      return noise % value == 0 ? noise : signal;
    }
    int64_t getAccumulator2Heads() {
      return accumulator2Heads(getSignalHeads(), getNoiseHeads(), getValueHeads());
    }
  }];
}

def DiffAttn_MergeOp : DiffAttn_Op<"merge", [
    DestinationStyleOpInterface,
    DeclareOpInterfaceMethods<MemoryEffectsOpInterface>,
    DeclareOpInterfaceMethods<ReifyRankedShapedTypeOpInterface, ["reifyResultShapes"]>]> {
  let summary = "join two states of one map over different keys";
  let description = [{
    Joins the state `ins` to the state `outs`, both of one map over different keys:

    ```
    max' = max(max_a, max_b)
    sum' = sum_a * exp(max_a - max') + sum_b * exp(max_b - max')
    acc' = acc_a * exp(max_a - max') + acc_b * exp(max_b - max')
    ```

    Associative and commutative but for rounding; `(-inf, 0, 0)` is neutral.
    max and sum are `[B,H,T]`, acc is `[B,Ha,T,dv]`, H divides Ha.

    Where `ins` has an axis of ranges in front, as `diffattn.online_attention` makes
    it with `kv_split_size`, its states are joined to each other in their order,
    beginning with `(-inf, 0, 0)`, and what `outs` held is not read.

    Example:

    ```mlir
    %m, %s, %a = diffattn.merge ins(%max, %sum, %acc : tensor<1x8x16xf32>, tensor<1x8x16xf32>,
                   tensor<1x8x16x128xf32>) outs(%max0, %sum0, %acc0 : tensor<1x8x16xf32>,
                   tensor<1x8x16xf32>, tensor<1x8x16x128xf32>)
                   -> tensor<1x8x16xf32>, tensor<1x8x16xf32>, tensor<1x8x16x128xf32>
    ```
  }];
  let arguments = (ins
    DiffAttn_F32Data:$max, DiffAttn_F32Data:$sum, DiffAttn_F32Data:$acc,
    DiffAttn_F32Data:$init_max, DiffAttn_F32Data:$init_sum, DiffAttn_F32Data:$init_acc);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = [{
    `ins` `(` $max `,` $sum `,` $acc `:` type($max) `,` type($sum) `,` type($acc) `)`
    `outs` `(` $init_max `,` $init_sum `,` $init_acc `:` type($init_max) `,` type($init_sum) `,`
      type($init_acc) `)` attr-dict (`->` type($results)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    MutableOperandRange getDpsInitsMutable() {
      return MutableOperandRange(getOperation(), getInitMaxMutable().getOperandNumber(), 3);
    }
    ShapedType getShaped(Value value) { return ::llvm::cast<ShapedType>(value.getType()); }
    /// Whether `ins` has an axis of ranges in front.
    bool joinsRanges() { return getShaped(getMax()).getRank() == 4; }
  }];
}

def DiffAttn_FinalizeOp : DiffAttn_Op<"finalize", [
    AttrSizedOperandSegments, DestinationStyleOpInterface,
    DeclareOpInterfaceMethods<DiffAttn_HeadEpilogueOpInterface, ["getAxisRoles"]>,
    DeclareOpInterfaceMethods<MemoryEffectsOpInterface>,
    DeclareOpInterfaceMethods<ReifyRankedShapedTypeOpInterface, ["reifyResultShapes"]>]> {
  let summary = "difference of two states, head norm, scale, gate and one rounding";
  let description = [{
    Ends what `diffattn.online_attention` began, with `g = s/(Hs/Hn)`:

    ```
    X = acc1[s] / sum1[s] - act(lambda) * acc2[g] / sum2[g]     (0 where a sum is 0)
    Y = out_scale * norm_weight * X / rms(X) * sigmoid(gate)
    ```

    The result, of any float type and in `o_layout`, is rounded once. sum2, acc2 and
    lambda are given together; without them there is one map, and nothing is subtracted.

    `sink`, `sink2`, `lse1` and `lse2` are those of `diffattn.attention`, and come with the
    maxima of their map, in whose unit its states are: with a sink

    ```
    max' = max(max1[s], sink[s])
    sum' = sum1[s] * exp(max1[s] - max') + exp(sink[s] - max')
    acc' = acc1[s] * exp(max1[s] - max')
    ```

    take the place of the state, but for a sum of 0, and `lse1 = max' + log(sum')`.

    Example:

    ```mlir
    %o = diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : tensor<1x8x16xf32>,
           tensor<1x8x16x128xf32>, tensor<1x8x16xf32>, tensor<1x8x16x128xf32>)
           lambda(%l : tensor<f32>) outs(%init : tensor<1x8x16x128xbf16>)
           {norm = #diffattn.norm<rms>, out_scale = 0.8 : f32} -> tensor<1x8x16x128xbf16>
    ```
  }];
  let arguments = !con((ins
    DiffAttn_F32Data:$sum1, DiffAttn_F32Data:$acc1, Optional<DiffAttn_F32Data>:$sum2,
    Optional<DiffAttn_F32Data>:$acc2, Optional<DiffAttn_F32Data>:$lambda,
    Optional<DiffAttn_Data>:$norm_weight,
    Optional<DiffAttn_Data>:$gate, Optional<DiffAttn_F32Data>:$max1,
    Optional<DiffAttn_F32Data>:$max2, Optional<DiffAttn_Data>:$sink,
    Optional<DiffAttn_Data>:$sink2, DiffAttn_Data:$init, Optional<DiffAttn_F32Data>:$lse1,
    Optional<DiffAttn_F32Data>:$lse2), DiffAttn_EpilogueAttributes.arguments,
    (ins DefaultValuedAttr<DiffAttn_LayoutAttr, "Layout::BHTD">:$o_layout));
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = [{
    `ins` `(` $sum1 `,` $acc1 (`,` $sum2^ `,` $acc2)? `:` type($sum1) `,` type($acc1)
      (`,` type($sum2)^ `,` type($acc2))? `)`
    (`lambda` `(` $lambda^ `:` type($lambda) `)`)?
    (`norm_weight` `(` $norm_weight^ `:` type($norm_weight) `)`)?
    (`gate` `(` $gate^ `:` type($gate) `)`)?
    (`max1` `(` $max1^ `:` type($max1) `)`)?
    (`max2` `(` $max2^ `:` type($max2) `)`)?
    (`sink` `(` $sink^ `:` type($sink) `)`)?
    (`sink2` `(` $sink2^ `:` type($sink2) `)`)?
    `outs` `(` $init `:` type($init) `)` (`lse1` `(` $lse1^ `:` type($lse1) `)`)?
    (`lse2` `(` $lse2^ `:` type($lse2) `)`)? attr-dict (`->` type($results)^)?
  }];
  let builders = [
    /// The end of `op` from three states of each map.
    OpBuilder<(ins "AttentionOp":$op, "ValueRange":$states)>];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The destinations of the output and, if they are asked for, of lse1 and lse2.
    MutableOperandRange getDpsInitsMutable() {
      const unsigned first = getInitMutable().getOperandNumber();
      return MutableOperandRange(getOperation(), first, getOperation()->getNumOperands() - first);
    }
    /// The output on tensors; null on memrefs.
    Value getResult() { return getResults().empty() ? Value() : getResults().front(); }
    ShapedType getShaped(Value value) { return ::llvm::cast<ShapedType>(value.getType()); }
    int64_t getSignalHeads() { return getShaped(getSum1()).getDimSize(1); }
    bool hasSecondMap() { return static_cast<bool>(getSum2()); }
    int64_t getNoiseHeads() {
      return hasSecondMap() ? getShaped(getSum2()).getDimSize(1) : getSignalHeads();
    }
    int64_t getValueDim() { return getShaped(getAcc1()).getDimSize(3); }
  }];
}

#endif // DIFFATTN_IR_ONLINEOPS_TD
