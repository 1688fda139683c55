/*===- DiffAttn.h - C API of diffattn ------------------------------*- C
-*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compile a module of MLIR, bind weights to it, ask for its signature, run it.
// See docs/c-api.md for a complete program.
//
// Functions that can fail return a class of error, 0 for none; the message is
// diffattn_last_error() of the same thread. Arguments that are arrays stay the
// caller's. A program may be used by one thread at a time, different programs
by
// different threads.
//
//===----------------------------------------------------------------------===*/

#ifndef DIFFATTN_C_DIFFATTN_H
#define DIFFATTN_C_DIFFATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIFFATTN_EXPORT __attribute__((visibility("default")))

/* Grows with every change; the first number with changes that break callers. */
#define DIFFATTN_API_MAJOR 1
#define DIFFATTN_API_MINOR 1

/* major * 1000 + minor of the library that was loaded. */
DIFFATTN_EXPORT int32_t diffattn_api_version(void);
/* Versions of the project, MLIR and the GEMM library, for humans. */
DIFFATTN_EXPORT const char *diffattn_version_text(void);

/*===-- Errors ------------------------------------------------------------===*/

typedef enum diffattn_status {
  DIFFATTN_OK = 0,
  DIFFATTN_ERROR_USAGE = 2,   /* options, entries, numbers of arguments */
  DIFFATTN_ERROR_IR = 3,      /* the module does not parse or verify */
  DIFFATTN_ERROR_COMPILE = 4, /* a sound module that could not be lowered */
  DIFFATTN_ERROR_WEIGHTS = 5, /* weight files */
  DIFFATTN_ERROR_INPUT = 6,   /* types and shapes of arguments */
  DIFFATTN_ERROR_RUN = 7,     /* a check of the running code, or memory */
  DIFFATTN_ERROR_OUTPUT = 8,  /* files could not be written */
} diffattn_status;

/* Message of the last call of this thread that failed; valid until the next. */
DIFFATTN_EXPORT const char *diffattn_last_error(void);

/*===-- Arrays ------------------------------------------------------------===*/

#ifndef DIFFATTN_RUNTIME_RUNTIME_H
typedef enum diffattn_dtype {
  DIFFATTN_F32 = 0,
  DIFFATTN_F16 = 1,
  DIFFATTN_BF16 = 2,
  DIFFATTN_F64 = 3,
  DIFFATTN_I64 = 4,
  DIFFATTN_I32 = 5,
  DIFFATTN_BOOL = 6, /* one byte, 0 or 1 */
  DIFFATTN_I8 = 7,
  DIFFATTN_U8 = 8,
  DIFFATTN_I16 = 9,
} diffattn_dtype;
#endif

typedef struct diffattn_array {
  void *data; /* address of the first element */
  int32_t dtype;
  int32_t rank;
  const int64_t *shape;
  const int64_t *strides; /* in elements; null: dense and row-major */
} diffattn_array;

/*===-- Options -----------------------------------------------------------===*/

typedef struct diffattn_options diffattn_options;
DIFFATTN_EXPORT diffattn_options *diffattn_options_create(void);
DIFFATTN_EXPORT void diffattn_options_destroy(diffattn_options *options);
/* Names: target ("cpu", "cpu:<isa>", "cuda-sim:<chip>", "cuda:<chip>"),
   threads, raise ("true", "false"), reference, cache (a folder; empty: none),
   name (of the module, in messages), reproducer (a file that a failing pipeline
   leaves), ptxas (the assembler: a path, or a name to look for in PATH),
   ptxas_folders (where else to look, separated by colons). */
DIFFATTN_EXPORT int32_t diffattn_options_set(diffattn_options *options,
                                             const char *name,
                                             const char *value);

/*===-- Programs ----------------------------------------------------------===*/

typedef struct diffattn_program diffattn_program;

/* Compiles MLIR, text or bytecode, or takes it from the cache, and loads it.
   `options` may be null. */
DIFFATTN_EXPORT int32_t diffattn_compile(const char *ir, size_t ir_bytes,
                                         const diffattn_options *options,
                                         diffattn_program **program);
DIFFATTN_EXPORT void diffattn_program_destroy(diffattn_program *program);

/* Warnings and remarks of the compilation; never null. */
DIFFATTN_EXPORT const char *
diffattn_program_diagnostics(const diffattn_program *program);
DIFFATTN_EXPORT int32_t
diffattn_program_from_cache(const diffattn_program *program);

/* Binds weights by name. Paths: safetensors files, indices of sharded
   checkpoints, or folders. The files must stay as they are while the program
   lives. */
DIFFATTN_EXPORT int32_t diffattn_bind_weights(diffattn_program *program,
                                              const char *const *paths,
                                              int32_t count);

/*===-- Signatures --------------------------------------------------------===*/

#define DIFFATTN_MOST_RANK 16

typedef enum diffattn_kind {
  DIFFATTN_TENSOR = 0, /* dense; copied if the caller's array is not */
  DIFFATTN_MEMREF = 1, /* used with its strides where it lies */
  DIFFATTN_SCALAR = 2, /* rank 0, passed by value */
  DIFFATTN_UNSUPPORTED = 3,
} diffattn_kind;

typedef struct diffattn_type {
  int32_t kind;
  int32_t dtype;
  int32_t rank;
  int32_t in_place;                  /* 1: the function updates this argument */
  int64_t shape[DIFFATTN_MOST_RANK]; /* -1: any size */
} diffattn_type;

DIFFATTN_EXPORT int32_t diffattn_num_entries(const diffattn_program *program);
DIFFATTN_EXPORT const char *diffattn_entry_name(const diffattn_program *program,
                                                int32_t i);
DIFFATTN_EXPORT int32_t diffattn_num_arguments(const diffattn_program *program,
                                               const char *entry,
                                               int32_t *count);
DIFFATTN_EXPORT int32_t diffattn_num_results(const diffattn_program *program,
                                             const char *entry, int32_t *count);
DIFFATTN_EXPORT int32_t diffattn_argument_type(const diffattn_program *program,
                                               const char *entry, int32_t i,
                                               diffattn_type *type);
DIFFATTN_EXPORT int32_t diffattn_result_type(const diffattn_program *program,
                                             const char *entry, int32_t i,
                                             diffattn_type *type);

DIFFATTN_EXPORT int32_t diffattn_num_weights(const diffattn_program *program);
/* The declared name of weight `i`, {} standing for the layer. */
DIFFATTN_EXPORT const char *
diffattn_weight_name(const diffattn_program *program, int32_t i);

/*===-- Calls -------------------------------------------------------------===*/

typedef struct diffattn_result {
  void *data;       /* the caller's, to be freed with diffattn_free; null if the
                       result is an argument that was updated in place */
  int32_t argument; /* the number of that argument, or -1 */
  int32_t dtype;
  int32_t rank;
  int64_t shape[DIFFATTN_MOST_RANK];
} diffattn_result;

/* `results` has room for the function's results. `threads` 0: as many as the
   runtime's default. */
DIFFATTN_EXPORT int32_t diffattn_call(diffattn_program *program,
                                      const char *entry,
                                      const diffattn_array *arguments,
                                      int32_t num_arguments, int32_t threads,
                                      diffattn_result *results,
                                      int32_t num_results);
DIFFATTN_EXPORT void diffattn_free(void *data);

/*===-- Stages ------------------------------------------------------------===*/

/* The module after a stage of the pipeline (docs/pipelines.md); text unless the
   stage is "object" or "cubin". To be freed with diffattn_free. */
DIFFATTN_EXPORT int32_t diffattn_emit(const char *ir, size_t ir_bytes,
                                      const diffattn_options *options,
                                      const char *stage, char **out,
                                      size_t *out_bytes);

#ifdef __cplusplus
}
#endif

#endif /* DIFFATTN_C_DIFFATTN_H */
