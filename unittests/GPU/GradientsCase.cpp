//===- GradientsCase.cpp - gradients of products on the simulator ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GradientsCase.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;
using reference::Element;

GradientsCase mlir::diffattn::packSequences(GradientsCase c,
                                            std::vector<int64_t> queries,
                                            std::vector<int64_t> keys) {
  require(queries.size() == keys.size(), "expected keys of each sequence");
  c.queries = std::accumulate(queries.begin(), queries.end(), int64_t(0));
  c.keys = std::accumulate(keys.begin(), keys.end(), int64_t(0));
  c.queryLengths = std::move(queries);
  c.keyLengths = std::move(keys);
  return c;
}

GradientsRun::GradientsRun(const GradientsCase &c) : c(c) {
  draw();
  computeExpected();
  compile();
}

bool Gradients::isClean() const {
  return llvm::all_of(
      reports, [](const sim::LaunchReport &report) { return report.clean(); });
}

bool Gradients::has(ArrayRef<sim::FaultKind> kinds) const {
  return llvm::any_of(reports, [&](const sim::LaunchReport &report) {
    return report.has(kinds);
  });
}

std::string Gradients::str() const {
  std::string text;
  for (const sim::LaunchReport &report : reports)
    text += report.str();
  return text;
}

void GradientsRun::draw() {
  // 16 bytes and more lie between rows.
  auto rows = [&](const std::string &name, Element element,
                  std::vector<int64_t> sizes) -> DeviceArray & {
    return make(name, element, "bhtw", std::move(sizes), c.step, 8);
  };
  auto fill = [&](DeviceArray &array, double offset, double scale) {
    KernelRun::draw(array, offset, scale);
    return array.view();
  };
  auto tensor = [&](const char *name, int64_t heads, int64_t length,
                    int64_t width) {
    return fill(rows(name, c.type, {c.batches, heads, length, width}), 0.0,
                1.0);
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
            ? fill(make("lambda", Element::F32, "bth",
                        {c.batches, c.queries, c.signal}),
                   0.5, 0.4)
            : fill(make("lambda", Element::F32, "", {}), 0.6, 0.0);
  }
  fill(make("dx", c.type, "bhtw", {c.batches, c.signal, c.queries, c.dv}), 0.0,
       1.0);
  if (c.bias)
    arguments.bias =
        fill(make("bias", c.type, "bhqk", {1, c.noise, c.queries, c.keys}), 0.0,
             1.0);
  auto integers = [&](const char *name, const std::string &letters,
                      std::vector<int64_t> sizes, auto value) {
    DeviceArray &array = make(name, Element::I64, letters, std::move(sizes));
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
    arguments.qOffset =
        integers("q_offset", "b", {static_cast<int64_t>(c.qOffset.size())},
                 [&](int64_t i) { return c.qOffset[i]; });
  auto bounds = [&](const char *name, const std::vector<int64_t> &lengths) {
    return integers(name, "n", {static_cast<int64_t>(lengths.size()) + 1},
                    [&](int64_t i) {
                      return std::accumulate(lengths.begin(),
                                             lengths.begin() + i, int64_t(0));
                    });
  };
  if (!c.queryLengths.empty()) {
    arguments.cuSeqlensQ = bounds("cu_seqlens_q", c.queryLengths);
    arguments.cuSeqlensK = bounds("cu_seqlens_k", c.keyLengths);
  }
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
  for (const std::string &name : getGradients())
    rows(name, c.result, arrays[name.substr(2)].sizes).isOutput = true;
}

void GradientsRun::computeExpected() {
  const reference::AttentionResult result = reference::attention(arguments);
  scoreMagnitude = result.scoreMagnitude;
  auto fill = [&](const char *name, int64_t heads,
                  const std::vector<double> &numbers) {
    DeviceArray &array =
        make(name, Element::F32, "bht", {c.batches, heads, c.queries});
    array.forEach([&](int64_t i, int64_t at) {
      reference::store(Element::F32, array.memory.data() + at, numbers[i]);
    });
  };
  fill("lse1", c.signal, result.lse1);
  expected = reference::attentionBackward(arguments, arrays.at("dx").view());
  fill("d1", c.signal, expected.d1.values);
  if (c.maps == 2) {
    fill("lse2", c.noise, result.lse2);
    fill("d2", c.signal, expected.d2.values);
  }
  if (!c.sharedKeys)
    return;
  for (size_t i = 0; i < expected.k1.values.size(); ++i) {
    expected.k1.values[i] += expected.k2.values[i];
    expected.k1.magnitudes[i] += expected.k2.magnitudes[i];
  }
}

void GradientsRun::compile() {
  GpuKernelSpec spec;
  spec.elementType = typeOf(c.type);
  spec.headDim = c.d;
  spec.valueDim = c.dv;
  spec.maps = c.maps;
  spec.sharedKeys = c.sharedKeys;
  spec.softcap = c.softcap != 0.0;
  spec.scaleFirst = c.scale <= 0.0;
  spec.elementwise = c.step != 1 || c.d % 8 != 0 || c.dv % 8 != 0;
  spec.schedule = GpuBackwardAttr::get(
      &context, c.keyWarps, c.qBlockSize, c.queryWarps, c.kvBlockSize, c.stages,
      c.wgmmaQBlockSize, c.wgmmaQStages, c.wgmmaKvBlockSize, c.wgmmaKvStages);
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
  if (!c.queryLengths.empty())
    spec.queryBoundType = spec.keyBoundType = typeOf(Element::I64);
  keys = queries = spec;
  keys.kind = GpuKernelKind::GradientKeys;
  queries.kind = GpuKernelKind::GradientQueries;
  keys.byWarpgroups = c.wgmmaQBlockSize != 0;
  queries.byWarpgroups = c.wgmmaKvBlockSize != 0;
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

  KernelRun::compile({keys, queries}, c.isWgmma() ? "sm_90a" : "sm_80");
}

void GradientsRun::launch(const GpuKernelSpec &spec, sim::Dim3 grid,
                          const sim::SimOptions &options, Gradients &result) {
  const auto near = [](int64_t limit) {
    return limit < 0 ? kGpuUnlimited : limit;
  };
  const int64_t perKey = c.signal / c.keyHeads;
  const std::map<std::string, int64_t> numbers = {
      {"queries", c.queries},
      {"keys", c.keys},
      {"sequences", static_cast<int64_t>(c.queryLengths.size())},
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
  sim::LaunchReport report =
      KernelRun::launch(spec, grid, numbers, reals, options);
  result.mmaFlops += report.stats.mmaFlops;
  result.conflicts +=
      report.stats.ldmatrixConflicts + report.stats.copyConflicts;
  result.reports.push_back(std::move(report));
}

Gradients GradientsRun::run(const sim::SimOptions &options,
                            std::optional<GpuKernelKind> alone) {
  clearResults();
  auto blocks = [&](int64_t count, int64_t each) {
    return c.queryLengths.empty()
               ? countBlocks(count, each)
               : static_cast<uint32_t>(count / each + c.queryLengths.size());
  };
  const auto batches = static_cast<uint32_t>(c.batches);
  Gradients result;
  if (alone != GpuKernelKind::GradientQueries)
    launch(keys,
           {blocks(c.keys, keys.getRows()), static_cast<uint32_t>(c.keyHeads),
            batches},
           options, result);
  if (alone != GpuKernelKind::GradientKeys)
    launch(queries,
           {blocks(c.queries, queries.getRows()),
            static_cast<uint32_t>(c.noise), batches},
           options, result);
  for (const std::string &name : getGradients()) {
    const bool isOfQueries = name[2] == 'q';
    if (alone && isOfQueries != (alone == GpuKernelKind::GradientQueries))
      continue;
    const DeviceArray &array = arrays[name];
    array.forEach([&](int64_t, int64_t at) {
      result.values[name].push_back(
          reference::load(array.element, array.memory.data() + at));
    });
  }
  return result;
}

double GradientsRun::worst(const Gradients &got) const {
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

void mlir::diffattn::expectOracleValues(const GradientsCase &c) {
  GradientsRun run(c);
  const Gradients first = run.run({});
  EXPECT_TRUE(first.isClean()) << first.str();
  EXPECT_EQ(first.conflicts, 0u);
  EXPECT_LE(run.worst(first), 1.0);
  sim::SimOptions options;
  options.seed = 7;
  options.copies = sim::CopyTiming::Early;
  options.residentBlocks = 3;
  const Gradients other = run.run(options);
  EXPECT_TRUE(other.isClean()) << other.str();
  EXPECT_EQ(other.values, first.values);
}

std::vector<GradientsCase> mlir::diffattn::getCountedCases() {
  GradientsCase two;
  two.queries = two.keys = 128;
  two.dv = 128;
  GradientsCase one = two;
  one.sharedKeys = true;
  one.dv = 64;
  return {two, one};
}

void mlir::diffattn::expectProducts(const GradientsCase &c) {
  const int64_t unit = 2 * c.queries * c.keys * c.d;
  EXPECT_EQ(GradientsRun(c).run({}).mmaFlops,
            uint64_t(unit * (c.maps == 1    ? 7
                             : c.sharedKeys ? 11
                                            : 14)));
}
