//===- Runtime.h - Functions that compiled code calls -------------*- C -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The C ABI between compiled code and libDiffAttnRuntime: threads, workspace,
// matrix products, errors. It knows neither MLIR nor LLVM, so that an object
// made by the compiler runs wherever this one library is.
//
// Every function may be called from any thread. Pointers stay the caller's.
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_RUNTIME_ABI_RUNTIME_H
#define DIFFATTN_RUNTIME_ABI_RUNTIME_H

#include "DiffAttn/Runtime/ABI/ElementType.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIFFATTN_RT_EXPORT __attribute__((visibility("default")))

//===----------------------------------------------------------------------===//
// Threads
//===----------------------------------------------------------------------===//

/// The most threads that a call or a loop can ask for.
#define DIFFATTN_RT_MAX_THREADS 4096

/// Calls `body(ctx, i, scratch)` once for each `i` in [0, count). Indices are
/// handed out in increasing order, one at a time, to whichever thread is free:
/// put the largest pieces of work first. `scratch` is `scratch_bytes` of memory
/// of the thread that runs the body: 64-byte aligned, kept between calls, its
/// contents undefined on entry. `max_threads` 0 means the runtime's default.
/// Inside a parallel region the loop runs on the calling thread.
DIFFATTN_RT_EXPORT void
diffattn_rt_parallel_for(void (*body)(void *ctx, int64_t index, void *scratch),
                         void *ctx, int64_t count, int64_t scratch_bytes,
                         int64_t max_threads);

/// Threads that a parallel region of the calling thread uses by default: the
/// number that it has set, else OMP_NUM_THREADS, else as many as are worth it,
/// up to the number of processors, which is returned then.
DIFFATTN_RT_EXPORT int64_t diffattn_rt_threads(void);
/// Sets that number for the calling thread; 0 leaves it to OpenMP again.
/// Returns the number that was set before.
DIFFATTN_RT_EXPORT int64_t diffattn_rt_set_threads(int64_t threads);
/// Whether regions get fewer threads than processors while other programs keep
/// those busy; on at first, for the whole process. OMP_NUM_THREADS is noticed
/// only if it differs from the number of processors: a caller that knows it to
/// be set turns this off.
DIFFATTN_RT_EXPORT void diffattn_rt_adapt_threads(int32_t on);

//===----------------------------------------------------------------------===//
// Workspace
//===----------------------------------------------------------------------===//

/// Allocates from the calling thread's arena, 64-byte aligned, uninitialised.
/// The memory lives until a `release` of a mark taken before it. The arena
/// keeps its pages, so a call that was made before maps none.
DIFFATTN_RT_EXPORT void *diffattn_rt_alloc(int64_t bytes);
DIFFATTN_RT_EXPORT int64_t diffattn_rt_mark(void);
DIFFATTN_RT_EXPORT void diffattn_rt_release(int64_t mark);

/// Allocates memory of a function's result: as diffattn_rt_alloc, unless
/// the calling thread keeps results; then it is of malloc and belongs to the
/// caller that takes it.
DIFFATTN_RT_EXPORT void *diffattn_rt_alloc_result(int64_t bytes);
/// Starts (`keep` not 0) or ends keeping of results by the calling thread.
/// Results that are kept need no copy out of the arena; the end frees those
/// that were not taken.
DIFFATTN_RT_EXPORT void diffattn_rt_keep_results(int32_t keep);
/// Whether `memory` is a kept result of `bytes` bytes. If so the caller frees
/// it from here on, by free().
DIFFATTN_RT_EXPORT int32_t diffattn_rt_take_result(const void *memory,
                                                   int64_t bytes);

//===----------------------------------------------------------------------===//
// Matrix products
//===----------------------------------------------------------------------===//

/// A slot of the table of weights that compiled code reads, as FIELD(type,
/// name). `packed` belongs to the runtime: null at first, then the weight in
/// the layout that the library prefers, made at the first product that profits.
/// `flags` are diffattn_weight_flags.
#define DIFFATTN_WEIGHT_FIELDS(FIELD)                                          \
  FIELD(void *, data)                                                          \
  FIELD(void *, packed)                                                        \
  FIELD(int64_t, rows)                                                         \
  FIELD(int64_t, cols)                                                         \
  FIELD(int32_t, dtype)                                                        \
  FIELD(int32_t, flags)

typedef struct diffattn_weight {
#define DIFFATTN_FIELD(type, name) type name;
  DIFFATTN_WEIGHT_FIELDS(DIFFATTN_FIELD)
#undef DIFFATTN_FIELD
} diffattn_weight;

typedef enum diffattn_weight_flags {
  DIFFATTN_WEIGHT_NO_PACK = 1, // read the weight where it lies, always
} diffattn_weight_flags;

typedef enum diffattn_gemm_flags {
  /// B is [N,K], as a linear layer's weight; otherwise [K,N].
  DIFFATTN_GEMM_TRANSPOSE_B = 1,
  /// Adds up in the order of k, one fused multiply-add (or, where the CPU
  /// has none, product and addition) after the other: a row of C is bitwise the
  /// same for every M, position and number of threads. Always the runtime's own
  /// code, which packs a weight at its first product, whatever M is.
  DIFFATTN_GEMM_IN_ORDER = 2,
  /// If A and B are bf16 and the CPU has bf16 dot products, the runtime's own
  /// code adds the products of k and k + 1, k even, in one instruction.
  DIFFATTN_GEMM_BF16_PAIRS = 4,
  /// If A and B are bf16 and the CPU has AMX's tiles, and the system lets the
  /// process use them, the runtime's own code multiplies by TDPBF16PS.
  DIFFATTN_GEMM_BF16_TILES = 8,
  /// If A and B are bf16 and the CPU has AVX2, the runtime's own code computes
  /// the results of TDPBF16PS, bit for bit.
  DIFFATTN_GEMM_EMULATED_TILES = 16,
} diffattn_gemm_flags;

/// C[M,N] = A[M,K] * op(B) + beta * C, row-major with leading dimensions in
/// elements. `flags` are diffattn_gemm_flags.
/// A, B and C are f32, f16 or bf16 in any mix, with sums in f32 and one
/// rounding at the end, or all f64. With `beta` 0, C is not read. `w` is null,
/// or the slot whose `data` is B.
DIFFATTN_RT_EXPORT void
diffattn_rt_gemm(int32_t dtA, int32_t dtB, int32_t dtC, int64_t M, int64_t N,
                 int64_t K, const void *A, int64_t lda, const void *B,
                 int64_t ldb, int32_t flags, void *C, int64_t ldc, float beta,
                 diffattn_weight *w, int64_t max_threads);

/// Computes `batch` products as `diffattn_rt_gemm` does one, with strides in
/// elements between the matrices. A stride of 0 reads one A, or one B, for all.
DIFFATTN_RT_EXPORT void diffattn_rt_batch_gemm(
    int32_t dtA, int32_t dtB, int32_t dtC, int64_t M, int64_t N, int64_t K,
    const void *A, int64_t lda, const void *B, int64_t ldb, int32_t flags,
    void *C, int64_t ldc, float beta, int64_t max_threads, int64_t batch,
    int64_t strideA, int64_t strideB, int64_t strideC);

/// C[M,N] = A[M,K] * W[N,K]^T + beta * C by tiles, where W is the integers of B
/// times their scales: the op quantized_gemm. B is N rows of K integers side by
/// side, of 8 `bits`, or of 4, of which the one with even k is in the low half
/// of a byte; `scales` is N rows of K / group. `group` is a multiple of 8 that
/// divides K. A and C are f32, f16 or bf16 each. Tiles multiply the integers,
/// which bf16 holds exactly, and A as a sum of bf16, which is exact for normal
/// numbers; a sum of products, f32, is multiplied with the scale.
/// Of `flags` those for tiles count; the call fails where the CPU cannot do it.
/// A row of C is bitwise the same for every M, position and number of threads.
DIFFATTN_RT_EXPORT void diffattn_rt_quantized_gemm(
    int32_t dtA, int32_t dtC, int32_t bits, int64_t group, int64_t M, int64_t N,
    int64_t K, const void *A, int64_t lda, const void *B, const void *scales,
    int32_t flags, void *C, int64_t ldc, float beta, int64_t max_threads);

/// Intermediate values of silu(g) * u that are rounded to bf16, as bits.
typedef enum diffattn_gate_rounding {
  DIFFATTN_ROUND_SUMS = 1,        // g and u
  DIFFATTN_ROUND_EXPONENTIAL = 2, // e^-g
  DIFFATTN_ROUND_DENOMINATOR = 4, // 1 + e^-g
  DIFFATTN_ROUND_SIGMOID = 8,     // 1 / (1 + e^-g)
  DIFFATTN_ROUND_SILU = 16,       // g / (1 + e^-g), as a product with that
} diffattn_gate_rounding;

/// C[M,N] = silu(g) * u by tiles, with g = A[M,K] * op(gate) and u = A *
/// op(up), all of bf16 but C, which is f32, f16 or bf16: the op gated_gemm.
/// Neither g nor u is written to memory. `flags` are diffattn_gemm_flags, of
/// which those for tiles and DIFFATTN_GEMM_TRANSPOSE_B count; `rounding` is of
/// diffattn_gate_rounding. `gate_weight` and `up_weight` are null, or the slots
/// whose `data` are `gate` and `up`. A row of C is bitwise the same for every
/// M, position and number of threads; the call fails where the CPU cannot do
/// it.
DIFFATTN_RT_EXPORT void
diffattn_rt_gated_gemm(int32_t dtC, int64_t M, int64_t N, int64_t K,
                       const void *A, int64_t lda, const void *gate,
                       int64_t ldgate, const void *up, int64_t ldup,
                       int32_t flags, int32_t rounding, void *C, int64_t ldc,
                       diffattn_weight *gate_weight, diffattn_weight *up_weight,
                       int64_t max_threads);

/// Frees the packed weight at `w->packed`, and sets it to null.
DIFFATTN_RT_EXPORT void diffattn_rt_weight_release(diffattn_weight *w);

/// The code that computes products. AUTO is the library where this build knows
/// it and this machine has it, else the runtime's own. The setter returns 0, or
/// 1 if there is no such code.
typedef enum diffattn_gemm_backend {
  DIFFATTN_GEMM_AUTO = 0,
  DIFFATTN_GEMM_OWN = 1,     // best vectors that the machine has
  DIFFATTN_GEMM_OWN_256 = 2, // 256-bit vectors
  DIFFATTN_GEMM_OWN_128 = 3, // any x86-64
  DIFFATTN_GEMM_LIBRARY = 4,
} diffattn_gemm_backend;
DIFFATTN_RT_EXPORT int32_t diffattn_rt_set_gemm_backend(int32_t backend);

/// Name and version of the GEMM library, or "none".
DIFFATTN_RT_EXPORT const char *diffattn_rt_gemm_library(void);

//===----------------------------------------------------------------------===//
// Errors
//===----------------------------------------------------------------------===//

/// Ends the current call with an error: control goes back to the innermost
/// `diffattn_rt_call` of this thread, across threads of a parallel loop too.
/// The first message is kept. Outside of any such call the message is printed
/// and the process exits with status 1.
DIFFATTN_RT_EXPORT void diffattn_rt_fail(const char *msg);

/// As `diffattn_rt_fail`; `{0}` and `{1}` in the message stand for the numbers.
DIFFATTN_RT_EXPORT void diffattn_rt_fail_with(const char *msg, int64_t first,
                                              int64_t second);

/// Runs `fn(arg)` so that it may fail. Returns 0, or 1 if it failed; the
/// thread's arena is then as it was before. The frames between must hold
/// nothing that a destructor frees.
DIFFATTN_RT_EXPORT int32_t diffattn_rt_call(void (*fn)(void *arg), void *arg);

/// The message of the last `diffattn_rt_call` of this thread that failed.
DIFFATTN_RT_EXPORT const char *diffattn_rt_error(void);

//===----------------------------------------------------------------------===//
// Conversions
//===----------------------------------------------------------------------===//

/// Functions that LLVM calls by these names to convert to and from f16 and bf16
/// on CPUs without instructions for it.
typedef struct diffattn_named_function {
  const char *name;
  void (*address)(void);
} diffattn_named_function;
DIFFATTN_RT_EXPORT void
diffattn_rt_float_conversions(diffattn_named_function out[5]);

//===----------------------------------------------------------------------===//
// Counters, for tests and for --bench
//===----------------------------------------------------------------------===//

typedef struct diffattn_counters {
  int64_t gemm_calls;       // products asked for; a batch counts once
  int64_t parallel_calls;   // calls of parallel_for
  int64_t arena_grows;      // times an arena or a scratch asked the system
  int64_t arena_bytes_peak; // most bytes of one arena in use at once
  int64_t packs;            // weights packed
} diffattn_counters;

DIFFATTN_RT_EXPORT void diffattn_rt_counters(diffattn_counters *out);
DIFFATTN_RT_EXPORT void diffattn_rt_counters_reset(void);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // DIFFATTN_RUNTIME_ABI_RUNTIME_H
