//===- GemmOneDnn.cpp - Matrix products by oneDNN -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The shared object libDiffAttnOneDnn, which the runtime opens where oneDNN is.
//
// A primitive is made once a shape and thread. oneDNN 2.6 multiplies f32 and,
// where the CPU has bf16 dot products, bf16; other types are widened to f32
// first: a weight once, when it is packed.
//
//===----------------------------------------------------------------------===//

#include "../Support/Internal.h"

#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

extern "C" {
int omp_get_max_threads(void);
void omp_set_num_threads(int);
}

using namespace diffattn_rt;

namespace {

GemmServices services;

using dnnl::memory;
using Type = memory::data_type;

/// Primitives kept by a thread. Prompts of every length make one each.
constexpr size_t kMaxPrimitives = 1024;
/// The number of rows that a weight's packed layout is chosen for. One layout
/// must serve all, since the slot holds one.
constexpr int64_t kPackRows = 256;

dnnl::engine &engine() {
  // Never destroyed: threads may still hold primitives when statics go.
  static auto *e = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *e;
}

bool isBF16(int32_t dtype) { return dtype == DIFFATTN_BF16; }

bool hasFastBF16() {
  static const bool has = [] {
    switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx:
      return true;
    default:
      return false;
    }
  }();
  return has;
}

Type toType(int32_t dtype) { return isBF16(dtype) ? Type::bf16 : Type::f32; }

/// A weight in the library's layout.
struct Packed final : PackedWeight {
  memory::desc layout;
  memory data;
  int32_t dtype = DIFFATTN_F32; // or bf16
  explicit Packed(const Product &p)
      : PackedWeight{
            Form::Library,
            [](PackedWeight *self) { delete static_cast<Packed *>(self); }, p.N,
            p.K, p.transB} {}
};

struct Key {
  int64_t M, N, K, lda, ldb, ldc, batch, strideA, strideB, strideC;
  int32_t dtype, dtC, transB, threads, packed;
  float beta;
  bool operator<(const Key &other) const {
    return memcmp(this, &other, sizeof *this) < 0;
  }
};
static_assert(sizeof(Key) == 10 * 8 + 6 * 4, "compared by its bytes");

struct Primitive {
  dnnl::matmul matmul;
  memory a, b, c;
};

struct ThreadState {
  dnnl::stream stream{engine()};
  std::map<Key, Primitive> primitives;
};

ThreadState &threadState() {
  thread_local std::unique_ptr<ThreadState> state;
  if (!state)
    state = std::make_unique<ThreadState>();
  return *state;
}

float widen(const void *p, int32_t dtype) {
  if (dtype == DIFFATTN_F16)
    return static_cast<float>(*static_cast<const _Float16 *>(p));
  unsigned bits = static_cast<unsigned>(*static_cast<const uint16_t *>(p))
                  << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/// rows x columns of a 16-bit type as packed f32.
void widenRows(int64_t rows, int64_t columns, const void *from, int64_t ld,
               int32_t dtype, float *to, int64_t maxThreads) {
  auto row = [&](int64_t r) {
    const char *source = static_cast<const char *>(from) + r * ld * 2;
    for (int64_t c = 0; c < columns; ++c)
      to[r * columns + c] = widen(source + c * 2, dtype);
  };
  parallelFor(rows, maxThreads, row);
}

memory::desc matrices(int64_t batch, int64_t rows, int64_t columns, Type type,
                      int64_t stride, int64_t rowStride, int64_t columnStride) {
  if (batch == 1)
    return {{rows, columns}, type, {rowStride, columnStride}};
  int64_t count = stride == 0 ? 1 : batch;
  int64_t step = stride == 0 ? rows * columns : stride;
  return {{count, rows, columns}, type, {step, rowStride, columnStride}};
}

memory::desc layoutOfB(const Product &p, int64_t ldb, Type type) {
  return matrices(p.batch, p.K, p.N, type, p.strideB, p.transB ? 1 : ldb,
                  p.transB ? ldb : 1);
}

/// The packed form of `p.weight` in `dtype`, made now if the slot is empty;
/// null if the slot may not be filled or is filled with another type.
Packed *packedWeight(const Product &p, int32_t dtype) {
  if (!p.weight || p.weight->flags & DIFFATTN_WEIGHT_NO_PACK)
    return nullptr;
  diffattn_weight &w = *p.weight;
  std::lock_guard<std::mutex> lock(*services.packMutex);
  if (auto *other = static_cast<PackedWeight *>(w.packed)) {
    if (!other->fits(PackedWeight::Form::Library, p))
      return nullptr;
    auto *packed = static_cast<Packed *>(other);
    return packed->dtype == dtype ? packed : nullptr;
  }
  Type type = toType(dtype);
  memory::desc any({p.K, p.N}, type, memory::format_tag::any);
  memory::desc a({kPackRows, p.K}, type, memory::format_tag::ab);
  memory::desc c({kPackRows, p.N}, Type::f32, memory::format_tag::ab);
  dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, any, c), engine());
  auto fresh = std::make_unique<Packed>(p);
  fresh->layout = pd.weights_desc();
  fresh->data = memory(fresh->layout, engine());
  fresh->dtype = dtype;
  std::vector<float> wide;
  const void *source = p.B;
  int64_t ldb = p.ldb;
  if (p.dtB != dtype) {
    int64_t rows = p.transB ? p.N : p.K, columns = p.transB ? p.K : p.N;
    wide.resize(rows * columns);
    widenRows(rows, columns, p.B, p.ldb, p.dtB, wide.data(), /*maxThreads=*/1);
    source = wide.data();
    ldb = columns;
  }
  memory from(layoutOfB(p, ldb, type), engine(), const_cast<void *>(source));
  dnnl::stream &stream = threadState().stream;
  dnnl::reorder(from, fresh->data).execute(stream, from, fresh->data);
  stream.wait();
  services.counters->packs.fetch_add(1, std::memory_order_relaxed);
  Packed *packed = fresh.release();
  w.packed = static_cast<PackedWeight *>(packed);
  return packed;
}

/// The thread setting that oneDNN takes from OpenMP, for one call.
struct ThreadsScope {
  int before = omp_get_max_threads();
  int64_t threads;
  explicit ThreadsScope(int64_t count) : threads(count) {
    if (threads != before)
      omp_set_num_threads(static_cast<int>(threads));
  }
  ~ThreadsScope() {
    if (threads != before)
      omp_set_num_threads(before);
  }
};

Primitive &findPrimitive(const Product &p, const Key &key,
                         const Packed *packed) {
  auto &primitives = threadState().primitives;
  auto it = primitives.find(key);
  if (it != primitives.end())
    return it->second;
  if (primitives.size() >= kMaxPrimitives)
    primitives.clear();
  Type type = toType(key.dtype);
  memory::desc a = matrices(p.batch, p.M, p.K, type, p.strideA, p.lda, 1);
  memory::desc b = packed ? packed->layout : layoutOfB(p, p.ldb, type);
  memory::desc c =
      matrices(p.batch, p.M, p.N, toType(p.dtC), p.strideC, p.ldc, 1);
  dnnl::primitive_attr attr;
  if (p.beta != 0) {
    dnnl::post_ops sum;
    sum.append_sum(p.beta);
    attr.set_post_ops(sum);
  }
  dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, b, c), attr, engine());
  Primitive primitive{dnnl::matmul(pd), memory(a, engine(), nullptr),
                      memory(b, engine(), nullptr),
                      memory(c, engine(), nullptr)};
  return primitives.emplace(key, std::move(primitive)).first->second;
}

/// A product of A and B of `dtype` with C f32 or, for bf16, bf16.
void runLibrary(const Product &p, int32_t dtype, const Packed *packed,
                int64_t threads) {
  Key key;
  memset(&key, 0, sizeof key);
  key.M = p.M;
  key.N = p.N;
  key.K = p.K;
  key.lda = p.lda;
  key.ldb = packed ? 0 : p.ldb;
  key.ldc = p.ldc;
  key.batch = p.batch;
  key.strideA = p.strideA;
  key.strideB = p.strideB;
  key.strideC = p.strideC;
  key.dtype = dtype;
  key.dtC = p.dtC;
  key.transB = packed ? 0 : p.transB;
  key.threads = static_cast<int32_t>(threads);
  key.packed = packed != nullptr;
  key.beta = p.beta;
  Primitive &primitive = findPrimitive(p, key, packed);
  primitive.a.set_data_handle(const_cast<void *>(p.A));
  primitive.b.set_data_handle(packed ? packed->data.get_data_handle()
                                     : const_cast<void *>(p.B));
  primitive.c.set_data_handle(p.C);
  dnnl::stream &stream = threadState().stream;
  primitive.matmul.execute(stream, {{DNNL_ARG_SRC, primitive.a},
                                    {DNNL_ARG_WEIGHTS, primitive.b},
                                    {DNNL_ARG_DST, primitive.c}});
  stream.wait();
}

bool hasFastTypes(const Product &p) {
  return isBF16(p.dtA) && isBF16(p.dtB) && hasFastBF16();
}

bool product(const Product &p) {
  if (p.dtA == DIFFATTN_F64)
    return false;
  bool bf16 = hasFastTypes(p);
  int32_t dtype = bf16 ? DIFFATTN_BF16 : DIFFATTN_F32;
  bool widens = p.dtA != dtype || p.dtB != dtype;
  // The library would round a 16-bit C before it adds beta * C, and has no f16.
  bool direct = p.dtC == DIFFATTN_F32 || (bf16 && isBF16(p.dtC) && p.beta == 0);
  // A batch of 16-bit types is not worth a copy of both sides.
  if ((widens || !direct) && p.batch > 1)
    return false;
  // The library sums in an order that depends on the number of threads.
  int64_t threads = services.fixedRegionThreads(p.maxThreads);
  ArenaScope scope;
  Product wide = p;
  try {
    ThreadsScope threadsScope(threads);
    const Packed *packed = packedWeight(p, dtype);
    if (p.dtA != dtype) {
      auto *a = static_cast<float *>(diffattn_rt_alloc(p.M * p.K * 4));
      widenRows(p.M, p.K, p.A, p.lda, p.dtA, a, threads);
      wide.A = a;
      wide.lda = p.K;
    }
    if (p.dtB != dtype && !packed) {
      int64_t rows = p.transB ? p.N : p.K, columns = p.transB ? p.K : p.N;
      auto *b = static_cast<float *>(diffattn_rt_alloc(p.N * p.K * 4));
      widenRows(rows, columns, p.B, p.ldb, p.dtB, b, threads);
      wide.B = b;
      wide.ldb = columns;
    }
    if (!direct) {
      wide.C = diffattn_rt_alloc(p.M * p.N * 4);
      wide.ldc = p.N;
      wide.dtC = DIFFATTN_F32;
      wide.beta = 0;
    }
    runLibrary(wide, dtype, packed, threads);
  } catch (const dnnl::error &) {
    // A shape or type that this CPU's library does not take.
    return false;
  } catch (const std::bad_alloc &) {
    return false;
  }
  if (!direct)
    services.storeSums(p, static_cast<const float *>(wide.C), threads);
  return true;
}

} // namespace

extern "C" DIFFATTN_RT_EXPORT const GemmLibrary *
DIFFATTN_OPEN_GEMM_LIBRARY(const GemmServices &given) {
  const dnnl_version_t *v = dnnl_version();
  // Its C++ interface, which this was built with, changes with the first
  // number.
  if (v->major != DNNL_VERSION_MAJOR)
    return nullptr;
  services = given;
  static const std::string name = "oneDNN " + std::to_string(v->major) + "." +
                                  std::to_string(v->minor) + "." +
                                  std::to_string(v->patch);
  static const GemmLibrary library{name.c_str(), product, hasFastTypes};
  return &library;
}
