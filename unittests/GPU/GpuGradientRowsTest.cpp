//===- GpuGradientRowsTest.cpp - rows of gradients ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KernelRun.h"

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

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

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
  double lambdaAt(int64_t b, int64_t h, int64_t t) const {
    const DeviceArray &lambda = arrays.at("lambda");
    const int64_t head = h / (c.heads / lambdaHeads());
    return lambda.at(isOfQueries() ? ArrayRef<int64_t>{b, t, head}
                                   : ArrayRef<int64_t>{0, 0, head});
  }
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

void RowsRun::check() const {
  const double step = c.type == Element::F32   ? 1e-6
                      : c.type == Element::F16 ? 0x1p-11
                                               : 0x1p-8;
  // A part of the sum of magnitudes for sums in f32 and roots and inverses by
  // one instruction.
  const double near = 2e-6;
  std::vector<double> dWeight(c.width), dWeightMagnitude(c.width);
  std::map<std::vector<int64_t>, std::pair<double, double>> dLambda;
  auto has = [&](const char *name) { return arrays.count(name) != 0; };
  for (int64_t b = 0; b < c.batches; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t t = 0; t < c.queries; ++t) {
        auto read = [&](const char *name, int64_t i) {
          return arrays.at(name).at({b, h, t, i});
        };
        auto isEmpty = [&](const char *lse, int64_t head) {
          return std::isinf(arrays.at(lse).at({b, head, t}));
        };
        const bool seen =
            !isEmpty("lse1", h) ||
            (c.maps == 2 && !isEmpty("lse2", h / (c.heads / c.noise)));
        double mean = 0.0, along = 0.0, alongMagnitude = 0.0;
        for (int64_t i = 0; i < c.width; ++i)
          mean += read("x", i) * read("x", i) / c.width;
        const double eps = static_cast<double>(1e-5f);
        double factor = c.epsOutside ? 1.0 / (std::sqrt(mean) + eps)
                                     : 1.0 / std::sqrt(mean + eps);
        if (!c.norm)
          factor = 1.0;
        const double root = !c.epsOutside ? factor
                            : mean == 0.0 ? 0.0
                                          : 1.0 / std::sqrt(mean);
        std::vector<double> normed(c.width), dNormed(c.width);
        for (int64_t i = 0; i < c.width; ++i) {
          const double scale = static_cast<float>(c.outScale),
                       ofOut = seen ? read("d_out", i) : 0.0,
                       weight = has("norm_weight")
                                    ? arrays.at("norm_weight").at({i})
                                    : 1.0,
                       gate = c.gate ? sigmoid(read("gate", i)) : 1.0;
          normed[i] = seen ? read("x", i) * factor : 0.0;
          dNormed[i] = scale * weight * gate * ofOut;
          along += dNormed[i] * normed[i] / c.width;
          alongMagnitude += std::abs(dNormed[i] * normed[i]) / c.width;
          dWeight[i] += scale * gate * ofOut * normed[i];
          dWeightMagnitude[i] += std::abs(scale * gate * ofOut * normed[i]);
          if (c.gate) {
            const double expected =
                ofOut * scale * weight * normed[i] * gate * (1.0 - gate);
            ASSERT_NEAR(read("d_gate", i), expected,
                        (step + 4e-6) * std::abs(expected) + 1e-30);
          }
        }
        if (!c.norm)
          along = alongMagnitude = 0.0;
        // Both sums are made of the rounded dX alone.
        double d1 = 0.0, d2 = 0.0, magnitude1 = 0.0, magnitude2 = 0.0;
        for (int64_t i = 0; i < c.width; ++i) {
          const double exact =
              seen ? dNormed[i] * factor - normed[i] * along * root : 0.0;
          const double got = read("dx", i);
          ASSERT_NEAR(got, exact,
                      step * std::abs(exact) +
                          8e-6 * (std::abs(dNormed[i] * factor) +
                                  std::abs(normed[i] * root) * alongMagnitude) +
                          1e-30)
              << b << " " << h << " " << t << " " << i;
          d1 += got * read("x", i);
          magnitude1 += std::abs(got * read("x", i));
          if (c.maps == 2) {
            d2 += got * read("o2", i);
            magnitude2 += std::abs(got * read("o2", i));
          }
        }
        if (c.maps == 2) {
          const double given = lambdaAt(b, h, t),
                       lambda = c.sigmoid ? sigmoid(given) : given,
                       slope = c.sigmoid ? lambda * (1.0 - lambda) : 1.0;
          ASSERT_NEAR(arrays.at("d2").at({b, h, t}), d2,
                      near * magnitude2 + 1e-30);
          d1 += lambda * d2;
          magnitude1 += std::abs(lambda) * magnitude2;
          const int64_t head = h / (c.heads / lambdaHeads());
          auto &sum = dLambda[isOfQueries() ? std::vector<int64_t>{b, t, head}
                                            : std::vector<int64_t>{0, 0, head}];
          sum.first -= slope * d2;
          sum.second += slope * magnitude2;
        }
        ASSERT_NEAR(arrays.at("d1").at({b, h, t}), d1,
                    near * magnitude1 + 1e-30)
            << b << " " << h << " " << t;
      }
  for (int64_t i = 0; i < c.width && c.weight; ++i)
    ASSERT_NEAR(arrays.at("d_norm_weight").at({i}), dWeight[i],
                step * std::abs(dWeight[i]) + 4e-6 * dWeightMagnitude[i]);
  for (const auto &[index, sum] : dLambda)
    ASSERT_NEAR(arrays.at("d_lambda").at(index), sum.first,
                4e-6 * sum.second + 1e-30);
  checkSums();
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
