//===- ElementType.h - Element types as numbers -----------------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_RUNTIME_ABI_ELEMENTTYPE_H
#define DIFFATTN_RUNTIME_ABI_ELEMENTTYPE_H

/// The table of element types: ROW(name, number, as MLIR spells it, bytes of an
/// element, 1 for floats), in the order of the numbers, which are ABI. BOOL is
/// one byte, 0 or 1.
#define DIFFATTN_DTYPES(ROW)                                                   \
  ROW(F32, 0, "f32", 4, 1)                                                     \
  ROW(F16, 1, "f16", 2, 1)                                                     \
  ROW(BF16, 2, "bf16", 2, 1)                                                   \
  ROW(F64, 3, "f64", 8, 1)                                                     \
  ROW(I64, 4, "i64", 8, 0)                                                     \
  ROW(I32, 5, "i32", 4, 0)                                                     \
  ROW(BOOL, 6, "i1", 1, 0)                                                     \
  ROW(I8, 7, "i8", 1, 0)                                                       \
  ROW(U8, 8, "ui8", 1, 0)                                                      \
  ROW(I16, 9, "i16", 2, 0)

/// Element types as compiled code and callers name them: DIFFATTN_F32 and so
/// on.
typedef enum diffattn_dtype {
#define DIFFATTN_ROW(name, number, text, bytes, isFloat)                       \
  DIFFATTN_##name = (number),
  DIFFATTN_DTYPES(DIFFATTN_ROW)
#undef DIFFATTN_ROW
} diffattn_dtype;

#endif // DIFFATTN_RUNTIME_ABI_ELEMENTTYPE_H
