//===- HostFacts.cpp - measured facts of a CPU ----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/HostFacts.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/TargetParser/Host.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <vector>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

using namespace mlir;
using namespace mlir::diffattn;

#ifdef __x86_64__
/// The shortest of some turns, in seconds: others on the machine can only
/// lengthen one.
template <typename Work>
static double timeOnce(double best, Work work) {
  auto start = std::chrono::steady_clock::now();
  work();
  return std::min(best, std::chrono::duration<double>(
                            std::chrono::steady_clock::now() - start)
                            .count());
}

// Twelve sums, more than any latency needs, and no loads.
constexpr int kSums = 12, kSteps = 2000;

__attribute__((target("avx512f"))) static float multiplyAdds(float start) {
  __m512 sums[kSums], x = _mm512_set1_ps(start);
  for (__m512 &sum : sums)
    sum = x;
  for (int step = 0; step < kSteps; ++step) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kSums; ++i)
      sums[i] = _mm512_fmadd_ps(x, x, sums[i]);
    asm volatile("" : "+v"(x)); // the loop has a result that no one may guess
  }
  for (int i = 1; i < kSums; ++i)
    sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_reduce_add_ps(sums[0]);
}

__attribute__((target("avx512f,avx512bf16"))) static float
dotProducts(float start) {
  __m512 sums[kSums];
  __m512i bits = _mm512_castps_si512(_mm512_set1_ps(start));
  for (__m512 &sum : sums)
    sum = _mm512_set1_ps(start);
  for (int step = 0; step < kSteps; ++step) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kSums; ++i)
      sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)bits, (__m512bh)bits);
    asm volatile("" : "+v"(bits));
  }
  for (int i = 1; i < kSums; ++i)
    sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_reduce_add_ps(sums[0]);
}

/// Zen 4 and later run VDPBF16PS at the rate of an FMA; Cooper Lake, Sapphire
/// Rapids and Granite Rapids take four times as long. The limit lies in the
/// middle between them, far from the noise of a busy machine in the shortest of
/// many turns: another measurement must not decide otherwise.
static bool measureBf16Dot() {
  double multiply = 1.0, dot = 1.0;
  volatile float sink = 0.0f;
  for (int turn = 0; turn < 24; ++turn) {
    multiply = timeOnce(multiply, [&] { sink = multiplyAdds(1e-6f); });
    dot = timeOnce(dot, [&] { sink = dotProducts(1e-6f); });
  }
  (void)sink;
  return dot < 2.0 * multiply;
}

/// Reads as a product with bf16 weights does: each line is widened, and
/// multiplied with numbers that stay in the first cache.
__attribute__((target("avx2,fma"))) static float
readWeights(const char *weights, int64_t bytes, int64_t ahead, const float *x) {
  __m256 sums[4] = {};
  for (int64_t at = 0; at < bytes; at += 64) {
    if (ahead)
      _mm_prefetch(weights + at + ahead, _MM_HINT_T0);
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; ++i) {
      __m256i wide = _mm256_slli_epi32(
          _mm256_cvtepu16_epi32(_mm_loadu_si128(
              reinterpret_cast<const __m128i *>(weights + at + 16 * i))),
          16);
      sums[i] = _mm256_fmadd_ps(_mm256_castsi256_ps(wide),
                                _mm256_loadu_ps(x + 8 * i), sums[i]);
    }
  }
  __m256 sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]),
                             _mm256_add_ps(sums[2], sums[3]));
  return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/// The shortest of `turns` reads of `bytes`, in seconds, for each distance:
/// taken in turn, so that a busy moment affects all of them.
static SmallVector<double> timeReads(int64_t bytes, int turns,
                                     ArrayRef<int64_t> distances) {
  std::vector<char> weights(bytes);
  const float x[32] = {};
  SmallVector<double> best(distances.size(), 1.0);
  volatile float sink = 0.0f;
  for (int turn = 0; turn < turns; ++turn)
    for (auto [shortest, distance] : llvm::zip_equal(best, distances)) {
      // From memory, whatever caches there are.
      for (int64_t at = 0; at < bytes; at += 64)
        _mm_clflush(weights.data() + at);
      _mm_mfence();
      shortest = timeOnce(shortest, [&, distance = distance] {
        // Nothing behind the end is prefetched.
        sink =
            readWeights(weights.data(), bytes - kMaxPrefetchBytes, distance, x);
      });
    }
  (void)sink;
  return best;
}

static HostFacts measure() {
  llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  HostFacts facts;
  facts.hasFastBf16Dot = features.lookup("avx512f") &&
                         features.lookup("avx512bf16") && measureBf16Dot();
  if (features.lookup("avx2") && features.lookup("fma"))
    facts.prefetchBytes = choosePrefetch(timeReads);
  return facts;
}

std::string mlir::diffattn::getHostSignature() {
  // The version changes with the measurement: kept facts are those of the code
  // that measured them.
  std::string text = "2:";
  llvm::raw_string_ostream os(text);
  unsigned highest = __get_cpuid_max(0, nullptr);
  // The last one has the bit of the bf16 dot product.
  constexpr std::pair<unsigned, unsigned> kLeaves[] = {
      {0, 0}, {1, 0}, {7, 0}, {7, 1}};
  for (auto [leaf, part] : kLeaves) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (leaf <= highest)
      __cpuid_count(leaf, part, a, b, c, d);
    if (leaf == 1)
      b = 0; // holds the number of the core that executes this
    os << llvm::format_hex_no_prefix(a, 8) << llvm::format_hex_no_prefix(b, 8)
       << llvm::format_hex_no_prefix(c, 8) << llvm::format_hex_no_prefix(d, 8);
  }
  return text;
}
#else
static HostFacts measure() { return {}; }
std::string mlir::diffattn::getHostSignature() {
  return llvm::sys::getHostCPUName().str();
}
#endif

int64_t mlir::diffattn::choosePrefetch(TimeReads timeReads) {
  // The first is the usual one: another must be better by more than noise.
  constexpr int64_t kDistances[] = {0, 4096, 2048, 8192};
  SmallVector<double> best = timeReads(1 << 20, /*turns=*/4, kDistances);
  size_t chosen = 1;
  for (size_t i = 2; i < std::size(kDistances); ++i)
    if (best[i] < 0.95 * best[chosen])
      chosen = i;
  if (best[chosen] > 0.9 * best[0])
    return 0;
  // A short read of lines that were flushed gains on Zen 4, by up to a third,
  // where kernels lose. So does none of more than the caches hold.
  best = timeReads(64 << 20, /*turns=*/3, {0, kDistances[chosen]});
  return best[1] < 0.87 * best[0] ? kDistances[chosen] : 0;
}

static std::mutex lock;
static std::optional<HostFacts> known;

HostFacts mlir::diffattn::getHostFacts() {
  std::lock_guard<std::mutex> guard(lock);
  if (!known)
    known = measure();
  return *known;
}

bool mlir::diffattn::knowsHostFacts() {
  std::lock_guard<std::mutex> guard(lock);
  return known.has_value();
}

void mlir::diffattn::recallHostFacts(const HostFacts &facts) {
  std::lock_guard<std::mutex> guard(lock);
  if (!known)
    known = facts;
}

std::string mlir::diffattn::writeHostFacts(const HostFacts &facts) {
  return std::string("bf16 dot products ") +
         (facts.hasFastBf16Dot ? "fast" : "slow") + ", prefetch " +
         std::to_string(facts.prefetchBytes) + " bytes ahead";
}

std::optional<HostFacts> mlir::diffattn::parseHostFacts(StringRef text) {
  HostFacts facts;
  if (!text.consume_front("bf16 dot products "))
    return std::nullopt;
  facts.hasFastBf16Dot = text.consume_front("fast");
  if (!facts.hasFastBf16Dot && !text.consume_front("slow"))
    return std::nullopt;
  if (!text.consume_front(", prefetch ") ||
      text.consumeInteger(10, facts.prefetchBytes) || text != " bytes ahead" ||
      facts.prefetchBytes < 0 || facts.prefetchBytes > kMaxPrefetchBytes)
    return std::nullopt;
  return facts;
}
