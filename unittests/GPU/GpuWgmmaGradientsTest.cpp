//===- GpuWgmmaGradientsTest.cpp - gradients of products, by warpgroups ---===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GradientsCase.h"
#include "HopperInjection.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;
using reference::Element;
using sim::HopperInjection;

/// A case with the row of the table for its widths.
static GradientsCase withRow(GradientsCase c) {
  for (const GpuWgmmaGradientRow &row : getGpuWgmmaGradientTable())
    if (row.holds(c.maps, c.d, c.dv, c.sharedKeys)) {
      c.wgmmaQBlockSize = row.queries;
      c.wgmmaQStages = row.keyStages;
      c.wgmmaKvBlockSize = row.keys;
      c.wgmmaKvStages = row.queryStages;
      return c;
    }
  require(false, "expected a row of the table for " + c.name);
  return c;
}

static std::vector<GradientsCase> getWgmmaCases() {
  std::vector<GradientsCase> cases;
  auto add = [&](const char *name, auto change) {
    GradientsCase c;
    c.name = name;
    change(c);
    cases.push_back(withRow(c));
  };
  // Blocks of queries and of keys that are full, and those that are not; rings
  // that come round.
  add("Full", [](GradientsCase &c) {
    c.queries = 150;
    c.keys = 300;
  });
  add("Causal", [](GradientsCase &c) {
    c.type = c.result = Element::F16;
    c.queries = c.keys = 200;
    c.right = 0;
  });
  add("Window", [](GradientsCase &c) {
    c.d = 40;
    c.dv = 56;
    c.result = Element::F32;
    c.queries = 130;
    c.keys = 150;
    c.left = 30;
    c.right = 5;
  });
  add("SharedHeads", [](GradientsCase &c) {
    c.d = c.dv = 64;
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
  add("WithoutKeys", [](GradientsCase &c) {
    c.d = c.dv = 64;
    c.batches = 3;
    c.right = 0;
    c.kvLen = {0, 20, 75};
    c.qOffset = {0, -15, 200};
    c.left = 60;
  });
  add("OneKey", [](GradientsCase &c) {
    c.d = c.dv = 64;
    c.sharedKeys = true;
    c.queries = c.keys = 140;
    c.scale = -0.1;
  });
  // Wide heads, whose products of a map end before those of the other begin.
  add("WideOneKey", [](GradientsCase &c) {
    c.d = c.dv = 128;
    c.sharedKeys = true;
    c.signal = 2;
    c.queries = 70;
    c.keys = 210;
    c.kvLen = {197};
    c.right = 0;
    c.qOffset = {110};
  });
  add("WideTwoKeys", [](GradientsCase &c) {
    c.d = 128;
    c.dv = 72;
    c.type = c.result = Element::F16;
    c.queries = 130;
    c.keys = 70;
  });
  add("OneMap", [](GradientsCase &c) {
    c.maps = 1;
    c.d = c.dv = 64;
    c.signal = c.noise = 2;
    c.queries = c.keys = 150;
    c.kvLen = {141};
    c.left = 70;
  });
  add("OneWideMap", [](GradientsCase &c) {
    c.maps = 1;
    c.d = 128;
    c.dv = 104;
    c.queries = 70;
    c.keys = 140;
    c.right = 0;
    c.qOffset = {40};
  });
  return cases;
}

namespace {
class GpuWgmmaGradients : public testing::TestWithParam<GradientsCase> {};
} // namespace

TEST_P(GpuWgmmaGradients, AreThoseOfTheOracle) {
  expectOracleValues(GetParam());
}

TEST(GpuWgmmaGradientsCount, MakesNoProductTwice) {
  std::vector<GradientsCase> cases = getCountedCases();
  GradientsCase wide = cases.back();
  wide.d = wide.dv = 128;
  // Whole tiles of 48 keys, and whole blocks.
  wide.keys = 384;
  GradientsCase oneMap = cases.back();
  oneMap.sharedKeys = false;
  oneMap.maps = 1;
  for (const GradientsCase &c : {wide, oneMap})
    cases.push_back(c);
  for (const GradientsCase &c : cases)
    expectProducts(withRow(c));
}

/// Ways to break both kernels.
static const HopperInjection kInjections[] = {
    HopperInjection::ExpectMore,      HopperInjection::ExpectLess,
    HopperInjection::FlipParity,      HopperInjection::DropPhaseWait,
    HopperInjection::DropArrive,      HopperInjection::ShiftLoad,
    HopperInjection::DropMatrixWait,  HopperInjection::WeakenMatrixWait,
    HopperInjection::DropMatrixFence, HopperInjection::DropProxyFence,
};

/// Moves a read of parked weights ahead of the store that it reads.
static void readParkedEarly(llvm::Function &kernel) {
  constexpr unsigned shared = 3;
  auto isTile = [](const llvm::Value *pointer, const llvm::Type *type) {
    return pointer->getType()->getPointerAddressSpace() == shared &&
           type->isVectorTy() && type->getScalarType()->isFloatTy() &&
           type->getPrimitiveSizeInBits() == 128;
  };
  llvm::StoreInst *park = nullptr;
  for (llvm::Instruction &instruction : llvm::instructions(kernel)) {
    if (auto *store = llvm::dyn_cast<llvm::StoreInst>(&instruction);
        store && !park &&
        isTile(store->getPointerOperand(), store->getValueOperand()->getType()))
      park = store;
    auto *load = llvm::dyn_cast<llvm::LoadInst>(&instruction);
    if (!park || !load || !isTile(load->getPointerOperand(), load->getType()))
      continue;
    load->setOperand(load->getPointerOperandIndex(), park->getPointerOperand());
    return load->moveBefore(park->getIterator());
  }
  require(false, "expected a tile that is parked");
}

/// Each instruction of a kind is broken at the first place, or the last one for
/// kinds of an odd number: a kernel is compiled anew for each.
static void expectAllFound(GpuKernelKind kind, int64_t valueDim) {
  // Two signal heads of a noise head, so that rows are brought again; a ring of
  // two stages that comes round; keys that are hidden, and NaN.
  GradientsCase c;
  c.dv = valueDim;
  c.signal = 2;
  c.queries = 150;
  c.keys = 300;
  c.kvLen = {297};
  c = withRow(c);
  c.wgmmaQStages = c.wgmmaKvStages = 2;
  GradientsRun run(c);
  std::swap(run.arrays["d1"], run.arrays["d2"]);
  EXPECT_GT(run.worst(run.run({}, kind)), 1.0);
  std::swap(run.arrays["d1"], run.arrays["d2"]);
  const std::string name = run.getSpec(kind).getName();
  std::unique_ptr<llvm::Module> alone = llvm::CloneModule(run.getKernels());
  for (llvm::Function &function : llvm::make_early_inc_range(*alone))
    if (!function.isDeclaration() && function.getName() != name)
      function.eraseFromParent();
  auto expectShown = [&](const llvm::Module &broken,
                         const sim::ExpectedOutcome &expected,
                         const std::string &what) {
    run.replaceKernels(broken);
    std::string reports;
    EXPECT_TRUE(isShownInSomeOrder([&](const sim::SimOptions &options) {
      const Gradients result = run.run(options, kind);
      reports += result.str();
      return result.has(expected.kinds) ||
             (expected.wrong && run.worst(result) > 1.0);
    })) << what
        << ": " << reports;
  };
  for (auto [i, injection] : llvm::enumerate(kInjections)) {
    const std::string title = stringifyInjection(injection).str();
    const unsigned count = sim::countInjections(*alone, name, injection);
    ASSERT_GT(count, 0u) << title;
    expectShown(*sim::getBroken(*alone, name, injection, i % 2 ? count - 1 : 0),
                sim::getExpectedOutcome(injection), title);
  }
  if (kind == GpuKernelKind::GradientQueries)
    return;
  std::unique_ptr<llvm::Module> broken = llvm::CloneModule(*alone);
  readParkedEarly(*broken->getFunction(name));
  sim::requireValid(*broken);
  expectShown(*broken, {{sim::FaultKind::Uninitialized}, /*wrong=*/true},
              "parked");
}

TEST(GpuWgmmaGradientsFault, OfKeysIsFound) {
  expectAllFound(GpuKernelKind::GradientKeys, /*valueDim=*/64);
}

// Products of a map end before those of the other begin.
TEST(GpuWgmmaGradientsFault, OfKeysOfWideValuesIsFound) {
  expectAllFound(GpuKernelKind::GradientKeys, /*valueDim=*/128);
}

TEST(GpuWgmmaGradientsFault, OfQueriesIsFound) {
  expectAllFound(GpuKernelKind::GradientQueries, /*valueDim=*/64);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuWgmmaGradients,
                         testing::ValuesIn(getWgmmaCases()),
                         [](const auto &info) { return info.param.name; });
