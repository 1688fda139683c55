//===- DeviceCalls.h - Calls of compiled code to a device ---------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The host side of a program with GPU kernels calls these functions. They act
// on the context that `diffattn_rt_call_on` made current for its thread, so one
// object serves every device, stream and process. Failures end the call, as
// diffattn_rt_fail does. Addresses that compiled code handles are the device's.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_RUNTIME_ABI_DEVICECALLS_H
#define DIFFATTN_RUNTIME_ABI_DEVICECALLS_H

#include "DiffAttn/Runtime/ABI/Device.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A device, a module of kernels on it, a stream, and the workspace of calls:
/// one call at a time.
typedef struct diffattn_context diffattn_context;

/// `module` may be null if the code launches nothing; `stream` may be null: the
/// device's default stream. All three stay the caller's.
DIFFATTN_RT_EXPORT diffattn_context *
diffattn_context_create(diffattn_device *device, diffattn_module *module,
                        diffattn_stream *stream);
/// Frees the workspace. Null is ignored.
DIFFATTN_RT_EXPORT void diffattn_context_destroy(diffattn_context *context);
/// The stream of the calls from now on.
DIFFATTN_RT_EXPORT void diffattn_context_set_stream(diffattn_context *context,
                                                    diffattn_stream *stream);

/// Marks of the workspace between calls: results of a call lie in it until it
/// is released to a mark from before.
DIFFATTN_RT_EXPORT int64_t diffattn_context_mark(diffattn_context *context);
DIFFATTN_RT_EXPORT void diffattn_context_release(diffattn_context *context,
                                                 int64_t mark);

/// Device operations of all calls on a context since it was created.
typedef struct diffattn_context_counters {
  int64_t allocations;  // of memory for the workspace
  int64_t copied_bytes; // from one place of the device to another
  int64_t launches;     // of kernels
} diffattn_context_counters;
DIFFATTN_RT_EXPORT void
diffattn_context_count(const diffattn_context *context,
                       diffattn_context_counters *counters);

/// Makes the workspace one block, so that a call that was made before allocates
/// nothing and gets the same addresses from then on. To be called when no call
/// has memory there. Returns 1 on failure, with diffattn_rt_error.
DIFFATTN_RT_EXPORT int32_t diffattn_context_settle(diffattn_context *context);

/// Defers checks, for calls that are captured: from here on
/// diffattn_rt_device_check does not wait, but copies its word to the next of
/// `count` `words`, memory from `host_allocate`, and fails if none is left.
DIFFATTN_RT_EXPORT void diffattn_context_defer_checks(diffattn_context *context,
                                                      int32_t *words,
                                                      int32_t count);
/// The message of the first deferred check that failed, or null. To be asked
/// once the stream has been waited for.
DIFFATTN_RT_EXPORT const char *
diffattn_context_deferred(const diffattn_context *context);

/// Calls `fn` as diffattn_rt_call does, with `context` current. After a failure
/// the workspace is as it was before.
DIFFATTN_RT_EXPORT int32_t diffattn_rt_call_on(diffattn_context *context,
                                               void (*fn)(void *arg),
                                               void *arg);

/// Launches the kernel of that number in the module, with 8 bytes for each
/// argument.
DIFFATTN_RT_EXPORT void
diffattn_rt_device_launch(int32_t kernel, const diffattn_launch_shape *shape,
                          const uint64_t *arguments);

/// The tensor map of an operand of attention (diffattn_tensor_operand), to
/// `map`: [batches, heads, rows, columns] from `base` on, of the given element
/// type, in boxes of 64 columns and `box_rows` rows. Strides in elements; those
/// of axes of one element are not used.
DIFFATTN_RT_EXPORT void
diffattn_rt_device_tensor_map(void *map, int32_t operand, int32_t dtype,
                              int32_t box_rows, const void *base,
                              int64_t columns, int64_t rows, int64_t heads,
                              int64_t batches, int64_t row_stride,
                              int64_t head_stride, int64_t batch_stride);

/// Workspace on the device, aligned to 256 bytes: a stack, as that of
/// diffattn_rt_alloc, which keeps its memory, so a call that was made before
/// allocates nothing. Released memory may still be read by work that the stream
/// was given before.
DIFFATTN_RT_EXPORT void *diffattn_rt_device_alloc(int64_t bytes);
DIFFATTN_RT_EXPORT int64_t diffattn_rt_device_mark(void);
DIFFATTN_RT_EXPORT void diffattn_rt_device_release(int64_t mark);

/// Copies between two places of the device.
DIFFATTN_RT_EXPORT void diffattn_rt_device_copy(void *to, const void *from,
                                                int64_t bytes);

/// Sets every byte of memory of the device to `value`, 0 to 255.
DIFFATTN_RT_EXPORT void diffattn_rt_device_fill(void *memory, int32_t value,
                                                int64_t bytes);

/// Ends the call if an assertion on the device has failed: waits for the stream
/// and reads the i32 at `status`, which is 0 or the number, from 1, of a text
/// in `messages`, where each ends with a zero.
DIFFATTN_RT_EXPORT void diffattn_rt_device_check(const void *status,
                                                 const char *messages);

/// diffattn_rt_batch_gemm on the device.
DIFFATTN_RT_EXPORT void
diffattn_rt_device_gemm(int32_t dtA, int32_t dtB, int32_t dtC, int64_t M,
                        int64_t N, int64_t K, const void *A, int64_t lda,
                        const void *B, int64_t ldb, int32_t transB, void *C,
                        int64_t ldc, float beta, int64_t batch, int64_t strideA,
                        int64_t strideB, int64_t strideC);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // DIFFATTN_RUNTIME_ABI_DEVICECALLS_H
