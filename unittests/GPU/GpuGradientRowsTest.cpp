//===- GpuGradientRowsTest.cpp - rows of gradients ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KernelRun.h"

#include "DiffAttn/Testing/Reference/AttentionBackward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

using namespace mlir;
using namespace mlir::diffattn;
using reference::Element;

namespace {
/// Where lambda varies, beside [B,Tq,heads].
enum class Lambdas { One, Heads, Queries };

struct RowsCase {
  std::string name;
  Element type = Element::BF16, gradient = Element::BF16, saved = Element::F32,
          second = Element::BF16;
  int64_t width = 64, batches = 2, heads = 4, noise = 2, queries = 37, maps = 2;
  /// Whether lambda has noise heads; else it has signal heads.
  Lambdas lambdas = Lambdas::One;
  bool lambdaOfNoise = false, sigmoid = false;
  bool norm = true, weight = true, gate = true, epsOutside = false;
  double outScale = 0.7;
  /// Elements between neighbours, and between rows beyond their width.
  int64_t step = 1;
  /// Rows of map 1, and of both, without keys; a row of zeros.
  bool emptyRows = false;
};

std::ostream &operator<<(std::ostream &os, const RowsCase &c) {
  return os << c.name;
}

/// The three kernels of a case, run on operands that are drawn.
class RowsRun : public KernelRun {
public:
  explicit RowsRun(const RowsCase &c) : c(c) {
    draw();
    compile();
  }

  /// Runs all of it, in an order of threads and blocks of its own.
  void run(uint64_t seed);
  /// Against f64, and what is added against the order in which it must be.
  void check() const;
  /// The bytes of all results.
  std::vector<uint8_t> results() const {
    std::vector<uint8_t> all;
    for (const auto &entry : arrays)
      if (entry.second.isOutput)
        all.insert(all.end(), entry.second.memory.begin(),
                   entry.second.memory.end());
    return all;
  }

private:
  void draw();
  void compile();
  void launch(const GpuKernelSpec &spec, sim::Dim3 grid, uint64_t seed);
  int64_t parts() const { return llvm::divideCeil(c.queries, kGpuRowsOfPart); }
  /// Queries that one element of lambda is of all of.
  bool isOfQueries() const { return c.lambdas == Lambdas::Queries; }
  int64_t lambdaHeads() const {
    return c.lambdas == Lambdas::One ? 1 : c.lambdaOfNoise ? c.noise : c.heads;
  }
  /// The operands as the reference takes them.
  reference::AttentionArguments getArguments() const;
  /// Whether the row sees a key by some map.
  bool isSeen(int64_t b, int64_t h, int64_t t) const;
  /// Checks d1, d2 and what they add to d_lambda: they are made of the rounded
  /// dX alone.
  void checkRowSums(const reference::AttentionArguments &arguments, int64_t b,
                    int64_t h, int64_t t,
                    reference::AttentionGradients &gradients) const;
  /// Checks d_lambda, of which queries and heads of `lambda` share elements.
  void checkLambda(const reference::View &lambda,
                   const reference::Gradient &gradient) const;
  void checkSums() const;

  const RowsCase &c;
  GpuKernelSpec rows, weights, lambdas;
};
} // namespace

void RowsRun::draw() {
  const std::vector<int64_t> ofOut = {c.batches, c.heads, c.queries, c.width},
                             ofRows = {c.batches, c.heads, c.queries};
  auto fill = [&](DeviceArray &array, double scale, double offset) {
    KernelRun::draw(array, offset, scale);
  };
  // Rows of neighbours stay aligned.
  auto tensor = [&](const char *name, Element element) -> DeviceArray & {
    return make(name, element, "bhtw", ofOut, c.step, c.step == 1 ? 8 : 3);
  };
  auto result = [](DeviceArray &array) { array.isOutput = true; };
  fill(tensor("d_out", c.gradient), 1.0, 0.0);
  fill(tensor("x", c.saved), 0.6, 0.1);
  if (c.maps == 2)
    fill(tensor("o2", c.second), 0.8, 0.0);
  if (c.gate) {
    fill(tensor("gate", c.type), 1.5, 0.0);
    result(tensor("d_gate", c.type));
  }
  if (c.weight) {
    fill(make("norm_weight", c.type, "w", {c.width}, 2), 0.3, 1.0);
    result(make("d_norm_weight", c.type, "w", {c.width}, 2));
    result(make("weight_parts", Element::F32, "",
                {c.batches, c.heads, parts(), c.width}));
  }
  std::vector<int64_t> ofLambda = {c.batches, c.queries, lambdaHeads()};
  if (!isOfQueries())
    ofLambda = {1, 1, lambdaHeads()};
  if (c.maps == 2) {
    fill(make("lambda", Element::F32, "bth", ofLambda), 0.5, 0.4);
    result(make("d_lambda", Element::F32, "bth", ofLambda));
    result(
        make("lambda_parts", Element::F32, "", {c.batches, c.heads, parts()}));
    result(make("d2", Element::F32, "bht", ofRows));
  }
  result(make("dx", c.type, "bhtw", ofOut));
  result(make("d1", Element::F32, "bht", ofRows));
  fill(make("lse1", Element::F32, "bht", ofRows), 1.0, 3.0);
  if (c.maps == 2)
    fill(make("lse2", Element::F32, "bht", {c.batches, c.noise, c.queries}),
         1.0, 3.0);
  if (!c.emptyRows)
    return;
  constexpr double none = -std::numeric_limits<double>::infinity();
  for (int64_t h = 0; h < c.heads; ++h) {
    arrays["lse1"].set({0, h, 3}, none); // map 2 has keys
    arrays["lse1"].set({0, h, 5}, none);
    if (c.maps == 2)
      arrays["lse2"].set({0, h / (c.heads / c.noise), 5}, none);
    for (int64_t i = 0; i < c.width; ++i) {
      arrays["x"].set({0, h, 7, i}, 0.0);
      // Whatever it holds.
      arrays["d_out"].set({0, h, 5, i}, std::nan(""));
    }
  }
}

void RowsRun::compile() {
  rows.kind = GpuKernelKind::GradientRows;
  rows.elementType = typeOf(c.type);
  rows.gradientType = typeOf(c.gradient);
  rows.savedType = typeOf(c.saved);
  rows.valueDim = c.width;
  rows.maps = c.maps;
  rows.elementwise = c.step != 1 || c.width % 8 != 0;
  for (int64_t map = 0; map < c.maps; ++map)
    rows.storesLogSums[map] = true;
  if (c.maps == 2) {
    rows.secondType = typeOf(c.second);
    rows.sumsLambda = !isOfQueries();
  }
  if (c.gate)
    rows.gateType = rows.gateGradientType = typeOf(c.type);
  if (c.weight)
    rows.normWeightType = rows.weightGradientType = typeOf(c.type);
  weights.kind = GpuKernelKind::WeightSums;
  weights.valueDim = c.width;
  weights.resultType = typeOf(c.type);
  lambdas.kind = GpuKernelKind::LambdaSums;
  lambdas.sumsLambdaOfQueries = isOfQueries();

  std::vector<GpuKernelSpec> specs = {rows};
  if (c.weight)
    specs.push_back(weights);
  if (c.maps == 2)
    specs.push_back(lambdas);
  KernelRun::compile(specs, "sm_80");
}

void RowsRun::launch(const GpuKernelSpec &spec, sim::Dim3 grid, uint64_t seed) {
  const std::map<std::string, int64_t> numbers = {
      {"queries", c.queries},
      {"parts", parts()},
      {"all_heads", c.batches * c.heads},
      {"signal_per_noise", c.heads / c.noise},
      {"signal_per_lambda", c.heads / lambdaHeads()},
      {"flags", (c.norm ? GpuFlagNorm : 0) |
                    (c.epsOutside ? GpuFlagEpsOutside : 0) |
                    (c.sigmoid ? GpuFlagLambdaSigmoid : 0)}};
  const std::map<std::string, double> reals = {{"norm_eps", 1e-5},
                                               {"out_scale", c.outScale}};
  sim::SimOptions options;
  options.seed = seed;
  options.residentBlocks = seed ? 3 : 1;
  const sim::LaunchReport report =
      KernelRun::launch(spec, grid, numbers, reals, options);
  EXPECT_TRUE(report.clean()) << report.str();
}

void RowsRun::run(uint64_t seed) {
  clearResults();
  const auto heads = static_cast<uint32_t>(c.heads),
             batches = static_cast<uint32_t>(c.batches);
  launch(rows,
         {countBlocks(c.queries, rows.getThreads() / 32 * kGpuRowsOfPart),
          heads, batches},
         seed);
  if (c.weight)
    launch(weights, {countBlocks(c.width, 32)}, seed);
  if (c.maps == 1)
    return;
  const auto ofLambda = static_cast<uint32_t>(lambdaHeads());
  if (isOfQueries())
    launch(lambdas,
           {countBlocks(c.queries, lambdas.getThreads()), ofLambda, batches},
           seed);
  else
    launch(lambdas, {ofLambda}, seed);
}

reference::AttentionArguments RowsRun::getArguments() const {
  reference::AttentionArguments a;
  // The shape alone is read of the maps' operands.
  a.q1 = arrays.at("x").view();
  a.rmsNorm = c.norm;
  a.normEps = 1e-5f;
  a.epsOutside = c.epsOutside;
  a.outScale = static_cast<float>(c.outScale);
  if (c.weight)
    a.normWeight = arrays.at("norm_weight").view();
  if (c.gate)
    a.gate = arrays.at("gate").view();
  if (c.maps == 1)
    return a;
  a.q2 = a.q1;
  a.q2.sizes[1] = c.noise;
  // A number for each query, which share elements.
  a.lambda = arrays.at("lambda").view();
  const int64_t heads = c.lambdas == Lambdas::One ? c.heads : lambdaHeads(),
                sizes[] = {c.batches, c.queries, heads};
  for (int64_t axis = 0; axis < 3; ++axis) {
    if (a.lambda.sizes[axis] == 1)
      a.lambda.strides[axis] = 0;
    a.lambda.sizes[axis] = sizes[axis];
  }
  a.lambdaSigmoid = c.sigmoid;
  return a;
}

bool RowsRun::isSeen(int64_t b, int64_t h, int64_t t) const {
  return !std::isinf(arrays.at("lse1").at({b, h, t})) ||
         (c.maps == 2 &&
          !std::isinf(arrays.at("lse2").at({b, h / (c.heads / c.noise), t})));
}

void RowsRun::checkRowSums(const reference::AttentionArguments &arguments,
                           int64_t b, int64_t h, int64_t t,
                           reference::AttentionGradients &gradients) const {
  const double lambda =
      c.maps == 2
          ? reference::lambdaAt(arguments, b, h, h / (c.heads / c.noise), t)
          : 0.0;
  double d1 = 0.0, d2 = 0.0, magnitude1 = 0.0, magnitude2 = 0.0;
  for (int64_t i = 0; i < c.width; ++i) {
    const double dx = arrays.at("dx").at({b, h, t, i}),
                 term1 = dx * arrays.at("x").at({b, h, t, i}),
                 term2 =
                     c.maps == 2 ? dx * arrays.at("o2").at({b, h, t, i}) : 0.0;
    d1 += term1 + lambda * term2;
    magnitude1 += std::abs(term1) + std::abs(lambda * term2);
    d2 += term2;
    magnitude2 += std::abs(term2);
  }
  // A part of the sum of magnitudes for sums in f32.
  const double near = 2e-6;
  ASSERT_NEAR(arrays.at("d1").at({b, h, t}), d1, near * magnitude1 + 1e-30);
  if (c.maps == 1)
    return;
  ASSERT_NEAR(arrays.at("d2").at({b, h, t}), d2, near * magnitude2 + 1e-30);
  reference::addLambdaGradient(arguments, b, h, t, d2, magnitude2, gradients);
}

void RowsRun::check() const {
  const double step = c.type == Element::F32   ? 1e-6
                      : c.type == Element::F16 ? 0x1p-11
                                               : 0x1p-8;
  // A part of the sum of magnitudes for sums in f32 and roots and inverses by
  // one instruction.
  const double near = 2e-6;
  auto allowed = [&](const reference::Gradient &of, int64_t i) {
    return step * std::abs(of.values[i]) + near * of.magnitudes[i] + 1e-30;
  };
  const reference::AttentionArguments arguments = getArguments();
  const reference::View dOut = arrays.at("d_out").view();
  reference::AttentionGradients gradients = reference::zeroGradients(arguments);
  for (int64_t b = 0; b < c.batches; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t t = 0; t < c.queries; ++t) {
        reference::Gradient dX{std::vector<double>(c.width),
                               std::vector<double>(c.width)};
        if (isSeen(b, h, t)) {
          reference::Gradient x;
          for (int64_t i = 0; i < c.width; ++i) {
            x.values.push_back(arrays.at("x").at({b, h, t, i}));
            x.magnitudes.push_back(std::abs(x.values.back()));
          }
          dX = reference::finishRowBackward(arguments, dOut, b, h, t, x,
                                            gradients);
        }
        for (int64_t i = 0; i < c.width; ++i)
          ASSERT_NEAR(arrays.at("dx").at({b, h, t, i}), dX.values[i],
                      allowed(dX, i))
              << b << " " << h << " " << t << " " << i;
        checkRowSums(arguments, b, h, t, gradients);
      }
  if (c.gate)
    arrays.at("d_gate").forEach([&](int64_t i, int64_t at) {
      const DeviceArray &got = arrays.at("d_gate");
      EXPECT_NEAR(reference::load(got.element, got.memory.data() + at),
                  gradients.gate.values[i], allowed(gradients.gate, i))
          << i;
    });
  for (int64_t i = 0; i < c.width && c.weight; ++i)
    ASSERT_NEAR(arrays.at("d_norm_weight").at({i}),
                gradients.normWeight.values[i],
                allowed(gradients.normWeight, i));
  if (c.maps == 2)
    checkLambda(arguments.lambda, gradients.lambda);
  checkSums();
}

void RowsRun::checkLambda(const reference::View &lambda,
                          const reference::Gradient &gradient) const {
  const DeviceArray &got = arrays.at("d_lambda");
  std::map<int64_t, std::pair<double, double>> sums;
  for (size_t i = 0; i < gradient.values.size(); ++i) {
    const int64_t heads = lambda.sizes[2], row = i / heads;
    auto &sum = sums[row / c.queries * lambda.strides[0] +
                     row % c.queries * lambda.strides[1] +
                     i % heads * lambda.strides[2]];
    sum.first += gradient.values[i];
    sum.second += gradient.magnitudes[i];
  }
  for (const auto &[at, sum] : sums)
    ASSERT_NEAR(
        reference::load(got.element, got.memory.data() +
                                         at * reference::byteSize(got.element)),
        sum.first, 4e-6 * sum.second + 1e-30);
}

/// To the bit: parts are added in the order of the rows and of the parts.
void RowsRun::checkSums() const {
  constexpr int64_t warps = GpuSharedLayout::kSumWarps;
  if (c.maps == 2 && !isOfQueries())
    for (int64_t b = 0; b < c.batches; ++b)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t part = 0; part < parts(); ++part) {
          float sum = 0.0f;
          for (int64_t t = part * kGpuRowsOfPart;
               t < std::min(c.queries, (part + 1) * kGpuRowsOfPart); ++t)
            sum += static_cast<float>(arrays.at("d2").at({b, h, t}));
          ASSERT_EQ(arrays.at("lambda_parts").at({b, h, part}), sum);
        }
  for (int64_t i = 0; i < c.width && c.weight; ++i) {
    const DeviceArray &given = arrays.at("weight_parts");
    float all = 0.0f;
    for (int64_t warp = 0; warp < warps; ++warp) {
      float sum = 0.0f;
      for (int64_t part = warp; part < c.batches * c.heads * parts();
           part += warps)
        sum += static_cast<float>(
            given.at({part / parts() / c.heads, part / parts() % c.heads,
                      part % parts(), i}));
      all = warp ? all + sum : sum;
    }
    DeviceArray rounded = arrays.at("d_norm_weight");
    rounded.set({i}, all);
    ASSERT_EQ(arrays.at("d_norm_weight").at({i}), rounded.at({i}));
  }
}

static std::vector<RowsCase> getCases() {
  std::vector<RowsCase> cases;
  auto add = [&](const char *name, auto change) {
    cases.emplace_back();
    cases.back().name = name;
    change(cases.back());
  };
  add("NormWeightGate", [](RowsCase &c) { c.emptyRows = true; });
  add("OfHeads", [](RowsCase &c) {
    c.lambdas = Lambdas::Heads;
    c.sigmoid = true;
    c.epsOutside = true;
    c.emptyRows = true;
    c.width = 128;
    c.gate = false;
  });
  add("OfQueries", [](RowsCase &c) {
    c.lambdas = Lambdas::Queries;
    c.sigmoid = true;
    c.norm = c.weight = false;
    c.gradient = Element::F32;
    c.queries = 150;
    c.heads = 2;
    c.noise = 1;
    c.lambdaOfNoise = true;
  });
  add("OfNoiseHeads", [](RowsCase &c) {
    c.lambdas = Lambdas::Heads;
    c.lambdaOfNoise = true;
    c.gate = c.weight = false;
    c.width = 96;
  });
  add("AnyStride", [](RowsCase &c) {
    c.width = 33;
    c.step = 3;
    c.second = Element::F32;
  });
  add("F32", [](RowsCase &c) {
    c.type = c.gradient = c.second = Element::F32;
    c.emptyRows = true;
  });
  add("OneMap", [](RowsCase &c) {
    c.maps = 1;
    c.noise = c.heads;
    c.emptyRows = true;
  });
  add("Plain", [](RowsCase &c) {
    c.norm = c.weight = c.gate = false;
    c.saved = Element::BF16;
    c.outScale = 1.0;
  });
  add("ManyParts", [](RowsCase &c) {
    c.queries = 300;
    c.batches = 1;
    c.width = 40;
    c.gate = false;
    c.type = c.gradient = c.saved = c.second = Element::F16;
  });
  return cases;
}

class GpuGradientRowsTest : public testing::TestWithParam<RowsCase> {};

TEST_P(GpuGradientRowsTest, IsRightInEveryOrder) {
  RowsRun run(GetParam());
  run.run(/*seed=*/0);
  run.check();
  const std::vector<uint8_t> results = run.results();
  run.run(/*seed=*/1);
  EXPECT_EQ(results, run.results());
}

INSTANTIATE_TEST_SUITE_P(All, GpuGradientRowsTest,
                         testing::ValuesIn(getCases()),
                         [](const testing::TestParamInfo<RowsCase> &info) {
                           return info.param.name;
                         });
