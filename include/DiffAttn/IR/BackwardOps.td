//===- BackwardOps.td - gradients of attention -------------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_BACKWARDOPS_TD
#define DIFFATTN_IR_BACKWARDOPS_TD

include "DiffAttn/IR/DiffAttnAttrs.td"
include "DiffAttn/IR/DiffAttnMaps.td"
include "DiffAttn/IR/DiffAttnTypes.td"

def DiffAttn_AttentionBackwardOp : DiffAttn_MapsOp<"attention_backward", []> {
  let summary = "gradients of attention with respect to its operands";
  let description = [{
    Computes, from the operands of `diffattn.attention` and the gradient `d_out` of its
    output, the gradients of those operands that have a destination. Maxima, sums and
    the output before the norm are computed again, unless they are given: lse1 and lse2,
    the logarithms of the sums of exponentials of each row of map 1 and map 2, x, the
    difference times the values before norm and gate, and o2, map 2 times the values.

    Writes `Z` for scores after softcap and bias, `L` for `act(lambda)`, `g` for the
    noise head of signal head `s`, and `rho` for the root mean square with its epsilon:

    ```
    n  = X / rho                                   G  = sigmoid(gate)
    dgate = d_out * (out_scale * w * n) * G * (1 - G)
    dU = d_out * G                                 dw = sum out_scale * dU * n
    dn = out_scale * w * dU
    dX = (dn - n * mean(dn * n)) / rho             (eps inside the root)
    dX = dn / rho - n * mean(dn * n) / (rho - eps) (eps outside of it; 1/0 is 0)
    dP = dX * v^T                                  D1 = rowsum(A1 * dP), D2 = rowsum(A2 * dP)
    dZ1[s] = A1 * (dP - D1)                        dZ2[g] = -A2 * sum_{s in g} L_s * (dP_s - D2_s)
    dv = sum (A1 - L * A2)^T * dX                  dL[s,i] = -D2, times L * (1 - L) with sigmoid
    dS = scale * dZ * (1 - (T / softcap)^2)        T: scores after softcap, before bias
    dq = dS * k,  dk = sum dS^T * q                dbias = sum (dZ1 + dZ2)
    ```

    Sums are over all heads, rows and batches that an operand is shared by. Where k2 is
    k1 itself there is no d_k2: d_k1 is the gradient of both. A key or value that no
    query sees has no effect, whatever it holds, and gradient 0; so has everything in a
    row without keys. Infinities and NaN of `d_out` reach the gradients. Sums are f32,
    and each gradient is rounded once.

    Shapes are those of `diffattn.attention`; d_out and x have that of its output, o2
    too; lse1 is `[B,Hs,Tq]`, lse2 `[B,Hn,Tq]`. Each destination has the shape and
    layout of its operand, and its element type or f32.

    Example:

    ```mlir
    %dq, %dv = diffattn.attention_backward ins(%q1, %k1, %q2, %k2, %v : tensor<1x8x512x64xf32>,
                 tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>, tensor<1x8x512x64xf32>,
                 tensor<1x8x512x128xf32>) d_out(%d : tensor<1x8x512x128xf32>)
                 lambda(%l : tensor<f32>) outs(d_q1(%a : tensor<1x8x512x64xf32>)
                 d_v(%b : tensor<1x8x512x128xf32>)) {scale = 0.125 : f32, is_causal}
                 -> tensor<1x8x512x64xf32>, tensor<1x8x512x128xf32>
    ```
  }];
  let arguments = !con(mapOperands, (ins DiffAttn_Data:$d_out, Optional<DiffAttn_F32Data>:$lambda),
    biasOperand, (ins Optional<DiffAttn_Data>:$norm_weight, Optional<DiffAttn_Data>:$gate),
    positionOperands, sequenceOperands,
    (ins Optional<DiffAttn_F32Data>:$lse1, Optional<DiffAttn_F32Data>:$lse2,
         Optional<DiffAttn_Data>:$x, Optional<DiffAttn_Data>:$o2,
         Optional<DiffAttn_Data>:$d_q1, Optional<DiffAttn_Data>:$d_k1,
         Optional<DiffAttn_Data>:$d_q2, Optional<DiffAttn_Data>:$d_k2,
         Optional<DiffAttn_Data>:$d_v, Optional<DiffAttn_F32Data>:$d_lambda,
         Optional<DiffAttn_Data>:$d_bias, Optional<DiffAttn_Data>:$d_norm_weight,
         Optional<DiffAttn_Data>:$d_gate),
    scoreAttributes, DiffAttn_EpilogueAttributes.arguments, inputLayouts,
    (ins DefaultValuedAttr<DiffAttn_LayoutAttr, "Layout::BHTD">:$o_layout,
         OptionalAttr<ArrayAttr>:$schedules));
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = mapClause # [{
    `d_out` `(` $d_out `:` type($d_out) `)`
    (`lambda` `(` $lambda^ `:` type($lambda) `)`)?
    (`bias` `(` $bias^ `:` type($bias) `)`)?
    (`norm_weight` `(` $norm_weight^ `:` type($norm_weight) `)`)?
    (`gate` `(` $gate^ `:` type($gate) `)`)?
  }] # positionClauses # sequenceClauses # [{
    (`lse1` `(` $lse1^ `:` type($lse1) `)`)?
    (`lse2` `(` $lse2^ `:` type($lse2) `)`)?
    (`x` `(` $x^ `:` type($x) `)`)?
    (`o2` `(` $o2^ `:` type($o2) `)`)?
    `outs` `(`
    (`d_q1` `(` $d_q1^ `:` type($d_q1) `)`)?
    (`d_k1` `(` $d_k1^ `:` type($d_k1) `)`)?
    (`d_q2` `(` $d_q2^ `:` type($d_q2) `)`)?
    (`d_k2` `(` $d_k2^ `:` type($d_k2) `)`)?
    (`d_v` `(` $d_v^ `:` type($d_v) `)`)?
    (`d_lambda` `(` $d_lambda^ `:` type($d_lambda) `)`)?
    (`d_bias` `(` $d_bias^ `:` type($d_bias) `)`)?
    (`d_norm_weight` `(` $d_norm_weight^ `:` type($d_norm_weight) `)`)?
    (`d_gate` `(` $d_gate^ `:` type($d_gate) `)`)?
    `)` attr-dict (`->` type($results)^)?
  }];
  let extraClassDeclaration = [{
    /// A gradient that is wanted: its name, its destination, and the operand that it
    /// is of, which the verifier asks for.
    struct Gradient {
      ::llvm::StringRef name;
      ::mlir::OpOperand *destination, *operand;
    };
    /// The gradients that are wanted, in the order of the results.
    ::llvm::SmallVector<Gradient> getGradients();

    /// All destinations, d_q1 to d_gate.
    MutableOperandRange getDpsInitsMutable();
  }];
}

#endif // DIFFATTN_IR_BACKWARDOPS_TD
