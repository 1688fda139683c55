//===- GpuGradientRowsTest.cpp - rows of gradients ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuKernel.h"
#include "DiffAttn/Codegen/NVVM/GpuKernelModule.h"
#include "DiffAttn/Codegen/NVVM/GpuToPtx.h"
#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Testing/Reference/Attention.h"
#include "DiffAttn/Testing/Simulator/Simulator.h"
#include "GpuOperands.h"

#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/Support/MathExtras.h"

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

/// [B,H,T,W] or a part of these axes, in memory of a device.
struct Array {
  Element element = Element::F32;
  std::vector<int64_t> sizes, strides;
  std::vector<uint8_t> memory;
  bool isOutput = false;

  int64_t offset(ArrayRef<int64_t> index) const {
    int64_t offset = 0;
    for (auto [i, at] : llvm::enumerate(index))
      offset += at * strides[i];
    return offset * reference::byteSize(element);
  }
  double at(ArrayRef<int64_t> index) const {
    return reference::load(element, memory.data() + offset(index));
  }
  void set(ArrayRef<int64_t> index, double value) {
    reference::store(element, memory.data() + offset(index), value);
  }
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// The three kernels of a case, run on operands that are drawn.
class RowsRun {
public:
  explicit RowsRun(const RowsCase &c) : c(c) {
    context.loadDialect<DiffAttnDialect, LLVM::LLVMDialect, NVVM::NVVMDialect,
                        gpu::GPUDialect>();
    DialectRegistry registry;
    registerGpuTranslations(registry);
    context.appendDialectRegistry(registry);
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
  const Array &array(const std::string &name) const { return arrays.at(name); }

private:
  Type typeOf(Element element) {
    return element == Element::F32   ? Type(Float32Type::get(&context))
           : element == Element::F16 ? Type(Float16Type::get(&context))
                                     : Type(BFloat16Type::get(&context));
  }
  Array &make(const std::string &name, Element element,
              std::vector<int64_t> sizes, bool isOutput, int64_t step = 1);
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
    const Array &lambda = arrays.at("lambda");
    const int64_t head = h / (c.heads / lambdaHeads());
    return lambda.at(isOfQueries() ? ArrayRef<int64_t>{b, t, head}
                                   : ArrayRef<int64_t>{0, 0, head});
  }
  void checkSums() const;

  const RowsCase &c;
  MLIRContext context{MLIRContext::Threading::DISABLED};
  std::map<std::string, Array> arrays;
  GpuKernelSpec rows, weights, lambdas;
  std::unique_ptr<sim::Simulator> simulator;
};
} // namespace

Array &RowsRun::make(const std::string &name, Element element,
                     std::vector<int64_t> sizes, bool isOutput, int64_t step) {
  Array &array = arrays[name];
  array.element = element;
  array.sizes = sizes;
  array.strides.resize(sizes.size());
  int64_t next = step;
  for (size_t i = sizes.size(); i-- > 0;) {
    array.strides[i] = next;
    next *= sizes[i];
    // Rows of neighbours stay aligned.
    if (i + 1 == sizes.size() && sizes.size() == 4 && name != "dx" &&
        name != "weight_parts")
      next += step == 1 ? 8 : 3;
  }
  array.memory.resize(std::max<int64_t>(next, 1) *
                      reference::byteSize(element));
  array.isOutput = isOutput;
  return array;
}

void RowsRun::draw() {
  size_t drawn = 0;
  auto fill = [&](Array &array, double scale, double offset) {
    const int64_t bytes = reference::byteSize(array.element);
    for (size_t i = 0; i < array.memory.size() / bytes; ++i)
      reference::store(array.element, array.memory.data() + i * bytes,
                       offset + scale * drawNormal(7, drawn++));
  };
  const std::vector<int64_t> ofOut = {c.batches, c.heads, c.queries, c.width};
  fill(make("d_out", c.gradient, ofOut, false, c.step), 1.0, 0.0);
  fill(make("x", c.saved, ofOut, false, c.step), 0.6, 0.1);
  if (c.maps == 2)
    fill(make("o2", c.second, ofOut, false, c.step), 0.8, 0.0);
  if (c.gate) {
    fill(make("gate", c.type, ofOut, false, c.step), 1.5, 0.0);
    make("d_gate", c.type, ofOut, true, c.step);
  }
  if (c.weight) {
    fill(make("norm_weight", c.type, {c.width}, false, 2), 0.3, 1.0);
    make("d_norm_weight", c.type, {c.width}, true, 2);
    make("weight_parts", Element::F32, {c.batches, c.heads, parts(), c.width},
         true);
  }
  std::vector<int64_t> ofLambda = {c.batches, c.queries, lambdaHeads()};
  if (!isOfQueries())
    ofLambda = {1, 1, lambdaHeads()};
  if (c.maps == 2) {
    fill(make("lambda", Element::F32, ofLambda, false), 0.5, 0.4);
    make("d_lambda", Element::F32, ofLambda, true);
    make("lambda_parts", Element::F32, {c.batches, c.heads, parts()}, true);
    make("d2", Element::F32, {c.batches, c.heads, c.queries}, true);
  }
  make("dx", c.type, ofOut, true);
  make("d1", Element::F32, {c.batches, c.heads, c.queries}, true);
  fill(make("lse1", Element::F32, {c.batches, c.heads, c.queries}, false), 1.0,
       3.0);
  if (c.maps == 2)
    fill(make("lse2", Element::F32, {c.batches, c.noise, c.queries}, false),
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
  std::string error;
  const GpuTarget target = *getGpuTarget("sm_80", error);
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

  OwningOpRef<ModuleOp> module = ModuleOp::create(UnknownLoc::get(&context));
  gpu::GPUModuleOp kernels = getOrCreateKernelModule(*module, target);
  getOrEmitGpuKernel(kernels, rows);
  if (c.weight)
    getOrEmitGpuKernel(kernels, weights);
  if (c.maps == 2)
    getOrEmitGpuKernel(kernels, lambdas);
  llvm::LLVMContext llvmContext;
  auto translated = translateGpuModule(kernels, target, llvmContext);
  require(succeeded(translated) &&
              succeeded(optimizeGpuModule(**translated, target)),
          "expected to translate");
  sim::SimChip chip;
  auto created = sim::Simulator::create(**translated, chip);
  if (!created)
    require(false, llvm::toString(created.takeError()));
  simulator = std::move(*created);
}

void RowsRun::launch(const GpuKernelSpec &spec, sim::Dim3 grid, uint64_t seed) {
  const int64_t all = c.batches * c.heads;
  std::map<std::string, int64_t> numbers = {
      {"queries", c.queries},
      {"parts", parts()},
      {"all_heads", all},
      {"signal_per_noise", c.heads / c.noise},
      {"signal_per_lambda", c.heads / lambdaHeads()},
      {"flags", (c.norm ? GpuFlagNorm : 0) |
                    (c.epsOutside ? GpuFlagEpsOutside : 0) |
                    (c.sigmoid ? GpuFlagLambdaSigmoid : 0)}};
  std::vector<uint64_t> registered;
  std::vector<sim::KernelArgument> arguments;
  for (GpuParam param : getGpuParams(spec)) {
    const GpuParamRow &row = getGpuParam(param);
    const std::string name = row.name.str();
    if (row.type == GpuParamType::Pointer) {
      Array &array = arrays.at(name);
      registered.push_back(simulator->registerBuffer(
          array.memory.data(), array.memory.size(), name,
          {array.isOutput, /*initialized=*/true}));
      arguments.push_back(sim::KernelArgument::pointer(registered.back()));
    } else if (row.type == GpuParamType::I64) {
      const auto cut = name.rfind('_');
      const Array &array = arrays.at(name.substr(0, cut));
      // Lambda has strides of its own axes alone.
      const StringRef letters = array.sizes.size() == 4              ? "bhtw"
                                : array.sizes.size() == 1            ? "w"
                                : StringRef(name).contains("lambda") ? "bth"
                                                                     : "bht";
      const size_t axis = letters.find(name[cut + 1]);
      const bool isUsed = array.sizes[axis] != 1 || letters != "bth";
      arguments.push_back(
          sim::KernelArgument::i64(isUsed ? array.strides[axis] : 0));
    } else if (row.type == GpuParamType::F32) {
      arguments.push_back(sim::KernelArgument::f32(
          static_cast<float>(name == "norm_eps" ? 1e-5 : c.outScale)));
    } else {
      arguments.push_back(
          sim::KernelArgument::i32(static_cast<int32_t>(numbers.at(name))));
    }
  }
  sim::LaunchShape shape;
  shape.grid = grid;
  shape.block = {static_cast<uint32_t>(spec.getThreads())};
  shape.dynamicSharedBytes =
      static_cast<uint32_t>(spec.getSharedLayout().total);
  sim::SimOptions options;
  options.seed = seed;
  options.residentBlocks = seed ? 3 : 1;
  auto report = simulator->launch(spec.getName(), shape, arguments, options);
  if (!report)
    require(false, llvm::toString(report.takeError()));
  EXPECT_TRUE(report->clean()) << report->str();
  for (uint64_t address : registered)
    simulator->releaseBuffer(address);
}

void RowsRun::run(uint64_t seed) {
  for (auto &entry : arrays)
    if (entry.second.isOutput)
      llvm::fill(entry.second.memory, 0xff);
  auto blocks = [](int64_t count, int64_t each) {
    return static_cast<uint32_t>(llvm::divideCeil(count, each));
  };
  const auto heads = static_cast<uint32_t>(c.heads),
             batches = static_cast<uint32_t>(c.batches);
  launch(rows,
         {blocks(c.queries, rows.getThreads() / 32 * kGpuRowsOfPart), heads,
          batches},
         seed);
  if (c.weight)
    launch(weights, {blocks(c.width, 32)}, seed);
  if (c.maps == 1)
    return;
  const auto ofLambda = static_cast<uint32_t>(lambdaHeads());
  if (isOfQueries())
    launch(lambdas,
           {blocks(c.queries, lambdas.getThreads()), ofLambda, batches}, seed);
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
    const Array &given = arrays.at("weight_parts");
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
    Array rounded = arrays.at("d_norm_weight");
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
