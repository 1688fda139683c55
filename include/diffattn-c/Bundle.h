/*===- Bundle.h - C interface to bundles, without a compiler ------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Open a bundle that diffattn-run --emit=bundle has written, ask for its
// signature, run it. The library is libDiffAttnBundle.so with
// libDiffAttnRuntime.so beside it; neither MLIR nor LLVM is loaded. See
// docs/bundles.md for a complete program.
//
// Functions that can fail return a class of error, 0 for none; the message is
// diffattn_bundle_last_error() of the same thread. Arguments that are arrays
// stay the caller's. A bundle may be used by one thread at a time, different
// bundles by different threads.
//
// A null pointer where none is said to be allowed is an error of class usage
// that names the parameter. Without a bundle or graph, functions that give
// something else than a status leave that message and give 0 for a number, null
// for a name and "" for a text. What ends or frees ignores null.
//
//===----------------------------------------------------------------------===*/

#ifndef DIFFATTN_C_BUNDLE_H
#define DIFFATTN_C_BUNDLE_H

#include "diffattn-c/Types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change; the first number with changes that break callers. */
#define DIFFATTN_BUNDLE_API_MAJOR 1
#define DIFFATTN_BUNDLE_API_MINOR 4

/* major * 1000 + minor of the library that was loaded. */
DIFFATTN_EXPORT int32_t diffattn_bundle_api_version(void);

/* Message of the last call of this thread that failed; valid until the next. */
DIFFATTN_EXPORT const char *diffattn_bundle_last_error(void);

typedef struct diffattn_bundle diffattn_bundle;

/* Opens the bundle in a folder: checks its files and this CPU, links its code,
   maps its weights. `weights` is a folder to take the weight files from, by
   their names, or null for where the bundle says they are. The weight files
   must stay as they are while the bundle is open. */
DIFFATTN_EXPORT int32_t diffattn_bundle_open(const char *directory,
                                             const char *weights,
                                             diffattn_bundle **bundle);

/* How to open a bundle. Zeros and nulls are the default of each. */
struct diffattn_device;
typedef struct diffattn_bundle_options {
  int32_t struct_bytes; /* sizeof(diffattn_bundle_options) of the caller */
  int32_t gpu;          /* number of the GPU, for bundles with kernels */
  const char *weights;  /* as for diffattn_bundle_open */
  /* libcuda.so.1 and libcublasLt.so.13, where the system's loader finds none,
     and folders of Python packages, in which cuBLASLt may lie, separated by
     colons. */
  const char *cuda_driver, *cublaslt, *package_folders;
  /* Runs the kernels in place of a GPU of the CUDA driver: the table of
     functions of DiffAttn/Runtime/ABI/Device.h. It stays the caller's, and must
     outlive the bundle. */
  struct diffattn_device *device;
  /* Called between weights, with the bytes that are bound, and on a device
     copied there, and the bytes of all. */
  void (*progress)(void *progress_data, int64_t done, int64_t total);
  void *progress_data;
  /* 1: only reads the manifest and checks the bundle's own files, on any
     machine: neither CPU, GPU nor weights are looked at. The signature can be
     asked for; calls fail. */
  int32_t read_only;
  /* As `progress`, with the same data; as soon as it returns 0, opening stops
     with an error. */
  int32_t (*go_on)(void *progress_data, int64_t done, int64_t total);
} diffattn_bundle_options;

/* `options` may be null. For bundles with kernels it opens the GPU, loads the
   kernels that fit it best, and copies the weights there. */
DIFFATTN_EXPORT int32_t diffattn_bundle_open_with(
    const char *directory, const diffattn_bundle_options *options,
    diffattn_bundle **bundle);
DIFFATTN_EXPORT void diffattn_bundle_close(diffattn_bundle *bundle);

DIFFATTN_EXPORT int32_t
diffattn_bundle_num_entries(const diffattn_bundle *bundle);
DIFFATTN_EXPORT const char *
diffattn_bundle_entry_name(const diffattn_bundle *bundle, int32_t i);
DIFFATTN_EXPORT int32_t diffattn_bundle_num_arguments(
    const diffattn_bundle *bundle, const char *entry, int32_t *count);
DIFFATTN_EXPORT int32_t diffattn_bundle_num_results(
    const diffattn_bundle *bundle, const char *entry, int32_t *count);
DIFFATTN_EXPORT int32_t
diffattn_bundle_argument_type(const diffattn_bundle *bundle, const char *entry,
                              int32_t i, diffattn_type *type);
DIFFATTN_EXPORT int32_t
diffattn_bundle_result_type(const diffattn_bundle *bundle, const char *entry,
                            int32_t i, diffattn_type *type);

DIFFATTN_EXPORT int32_t
diffattn_bundle_num_weights(const diffattn_bundle *bundle);
/* The declared name of weight `i`, {} standing for the layer. */
DIFFATTN_EXPORT const char *
diffattn_bundle_weight_name(const diffattn_bundle *bundle, int32_t i);

/* `results` has room for the function's results. `threads` 0: as many as the
   runtime's default. */
DIFFATTN_EXPORT int32_t diffattn_bundle_call(
    diffattn_bundle *bundle, const char *entry, const diffattn_array *arguments,
    int32_t num_arguments, int32_t threads, diffattn_result *results,
    int32_t num_results);
DIFFATTN_EXPORT void diffattn_bundle_free(void *data);

/*===-- Memory on the bundle's device -------------------------------------===*/

/* As the functions diffattn_memory_* of DiffAttn.h: an argument that lies in
   such memory has DIFFATTN_ON_DEVICE added to its dtype, and is used and
   updated there. For bundles with kernels; others get an error of class usage.
 */

/* 1: the bundle was opened on a device; 0: its code runs on the CPU, or was
   opened with read_only. */
DIFFATTN_EXPORT int32_t
diffattn_bundle_has_device(const diffattn_bundle *bundle);

DIFFATTN_EXPORT int32_t diffattn_bundle_memory_allocate(diffattn_bundle *bundle,
                                                        int64_t bytes,
                                                        uint64_t *address);
DIFFATTN_EXPORT int32_t diffattn_bundle_memory_free(diffattn_bundle *bundle,
                                                    uint64_t address);
DIFFATTN_EXPORT int32_t diffattn_bundle_memory_write(diffattn_bundle *bundle,
                                                     uint64_t to,
                                                     const void *from,
                                                     int64_t bytes);
DIFFATTN_EXPORT int32_t diffattn_bundle_memory_read(diffattn_bundle *bundle,
                                                    void *to, uint64_t from,
                                                    int64_t bytes);
DIFFATTN_EXPORT int32_t diffattn_bundle_memory_fill(diffattn_bundle *bundle,
                                                    uint64_t to, int32_t value,
                                                    int64_t bytes);
DIFFATTN_EXPORT int32_t diffattn_bundle_memory_copy(
    diffattn_bundle *bundle, uint64_t to, int64_t to_pitch, uint64_t from,
    int64_t from_pitch, int64_t bytes, int64_t rows);
DIFFATTN_EXPORT int32_t diffattn_bundle_memory_stream(diffattn_bundle *bundle,
                                                      void *stream);
DIFFATTN_EXPORT int32_t diffattn_bundle_memory_traffic(
    const diffattn_bundle *bundle, diffattn_traffic *traffic);

/*===-- Calls that are captured as a graph --------------------------------===*/

/* As the functions diffattn_graph_* of DiffAttn.h. */
DIFFATTN_EXPORT int32_t diffattn_bundle_graph_capture(
    diffattn_bundle *bundle, const char *entry, const diffattn_array *arguments,
    int32_t num_arguments, diffattn_graph **graph);
/* Before the bundle is closed. */
DIFFATTN_EXPORT void diffattn_bundle_graph_destroy(diffattn_graph *graph);
DIFFATTN_EXPORT int32_t diffattn_bundle_graph_launch(diffattn_graph *graph,
                                                     int32_t threads,
                                                     diffattn_result *results,
                                                     int32_t num_results);
DIFFATTN_EXPORT const char *
diffattn_bundle_graph_fallback_reason(const diffattn_graph *graph);

/* Older names of the four functions above. */
DIFFATTN_EXPORT int32_t diffattn_bundle_replay_create(
    diffattn_bundle *bundle, const char *entry, const diffattn_array *arguments,
    int32_t num_arguments, diffattn_graph **graph);
DIFFATTN_EXPORT int32_t diffattn_bundle_replay_run(diffattn_graph *graph,
                                                   int32_t threads,
                                                   diffattn_result *results,
                                                   int32_t num_results);
DIFFATTN_EXPORT const char *
diffattn_bundle_replay_refusal(const diffattn_graph *graph);
DIFFATTN_EXPORT void diffattn_bundle_replay_destroy(diffattn_graph *graph);

#ifdef __cplusplus
}
#endif

#endif /* DIFFATTN_C_BUNDLE_H */
