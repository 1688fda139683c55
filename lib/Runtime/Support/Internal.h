//===- Internal.h - Internal interfaces of the runtime ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_SUPPORT_INTERNAL_H
#define DIFFATTN_LIB_RUNTIME_SUPPORT_INTERNAL_H

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <time.h>

namespace diffattn_rt {

struct Counters {
  std::atomic<int64_t> gemmCalls{0}, parallelCalls{0}, arenaGrows{0},
      arenaBytesPeak{0}, packs{0};
};
extern Counters counters;

/// The time of the monotonic clock.
inline int64_t nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t(1'000'000'000) + time.tv_nsec;
}

/// Fails the current call if no tensor can have so many bytes.
inline void failIfUnreal(int64_t bytes) {
  if (bytes < 0 || bytes > (int64_t(1) << 46))
    diffattn_rt_fail("expected tensors of sizes that memory can hold, but got "
                     "one with a negative size or of more bytes than there are "
                     "addresses");
}

/// Pages from the system, huge ones where it has them and they fit; counted as
/// growth. Fails the current call if there are none.
void *mapPages(size_t bytes);
void unmapPages(void *pages, size_t bytes);

/// Threads that the next region with `maxThreads` (0: the default) will use
/// here, to cut work by: 1 inside a parallel region.
int64_t regionThreads(int64_t maxThreads);

/// Threads as of `regionThreads`, for work whose results depend on their
/// number: the default does not adapt to how busy cores are.
int64_t fixedRegionThreads(int64_t maxThreads);

/// Calls `body(index)` for each index on up to `maxThreads` threads.
template <typename Body>
void parallelFor(int64_t count, int64_t maxThreads, Body &body) {
  diffattn_rt_parallel_for([](void *ctx, int64_t index,
                              void *) { (*static_cast<Body *>(ctx))(index); },
                           &body, count, /*scratch_bytes=*/0, maxThreads);
}

/// Frees memory of the arena that was allocated since its construction. Its
/// scope must not be left by `diffattn_rt_fail`; the guard of the call releases
/// then.
struct ArenaScope {
  int64_t mark = diffattn_rt_mark();
  ~ArenaScope() { diffattn_rt_release(mark); }
};

/// One product, or `batch` of them; see diffattn_rt_batch_gemm.
struct Product {
  int32_t dtA, dtB, dtC;
  int64_t M, N, K;
  const void *A;
  int64_t lda;
  const void *B;
  int64_t ldb;
  bool transB;
  void *C;
  int64_t ldc;
  float beta;
  int64_t maxThreads;
  int64_t batch = 1, strideA = 0, strideB = 0, strideC = 0;
  diffattn_weight *weight = nullptr;
  /// See diffattn_gemm_flags.
  bool inOrder = false, pairs = false, tiles = false, emulatesTiles = false;
};

/// A weight as a kernel reads it: `packed` of the weight's slot.
struct PackedWeight {
  enum class Form { Library, Panels, Tiles } form;
  void (*destroy)(PackedWeight *self);
  /// Sizes and orientation of B in the product that it was packed for.
  int64_t N, K;
  bool transB;
  bool fits(Form requested, const Product &p) const {
    return form == requested && N == p.N && K == p.K && transB == p.transB;
  }
};
/// Held while a slot is read or filled.
extern std::mutex packMutex;

size_t dtypeSize(int32_t dtype);
/// "f32" and so on, for messages about products.
const char *dtypeName(int32_t dtype);

/// The runtime's own code, for any product. `backend` is one of
/// diffattn_gemm_backend's OWN values.
void ownProduct(const Product &p, int32_t backend);

/// n elements of C, which are of the product's type: sums + beta * C.
void storeRow(const Product &p, int64_t n, const float *sums, void *C);

/// Stores sums + beta * C for a product of one matrix with a 16-bit C. `sums`
/// is [M, N] without padding.
void storeSums(const Product &p, const float *sums, int64_t maxThreads);

/// A GEMM library. It is a shared object of its own beside the runtime, opened
/// at the first product, so that the runtime loads where the library is not
/// installed.
struct GemmLibrary {
  const char *name;
  /// Returns false if the library does not take this product.
  bool (*product)(const Product &p);
  /// True if the library multiplies these types with bf16 dot products.
  bool (*hasFastTypes)(const Product &p);
};

/// Functions and state of the runtime that the library's shared object uses
/// beside public ones.
struct GemmServices {
  Counters *counters;
  int64_t (*fixedRegionThreads)(int64_t maxThreads);
  void (*storeSums)(const Product &p, const float *sums, int64_t maxThreads);
  std::mutex *packMutex;
};

/// The one function of that object.
using OpenGemmLibrary = const GemmLibrary *(const GemmServices &services);
#define DIFFATTN_OPEN_GEMM_LIBRARY diffattn_open_gemm_library

/// The library, or null where there is none.
const GemmLibrary *gemmLibrary();

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_SUPPORT_INTERNAL_H
