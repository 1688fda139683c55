//===- GpuOperands.cpp - operands of an op on the simulator ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GpuOperands.h"

#include "DiffAttn/Testing/Simulator/TensorMap.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/xxhash.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

using namespace mlir;
using namespace mlir::diffattn;
using llvm::ArrayRef;
using reference::View;

void mlir::diffattn::require(bool condition, const std::string &message) {
  if (condition)
    return;
  llvm::errs() << message << "\n";
  std::abort();
}

sim::SimChip mlir::diffattn::getSimChip(const GpuTarget &target) {
  sim::SimChip chip;
  chip.name = target.chip;
  llvm::StringRef number = target.chip;
  require(number.consume_front("sm_") &&
              !number.consumeInteger(10, chip.capability),
          "expected sm_<number>");
  chip.sharedBytesPerBlock = target.sharedBytesPerBlock;
  return chip;
}

std::unique_ptr<sim::Simulator>
mlir::diffattn::simulate(const llvm::Module &module, const sim::SimChip &chip) {
  auto created = sim::Simulator::create(module, chip);
  if (!created)
    require(false, llvm::toString(created.takeError()));
  return std::move(*created);
}

sim::TensorMapHandle mlir::diffattn::encode(const EvaluatedMap &given,
                                            int64_t moreRows) {
  sim::TensorMap map;
  map.base = given.base;
  map.rank = 4;
  map.swizzle128 = true;
  map.box[0] = 64;
  map.box[1] = given.boxRows + moreRows;
  for (auto [i, size] : llvm::enumerate(given.sizes))
    map.sizes[i] = size;
  for (auto [i, stride] : llvm::enumerate(given.strides))
    map.strides[i] = given.sizes[i + 1] == 1 ? 16 : 2 * stride;
  auto handle = sim::encodeTensorMap(map);
  if (!handle)
    require(false, llvm::toString(handle.takeError()));
  return *handle;
}

Memory::~Memory() {
  if (bytes)
    munmap(start, bytes);
}

void Memory::allocate(size_t size) {
  void *mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(mapped != MAP_FAILED, "expected memory");
  start = static_cast<uint8_t *>(mapped);
  bytes = size;
  // NaN between the rows.
  if (isDense())
    std::memset(start, 0xff, bytes);
}

static void storeAt(Operand &operand, const std::array<int64_t, 4> &at,
                    double value) {
  const View &view = operand.view;
  const int64_t offset = std::inner_product(at.begin(), at.end(),
                                            view.strides.begin(), int64_t(0));
  reference::store(view.element,
                   operand.memory.data() +
                       offset * reference::byteSize(view.element),
                   value);
}

void mlir::diffattn::fillBehind(Operand &operand, const View &lengths) {
  const View &view = operand.view;
  for (int64_t b = 0; b < view.sizes[0]; ++b)
    for (int64_t h = 0; h < view.sizes[1]; ++h)
      for (int64_t j = lengths.integerAt({b}); j < view.sizes[2]; ++j)
        for (int64_t c = 0; c < view.sizes[3]; ++c)
          storeAt(operand, {b, h, j, c}, std::nan(""));
}

std::vector<int64_t> mlir::diffattn::drawPages(const Shape &shape,
                                               int64_t pages, unsigned seed) {
  std::vector<int64_t> free(pages), table;
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), std::mt19937(seed));
  const int64_t outside[] = {-1, pages, int64_t(1) << 62};
  for (int64_t length : shape.keyLengths)
    for (int64_t m = 0; m * shape.pageRows < shape.keys; ++m)
      if (m * shape.pageRows >= length || (shape.wrongPages && m == 0)) {
        table.push_back(outside[table.size() % 3]);
      } else {
        table.push_back(free.back());
        free.pop_back();
      }
  return table;
}

void mlir::diffattn::fillUnused(Operand &operand, const Shape &shape,
                                ArrayRef<int64_t> table) {
  const View &view = operand.view;
  const int64_t places = shape.keys / shape.pageRows;
  std::vector<int64_t> used(view.sizes[0]);
  for (auto [i, page] : llvm::enumerate(table))
    if (page >= 0 && page < view.sizes[0])
      used[page] = shape.keyLengths[i / places] - i % places * shape.pageRows;
  for (int64_t p = 0; p < view.sizes[0]; ++p)
    for (int64_t h = 0; h < view.sizes[1]; ++h)
      for (int64_t j = std::max<int64_t>(0, used[p]); j < view.sizes[2]; ++j)
        for (int64_t c = 0; c < view.sizes[3]; ++c)
          storeAt(operand, {p, h, j, c}, std::nan(""));
}

int64_t mlir::diffattn::findSpare(ArrayRef<int64_t> table, int64_t pages) {
  int64_t spare = 0;
  while (spare < pages && llvm::is_contained(table, spare))
    ++spare;
  require(spare < pages, "expected a page that no sequence has");
  return spare;
}

void mlir::diffattn::clearPage(Operand &operand, int64_t page) {
  const View &view = operand.view;
  for (int64_t h = 0; h < view.sizes[1]; ++h)
    for (int64_t j = 0; j < view.sizes[2]; ++j)
      for (int64_t c = 0; c < view.sizes[3]; ++c)
        storeAt(operand, {page, h, j, c}, 0.0);
}

double mlir::diffattn::drawNormal(unsigned seed, size_t index) {
  struct Stream {
    std::optional<unsigned> seed;
    std::mt19937 random;
    std::normal_distribution<double> normal;
    std::vector<double> drawn;
  };
  static Stream stream;
  if (stream.seed != seed) {
    stream = Stream();
    stream.seed = seed;
    stream.random.seed(seed);
  }
  while (stream.drawn.size() <= index)
    stream.drawn.push_back(stream.normal(stream.random));
  return stream.drawn[index];
}

std::optional<llvm::hash_code>
mlir::diffattn::hashInputs(ArrayRef<std::unique_ptr<Operand>> operands) {
  llvm::hash_code hash = 0;
  for (const auto &operand : operands) {
    if (!operand->memory.isDense())
      return std::nullopt;
    const View &view = operand->view;
    hash = llvm::hash_combine(hash, ArrayRef<int64_t>(view.sizes),
                              ArrayRef<int64_t>(view.strides));
    if (operand->output)
      continue;
    ArrayRef<uint8_t> bytes(operand->memory.data(), operand->memory.size());
    hash = llvm::hash_combine(hash, llvm::xxh3_64bits(bytes));
  }
  return hash;
}
