//===- DiffAttnTypes.td - operand types of the ops ---------*- tablegen -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_IR_DIFFATTNTYPES_TD
#define DIFFATTN_IR_DIFFATTNTYPES_TD

include "mlir/IR/OpBase.td"

class DiffAttn_Shaped<list<Type> elements, string summary>
    : AnyTypeOf<[RankedTensorOf<elements>, MemRefOf<elements>], "ranked tensor or memref of " # summary>;

def DiffAttn_Data : DiffAttn_Shaped<[F32, F16, BF16], "f32, f16 or bf16">;
def DiffAttn_F32Data : DiffAttn_Shaped<[F32], "f32">;
def DiffAttn_BiasData : DiffAttn_Shaped<[F32, F16, BF16, I1], "f32, f16, bf16 or i1">;
def DiffAttn_I64Data : DiffAttn_Shaped<[I64], "i64">;

#endif // DIFFATTN_IR_DIFFATTNTYPES_TD
