//===- GpuOrdersTest.cpp - one result in every order ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GpuCase.h"

#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;

namespace {

/// Runs one shape in several orders of threads, with copies that arrive when
/// they are issued or only when they are waited for, and with blocks at the
/// same time: every bit of the result stays, and no fault is found.
void expectOneResult(const Signature &signature, const Shape &shape) {
  CompiledCase compiled(signature);
  Outcome first = compiled.run(shape, /*seed=*/3);
  EXPECT_TRUE(first.report.clean()) << first.report.str();
  EXPECT_LE(first.worst(), 1.0);
  for (uint64_t order : {0, 1, 2, 7, 1234})
    for (sim::CopyTiming copies :
         {sim::CopyTiming::Late, sim::CopyTiming::Early}) {
      sim::SimOptions options;
      options.seed = order;
      options.copies = copies;
      options.workers = order == 7 ? 2 : 1;
      Outcome again = compiled.run(shape, /*seed=*/3, options);
      EXPECT_TRUE(again.report.clean()) << again.report.str();
      EXPECT_EQ(again.output, first.output) << "order " << order;
    }
}

Signature normed(int64_t d, int64_t dv) {
  Signature s;
  s.d = d;
  s.dv = dv;
  s.causal = s.rms = true;
  s.weight = "bf16";
  return s;
}

TEST(GpuOrders, BothMapsInAWarp) {
  expectOneResult(normed(64, 128), {1, 70, 70});
}

TEST(GpuOrders, PairsOfWarps) { expectOneResult(normed(96, 192), {1, 35, 70}); }

TEST(GpuOrders, MasksAndSoftcap) {
  Signature s = normed(32, 64);
  s.bias = "i1";
  s.softcap = 5.0;
  s.kvLen = true;
  expectOneResult(s, {2, 33, 70});
}

TEST(GpuOrders, AnyStrides) {
  Signature s = normed(32, 64);
  s.step = 2;
  expectOneResult(s, {1, 33, 70});
}

TEST(GpuOrders, Decode) {
  Signature s = normed(64, 128);
  s.queries = 2;
  s.signal = s.noise = 2;
  expectOneResult(s, {2, 2, 600});
}

/// More ranges than the merge has threads: it takes them in turns, and a later
/// turn's maximum changes the weight of those before.
TEST(GpuOrders, DecodeOfManyRanges) {
  Signature s = normed(8, 40);
  s.queries = 1;
  s.schedule = "#diffattn.gpu_split_kv<warps = 1, kv_split_size = 16>";
  Shape shape{1, 1, 16 * 300 + 5};
  // Rows whose scores grow, and rows whose scores fall.
  for (double growth : {0.0, 0.01, -0.01}) {
    shape.growth = growth;
    expectOneResult(s, shape);
  }
}

TEST(GpuOrders, F32) {
  Signature s = normed(16, 24);
  s.type = s.weight = "f32";
  expectOneResult(s, {1, 9, 40});
}

/// Approximate instructions that are off by all that is documented keep the
/// result within the bound, and do change it.
TEST(GpuOrders, ApproximationsAtTheirBounds) {
  Signature s = normed(64, 128);
  s.type = s.weight = "f16";
  s.softcap = 3.0;
  s.gate = s.sigmoid = true;
  CompiledCase compiled(s);
  Shape shape{1, 40, 70};
  Outcome exact = compiled.run(shape, 4);
  for (uint64_t order : {1, 2, 3}) {
    sim::SimOptions options;
    options.seed = order;
    options.perturb = true;
    Outcome perturbed = compiled.run(shape, 4, options);
    EXPECT_TRUE(perturbed.report.clean()) << perturbed.report.str();
    EXPECT_LE(perturbed.worst(), 1.0);
    EXPECT_NE(perturbed.output, exact.output);
  }
}

} // namespace
