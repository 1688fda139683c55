//===- GpuAttentionTest.cpp - kernels on the simulator against f64 --------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GpuCase.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

/// V1 with a head norm: the paper's model.
Signature v1() {
  Signature s;
  s.causal = true;
  s.rms = true;
  s.weight = "bf16";
  s.outScale = 0.8;
  return s;
}

TEST(GpuForward, V1AroundTileEdges) {
  expectRight(v1(), {{1, 64, 64}, {1, 65, 33}, {2, 1, 1}, {1, 31, 97}});
}

TEST(GpuForward, V1WithoutMask) {
  Signature s = v1();
  s.causal = false;
  s.type = s.weight = "f16";
  expectRight(s, {{1, 64, 128}, {1, 15, 31}});
}

TEST(GpuForward, WideHeadsInPairsOfWarps) {
  Signature s = v1();
  s.d = 128;
  s.dv = 256;
  expectRight(s, {{1, 64, 64}, {1, 70, 81}});
}

TEST(GpuForward, MapsApart) {
  Signature s = v1();
  s.schedule = "placement = apart, warps = 4, row_tiles = 2, "
               "kv_block_size = 32, "
               "q_in_registers = true";
  expectRight(s, {{1, 64, 64}, {1, 41, 70}});
}

TEST(GpuForward, ThreeStages) {
  Signature s = v1();
  s.schedule = "placement = pair, warps = 4, kv_block_size = 16, "
               "stages = 3";
  expectRight(s, {{1, 32, 96}, {1, 33, 20}, {1, 5, 16}});
}

TEST(GpuForward, MotifGroupsOfHeads) {
  Signature s = v1();
  s.d = 32;
  s.dv = 64;
  s.signal = 8;
  s.noise = 2;
  s.key1 = 4;
  s.key2 = 1;
  s.value = 4;
  s.bthd = true;
  expectRight(s, {{2, 17, 40}});
}

TEST(GpuForward, V2SharedKeysAndLambdaOfTokens) {
  Signature s;
  s.dv = 64;
  s.signal = s.noise = 4;
  s.key1 = s.key2 = s.value = 2;
  s.sharedKeys = s.causal = s.sigmoid = true;
  s.lambda = 2;
  expectRight(s, {{2, 40, 40}});
}

TEST(GpuForward, WindowLengthsOffsetsAndGate) {
  Signature s;
  s.d = s.dv = 64;
  s.signal = 2;
  s.left = 20;
  s.right = 3;
  s.kvLen = s.qOffset = s.gate = s.epsOutside = s.rms = true;
  s.lambda = 3;
  expectRight(s, {{3, 33, 70}, {2, 16, 16}});
}

TEST(GpuForward, AdditiveBias) {
  Signature s = v1();
  s.bias = "f32";
  s.noise = 1;
  s.signal = 2;
  s.key1 = s.value = 2;
  Shape broadcast{2, 20, 50};
  broadcast.biasHeads = broadcast.biasQueries = false;
  Shape full{2, 20, 50};
  full.biasBatch = true;
  expectRight(s, {broadcast, full});
}

/// An even number of keys is read in pairs, an odd one key by key.
TEST(GpuForward, BiasInPairs) {
  for (const char *type : {"f32", "bf16", "i1"}) {
    Signature s = v1();
    s.d = 32;
    s.dv = 64;
    s.bias = type;
    CompiledCase compiled(s);
    uint64_t accesses[2];
    for (int64_t odd : {0, 1}) {
      Shape shape{1, 33, 64 - odd};
      shape.biasPad = odd ? 1 : 2;
      Outcome outcome = compiled.run(shape, 5);
      EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
      EXPECT_LE(outcome.worst(), 1.0);
      accesses[odd] = outcome.report.stats.laneAccesses;
    }
    EXPECT_LT(accesses[0], accesses[1]) << type;
  }
}

TEST(GpuForward, BooleanMaskAndSoftcap) {
  Signature s = v1();
  s.bias = "i1";
  s.softcap = 5.0;
  expectRight(s, {{1, 20, 50}});
}

TEST(GpuForward, AnyStrides) {
  Signature s = v1();
  s.step = 2;
  s.d = 20;
  s.dv = 37;
  s.weight = "f32";
  expectRight(s, {{1, 19, 45}});
}

TEST(GpuForward, GeneralWidths) {
  Signature s = v1();
  s.d = 40;
  s.dv = 200;
  expectRight(s, {{1, 35, 40}});
}

TEST(GpuForward, RowsPast4GiB) {
  Shape far{1, 3, 5};
  far.gap = int64_t(1) << 29; // 1 GiB from row to row
  Signature s = v1();
  s.d = 32;
  s.dv = 64;
  expectRight(s, {far});
  s.step = 2;
  expectRight(s, {far});
}

TEST(GpuForward, NegativeScale) {
  Signature s = v1();
  s.d = 32;
  s.dv = 64;
  s.scale = -0.3;
  expectRight(s, {{1, 20, 40}});
}

TEST(GpuPlain, F32) {
  Signature s;
  s.type = "f32";
  s.d = 20;
  s.dv = 37;
  s.signal = 2;
  s.causal = s.rms = s.gate = s.kvLen = true;
  s.bias = "f32";
  s.step = 3;
  expectRight(s, {{2, 9, 70}, {1, 3, 1}});
}

TEST(GpuDecode, V1) {
  Signature s = v1();
  s.queries = 1;
  s.signal = s.noise = 4;
  s.key1 = s.key2 = s.value = 2;
  expectRight(s, {{1, 1, 600}, {2, 1, 64}, {1, 1, 1}});
}

TEST(GpuDecode, LengthsGroupsAndSeveralQueries) {
  Signature s = v1();
  s.queries = 2;
  s.signal = 4;
  s.noise = 1;
  s.kvLen = true;
  s.sigmoid = true;
  s.lambda = 2;
  s.left = 30;
  expectRight(s, {{3, 2, 530}});
}

TEST(GpuDecode, SharedKeysWithBias) {
  Signature s;
  s.d = 192;
  s.queries = 1;
  s.sharedKeys = s.gate = true;
  s.signal = 4;
  s.bias = "bf16";
  expectRight(s, {{1, 1, 130}});
}

/// States are joined in a fixed order, whichever block or warp is done first.
TEST(GpuDecode, ResultDoesNotDependOnTheOrderOfThreads) {
  Signature s = v1();
  s.queries = 1;
  CompiledCase compiled(s);
  Outcome alone = compiled.run({1, 1, 700}, 5);
  Outcome again = compiled.run({1, 1, 700}, 5, [] {
    sim::SimOptions options;
    options.seed = 9;
    return options;
  }());
  EXPECT_EQ(alone.output, again.output);
}

/// The number of queries is known at launch: the same code decodes and fills.
TEST(GpuDecode, DynamicNumberOfQueries) {
  Signature s = v1();
  s.signal = 12;
  s.noise = 12;
  s.key1 = s.key2 = s.value = 2; // groups of 6, in parts of 6, 3, 2 and 1
  CompiledCase compiled(s);
  auto kernels = [&](const Shape &shape) {
    Outcome outcome = compiled.run(shape, 4);
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    return outcome.kernels;
  };
  for (int64_t queries : {1, 2, 3, 5, 8})
    EXPECT_THAT(kernels({1, queries, 40}),
                ::testing::HasSubstr("diffattn_merge"))
        << queries;
  EXPECT_THAT(kernels({1, 9, 40}), ::testing::StartsWith("diffattn_forward"));
}

/// A dynamic number of queries that decode takes gives the bits of a static
/// one.
TEST(GpuDecode, DynamicIsStatic) {
  Signature s = v1();
  s.signal = s.noise = 6;
  s.key1 = s.key2 = s.value = 1;
  Outcome dynamic = CompiledCase(s).run({2, 2, 90}, 6);
  s.queries = 2;
  Outcome fixed = CompiledCase(s).run({2, 2, 90}, 6);
  EXPECT_EQ(dynamic.kernels, fixed.kernels);
  EXPECT_EQ(dynamic.output, fixed.output);
}

/// No launch for nothing; rows without keys are zeros.
TEST(GpuDecode, EmptySizes) {
  Signature s = v1();
  s.d = 32;
  s.dv = 64;
  CompiledCase compiled(s);
  EXPECT_EQ(compiled.run({0, 20, 30}, 1).kernels, "");
  EXPECT_EQ(compiled.run({2, 0, 30}, 1).kernels, "");
  for (int64_t queries : {1, 20}) {
    Outcome outcome = compiled.run({1, queries, 0}, 1);
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_NE(outcome.kernels, "");
    EXPECT_THAT(outcome.output, ::testing::Each(0.0));
  }
}

/// Anything that the op can say, drawn from a fixed seed.
Signature draw(std::mt19937 &random) {
  auto pick = [&](auto... options) {
    std::common_type_t<decltype(options)...> all[] = {options...};
    return all[random() % sizeof...(options)];
  };
  auto divisor = [&](int64_t n) {
    int64_t d = random() % n + 1;
    while (n % d)
      --d;
    return d;
  };
  Signature s;
  static const int64_t kWidths[][2] = {{32, 64},  {64, 128}, {64, 64},
                                       {16, 16},  {8, 24},   {20, 33},
                                       {96, 192}, {48, 96},  {2, 4}};
  const int64_t *widths = kWidths[random() % std::size(kWidths)];
  s.d = widths[0];
  s.dv = widths[1];
  s.type = pick("bf16", "f16", "bf16", "f16", "f32");
  s.noise = pick(1, 2);
  s.signal = s.noise * pick(1, 1, 2, 3);
  s.key1 = divisor(s.signal);
  s.key2 = divisor(s.noise);
  s.value = divisor(s.signal);
  s.sharedKeys = s.key1 == s.key2 && pick(0, 0, 1);
  s.queries = s.type == "f32" ? 0 : pick(0, 0, 0, 1, 2);
  s.causal = pick(0, 1);
  if (pick(0, 0, 1)) {
    s.left = pick(-1, 0, 3, 20);
    s.right = pick(-1, 0, 5);
  }
  s.softcap = pick(0.0, 0.0, 0.0, 5.0);
  s.bias = pick("", "", "", "i1", "f32");
  s.rms = pick(0, 1);
  s.epsOutside = pick(0, 1);
  if (s.rms)
    s.weight = pick("", "f32", s.type.c_str());
  s.gate = pick(0, 0, 1);
  s.kvLen = pick(0, 0, 1);
  s.qOffset = pick(0, 0, 1);
  s.lambda = pick(0, 1, 2, 3);
  s.sigmoid = pick(0, 1);
  s.outScale = pick(1.0, 0.7);
  s.bthd = pick(0, 1);
  s.step = pick(1, 1, 1, 2);
  s.chip = pick("sm_80", "sm_86", "sm_90", "sm_90a");
  return s;
}

/// `count` configurations from `seed` on, each as `change` leaves it.
void expectRightAtRandom(unsigned seed, int count,
                         const std::function<void(Signature &)> &change) {
  std::mt19937 random(seed);
  for (int number = 0; number < count; ++number) {
    SCOPED_TRACE("configuration " + std::to_string(number));
    Signature s = draw(random);
    change(s);
    auto shape = [&] {
      static const int64_t kQueries[] = {1, 2, 7, 15, 16, 17, 33};
      static const int64_t kKeys[] = {1, 2, 15, 16, 31, 64, 65, 130};
      return Shape{int64_t(random() % 2 + 1), kQueries[random() % 7],
                   kKeys[random() % 8]};
    };
    expectRight(s, {shape(), shape()});
  }
}

TEST(GpuRandom, AgainstReference) {
  expectRightAtRandom(11, 12, [](Signature &) {});
}

TEST(GpuRandom, OneMapAgainstReference) {
  expectRightAtRandom(12, 8, [](Signature &s) {
    s.maps = 1;
    s.noise = s.signal;
    s.sharedKeys = s.sigmoid = false;
  });
}

} // namespace
