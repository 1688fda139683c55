//===- Table.h - The runtime as a table of functions ------------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled code that is linked into a shared object of its own does not look
// for the runtime by name: its loader passes it this table. So the object needs
// libc and libm alone, and the runtime may lie anywhere.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_RUNTIME_ABI_TABLE_H
#define DIFFATTN_RUNTIME_ABI_TABLE_H

#include "DiffAttn/Runtime/ABI/DeviceCalls.h"
#include "DiffAttn/Runtime/ABI/Trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Changes when a function of the table changes its meaning or its place. New
/// functions are added at the end, which changes `bytes` alone.
#define DIFFATTN_RT_TABLE_VERSION 2

/// The functions diffattn_rt_<name> that compiled code calls, in the order of
/// the table.
#define DIFFATTN_RT_TABLE(FUNCTION)                                            \
  FUNCTION(parallel_for)                                                       \
  FUNCTION(alloc)                                                              \
  FUNCTION(mark)                                                               \
  FUNCTION(release)                                                            \
  FUNCTION(gemm)                                                               \
  FUNCTION(batch_gemm)                                                         \
  FUNCTION(fail)                                                               \
  FUNCTION(weight_release)

#define DIFFATTN_RT_CONVERSIONS 5

/// The functions diffattn_rt_device_<name> that host code of a GPU calls.
#define DIFFATTN_RT_DEVICE_TABLE(FUNCTION)                                     \
  FUNCTION(launch)                                                             \
  FUNCTION(alloc)                                                              \
  FUNCTION(mark)                                                               \
  FUNCTION(release)                                                            \
  FUNCTION(copy)                                                               \
  FUNCTION(check)                                                              \
  FUNCTION(gemm)

/// Functions added in later versions of the table: diffattn_rt_<name>.
#define DIFFATTN_RT_LATER_TABLE(FUNCTION)                                      \
  FUNCTION(fail_with)                                                          \
  FUNCTION(device_tensor_map)                                                  \
  FUNCTION(alloc_result)                                                       \
  FUNCTION(device_fill)                                                        \
  FUNCTION(quantized_gemm)                                                     \
  FUNCTION(gated_gemm)                                                         \
  FUNCTION(threads)                                                            \
  FUNCTION(trace_begin)                                                        \
  FUNCTION(trace_end)

typedef struct diffattn_rt_table {
  int32_t version; // DIFFATTN_RT_TABLE_VERSION
  int32_t bytes;   // of the whole table
#define DIFFATTN_RT_SLOT(name) __typeof__(&diffattn_rt_##name) name;
  DIFFATTN_RT_TABLE(DIFFATTN_RT_SLOT)
#undef DIFFATTN_RT_SLOT
  /// The addresses of diffattn_rt_float_conversions, in its order.
  void (*conversions[DIFFATTN_RT_CONVERSIONS])(void);
#define DIFFATTN_RT_SLOT(name)                                                 \
  __typeof__(&diffattn_rt_device_##name) device_##name;
  DIFFATTN_RT_DEVICE_TABLE(DIFFATTN_RT_SLOT)
#undef DIFFATTN_RT_SLOT
#define DIFFATTN_RT_SLOT(name) __typeof__(&diffattn_rt_##name) name;
  DIFFATTN_RT_LATER_TABLE(DIFFATTN_RT_SLOT)
#undef DIFFATTN_RT_SLOT
} diffattn_rt_table;

/// Symbols of an object of compiled code. It reads the first, an array of
/// diffattn_weight that its loader provides: a slot for each weight, then one
/// for each constant of a device. The second exists only if products have
/// constants: a function without arguments that frees their packed copies, to
/// be called last. getEntryPointName has the names of entry points.
#define DIFFATTN_WEIGHTS_SYMBOL "diffattn_weights"
/// The most slots that the layers of one weight may have.
#define DIFFATTN_MAX_LAYERS 65536
/// The bytes of a weight that another one follows in a device's memory are a
/// multiple of this, so that each begins where one of its own would.
#define DIFFATTN_WEIGHT_ALIGNMENT 256
#define DIFFATTN_RELEASE_SYMBOL "diffattn_release_constants"

/// Requirements of a shared object of compiled code, its symbol
/// `diffattn_bundle_needs`: the version of the table that it was made for, and
/// how many bytes of the table it reads.
typedef struct diffattn_rt_needs {
  int32_t version, bytes;
} diffattn_rt_needs;

/// The table of this runtime. It lives as long as the runtime does.
DIFFATTN_RT_EXPORT const diffattn_rt_table *diffattn_rt_get_table(void);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // DIFFATTN_RUNTIME_ABI_TABLE_H
