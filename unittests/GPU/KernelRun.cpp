//===- KernelRun.cpp - kernels of specs on arrays in memory ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "KernelRun.h"

#include "DiffAttn/Codegen/NVVM/GpuKernelModule.h"
#include "DiffAttn/Codegen/NVVM/GpuToPtx.h"
#include "DiffAttn/Codegen/Passes.h"

#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

#include <deque>

using namespace mlir;
using namespace mlir::diffattn;
using reference::Element;

KernelRun::KernelRun() {
  context.loadDialect<DiffAttnDialect, LLVM::LLVMDialect, NVVM::NVVMDialect,
                      gpu::GPUDialect>();
  DialectRegistry registry;
  registerGpuTranslations(registry);
  context.appendDialectRegistry(registry);
}

Type KernelRun::typeOf(Element element) {
  return element == Element::F32   ? Type(Float32Type::get(&context))
         : element == Element::F16 ? Type(Float16Type::get(&context))
         : element == Element::I64 ? Type(IntegerType::get(&context, 64))
                                   : Type(BFloat16Type::get(&context));
}

DeviceArray &KernelRun::make(const std::string &name, Element element,
                             const std::string &letters,
                             std::vector<int64_t> sizes, int64_t step,
                             int64_t behind) {
  DeviceArray &array = arrays[name];
  array.element = element;
  array.letters = letters;
  array.strides.resize(sizes.size());
  int64_t next = step;
  for (size_t i = sizes.size(); i-- > 0;) {
    array.strides[i] = next;
    next *= sizes[i];
    if (i + 1 == sizes.size())
      next += behind;
  }
  array.sizes = std::move(sizes);
  array.memory.assign(next * reference::byteSize(element), 0xff);
  return array;
}

void KernelRun::draw(DeviceArray &array, double offset, double scale) {
  constexpr unsigned kSeed = 11;
  array.forEach([&](int64_t, int64_t at) {
    reference::store(array.element, array.memory.data() + at,
                     offset + scale * drawNormal(kSeed, drawn++));
  });
}

void KernelRun::clearResults() {
  for (auto &[name, array] : arrays)
    if (array.isOutput)
      llvm::fill(array.memory, 0xff);
}

void KernelRun::compile(ArrayRef<GpuKernelSpec> specs, StringRef name) {
  std::string error;
  const GpuTarget target = *getGpuTarget(name, error);
  chip = getSimChip(target);
  OwningOpRef<ModuleOp> module = ModuleOp::create(UnknownLoc::get(&context));
  gpu::GPUModuleOp kernels = getOrCreateKernelModule(*module, target);
  for (const GpuKernelSpec &spec : specs)
    getOrEmitGpuKernel(kernels, spec);
  auto made = translateGpuModule(kernels, target, llvmContext);
  require(succeeded(made) && succeeded(optimizeGpuModule(**made, target)),
          "expected to translate");
  translated = std::move(*made);
  replaceKernels(*translated);
}

void KernelRun::replaceKernels(const llvm::Module &module) {
  simulator = simulate(module, chip);
}

/// Boxes of `rows` rows of the array `name`.
sim::TensorMapHandle KernelRun::describe(const std::string &name, int64_t rows,
                                         uint64_t address) const {
  const DeviceArray &array = arrays.at(name);
  EvaluatedMap map;
  map.base = address;
  map.boxRows = rows;
  for (unsigned i = 0; i < 4; ++i) {
    map.sizes[i] = array.sizes[3 - i];
    if (i)
      map.strides[i - 1] = array.strides[3 - i];
  }
  return encode(map);
}

/// The stride that a parameter such as `q1_b` names.
int64_t KernelRun::getStride(const std::string &parameter) const {
  const auto cut = parameter.rfind('_');
  auto found = arrays.find(parameter.substr(0, cut));
  if (found == arrays.end())
    return 0;
  const DeviceArray &array = found->second;
  const auto axis = array.letters.find(parameter[cut + 1]);
  return axis == std::string::npos || array.sizes[axis] == 1
             ? 0
             : array.strides[axis];
}

sim::LaunchReport
KernelRun::launch(const GpuKernelSpec &spec, sim::Dim3 grid,
                  const std::map<std::string, int64_t> &numbers,
                  const std::map<std::string, double> &reals,
                  const sim::SimOptions &options) {
  std::map<std::string, uint64_t> addresses;
  auto registerArray = [&](const std::string &name) {
    DeviceArray &array = arrays.at(name);
    return addresses[name] = simulator->registerBuffer(
               array.memory.data(), array.memory.size(), name,
               {array.isOutput, /*initialized=*/true});
  };
  std::vector<sim::KernelArgument> values;
  // Arguments point to them.
  std::deque<sim::TensorMapHandle> maps;
  for (GpuParam param : getGpuParams(spec)) {
    const GpuParamRow &row = getGpuParam(param);
    const std::string name = row.name.str();
    if (row.type == GpuParamType::TensorMap) {
      const std::string of = name.substr(0, name.rfind('_'));
      // Rows of the block, or of a tile.
      const bool isOfQueries = of[0] != 'k' && of[0] != 'v',
                 isRow = isOfQueries ==
                         (spec.kind == GpuKernelKind::GradientQueries);
      maps.push_back(describe(of, isRow ? spec.getRows() : spec.getTileKeys(),
                              registerArray(of)));
      values.push_back(sim::KernelArgument::map(maps.back()));
    } else if (row.type == GpuParamType::Pointer) {
      values.push_back(sim::KernelArgument::pointer(
          arrays.count(name) ? registerArray(name) : 0));
    } else if (row.type == GpuParamType::F32) {
      values.push_back(
          sim::KernelArgument::f32(static_cast<float>(reals.at(name))));
    } else if (row.type == GpuParamType::I64) {
      values.push_back(sim::KernelArgument::i64(
          numbers.count(name) ? numbers.at(name) : getStride(name)));
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
  for (auto &[name, address] : addresses)
    simulator->releaseBuffer(address);
  return std::move(*report);
}
