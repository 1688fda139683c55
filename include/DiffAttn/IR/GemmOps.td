//===- GemmOps.td - matrix products and weights -*- tablegen -* -===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_GEMMOPS_TD
#define DIFFATTN_IR_GEMMOPS_TD

include "DiffAttn/IR/DiffAttnAttrs.td"
include "mlir/Interfaces/DestinationStyleOpInterface.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def DiffAttn_GemmFloat : AnyTypeOf<[F32, F16, BF16, F64]>;
def DiffAttn_Matrices : AnyTypeOf<
    [RankedTensorOf<[DiffAttn_GemmFloat]>, MemRefOf<[DiffAttn_GemmFloat]>],
    "matrices of f32, f16, bf16 or f64">;

def DiffAttn_GemmOp : DiffAttn_Op<"gemm", [
    DestinationStyleOpInterface, DeclareOpInterfaceMethods<MemoryEffectsOpInterface>,
    DeclareOpInterfaceMethods<ReifyRankedShapedTypeOpInterface, ["reifyResultShapes"]>]> {
  let summary = "matrix product of the runtime's library";
  let description = [{
    `c[..,i,j] = sum_l a[..,i,l] * b[..,l,j]`, or `b[..,j,l]` with `transpose_b`,
    plus the old `c` with `accumulate`. Sums are in f32 (f64 for f64) and rounded
    once. Leading dimensions are batches; an `a` or `b` of rank 2 is the same for
    all of them. Opaque to fusion, so that its operands stay matrices; lowered to
    `diffattn_rt_gemm` with addresses and strides, without copies of views.

    Example:

    ```mlir
    %y = diffattn.gemm ins(%x, %w : tensor<?x64xf32>, tensor<96x64xf32>)
           outs(%init : tensor<?x96xf32>) {transpose_b} -> tensor<?x96xf32>
    ```
  }];
  let arguments = (ins DiffAttn_Matrices:$a, DiffAttn_Matrices:$b, DiffAttn_Matrices:$c,
                       UnitAttr:$transpose_b, UnitAttr:$accumulate);
  let results = (outs Optional<AnyRankedTensor>:$result);
  let assemblyFormat = [{
    `ins` `(` $a `,` $b `:` type($a) `,` type($b) `)` `outs` `(` $c `:` type($c) `)`
    attr-dict (`->` type($result)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    MutableOperandRange getDpsInitsMutable() { return getCMutable(); }
    ShapedType getShaped(Value value) { return ::llvm::cast<ShapedType>(value.getType()); }
  }];
}

def DiffAttn_SmallFloat : AnyTypeOf<[F32, F16, BF16]>;
def DiffAttn_SmallMatrices : AnyTypeOf<
    [RankedTensorOf<[DiffAttn_SmallFloat]>, MemRefOf<[DiffAttn_SmallFloat]>],
    "a matrix of f32, f16 or bf16">;
def DiffAttn_Bytes : AnyTypeOf<[RankedTensorOf<[I8]>, MemRefOf<[I8]>], "a matrix of i8">;
def DiffAttn_Scales : AnyTypeOf<[RankedTensorOf<[F32]>, MemRefOf<[F32]>], "a matrix of f32">;

def DiffAttn_QuantizedGemmOp : DiffAttn_Op<"quantized_gemm", [
    DestinationStyleOpInterface, DeclareOpInterfaceMethods<MemoryEffectsOpInterface>,
    DeclareOpInterfaceMethods<ReifyRankedShapedTypeOpInterface, ["reifyResultShapes"]>]> {
  let summary = "product with a matrix of integers and scales";
  let description = [{
    `c[i,j] = sum_l a[i,l] * (scales[j, l / group] * b[j,l])`, plus the old `c`
    with `accumulate`: the linear layer of a quantized weight, `[N, K]`. `b` holds
    integers of `bits` 8, one in a byte, or 4, two in a byte as two's complement,
    the one with the even `l` in the low half: `[N, K/2]`. A row of `b` has a
    scale for each group of K / (columns of `scales`) neighbours. Sums are in f32
    and rounded once.

    Example:

    ```mlir
    %y = diffattn.quantized_gemm ins(%x, %w, %s : tensor<?x64xf32>, tensor<96x32xi8>, tensor<96x2xf32>)
           outs(%init : tensor<?x96xf32>) {bits = 4 : i64} -> tensor<?x96xf32>
    ```
  }];
  let arguments = (ins DiffAttn_SmallMatrices:$a, DiffAttn_Bytes:$b, DiffAttn_Scales:$scales,
                       DiffAttn_SmallMatrices:$c, I64Attr:$bits, UnitAttr:$accumulate);
  let results = (outs Optional<AnyRankedTensor>:$result);
  let assemblyFormat = [{
    `ins` `(` $a `,` $b `,` $scales `:` type($a) `,` type($b) `,` type($scales) `)`
    `outs` `(` $c `:` type($c) `)` attr-dict (`->` type($result)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    MutableOperandRange getDpsInitsMutable() { return getCMutable(); }
    /// Rows of `b`, the numbers in each, and how many of them share a scale.
    int64_t getNumColumns() {
      return ::llvm::cast<ShapedType>(getB().getType()).getDimSize(0);
    }
    int64_t getDepth() {
      return ::llvm::cast<ShapedType>(getB().getType()).getDimSize(1) * 8 / static_cast<int64_t>(getBits());
    }
    int64_t getGroup() {
      return getDepth() / ::llvm::cast<ShapedType>(getScales().getType()).getDimSize(1);
    }
  }];
}

def DiffAttn_GatedGemmOp : DiffAttn_Op<"gated_gemm", [
    DestinationStyleOpInterface, DeclareOpInterfaceMethods<MemoryEffectsOpInterface>,
    DeclareOpInterfaceMethods<ReifyRankedShapedTypeOpInterface, ["reifyResultShapes"]>]> {
  let summary = "two products with the same rows, one of which gates the other";
  let description = [{
    `c = silu(g) * u` with `g = a * gate` and `u = a * up`, or with the transposed
    `gate` and `up` for `transpose_b`: the first half of a gated feed-forward.
    `silu(g)` is `g * (1 / (1 + exp(-g)))`. All of it is in f32 and rounded once,
    but for what `rounded` lists, which is rounded to the type of `a` first: both
    `sums`, the `exponential`, the `denominator` 1 + exp(-g), the `sigmoid`, the
    product `silu`.

    A lowering need not write `g` and `u` to memory. On CPUs with tiles
    `diffattn-fuse-gated-gemms` makes the op of two products and what joins them;
    it is lowered to `diffattn_rt_gated_gemm`. `diffattn-decompose` does the
    opposite.

    Example:

    ```mlir
    %y = diffattn.gated_gemm ins(%x, %gate, %up : tensor<?x64xbf16>, tensor<96x64xbf16>, tensor<96x64xbf16>)
           outs(%init : tensor<?x96xbf16>) {rounded = #diffattn.gate_rounding<sums|silu>, transpose_b} -> tensor<?x96xbf16>
    ```
  }];
  let arguments = (ins DiffAttn_SmallMatrices:$a, DiffAttn_SmallMatrices:$gate, DiffAttn_SmallMatrices:$up,
                       DiffAttn_SmallMatrices:$c, UnitAttr:$transpose_b,
                       DefaultValuedAttr<DiffAttn_GateRoundingAttr, "GateRounding::None">:$rounded);
  let results = (outs Optional<AnyRankedTensor>:$result);
  let assemblyFormat = [{
    `ins` `(` $a `,` $gate `,` $up `:` type($a) `,` type($gate) `,` type($up) `)`
    `outs` `(` $c `:` type($c) `)` attr-dict (`->` type($result)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    MutableOperandRange getDpsInitsMutable() { return getCMutable(); }
  }];
}

def DiffAttn_WeightOp : DiffAttn_Op<"weight", [Pure]> {
  let summary = "the buffer of one slot of the table of weights";
  let description = [{
    The contiguous buffer that slot `slot` of the external table
    `diffattn_weights` points to. Its contents never change.

    Example:

    ```mlir
    %w = diffattn.weight %slot : memref<96x64xf32>
    ```
  }];
  let arguments = (ins Index:$slot);
  let results = (outs AnyStaticShapeMemRef:$buffer);
  let assemblyFormat = "$slot attr-dict `:` type($buffer)";
}

#endif // DIFFATTN_IR_GEMMOPS_TD
