//===- GpuGradientsTest.cpp - gradients of queries, keys and values -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/GpuKernel.h"
#include "DiffAttn/Codegen/NVVM/GpuKernelModule.h"
#include "DiffAttn/Codegen/NVVM/GpuToPtx.h"
#include "DiffAttn/Testing/Reference/AttentionBackward.h"
#include "DiffAttn/Testing/Simulator/Simulator.h"
#include "GpuOperands.h"

#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/Support/MathExtras.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

using namespace mlir;
using namespace mlir::diffattn;
using reference::Element;

namespace {
struct GradientsCase {
  std::string name;
  Element type = Element::BF16, result = Element::BF16;
  int64_t d = 64, dv = 128, maps = 2;
  bool sharedKeys = false;
  /// `keyHeads` of K1, K2 and V each.
  int64_t batches = 1, signal = 1, noise = 1, keyHeads = 1, queries = 40,
          keys = 75;
  int64_t left = -1, right = -1;
  double scale = 0.17, softcap = 0.0;
  /// [B,Tq,Hs], else one number.
  bool lambdaOfQueries = false, sigmoid = false;
  bool bias = false, segments = false;
  /// A number for each batch; -1: not given.
  std::vector<int64_t> kvLen, qOffset;
  /// Elements between neighbours.
  int64_t step = 1;
  int64_t keyWarps = 4, qBlockSize = 32, queryWarps = 4, kvBlockSize = 32,
          stages = 2;
};

std::ostream &operator<<(std::ostream &os, const GradientsCase &c) {
  return os << c.name;
}

/// An operand in memory; `letters` name its axes as parameters do.
struct DeviceArray {
  Element element = Element::F32;
  std::string letters;
  std::vector<int64_t> sizes, strides;
  std::vector<uint8_t> memory;
  bool isOutput = false;

  reference::View view() const {
    reference::View view(memory.data(), element, sizes);
    view.strides = strides;
    return view;
  }
  /// The elements, dense, one after another.
  template <typename Body>
  void forEach(Body body) const {
    int64_t count = 1;
    for (int64_t size : sizes)
      count *= size;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, offset = 0;
      for (size_t axis = sizes.size(); axis-- > 0;) {
        offset += rest % sizes[axis] * strides[axis];
        rest /= sizes[axis];
      }
      body(i, offset * reference::byteSize(element));
    }
  }
};

/// The results of both kernels.
struct Gradients {
  std::map<std::string, std::vector<double>> values;
  uint64_t mmaFlops = 0;
};

/// Both kernels of a case, on operands that are drawn. dX is d_out, as without
/// norm, gate and scale of the output, and its row sums are those of f64.
class GradientsRun {
public:
  explicit GradientsRun(const GradientsCase &c) : c(c) {
    context.loadDialect<DiffAttnDialect, LLVM::LLVMDialect, NVVM::NVVMDialect,
                        gpu::GPUDialect>();
    DialectRegistry registry;
    registerGpuTranslations(registry);
    context.appendDialectRegistry(registry);
    draw();
    sumRows();
    compile();
  }

  Gradients run(const sim::SimOptions &options);
  /// The largest error in units of the bound.
  double worst(const Gradients &gradients) const;
  std::map<std::string, DeviceArray> arrays;

private:
  Type typeOf(Element element) {
    return element == Element::F32   ? Type(Float32Type::get(&context))
           : element == Element::F16 ? Type(Float16Type::get(&context))
           : element == Element::I64 ? Type(IntegerType::get(&context, 64))
                                     : Type(BFloat16Type::get(&context));
  }
  /// Drawn, and 16 bytes behind each row.
  DeviceArray &make(const std::string &name, Element element,
                    const std::string &letters, std::vector<int64_t> sizes,
                    double offset, double scale);
  void draw();
  void sumRows();
  void compile();
  uint64_t launch(const GpuKernelSpec &spec, sim::Dim3 grid,
                  const sim::SimOptions &options);
  std::vector<std::string> getGradients() const {
    std::vector<std::string> names = {"d_q1", "d_k1", "d_v"};
    if (c.maps == 2)
      names.emplace_back("d_q2");
    if (c.maps == 2 && !c.sharedKeys)
      names.emplace_back("d_k2");
    return names;
  }

  const GradientsCase &c;
  MLIRContext context{MLIRContext::Threading::DISABLED};
  reference::AttentionArguments arguments;
  double scoreMagnitude = 0.0;
  GpuKernelSpec keys, queries;
  std::unique_ptr<sim::Simulator> simulator;
  size_t drawn = 0;
};
} // namespace

DeviceArray &GradientsRun::make(const std::string &name, Element element,
                                const std::string &letters,
                                std::vector<int64_t> sizes, double offset,
                                double scale) {
  DeviceArray &array = arrays[name];
  array.element = element;
  array.letters = letters;
  array.sizes = sizes;
  array.strides.resize(sizes.size());
  int64_t next = letters == "bhtw" && name != "dx" ? c.step : 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    array.strides[i] = next;
    next *= sizes[i];
    if (i + 1 == sizes.size() && letters == "bhtw" && name != "dx")
      next += 8;
  }
  array.memory.resize(next * reference::byteSize(element));
  array.forEach([&](int64_t, int64_t at) {
    reference::store(element, array.memory.data() + at,
                     offset + scale * drawNormal(11, drawn++));
  });
  return array;
}

void GradientsRun::draw() {
  auto tensor = [&](const char *name, int64_t heads, int64_t length,
                    int64_t width) {
    return make(name, c.type, "bhtw", {c.batches, heads, length, width}, 0.0,
                1.0)
        .view();
  };
  arguments.q1 = tensor("q1", c.signal, c.queries, c.d);
  arguments.k1 = tensor("k1", c.keyHeads, c.keys, c.d);
  arguments.v = tensor("v", c.keyHeads, c.keys, c.dv);
  if (c.maps == 2) {
    arguments.q2 = tensor("q2", c.noise, c.queries, c.d);
    arguments.k2 =
        c.sharedKeys ? arguments.k1 : tensor("k2", c.keyHeads, c.keys, c.d);
    arguments.lambda =
        c.lambdaOfQueries
            ? make("lambda", Element::F32, "bth",
                   {c.batches, c.queries, c.signal}, 0.5, 0.4)
                  .view()
            : make("lambda", Element::F32, "", {}, 0.6, 0.0).view();
  }
  make("dx", c.type, "bhtw", {c.batches, c.signal, c.queries, c.dv}, 0.0, 1.0);
  if (c.bias)
    arguments.bias =
        make("bias", c.type, "bhqk", {1, c.noise, c.queries, c.keys}, 0.0, 1.0)
            .view();
  auto integers = [&](const char *name, const std::string &letters,
                      std::vector<int64_t> sizes, auto value) {
    DeviceArray &array =
        make(name, Element::F32, letters, std::move(sizes), 0.0, 0.0);
    array.element = Element::I64;
    array.memory.resize(2 * array.memory.size());
    array.forEach([&](int64_t i, int64_t at) {
      *reinterpret_cast<int64_t *>(array.memory.data() + at) = value(i);
    });
    return array.view();
  };
  if (c.segments) {
    arguments.qSegments =
        integers("q_segments", "bq", {c.batches, c.queries},
                 [&](int64_t i) { return i % c.queries / 17; });
    arguments.kvSegments = integers("kv_segments", "bk", {c.batches, c.keys},
                                    [&](int64_t i) { return i % c.keys / 23; });
  }
  if (!c.kvLen.empty())
    arguments.kvLen = integers("kv_len", "b", {c.batches},
                               [&](int64_t i) { return c.kvLen[i]; });
  if (!c.qOffset.empty())
    arguments.qOffset = integers("q_offset", "b", {c.batches},
                                 [&](int64_t i) { return c.qOffset[i]; });
  // Keys that nobody sees, whatever they hold.
  for (const char *name : {"k1", "k2", "v"})
    if (!c.kvLen.empty() && arrays.count(name)) {
      DeviceArray &array = arrays[name];
      array.forEach([&](int64_t i, int64_t at) {
        const int64_t row = i / array.sizes[3];
        if (row % c.keys >= c.kvLen[row / c.keys / c.keyHeads])
          reference::store(c.type, array.memory.data() + at, std::nan(""));
      });
    }
  arguments.scale = static_cast<float>(c.scale);
  arguments.left = c.left;
  arguments.right = c.right;
  if (c.softcap != 0.0)
    arguments.softcap = static_cast<float>(c.softcap);
  arguments.lambdaSigmoid = c.sigmoid;
  const std::string wrong = reference::check(arguments);
  require(wrong.empty(), wrong);
  for (const std::string &name : getGradients()) {
    DeviceArray &of = arrays[name.substr(2)];
    make(name, c.result, "bhtw", of.sizes, 0.0, 0.0).isOutput = true;
  }
}

void GradientsRun::sumRows() {
  const reference::AttentionResult result = reference::attention(arguments);
  scoreMagnitude = result.scoreMagnitude;
  auto fill = [&](const char *name, int64_t heads,
                  const std::vector<double> &numbers) {
    DeviceArray &array = make(name, Element::F32, "bht",
                              {c.batches, heads, c.queries}, 0.0, 0.0);
    array.forEach([&](int64_t i, int64_t at) {
      reference::store(Element::F32, array.memory.data() + at, numbers[i]);
    });
  };
  fill("lse1", c.signal, result.lse1);
  auto sum = [&](const std::vector<double> &x) {
    std::vector<double> sums(x.size() / c.dv);
    const DeviceArray &dX = arrays["dx"];
    dX.forEach([&](int64_t i, int64_t at) {
      sums[i / c.dv] +=
          x[i] * reference::load(dX.element, dX.memory.data() + at);
    });
    return sums;
  };
  std::vector<double> d1 = sum(result.x);
  if (c.maps == 2) {
    fill("lse2", c.noise, result.lse2);
    // Map 2 alone, of every signal head.
    reference::AttentionArguments second = arguments;
    second.q1 = arguments.q2;
    second.k1 = arguments.k2;
    second.q2 = second.k2 = second.lambda = {};
    // The signal heads of a noise head read the same values.
    require(c.noise % c.keyHeads == 0,
            "expected heads of keys that divide those of noise");
    const std::vector<double> x = reference::attention(second).x;
    std::vector<double> o2(d1.size() * c.dv);
    const int64_t row = c.queries * c.dv, perNoise = c.signal / c.noise;
    for (int64_t head = 0; head < c.batches * c.signal; ++head)
      std::copy_n(x.begin() + head / perNoise * row, row,
                  o2.begin() + head * row);
    const std::vector<double> d2 = sum(o2);
    fill("d2", c.signal, d2);
    for (size_t i = 0; i < d1.size(); ++i) {
      const int64_t query = i % c.queries, head = i / c.queries % c.signal,
                    batch = i / c.queries / c.signal;
      double lambda = c.lambdaOfQueries
                          ? arguments.lambda.at({batch, query, head})
                          : arguments.lambda.at({});
      if (c.sigmoid)
        lambda = 1.0 / (1.0 + std::exp(-lambda));
      d1[i] += lambda * d2[i];
    }
  }
  fill("d1", c.signal, d1);
}

void GradientsRun::compile() {
  std::string error;
  const GpuTarget target = *getGpuTarget("sm_80", error);
  GpuKernelSpec spec;
  spec.elementType = typeOf(c.type);
  spec.headDim = c.d;
  spec.valueDim = c.dv;
  spec.maps = c.maps;
  spec.sharedKeys = c.sharedKeys;
  spec.softcap = c.softcap != 0.0;
  spec.scaleFirst = c.scale <= 0.0;
  spec.elementwise = c.step != 1 || c.d % 8 != 0 || c.dv % 8 != 0;
  spec.schedule = GpuBackwardAttr::get(&context, c.keyWarps, c.qBlockSize,
                                       c.queryWarps, c.kvBlockSize, c.stages);
  SmallVector<MaskAttrInterface> masks;
  if (c.bias)
    masks.push_back(AdditiveBiasAttr::get(&context));
  if (c.segments)
    masks.push_back(SegmentMaskAttr::get(&context));
  spec.masks = getGpuKernelMasks(&context, masks);
  auto setMask = [&](MaskOperand operand, const char *name) {
    if (arrays.count(name))
      spec.maskTypes[static_cast<size_t>(operand)] =
          typeOf(arrays[name].element);
  };
  setMask(MaskOperand::Bias, "bias");
  setMask(MaskOperand::QSegments, "q_segments");
  setMask(MaskOperand::KvSegments, "kv_segments");
  keys = queries = spec;
  keys.kind = GpuKernelKind::GradientKeys;
  queries.kind = GpuKernelKind::GradientQueries;
  const Type result = typeOf(c.result);
  auto store = [&](GpuKernelSpec &kernel, GpuGradient gradient) {
    kernel.gradientTypes[static_cast<size_t>(gradient)] = result;
  };
  store(queries, GpuGradient::Q1);
  store(keys, GpuGradient::K1);
  store(keys, GpuGradient::V);
  if (c.maps == 2)
    store(queries, GpuGradient::Q2);
  if (keys.hasSecondKeys())
    store(keys, GpuGradient::K2);

  OwningOpRef<ModuleOp> module = ModuleOp::create(UnknownLoc::get(&context));
  gpu::GPUModuleOp kernels = getOrCreateKernelModule(*module, target);
  getOrEmitGpuKernel(kernels, keys);
  getOrEmitGpuKernel(kernels, queries);
  llvm::LLVMContext llvmContext;
  auto translated = translateGpuModule(kernels, target, llvmContext);
  require(succeeded(translated) &&
              succeeded(optimizeGpuModule(**translated, target)),
          "expected to translate");
  auto created = sim::Simulator::create(**translated, sim::SimChip());
  if (!created)
    require(false, llvm::toString(created.takeError()));
  simulator = std::move(*created);
}

uint64_t GradientsRun::launch(const GpuKernelSpec &spec, sim::Dim3 grid,
                              const sim::SimOptions &options) {
  const auto near = [](int64_t limit) {
    return limit < 0 ? kGpuUnlimited : limit;
  };
  const int64_t perKey = c.signal / c.keyHeads;
  const std::map<std::string, int64_t> numbers = {
      {"queries", c.queries},
      {"keys", c.keys},
      {"signal_per_noise", c.signal / c.noise},
      {"signal_per_key1", perKey},
      {"signal_per_value", perKey},
      {"noise_per_key2", c.noise / c.keyHeads},
      {"signal_per_lambda", 1},
      {"window_left", near(c.left)},
      {"window_right", near(c.right)},
      {"left_limit", c.left},
      {"right_limit", c.right},
      {"flags", c.sigmoid ? GpuFlagLambdaSigmoid : 0}};
  const double log2e = 1.4426950408889634;
  const std::map<std::string, double> reals = {
      {"score_scale", c.softcap != 0.0      ? 2.0 * log2e * c.scale / c.softcap
                      : spec.scaledScores() ? c.scale
                                            : c.scale * log2e},
      {"softcap", c.softcap},
      {"gradient_scale", c.scale}};
  std::map<std::string, uint64_t> addresses;
  std::vector<sim::KernelArgument> values;
  for (GpuParam param : getGpuParams(spec)) {
    const GpuParamRow &row = getGpuParam(param);
    const std::string name = row.name.str();
    if (row.type == GpuParamType::Pointer) {
      auto found = arrays.find(name);
      if (found == arrays.end()) {
        values.push_back(sim::KernelArgument::pointer(0));
        continue;
      }
      DeviceArray &array = found->second;
      addresses[name] = simulator->registerBuffer(
          array.memory.data(), array.memory.size(), name,
          {array.isOutput, /*initialized=*/true});
      values.push_back(sim::KernelArgument::pointer(addresses[name]));
    } else if (row.type == GpuParamType::I64 && !numbers.count(name)) {
      const auto cut = name.rfind('_');
      auto found = arrays.find(name.substr(0, cut));
      int64_t stride = 0;
      if (found != arrays.end()) {
        const DeviceArray &array = found->second;
        const auto axis = array.letters.find(name[cut + 1]);
        if (axis != std::string::npos && array.sizes[axis] != 1)
          stride = array.strides[axis];
      }
      values.push_back(sim::KernelArgument::i64(stride));
    } else if (row.type == GpuParamType::F32) {
      values.push_back(
          sim::KernelArgument::f32(static_cast<float>(reals.at(name))));
    } else if (row.type == GpuParamType::I64) {
      values.push_back(sim::KernelArgument::i64(numbers.at(name)));
    } else {
      values.push_back(
          sim::KernelArgument::i32(static_cast<int32_t>(numbers.at(name))));
    }
  }
  sim::LaunchShape shape;
  shape.grid = grid;
  shape.block = {static_cast<uint32_t>(spec.getThreads())};
  shape.dynamicSharedBytes =
      static_cast<uint32_t>(spec.getSharedLayout().total);
  auto report = simulator->launch(spec.getName(), shape, values, options);
  if (!report)
    require(false, llvm::toString(report.takeError()));
  EXPECT_TRUE(report->clean()) << spec.getName() << "\n" << report->str();
  EXPECT_EQ(report->stats.ldmatrixConflicts, 0u);
  EXPECT_EQ(report->stats.copyConflicts, 0u);
  for (auto &[name, address] : addresses)
    simulator->releaseBuffer(address);
  return report->stats.mmaFlops;
}

Gradients GradientsRun::run(const sim::SimOptions &options) {
  for (auto &[name, array] : arrays)
    if (array.isOutput)
      llvm::fill(array.memory, 0xff);
  auto blocks = [](int64_t count, int64_t each) {
    return static_cast<uint32_t>(llvm::divideCeil(count, each));
  };
  const auto batches = static_cast<uint32_t>(c.batches);
  Gradients result;
  result.mmaFlops = launch(keys,
                           {blocks(c.keys, keys.getRows()),
                            static_cast<uint32_t>(c.keyHeads), batches},
                           options);
  result.mmaFlops += launch(queries,
                            {blocks(c.queries, queries.getRows()),
                             static_cast<uint32_t>(c.noise), batches},
                            options);
  for (const std::string &name : getGradients()) {
    const DeviceArray &array = arrays[name];
    array.forEach([&](int64_t, int64_t at) {
      result.values[name].push_back(
          reference::load(array.element, array.memory.data() + at));
    });
  }
  return result;
}

double GradientsRun::worst(const Gradients &got) const {
  reference::AttentionGradients expected =
      reference::attentionBackward(arguments, arrays.at("dx").view());
  if (c.sharedKeys)
    for (size_t i = 0; i < expected.k1.values.size(); ++i) {
      expected.k1.values[i] += expected.k2.values[i];
      expected.k1.magnitudes[i] += expected.k2.magnitudes[i];
    }
  const std::map<std::string, const reference::Gradient *> all = {
      {"d_q1", &expected.q1},
      {"d_k1", &expected.k1},
      {"d_q2", &expected.q2},
      {"d_k2", &expected.k2},
      {"d_v", &expected.v}};
  const double bound = reference::errorBound(
      c.type, c.d, c.queries * c.signal + c.keys, scoreMagnitude);
  double worst = 0.0;
  for (const auto &[name, values] : got.values) {
    const reference::Gradient &of = *all.at(name);
    for (size_t i = 0; i < values.size(); ++i) {
      const double allowed =
          bound * (of.magnitudes[i] + std::abs(of.values[i])) + 1e-30;
      const double error = std::abs(values[i] - of.values[i]) / allowed;
      if (!(error <= worst))
        worst =
            std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    }
  }
  return worst;
}

static std::vector<GradientsCase> getGradientsCases() {
  std::vector<GradientsCase> cases;
  auto add = [&](const char *name, auto change) {
    cases.emplace_back();
    cases.back().name = name;
    change(cases.back());
  };
  add("Full", [](GradientsCase &c) {});
  add("Causal", [](GradientsCase &c) {
    c.queries = c.keys = 140;
    c.right = 0;
  });
  add("Window", [](GradientsCase &c) {
    c.d = 32;
    c.dv = 64;
    c.type = Element::F16;
    c.result = Element::F32;
    c.queries = 130;
    c.keys = 150;
    c.left = 30;
    c.right = 5;
  });
  add("OneKey", [](GradientsCase &c) {
    c.d = c.dv = 64;
    c.sharedKeys = true;
    c.signal = c.noise = 2;
    c.right = 0;
  });
  add("WideOneKey", [](GradientsCase &c) {
    c.d = c.dv = 128;
    c.sharedKeys = true;
    c.qBlockSize = c.kvBlockSize = 16;
    c.stages = 3;
  });
  add("OneMap", [](GradientsCase &c) {
    c.maps = 1;
    c.d = c.dv = 64;
    c.signal = c.noise = 2;
    c.qBlockSize = 64;
  });
  add("SharedHeads", [](GradientsCase &c) {
    c.batches = 2;
    c.signal = c.noise = 4;
    c.keyHeads = 2;
    c.right = 0;
    c.kvLen = {75, 40};
    c.qOffset = {20, 3};
  });
  add("SignalsOfANoiseHead", [](GradientsCase &c) {
    c.signal = 4;
    c.noise = 2;
    c.lambdaOfQueries = c.sigmoid = true;
  });
  // Some rows see no key, and some keys are seen by no row.
  add("WithoutKeys", [](GradientsCase &c) {
    c.batches = 3;
    c.right = 0;
    c.kvLen = {0, 20, 75};
    c.qOffset = {0, -15, 200};
    c.left = 60;
  });
  add("Bias", [](GradientsCase &c) {
    c.signal = c.noise = 2;
    c.bias = true;
    c.right = 0;
  });
  add("SegmentsAndSoftcap", [](GradientsCase &c) {
    c.segments = true;
    c.softcap = 2.0;
  });
  add("AnyStride", [](GradientsCase &c) {
    c.d = 33;
    c.dv = 20;
    c.step = 3;
    c.scale = -0.2;
  });
  return cases;
}

class GpuGradients : public testing::TestWithParam<GradientsCase> {};

TEST_P(GpuGradients, AreThoseOfTheOracle) {
  GradientsRun run(GetParam());
  const Gradients first = run.run({});
  EXPECT_LE(run.worst(first), 1.0);
  sim::SimOptions options;
  options.seed = 7;
  options.copies = sim::CopyTiming::Early;
  options.residentBlocks = 3;
  EXPECT_EQ(run.run(options).values, first.values);
}

/// In units of 2 Nq Nk d: 14 of two maps with dv = 2 d, 11 with dv = d.
TEST(GpuGradientsCount, MakesNoProductTwice) {
  for (bool isOne : {false, true}) {
    GradientsCase c;
    c.queries = c.keys = 128;
    c.sharedKeys = isOne;
    c.dv = isOne ? 64 : 128;
    GradientsRun run(c);
    const int64_t u = 2 * c.queries * c.keys * c.d;
    EXPECT_EQ(run.run({}).mmaFlops, uint64_t(u * (isOne ? 11 : 14)));
  }
}

/// Exchanging D1 and D2 shows in the gradients.
TEST(GpuGradientsFault, SumsOfRowsExchanged) {
  GradientsCase c;
  GradientsRun run(c);
  std::swap(run.arrays["d1"], run.arrays["d2"]);
  EXPECT_GT(run.worst(run.run({})), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuGradients,
                         testing::ValuesIn(getGradientsCases()),
                         [](const auto &info) { return info.param.name; });
