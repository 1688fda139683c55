/*===- Types.h - what the C interfaces share --------------------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===*/

#ifndef DIFFATTN_C_TYPES_H
#define DIFFATTN_C_TYPES_H

#include "DiffAttn/Runtime/ABI/ElementType.h"

#include <stdint.h>

#define DIFFATTN_EXPORT __attribute__((visibility("default")))

typedef enum diffattn_status {
  DIFFATTN_OK = 0,
  DIFFATTN_ERROR_USAGE = 2,   /* options, entries, numbers of arguments */
  DIFFATTN_ERROR_IR = 3,      /* the module does not parse or verify */
  DIFFATTN_ERROR_COMPILE = 4, /* a sound module that could not be lowered */
  DIFFATTN_ERROR_WEIGHTS = 5, /* weight files */
  DIFFATTN_ERROR_INPUT = 6,   /* types and shapes of arguments */
  DIFFATTN_ERROR_RUN = 7,     /* a check of the running code, or memory */
  DIFFATTN_ERROR_OUTPUT = 8,  /* files could not be written */
  DIFFATTN_ERROR_BUNDLE = 9,  /* damaged, too new, for another machine */
} diffattn_status;

/*===-- Arrays ------------------------------------------------------------===*/

/* Added to an array's dtype: its data is an address on the device of the
   program or bundle, where it is used and updated in place. */
#define DIFFATTN_ON_DEVICE 256

typedef struct diffattn_array {
  void *data;    /* address of the first element */
  int32_t dtype; /* and DIFFATTN_ON_DEVICE */
  int32_t rank;
  const int64_t *shape;
  const int64_t *strides; /* in elements; null: dense and row-major */
} diffattn_array;

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

/*===-- Devices -----------------------------------------------------------===*/

/* Counts of what calls and the functions for memory asked of the device since
   the program or bundle was loaded. */
typedef struct diffattn_traffic {
  int64_t allocations;  /* for arrays, copies of arguments, the workspace */
  int64_t bytes_in;     /* from the host to the device */
  int64_t bytes_out;    /* from the device to the host */
  int64_t bytes_within; /* copied from one place of the device to another */
  int64_t launches;     /* of kernels, and of graphs as one each */
} diffattn_traffic;

/* A call that is captured once and launched as one graph from then on. */
typedef struct diffattn_graph diffattn_graph;
/* Its name up to now. */
typedef diffattn_graph diffattn_replay;

/*===-- Results -----------------------------------------------------------===*/

typedef struct diffattn_result {
  void *data;       /* the caller's, to be freed with diffattn_free or
                       diffattn_bundle_free; null if the result is an argument
                       that was updated in place */
  int32_t argument; /* the number of that argument, or -1 */
  int32_t dtype;
  int32_t rank;
  int64_t shape[DIFFATTN_MOST_RANK];
} diffattn_result;

#endif /* DIFFATTN_C_TYPES_H */
