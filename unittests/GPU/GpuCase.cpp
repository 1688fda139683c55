//===- GpuCase.cpp - one attention op on the simulator --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GpuOperands.h"

#include "DiffAttn/Codegen/NVVM/GpuToPtx.h"
#include "DiffAttn/Codegen/Passes.h"
#include "DiffAttn/Conversion/Passes.h"
#include "DiffAttn/Schedule/Passes.h"
#include "DiffAttn/Testing/Simulator/TensorMap.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Transforms/Utils/Cloning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <deque>
#include <limits>
#include <numeric>
#include <set>

using namespace mlir;
using namespace mlir::diffattn;
using reference::Element;

static Element elementOf(const std::string &type) {
  if (type == "f32")
    return Element::F32;
  if (type == "f16")
    return Element::F16;
  if (type == "bf16")
    return Element::BF16;
  return type == "i1" ? Element::Bool : Element::I64;
}

static std::string stridedType(const std::vector<std::string> &sizes,
                               const std::string &type, bool unit) {
  std::string text = "memref<", strides;
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += sizes[i] + "x";
    strides += (i ? ", " : "") +
               std::string(unit && i + 1 == sizes.size() ? "1" : "?");
  }
  return text + type + ", strided<[" + strides + "], offset: ?>>";
}

std::string CompiledCase::text() const {
  const Signature &s = signature;
  const bool hasPackedKeys = s.packed && !s.paged;
  auto tensor = [&](int64_t heads, const std::string &length, int64_t width,
                    const std::string &type = "", bool isKey = false) {
    const bool isOne = isKey ? hasPackedKeys : s.packed;
    std::vector<std::string> sizes{isOne ? "1" : "?", std::to_string(heads),
                                   length, std::to_string(width)};
    if (s.bthd)
      std::swap(sizes[1], sizes[2]);
    return stridedType(sizes, type.empty() ? s.type : type, s.step == 1);
  };
  std::string queries = s.queries ? std::to_string(s.queries) : "?";
  std::string q1 = tensor(s.signal, queries, s.d),
              q2 = tensor(s.noise, queries, s.d);
  std::string k1 = tensor(s.key1, "?", s.d, "", /*isKey=*/true),
              k2 = tensor(s.key2, "?", s.d, "", /*isKey=*/true);
  std::string v = tensor(s.value, "?", s.dv, "", /*isKey=*/true),
              gate = tensor(s.signal, queries, s.dv),
              o = tensor(s.signal, queries, s.dv, s.result);
  std::string lambda = "memref<f32>";
  if (s.lambda == 1)
    lambda = stridedType({"?"}, "f32", false);
  if (s.lambda > 1)
    lambda = stridedType({"?", "?", "?"}, "f32", false);
  std::string arguments = "%q1: " + q1 + ", %k1: " + k1 + ", %q2: " + q2 +
                          ", %k2: " + k2 + ", %v: " + v + ", %o: " + o +
                          ", %l: " + lambda;
  std::string op = "diffattn.attention ins(%q1, %k1, %v : " + q1 + ", " + k1 +
                   ", " + v + ")";
  if (s.maps == 2)
    op = "diffattn.attention ins(%q1, %k1, %q2, " +
         std::string(s.sharedKeys ? "%k1" : "%k2") + ", %v : " + q1 + ", " +
         k1 + ", " + q2 + ", " + k2 + ", " + v + ") lambda(%l : " + lambda +
         ")";
  auto optional = [&](const std::string &name, const std::string &type) {
    arguments += ", %" + name + ": " + type;
    op += " " + name + "(%" + name + " : " + type + ")";
  };
  if (!s.bias.empty())
    optional("bias", stridedType({"?", "?", "?", "?"}, s.bias, false));
  if (!s.weight.empty())
    optional("norm_weight",
             stridedType({std::to_string(s.dv)}, s.weight, false));
  if (s.gate)
    optional("gate", gate);
  if (s.kvLen)
    optional("kv_len", stridedType({"?"}, "i64", false));
  if (s.qOffset)
    optional("q_offset", stridedType({"?"}, "i64", false));
  if (s.segments)
    for (const char *which : {"q_segments", "kv_segments"})
      optional(which, stridedType({"?", "?"}, "i64", false));
  if (s.packed)
    optional("cu_seqlens_q", stridedType({"?"}, "i64", false));
  if (hasPackedKeys)
    optional("cu_seqlens_k", stridedType({"?"}, "i64", false));
  if (s.paged)
    optional("block_table", stridedType({"?", "?"}, "i64", false));
  std::string attrs;
  llvm::raw_string_ostream os(attrs);
  auto number = [](double x) {
    std::string text;
    llvm::raw_string_ostream(text) << llvm::format("%.9e", x);
    return text;
  };
  os << "scale = " << number(s.scale)
     << " : f32, out_scale = " << number(s.outScale) << " : f32";
  if (s.causal)
    os << ", is_causal";
  if (s.left >= 0 || s.right >= 0)
    os << ", window = array<i64: " << s.left << ", " << s.right << ">";
  if (s.softcap != 0.0)
    os << ", softcap = " << number(s.softcap) << " : f32";
  if (s.sigmoid)
    os << ", lambda_act = #diffattn.activation<sigmoid>";
  if (s.rms)
    os << ", norm = #diffattn.norm<rms>";
  if (s.epsOutside)
    os << ", norm_eps_mode = #diffattn.eps_mode<outside>";
  if (s.bthd)
    for (const char *which : {"q", "k", "v", "o"})
      os << ", " << which << "_layout = #diffattn.layout<bthd>";
  if (!s.schedule.empty())
    os << ", schedules = ["
       << (s.schedule.front() == '#'
               ? s.schedule
               : "#diffattn.gpu_forward<" + s.schedule + ">")
       << "]";
  return "func.func @attention(" + arguments + ") {\n  " + op +
         " outs(%o : " + o + ") {" + attrs + "}\n  return\n}\n";
}

CompiledCase::CompiledCase(const Signature &given) : signature(given) {
  require(given.maps == 2 || given.noise == given.signal,
          "expected signal heads that are their own noise heads with one map");
  DialectRegistry registry;
  registry.insert<DiffAttnDialect, arith::ArithDialect, func::FuncDialect,
                  gpu::GPUDialect, LLVM::LLVMDialect, memref::MemRefDialect,
                  NVVM::NVVMDialect, scf::SCFDialect>();
  registerGpuTranslations(registry);
  context =
      std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED);
  module = parseSourceString<ModuleOp>(text(), context.get());
  require(static_cast<bool>(module), "expected to parse:\n" + text());
  PassManager passes(context.get());
  SelectGpuSchedulePassOptions select;
  select.chip = signature.chip;
  ConvertDiffAttnToGpuPassOptions convert;
  convert.chip = signature.chip;
  passes.addPass(createSelectGpuSchedulePass(select));
  passes.addPass(createConvertDiffAttnToGpuPass(convert));
  require(succeeded(passes.run(*module)), "expected to convert:\n" + text());

  std::string error;
  target = *getGpuTarget(signature.chip, error);
  chip = getSimChip(target);
  llvmContext = std::make_unique<llvm::LLVMContext>();
  auto gpuModule = *module->getOps<gpu::GPUModuleOp>().begin();
  auto translated = translateGpuModule(gpuModule, target, *llvmContext);
  require(succeeded(translated), "expected to translate");
  kernels = std::move(*translated);
}

void CompiledCase::replaceKernels(const llvm::Module &module) {
  replaced.module = llvm::CloneModule(module);
  replaced.simulator = simulate(module, chip);
  running = &replaced;
}

void CompiledCase::prepare(ArrayRef<DeviceMemref> arguments) {
  if (running == &replaced)
    return;
  // The launches depend on sizes and on alignment, which the addresses on the
  // host have too.
  std::set<std::string> names;
  std::string all;
  EvaluationHooks hooks;
  hooks.allocate = [](uint64_t) { return 0; };
  hooks.makeMap = [](const EvaluatedMap &) { return 0; };
  hooks.launch = [&](const EvaluatedLaunch &launch) {
    if (names.insert(launch.kernel).second)
      all += launch.kernel + " ";
  };
  std::string error =
      evaluateHost(*module->getOps<func::FuncOp>().begin(), arguments, hooks);
  require(error.empty(), error);
  running = &prepared[all];
  if (running->simulator)
    return;
  running->module = llvm::CloneModule(*kernels);
  for (llvm::Function &function : llvm::make_early_inc_range(*running->module))
    if (!function.isDeclaration() && !names.count(function.getName().str()))
      function.eraseFromParent();
  require(succeeded(optimizeGpuModule(*running->module, target)),
          "expected to optimize");
  running->simulator = simulate(*running->module, chip);
}

CompiledCase::~CompiledCase() = default;

Outcome CompiledCase::run(const Shape &given, unsigned seed,
                          const sim::SimOptions &options, bool compare) {
  const Signature &s = signature;
  Shape shape = given;
  const auto sequences = static_cast<int64_t>(shape.keyLengths.size());
  auto sum = [](const std::vector<int64_t> &lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t(0));
  };
  require((s.packed || s.paged) == (sequences != 0) &&
              s.packed == !shape.queryLengths.empty() &&
              (!s.paged || (s.kvLen && shape.keys % shape.pageRows == 0)),
          "expected lengths of sequences, and whole pages");
  if (s.packed)
    shape.queries = sum(shape.queryLengths);
  if (s.packed && !s.paged)
    shape.keys = sum(shape.keyLengths);
  if (s.packed || s.paged)
    shape.batch = s.packed ? 1 : sequences;
  const int64_t places = s.paged ? shape.keys / shape.pageRows : 0,
                pages = sequences * places + 1;
  std::vector<int64_t> table;
  if (s.paged)
    table = drawPages(shape, pages, seed);
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<Operand>> operands;
  int64_t queries = s.queries ? s.queries : shape.queries;

  // Sizes in the order of memory; `pad` elements behind each row of the last
  // axis.
  auto make = [&](std::vector<int64_t> sizes, const std::string &type,
                  int64_t step, int64_t pad, auto value) -> Operand & {
    operands.push_back(std::make_unique<Operand>());
    Operand &operand = *operands.back();
    Element element = elementOf(type);
    std::vector<int64_t> strides(sizes.size());
    int64_t next = step;
    for (size_t i = sizes.size(); i-- > 0;) {
      strides[i] = next;
      next = i + 1 == sizes.size() ? sizes[i] * step + pad : next * sizes[i];
    }
    int64_t last = 0, count = 1;
    for (size_t i = 0; i < sizes.size(); ++i) {
      last += (sizes[i] - 1) * strides[i];
      count *= sizes[i];
    }
    int64_t bytes = byteSize(element);
    operand.memory.allocate(count ? (last + 1) * bytes : bytes);
    forEachElement(sizes, strides, [&](int64_t, int64_t offset) {
      double x = value();
      uint8_t *at = operand.memory.data() + offset * bytes;
      if (element == Element::I64)
        *reinterpret_cast<int64_t *>(at) = static_cast<int64_t>(x);
      else if (element == Element::Bool)
        *at = x != 0.0;
      else
        reference::store(element, at, x);
    });
    operand.view.data = operand.memory.data();
    operand.view.element = element;
    operand.view.sizes = sizes;
    operand.view.strides = strides;
    operand.device.sizes = sizes;
    operand.device.strides = strides;
    return operand;
  };
  size_t drawn = 0;
  auto gauss = [&] { return drawNormal(seed, drawn++); };
  auto tensor = [&](int64_t heads, int64_t length, int64_t width, auto value,
                    const std::string &type = "") -> Operand & {
    const bool isPages = length < 0;
    std::vector<int64_t> sizes{isPages ? pages : shape.batch, heads,
                               isPages ? shape.pageRows : length, width};
    if (s.bthd)
      std::swap(sizes[1], sizes[2]);
    // Rows stay multiples of 16 bytes where the elements are next to each
    // other.
    Operand &operand = make(sizes, type.empty() ? s.type : type, s.step,
                            (s.step == 1 ? 8 : 3) + shape.gap, value);
    if (s.bthd)
      operand.view = operand.view.transposed(1, 2);
    return operand;
  };
  Operand &q1 = tensor(s.signal, queries, s.d, gauss);
  // In the order of memory, of which keys are the next to last axis.
  auto growing = [&, element = int64_t(0)]() mutable {
    return gauss() + shape.growth * (element++ / s.d % shape.keys);
  };
  require(shape.growth == 0.0 || !s.bthd, "expected bhtd with growing scores");
  // -1: pages.
  const int64_t keys = s.paged ? -1 : shape.keys;
  Operand &k1 = tensor(s.key1, keys, s.d, growing);
  Operand &q2 = tensor(s.noise, queries, s.d, gauss);
  Operand &k2 = tensor(s.key2, keys, s.d, growing);
  auto sized = [&, element = int64_t(0)]() mutable {
    const double x = gauss();
    return shape.valueSize ? x * shape.valueSize(element++ / s.dv % shape.keys)
                           : x;
  };
  require(!shape.valueSize || (!s.bthd && !s.paged),
          "expected bhtd without pages with sizes of values");
  Operand &v = tensor(s.value, keys, s.dv, sized);
  if (s.paged)
    for (Operand *operand : {&k1, &k2, &v})
      fillUnused(*operand, shape, table);
  Operand &o =
      tensor(s.signal, queries, s.dv, [] { return std::nan(""); }, s.result);
  o.output = true;

  reference::AttentionArguments arguments;
  arguments.q1 = q1.view;
  arguments.k1 = k1.view;
  if (s.maps == 2) {
    arguments.q2 = q2.view;
    arguments.k2 = s.sharedKeys ? k1.view : k2.view;
  }
  arguments.v = v.view;
  std::vector<int64_t> lambdaSizes;
  if (s.lambda == 1)
    lambdaSizes = {s.signal};
  if (s.lambda > 1)
    lambdaSizes = {shape.batch, queries, s.lambda == 2 ? s.signal : s.noise};
  Operand &lambda =
      make(lambdaSizes, "f32", 1, 0, [&] { return 0.5 + 0.4 * gauss(); });
  if (s.maps == 2)
    arguments.lambda = lambda.view;
  if (!s.bias.empty()) {
    std::vector<int64_t> sizes{shape.biasBatch ? shape.batch : 1,
                               shape.biasHeads ? s.noise : 1,
                               shape.biasQueries ? queries : 1, shape.keys};
    auto value = [&] {
      double x = gauss();
      if (s.bias == "i1")
        return x < 0.5 ? 1.0 : 0.0;
      return std::abs(x) > 1.6 ? -std::numeric_limits<double>::infinity() : x;
    };
    arguments.bias = make(sizes, s.bias, 1, shape.biasPad, value).view;
  }
  if (!s.weight.empty())
    arguments.normWeight =
        make({s.dv}, s.weight, 1, 0, [&] { return 1.0 + 0.3 * gauss(); }).view;
  if (s.gate)
    arguments.gate = tensor(s.signal, queries, s.dv, gauss).view;
  auto list = [&](ArrayRef<int64_t> numbers, std::vector<int64_t> sizes) {
    return make(std::move(sizes), "i64", 1, 0,
                [&, at = size_t(0)]() mutable {
                  return static_cast<double>(numbers[at++]);
                })
        .view;
  };
  if (s.paged)
    arguments.kvLen = list(shape.keyLengths, {sequences});
  else if (s.kvLen)
    arguments.kvLen =
        make({shape.batch}, "i64", 1, 0, [&] {
          return static_cast<double>(
              shape.length < 0 ? random() % (shape.keys + 1) : shape.length);
        }).view;
  if (s.nanBehind)
    for (Operand *operand : {&k1, &k2, &v})
      fillBehind(*operand, arguments.kvLen);
  if (s.qOffset)
    arguments.qOffset =
        make({s.packed ? sequences : shape.batch}, "i64", 1, 0, [&] {
          return static_cast<double>(random() % (shape.keys + 4)) - 3.0;
        }).view;
  auto segments = [&](int64_t length, const auto &of) {
    return make({shape.batch, length}, "i64", 1, 3,
                [&, at = int64_t(0)]() mutable {
                  return static_cast<double>(of(at++ % length));
                })
        .view;
  };
  if (s.segments) {
    arguments.qSegments = segments(queries, shape.ofQuery);
    arguments.kvSegments = segments(shape.keys, shape.ofKey);
  }
  auto bounds = [&](ArrayRef<int64_t> lengths) {
    std::vector<int64_t> numbers{0};
    for (int64_t length : lengths)
      numbers.push_back(numbers.back() + length);
    return list(numbers, {sequences + 1});
  };
  if (s.packed)
    arguments.cuSeqlensQ = bounds(shape.queryLengths);
  if (s.packed && !s.paged)
    arguments.cuSeqlensK = bounds(shape.keyLengths);
  if (s.paged)
    arguments.blockTable = list(table, {sequences, places});
  arguments.scale = static_cast<float>(s.scale);
  arguments.isCausal = s.causal;
  arguments.left = s.left;
  arguments.right = s.right;
  if (s.softcap != 0.0)
    arguments.softcap = static_cast<float>(s.softcap);
  arguments.lambdaSigmoid = s.sigmoid;
  arguments.rmsNorm = s.rms;
  arguments.normEps = 1e-5f;
  arguments.epsOutside = s.epsOutside;
  arguments.outScale = static_cast<float>(s.outScale);
  std::string wrong = reference::check(arguments);
  require(wrong.empty() != shape.wrongPages, wrong);

  std::vector<DeviceMemref> memrefs;
  for (auto &operand : operands) {
    memrefs.push_back(operand->device);
    memrefs.back().address = reinterpret_cast<uint64_t>(operand->memory.data());
  }
  prepare(memrefs);
  sim::Simulator *simulator = running->simulator.get();
  memrefs.clear();
  std::vector<uint64_t> registered;
  for (auto &operand : operands) {
    sim::BufferUse use;
    use.writable = operand->output;
    operand->device.address = simulator->registerBuffer(
        operand->memory.data(), operand->memory.size(),
        std::to_string(memrefs.size()), use);
    registered.push_back(operand->device.address);
    memrefs.push_back(operand->device);
  }
  Outcome outcome;
  std::vector<std::vector<uint8_t>> workspaces;
  EvaluationHooks hooks;
  hooks.allocate = [&](uint64_t bytes) {
    workspaces.emplace_back(bytes, 0xff);
    registered.push_back(
        simulator->registerBuffer(workspaces.back().data(), bytes, "workspace",
                                  {true, /*initialized=*/false}));
    return registered.back();
  };
  // The last of the workspaces.
  hooks.fill = [&](uint64_t address, uint8_t value, uint64_t bytes) {
    require(!workspaces.empty() && address == registered.back() &&
                bytes == workspaces.back().size(),
            "expected all of the last workspace to be filled");
    if (dropsFills)
      return;
    std::memset(workspaces.back().data(), value, bytes);
    if (counter)
      std::memcpy(workspaces.back().data(), &*counter, sizeof *counter);
    simulator->setInitialized(address);
  };
  std::deque<sim::TensorMapHandle> maps;
  hooks.makeMap = [&](const EvaluatedMap &given) {
    const bool isWrong = outcome.maps++ == shape.wrongMap;
    maps.push_back(encode(given, isWrong ? shape.moreRows : 0));
    return sim::KernelArgument::map(maps.back()).bits;
  };
  hooks.launch = [&](const EvaluatedLaunch &launch) {
    sim::LaunchShape launchShape;
    launchShape.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
    launchShape.block = {launch.block[0], launch.block[1], launch.block[2]};
    launchShape.dynamicSharedBytes = launch.sharedBytes;
    std::vector<sim::KernelArgument> values;
    for (auto [bits, bytes] : launch.arguments)
      values.push_back({bits, bytes});
    std::clock_t before = std::clock();
    auto report =
        simulator->launch(launch.kernel, launchShape, values, options);
    outcome.seconds +=
        static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    if (!report)
      require(false, llvm::toString(report.takeError()));
    outcome.kernels += launch.kernel + " ";
    outcome.stats.push_back(report->stats);
    if (outcome.report.clean())
      outcome.report = *report;
  };
  auto function = *module->getOps<func::FuncOp>().begin();
  std::string error = evaluateHost(function, memrefs, hooks);
  require(error.empty(), error);
  for (uint64_t address : registered)
    simulator->releaseBuffer(address);

  if (!compare)
    return outcome;
  // The reference reads zeros for an entry that is no page: from the one page
  // that no sequence has.
  if (shape.wrongPages) {
    const int64_t spare = findSpare(table, pages);
    for (Operand *operand : {&k1, &k2, &v})
      clearPage(*operand, spare);
    auto *entries =
        static_cast<int64_t *>(const_cast<void *>(arguments.blockTable.data));
    for (int64_t n = 0; n < sequences; ++n)
      entries[n * places] = spare;
    wrong = reference::check(arguments);
    require(wrong.empty(), wrong);
  }
  // Changed kernels and other orders of threads run on the same operands.
  std::optional<llvm::hash_code> inputs = hashInputs(operands);
  if (!inputs || expectedOf != inputs)
    expected = reference::attention(arguments);
  expectedOf = inputs;
  outcome.expected = expected;
  outcome.bound = reference::errorBound(elementOf(s.type), s.d, shape.keys,
                                        outcome.expected.scoreMagnitude);
  outcome.weightStep = reference::subnormalError(elementOf(s.type));
  outcome.resultStep = reference::subnormalError(o.view.element);
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t h = 0; h < s.signal; ++h)
      for (int64_t i = 0; i < queries; ++i)
        for (int64_t c = 0; c < s.dv; ++c)
          outcome.output.push_back(o.view.at({b, h, i, c}));
  return outcome;
}

double Outcome::worst() const {
  double worst = 0.0;
  for (size_t i = 0; i < output.size(); ++i) {
    double allowed =
        bound * (expected.magnitude[i] + std::abs(expected.output[i])) +
        weightStep * expected.flatMagnitude[i] + resultStep + 1e-30;
    double error = std::abs(output[i] - expected.output[i]) / allowed;
    if (!(error <= worst)) // also NaN
      worst =
          std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  return worst;
}

bool mlir::diffattn::isShownInSomeOrder(
    llvm::function_ref<bool(const sim::SimOptions &)> shows) {
  for (sim::CopyTiming copies : {sim::CopyTiming::Late, sim::CopyTiming::Early})
    for (uint64_t order : {0, 1, 2}) {
      sim::SimOptions options;
      options.seed = order;
      options.copies = copies;
      options.countTraffic = false;
      if (shows(options))
        return true;
    }
  return false;
}

void mlir::diffattn::expectRight(const Signature &signature,
                                 const std::vector<Shape> &shapes) {
  CompiledCase compiled(signature);
  unsigned seed = 1;
  for (const Shape &shape : shapes) {
    sim::SimOptions options;
    options.seed = seed % 3;
    options.copies = seed % 2 ? sim::CopyTiming::Late : sim::CopyTiming::Early;
    options.perturb = seed % 4 == 3;
    Outcome outcome = compiled.run(shape, seed, options);
    SCOPED_TRACE("kernels " + outcome.kernels + "batch " +
                 std::to_string(shape.batch) + " queries " +
                 std::to_string(shape.queries) + " keys " +
                 std::to_string(shape.keys) + " seed " + std::to_string(seed));
    EXPECT_TRUE(outcome.report.clean()) << outcome.report.str();
    EXPECT_LE(outcome.worst(), 1.0);
    EXPECT_EQ(outcome.report.stats.ldmatrixConflicts, 0u);
    EXPECT_EQ(outcome.report.stats.copyConflicts, 0u);
    ++seed;
  }
}
