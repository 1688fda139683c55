//===- ElementType.h - Element types as numbers -----------------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_RUNTIME_ABI_ELEMENTTYPE_H
#define DIFFATTN_RUNTIME_ABI_ELEMENTTYPE_H

/// Element types as compiled code and callers name them. The numbers are ABI.
typedef enum diffattn_dtype {
  DIFFATTN_F32 = 0,
  DIFFATTN_F16 = 1,
  DIFFATTN_BF16 = 2,
  DIFFATTN_F64 = 3,
  DIFFATTN_I64 = 4,
  DIFFATTN_I32 = 5,
  DIFFATTN_BOOL = 6, // one byte, 0 or 1
  DIFFATTN_I8 = 7,
  DIFFATTN_U8 = 8,
  DIFFATTN_I16 = 9,
} diffattn_dtype;

#endif // DIFFATTN_RUNTIME_ABI_ELEMENTTYPE_H
