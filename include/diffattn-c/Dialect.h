/*===- Dialect.h - the dialect for programs that use MLIR's C API -*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The dialect, its passes and its enum attributes in a context of MLIR's C API
// (mlir-c/IR.h). A program links libDiffAttnC.so, libMLIR.so and, for MLIR's
// own C functions, its libMLIRCAPI*.a. Every other attribute is parsed
// from its text, as docs/spec.md has it, by mlirAttributeParseGet.
//
//===----------------------------------------------------------------------===*/

#ifndef DIFFATTN_C_DIALECT_H
#define DIFFATTN_C_DIALECT_H

#include "diffattn-c/Types.h"

#include "mlir-c/IR.h"

#ifdef __cplusplus
extern "C" {
#endif

/*===-- Registration ------------------------------------------------------===*/

/* mlirGetDialectHandle__diffattn__: the dialect alone, without the interfaces
   that its lowering needs. */
MLIR_DECLARE_CAPI_DIALECT_REGISTRATION(DiffAttn, diffattn);

/* The dialect with its interfaces (bufferization, translation of GPU code). */
DIFFATTN_EXPORT void diffattn_register_dialects(MlirDialectRegistry registry);

/* All passes and pipelines of this library by their names, for pipelines that
   are parsed from text. A second call does nothing. */
DIFFATTN_EXPORT void diffattn_register_passes(void);

/*===-- Attributes --------------------------------------------------------===*/

/* The values of each are those of the attribute's text, in this order. */
typedef enum diffattn_layout {
  DIFFATTN_LAYOUT_BHTD = 0,
  DIFFATTN_LAYOUT_BTHD = 1,
} diffattn_layout;

typedef enum diffattn_activation {
  DIFFATTN_ACTIVATION_IDENTITY = 0,
  DIFFATTN_ACTIVATION_SIGMOID = 1,
} diffattn_activation;

typedef enum diffattn_norm {
  DIFFATTN_NORM_NONE = 0,
  DIFFATTN_NORM_RMS = 1,
} diffattn_norm;

typedef enum diffattn_eps_mode {
  DIFFATTN_EPS_MODE_INSIDE = 0,
  DIFFATTN_EPS_MODE_OUTSIDE = 1,
} diffattn_eps_mode;

/* The attribute of a value in a context, which loads the dialect; the null
   attribute (mlirAttributeIsNull) if there is no such value. Values are taken
   as numbers, because any number may come from another language. */
DIFFATTN_EXPORT MlirAttribute diffattn_layout_attr_get(MlirContext context,
                                                       int32_t value);
DIFFATTN_EXPORT MlirAttribute diffattn_activation_attr_get(MlirContext context,
                                                           int32_t value);
DIFFATTN_EXPORT MlirAttribute diffattn_norm_attr_get(MlirContext context,
                                                     int32_t value);
DIFFATTN_EXPORT MlirAttribute diffattn_eps_mode_attr_get(MlirContext context,
                                                         int32_t value);

/* The value of such an attribute; -1 for any other one, null included. */
DIFFATTN_EXPORT int32_t diffattn_layout_attr_value(MlirAttribute attribute);
DIFFATTN_EXPORT int32_t diffattn_activation_attr_value(MlirAttribute attribute);
DIFFATTN_EXPORT int32_t diffattn_norm_attr_value(MlirAttribute attribute);
DIFFATTN_EXPORT int32_t diffattn_eps_mode_attr_value(MlirAttribute attribute);

#ifdef __cplusplus
}
#endif

#endif /* DIFFATTN_C_DIALECT_H */
