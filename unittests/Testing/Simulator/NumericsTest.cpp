//===- NumericsTest.cpp - approximations, roundings, fragments ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Numerics.h"
#include "Harness.h"

#include <cmath>
#include <cstring>

using namespace mlir::diffattn::sim;

namespace {

TEST(NumericsTest, ApproximationsStayWithinTheirBounds) {
  struct Case {
    Approx function;
    double (*exact)(double);
    float low, high;
    bool absolute;
  };
  const Case cases[] = {
      {Approx::Exp2, [](double x) { return std::exp2(x); }, -100, 20, false},
      {Approx::Rcp, [](double x) { return 1 / x; }, 0.01f, 50, false},
      {Approx::Rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.01f, 50,
       false},
      {Approx::Sqrt, [](double x) { return std::sqrt(x); }, 0.01f, 50, false},
      {Approx::Sin, [](double x) { return std::sin(x); }, -6, 6, true},
      {Approx::Sin, [](double x) { return std::sin(x); }, 7, 300, true},
      {Approx::Cos, [](double x) { return std::cos(x); }, -300, -7, true},
      {Approx::Tanh, [](double x) { return std::tanh(x); }, -4, 4, false},
  };
  for (const Case &test : cases) {
    double worst = 0;
    for (int i = 0; i < 10000; ++i) {
      float x = test.low + (test.high - test.low) * (i + 0.5f) / 10000;
      double exact = test.exact(x);
      double error = std::fabs(approximate(test.function, x, true, 7) - exact) /
                     (test.absolute ? 1 : std::fabs(exact));
      // The result itself is rounded to f32.
      worst = std::max(worst, error);
      EXPECT_LE(error, approxBound(test.function, x) +
                           0x1p-24 * (test.absolute ? std::fabs(exact) : 1));
      EXPECT_EQ(approximate(test.function, x, true, 0),
                static_cast<float>(exact));
    }
    // A perturbation that is hardly there would prove nothing.
    EXPECT_GE(worst, approxBound(test.function, test.high) * 0.9);
  }
}

TEST(NumericsTest, NothingIsPromisedOfSinesFarOut) {
  double worst = 0;
  for (int i = 0; i < 1000; ++i) {
    float x = 400.0f + 0.1f * static_cast<float>(i);
    float value = approximate(Approx::Cos, x, true, 7);
    EXPECT_LE(std::fabs(value), 1.0f);
    worst = std::max(worst, std::fabs(value - std::cos(double(x))));
  }
  EXPECT_GE(worst, 1.0);
}

TEST(NumericsTest, ApproximationsOfSpecialValues) {
  const float inf = INFINITY;
  for (uint64_t salt : {0, 1, 2}) {
    EXPECT_EQ(approximate(Approx::Exp2, 0.0f, true, salt), 1.0f);
    EXPECT_EQ(approximate(Approx::Exp2, -inf, true, salt), 0.0f);
    EXPECT_EQ(approximate(Approx::Exp2, 200.0f, true, salt), inf);
    EXPECT_EQ(approximate(Approx::Exp2, -127.5f, true, salt), 0.0f);
    EXPECT_GT(approximate(Approx::Exp2, -127.5f, false, salt), 0.0f);
    EXPECT_EQ(approximate(Approx::Rcp, 0.0f, true, salt), inf);
    EXPECT_EQ(approximate(Approx::Rcp, inf, true, salt), 0.0f);
    EXPECT_EQ(approximate(Approx::Rcp, 1e-40f, true, salt), inf);
    EXPECT_EQ(approximate(Approx::Log2, 1.0f, true, salt), 0.0f);
    EXPECT_TRUE(std::isnan(approximate(Approx::Rsqrt, -1.0f, true, salt)));
  }
}

TEST(NumericsTest, RoundsToBfloatAndHalf) {
  EXPECT_EQ(floatToBfloat(1.0f), 0x3f80);
  // Ties go to even.
  EXPECT_EQ(floatToBfloat(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(floatToBfloat(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(floatToBfloat(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
  EXPECT_EQ(floatToBfloat(3.4e38f), 0x7f80);
  EXPECT_EQ(floatToBfloat(NAN), 0x7fff);
  EXPECT_EQ(floatToBfloat(0x1p-133f), 0x0001);
  EXPECT_EQ(floatToBfloatTowardZero(1.999999f), 0x3fff);
  EXPECT_EQ(floatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(floatToHalfTowardZero(65520.0f), 0x7bff);
  EXPECT_EQ(halfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(bfloatToFloat(0xc000), -2.0f);
}

/// A, B and C by the tables of the PTX ISA, with one number set at a time, find
/// the place of every element.
TEST(NumericsTest, FragmentsHoldWhatThePtxTablesSay) {
  Site site;
  site.kind = OpKind::Mma;
  site.type = MmaType::BF16;
  uint32_t in[32][10], out[32][4];
  const uint32_t *ins[32];
  uint32_t *outs[32];
  for (int lane = 0; lane < 32; ++lane) {
    ins[lane] = in[lane];
    outs[lane] = out[lane];
  }
  auto bits = [](float x) {
    uint32_t word;
    memcpy(&word, &x, 4);
    return word;
  };
  for (int row = 0; row < 16; row += 5)
    for (int k = 0; k < 16; k += 3)
      for (int column = 0; column < 8; column += 3) {
        memset(in, 0, sizeof(in));
        // a(row, k): lane 4·(row % 8) + (k % 8) / 2, register (row / 8) + 2·(k
        // / 8), half k % 2.
        in[4 * (row % 8) + (k % 8) / 2][row / 8 + 2 * (k / 8)] =
            0x4000u << (16 * (k % 2));
        // b(k, column): lane 4·column + (k % 8) / 2, register k / 8, half k
        // % 2.
        in[4 * column + (k % 8) / 2][4 + k / 8] = 0x4040u << (16 * (k % 2));
        // c(row, column): lane 4·(row % 8) + column / 2, register 2·(row / 8) +
        // column % 2.
        const int lane = 4 * (row % 8) + column / 2,
                  index = 2 * (row / 8) + column % 2;
        in[lane][6 + index] = bits(0.5f);
        multiplyFragments(site, ins, outs);
        for (int l = 0; l < 32; ++l)
          for (int i = 0; i < 4; ++i)
            EXPECT_EQ(out[l][i], l == lane && i == index ? bits(6.5f) : 0)
                << row << " " << k << " " << column;
      }
  EXPECT_EQ(getMmaInputs(MmaType::BF16, 16, false), 10u);
  EXPECT_EQ(getMmaInputs(MmaType::F16, 16, true), 8u);
  EXPECT_EQ(getMmaInputs(MmaType::F16, 8, false), 7u);
  EXPECT_EQ(getMmaInputs(MmaType::TF32, 8, false), 10u);
}

/// out[tid] = `body` of %x = in[tid].
class ArithmeticTest : public SimulatorTest {
protected:
  std::vector<float> run(const std::string &body, std::vector<float> in,
                         SimOptions options = {}) {
    EXPECT_EQ(compile(R"(
define ptx_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %from = getelementptr float, ptr addrspace(1) %in, i32 %tid
  %x = load float, ptr addrspace(1) %from, align 4
)" + body + R"(
  %to = getelementptr float, ptr addrspace(1) %out, i32 %tid
  store float %r, ptr addrspace(1) %to, align 4
  ret void
}
)"),
              "");
    std::vector<float> out(in.size());
    if (simulator)
      EXPECT_EQ(
          launch(in.size(), {buffer(in, "in"), buffer(out, "out")}, options)
              .str(),
          "");
    return out;
  }
};

TEST_F(ArithmeticTest, BfloatInTheModuleRoundsToEven) {
  const float x = 1.0f + 0x1p-8f, tiny = 0x1p-130f;
  EXPECT_EQ(run("  %h = fptrunc float %x to bfloat\n  %r = fpext bfloat %h to "
                "float\n",
                {x, 3 * 0x1p-8f + 1, tiny}),
            (std::vector<float>{1.0f, 1 + 0x1p-6f, tiny}));
  // The pair of the intrinsic has its first argument above.
  EXPECT_EQ(run(R"(
  %pair = call <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float %x, float 2.0)
  %h = extractelement <2 x bfloat> %pair, i32 1
  %r = fpext bfloat %h to float
)",
                {x, 5.0f}),
            (std::vector<float>{1.0f, 5.0f}));
  EXPECT_EQ(run(R"(
  %v0 = insertelement <2 x float> poison, float %x, i32 0
  %v1 = insertelement <2 x float> %v0, float 3.0, i32 1
  %pair = fptrunc <2 x float> %v1 to <2 x bfloat>
  %sum = fadd <2 x bfloat> %pair, %pair
  %h = extractelement <2 x bfloat> %sum, i32 0
  %r = fpext bfloat %h to float
)",
                {1.5f, 0.1f}),
            (std::vector<float>{3.0f, 2 * bfloatToFloat(floatToBfloat(0.1f))}));
}

TEST_F(ArithmeticTest, IntrinsicsCompute) {
  EXPECT_EQ(run("  %r = call float @llvm.nvvm.ex2.approx.ftz.f32(float %x)\n",
                {0, 3, -1}),
            (std::vector<float>{1, 8, 0.5f}));
  EXPECT_EQ(run("  %r = call float @llvm.nvvm.rcp.approx.ftz.f(float %x)\n",
                {4, -0.5f}),
            (std::vector<float>{0.25f, -2}));
  EXPECT_EQ(run("  %r = call float @llvm.maxnum.f32(float %x, float 2.0)\n",
                {1, 3, NAN}),
            (std::vector<float>{2, 3, 2}));
  EXPECT_EQ(run("  %r = call float @llvm.nvvm.fma.rn.ftz.f(float %x, float "
                "1.0, float 0.0)\n",
                {1e-40f, 1}),
            (std::vector<float>{0, 1}));
  EXPECT_EQ(run(R"(
  %i = fptosi float %x to i32
  %p = call i32 @llvm.nvvm.prmt(i32 %i, i32 -1, i32 291)
  %l = and i32 %p, 16777215
  %r = sitofp i32 %l to float
)",
                {1.0f}),
            (std::vector<float>{0}));
}

TEST_F(ArithmeticTest, PerturbationIsOfTheInputAlone) {
  std::vector<float> in(64);
  for (int i = 0; i < 64; ++i)
    in[i] = -0.37f * (i / 2);
  SimOptions options;
  options.perturb = true;
  options.seed = 3;
  std::vector<float> out =
      run("  %r = call float @llvm.nvvm.ex2.approx.ftz.f32(float %x)\n", in,
          options);
  int different = 0;
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(out[i], out[i ^ 1]);
    EXPECT_NEAR(out[i] / std::exp2(double(in[i])), 1, 0x1p-22 + 0x1p-24);
    different += out[i] != static_cast<float>(std::exp2(double(in[i])));
  }
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_GT(different, 16);
}

} // namespace
