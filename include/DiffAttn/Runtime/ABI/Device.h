//===- Device.h - A device as a table of functions --------------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the host side of a program asks of a GPU: memory, copies, streams,
// events, graphs, kernels, matrix products. There are two makers of such a
// table: `diffattn_cuda_open` over the CUDA driver, and the simulator of the
// compiler. It knows neither MLIR, LLVM nor CUDA's headers.
//
// Every function of the table returns a diffattn_device_status; what was
// expected and what came is then `last_error` of the same thread. Functions may
// be called from any thread; one stream, event, graph or module by one thread
// at a time. Sizes are in bytes, addresses are the device's: the host must
// never read or write there.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_RUNTIME_ABI_DEVICE_H
#define DIFFATTN_RUNTIME_ABI_DEVICE_H

#include "DiffAttn/Runtime/ABI/Runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Grows with every change of the structs and the meaning of the functions.
#define DIFFATTN_DEVICE_VERSION 4

typedef enum diffattn_device_status {
  DIFFATTN_DEVICE_OK = 0,
  DIFFATTN_DEVICE_MISSING = 1,     // no library, no driver, no such device
  DIFFATTN_DEVICE_INVALID = 2,     // a call that breaks what is written here
  DIFFATTN_DEVICE_MEMORY = 3,      // the device has no memory left
  DIFFATTN_DEVICE_IMAGE = 4,       // no image of a module runs on this device
  DIFFATTN_DEVICE_FAULT = 5,       // a kernel, a copy or the driver failed
  DIFFATTN_DEVICE_UNSUPPORTED = 6, // this device cannot do it
} diffattn_device_status;

typedef struct diffattn_device diffattn_device;
typedef struct diffattn_stream diffattn_stream;
typedef struct diffattn_event diffattn_event;
typedef struct diffattn_graph diffattn_graph;
typedef struct diffattn_module diffattn_module;
typedef uint64_t diffattn_address;

typedef struct diffattn_device_properties {
  char name[256]; // as the driver calls it
  char chip[16];  // as ptxas calls it: sm_90
  int32_t ordinal;
  int32_t multiprocessors;
  int32_t driver;         // CUDA version of the driver: 13000 is 13.0
  int64_t memory_bytes;   // of the whole device
  int64_t shared_bytes;   // that one block may have
  int32_t simulated;      // 1: kernels run on the CPU
  char gemm_library[256]; // "" before the first product
} diffattn_device_properties;

typedef enum diffattn_image_format {
  DIFFATTN_IMAGE_CUBIN = 0,   // machine code: runs on its chip, and on later
                              // chips of the same major number
  DIFFATTN_IMAGE_PTX = 1,     // text that the driver compiles: runs on its chip
                              // and on every later one
  DIFFATTN_IMAGE_BITCODE = 2, // LLVM IR: what the simulator runs
} diffattn_image_format;

/// The kernels of one program for one chip.
typedef struct diffattn_image {
  const char *chip; // sm_80
  int32_t format;   // diffattn_image_format
  int32_t driver;   // oldest CUDA version of a driver that loads it, or 0
  const void *data;
  int64_t bytes;
} diffattn_image;

/// A kernel: its number is its place in the list. `parameters` has one
/// character a parameter: `p` for an address, `m` for a tensor map, else `1`,
/// `2`, `4` or `8` for the bytes of a number.
typedef struct diffattn_kernel {
  const char *name;
  const char *hash; // tells one kernel's code from another's; not interpreted
  const char *parameters;
  int32_t starts_early; // 1: it waits itself (griddepcontrol.wait) for what the
                        // stream was given before, so it may start meanwhile
} diffattn_kernel;

/// Blocks of the grid, threads of a block, dynamic shared memory of a block. A
/// grid without blocks is no launch and no error.
typedef struct diffattn_launch_shape {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
} diffattn_launch_shape;

/// The operand or result of attention that a tensor map describes, for error
/// messages.
typedef enum diffattn_tensor_operand {
  DIFFATTN_TENSOR_Q1 = 0,
  DIFFATTN_TENSOR_K1 = 1,
  DIFFATTN_TENSOR_Q2 = 2,
  DIFFATTN_TENSOR_K2 = 3,
  DIFFATTN_TENSOR_V = 4,
  DIFFATTN_TENSOR_O = 5,
  DIFFATTN_TENSOR_DX = 6,
} diffattn_tensor_operand;

/// Size and alignment of a tensor map, in bytes.
#define DIFFATTN_TENSOR_MAP_BYTES 128

/// A tensor of 16-bit floats in memory, [batches, heads, rows, columns] with
/// columns side by side, of which kernels copy boxes of `box_columns` and
/// `box_rows`, swizzled by 128 bytes, with zeros beyond the tensor's sizes.
typedef struct diffattn_tensor {
  int32_t dtype; // diffattn_dtype: f16 or bf16
  int32_t box_columns, box_rows;
  diffattn_address base; // a multiple of 16
  int64_t sizes[4];      // columns, rows, heads, batches
  int64_t strides[3];    // of rows, heads and batches, in bytes: multiples of
                         // 16, above 0 and below 2^40
} diffattn_tensor;

/// C[M,N] = A[M,K] * op(B) + beta * C, `batch` times, as in
/// diffattn_rt_batch_gemm: row-major, leading dimensions and strides in
/// elements, sums in f32 (f64 for f64) and one rounding. f32 is true f32, never
/// a shorter format. With `beta` 0, C is not read.
typedef struct diffattn_product {
  int32_t dtype_a, dtype_b, dtype_c; // diffattn_dtype
  int32_t transpose_b;
  int64_t m, n, k;
  diffattn_address a, b, c;
  int64_t lda, ldb, ldc;
  int64_t batch; // 1 for one product
  int64_t stride_a, stride_b, stride_c;
  float beta;
} diffattn_product;

/// Checks that devices compute the product: A and B of one type, C of the same
/// or, for 16-bit floats, f32, and rows that do not overlap. Returns null, or a
/// message that is valid until the thread's next call.
DIFFATTN_RT_EXPORT const char *
diffattn_device_check_product(const diffattn_product *product);

/// The table. A null stream is the device's default stream.
struct diffattn_device {
  int32_t version;      // DIFFATTN_DEVICE_VERSION of the maker
  int32_t struct_bytes; // sizeof(diffattn_device) of the maker

  /// Waits for the device and frees it. Its streams, events, graphs and modules
  /// must be gone.
  void (*close)(diffattn_device *device);
  /// The message of the last function of this thread that failed.
  const char *(*last_error)(diffattn_device *device);
  int32_t (*properties)(diffattn_device *device,
                        diffattn_device_properties *out);

  //===-- Memory ----------------------------------------------------------===//

  /// Allocates device memory, aligned to 256 bytes, with undefined contents.
  /// `name` is for messages.
  int32_t (*allocate)(diffattn_device *device, int64_t bytes, const char *name,
                      diffattn_address *out);
  /// Frees the memory, once work that may use it has ended. 0 is ignored.
  int32_t (*release)(diffattn_device *device, diffattn_address memory);
  /// Allocates pinned host memory, with undefined contents: the device copies
  /// from and to it without a staging copy, also in a graph.
  int32_t (*host_allocate)(diffattn_device *device, int64_t bytes, void **out);
  /// Frees pinned host memory. Null is ignored.
  int32_t (*host_release)(diffattn_device *device, void *memory);
  /// Marks a range of an allocation as a buffer of its own, in place of those
  /// that were there: a checking device then finds accesses beyond it. Recorded
  /// in a capture.
  int32_t (*name_range)(diffattn_device *device, diffattn_address memory,
                        int64_t bytes, const char *name);

  /// Copies in the order of the stream. Memory of the host must stay, and stay
  /// as it is, until the stream has been waited for.
  int32_t (*copy_in)(diffattn_device *device, diffattn_stream *stream,
                     diffattn_address to, const void *from, int64_t bytes);
  int32_t (*copy_out)(diffattn_device *device, diffattn_stream *stream,
                      void *to, diffattn_address from, int64_t bytes);
  int32_t (*copy)(diffattn_device *device, diffattn_stream *stream,
                  diffattn_address to, diffattn_address from, int64_t bytes);
  /// Sets every byte to `value`, 0 to 255.
  int32_t (*fill)(diffattn_device *device, diffattn_stream *stream,
                  diffattn_address memory, int32_t value, int64_t bytes);

  //===-- Streams and events ----------------------------------------------===//

  int32_t (*stream_create)(diffattn_device *device, diffattn_stream **out);
  /// A stream that belongs to someone else: a CUstream, for example PyTorch's
  /// current one. Destroying the wrapper leaves it alone.
  int32_t (*stream_wrap)(diffattn_device *device, void *native,
                         diffattn_stream **out);
  int32_t (*stream_destroy)(diffattn_device *device, diffattn_stream *stream);
  /// The host waits until all that the stream was given is done.
  int32_t (*stream_wait)(diffattn_device *device, diffattn_stream *stream);
  /// Makes work that the stream is given from now on wait for the event.
  int32_t (*stream_wait_event)(diffattn_device *device, diffattn_stream *stream,
                               diffattn_event *event);

  int32_t (*event_create)(diffattn_device *device, diffattn_event **out);
  int32_t (*event_destroy)(diffattn_device *device, diffattn_event *event);
  int32_t (*event_record)(diffattn_device *device, diffattn_event *event,
                          diffattn_stream *stream);
  int32_t (*event_wait)(diffattn_device *device, diffattn_event *event);
  /// The time between two events that were recorded and waited for. The
  /// simulator has no clock: it counts launches.
  int32_t (*event_elapsed)(diffattn_device *device, diffattn_event *start,
                           diffattn_event *end, float *milliseconds);

  //===-- Graphs ----------------------------------------------------------===//

  /// Records the work that the stream is given from here on, instead of doing
  /// it. Not for the default stream. Meanwhile the thread may not allocate
  /// memory or wait, and copies from and to the host must be of memory from
  /// `host_allocate`. Work of other threads on other streams is not recorded.
  int32_t (*capture_begin)(diffattn_device *device, diffattn_stream *stream);
  /// Ends the recording and returns it as a graph, ready to be launched. The
  /// stream is usable again, also if this fails.
  int32_t (*capture_end)(diffattn_device *device, diffattn_stream *stream,
                         diffattn_graph **out);
  int32_t (*graph_launch)(diffattn_device *device, diffattn_graph *graph,
                          diffattn_stream *stream);
  int32_t (*graph_destroy)(diffattn_device *device, diffattn_graph *graph);

  //===-- Kernels ---------------------------------------------------------===//

  /// Loads the image that fits the device best and finds all `kernels` in it.
  /// Images and lists may be freed afterwards.
  int32_t (*module_load)(diffattn_device *device, const diffattn_image *images,
                         int32_t num_images, const diffattn_kernel *kernels,
                         int32_t num_kernels, diffattn_module **out);
  int32_t (*module_destroy)(diffattn_device *device, diffattn_module *module);
  /// Launches a kernel. `arguments` has 8 bytes for each parameter: numbers of
  /// fewer bytes are in the first ones, a tensor map is given by its address on
  /// the host. They are copied before the call returns.
  int32_t (*launch)(diffattn_device *device, diffattn_module *module,
                    int32_t kernel, const diffattn_launch_shape *shape,
                    diffattn_stream *stream, const uint64_t *arguments);

  /// Writes the map of `tensor`, DIFFATTN_TENSOR_MAP_BYTES, to memory of the
  /// host. UNSUPPORTED where the device has none.
  int32_t (*tensor_map)(diffattn_device *device, const diffattn_tensor *tensor,
                        void *map);

  //===-- Matrix products -------------------------------------------------===//

  int32_t (*gemm)(diffattn_device *device, diffattn_stream *stream,
                  const diffattn_product *product);
};

//===----------------------------------------------------------------------===//
// The CUDA driver
//===----------------------------------------------------------------------===//

typedef struct diffattn_cuda_options {
  int32_t ordinal; // of the device
  /// libcuda.so.1, if it is not where the system's loader finds it; null:
  /// found.
  const char *driver_library;
  /// libcublasLt.so.13 or .12; null: one that the process has loaded, else one
  /// that the loader finds, else CUDA's lib64, else `package_folders`.
  const char *gemm_library;
  /// Folders of Python packages (site-packages), in which nvidia/*/lib is
  /// looked through.
  const char *const *package_folders;
  int32_t num_package_folders;
} diffattn_cuda_options;

/// Opens the driver's library and the device. Returns a status; on failure
/// `diffattn_cuda_open_error` has the message, with every path that was tried.
/// `options` may be null.
DIFFATTN_RT_EXPORT int32_t
diffattn_cuda_open(const diffattn_cuda_options *options, diffattn_device **out);
/// The message of the last `diffattn_cuda_open` of this thread that failed.
DIFFATTN_RT_EXPORT const char *diffattn_cuda_open_error(void);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // DIFFATTN_RUNTIME_ABI_DEVICE_H
