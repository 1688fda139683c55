//===- BackwardKernelsTest.cpp - kernels of gradients against double ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BackwardMicroKernels.h"
#include "Phase.h"
#include "RegisterProducts.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<CaseKind> getF32Kinds() {
  std::vector<CaseKind> kinds = getCaseKinds();
  llvm::erase_if(kinds, [](const CaseKind &kind) { return kind.isBf16; });
  return kinds;
}

class BackwardKernelsTest : public CpuPhaseTest {
protected:
  /// `count` eighths in [-2, 2]: sums of their products are exact in f32.
  std::vector<float> draw(int64_t count) {
    std::uniform_int_distribution<int> eighths(-16, 16);
    std::vector<float> numbers;
    for (int64_t i = 0; i < count; ++i)
      numbers.push_back(static_cast<float>(eighths(random)) / 8);
    return numbers;
  }
};
INSTANTIATE_TEST_SUITE_P(, BackwardKernelsTest,
                         ::testing::ValuesIn(getF32Kinds()),
                         [](const auto &kind) { return kind.param.getName(); });

/// The array whose address is input `i` of a run.
Value getArray(PhaseBuilder &p, int64_t i) {
  return LLVM::IntToPtrOp::create(p.b, p.b.pointer, p.getInput(i));
}

/// Calls `kernel` with the inputs of a run as arguments, in their order.
void callWithInputs(PhaseBuilder &p, LLVM::LLVMFuncOp kernel) {
  SmallVector<Value> arguments;
  for (auto [i, type] : llvm::enumerate(kernel.getArgumentTypes()))
    arguments.push_back(type == p.b.pointer ? getArray(p, i) : p.getInput(i));
  LLVM::CallOp::create(p.b, kernel, arguments);
}

int64_t addressOf(std::vector<float> &numbers) {
  return reinterpret_cast<int64_t>(numbers.data());
}

//===----------------------------------------------------------------------===//
// Products that contract queries
//===----------------------------------------------------------------------===//

/// Inputs: p, rows, sums, queries, keys.
Phase makeKeyProduct(CpuCase &c, int64_t columns, int64_t stride,
                     bool careful) {
  return Phase(c, [&](PhaseBuilder &p) {
    SpecSize known;
    known.value = columns;
    Value padded = p.b.index(stride);
    emitKeyProduct(p.b, p.module, c.spec.prefill,
                   {getArray(p, 0),
                    {getArray(p, 1), padded, p.b.index(columns), known,
                     /*padded=*/true},
                    getArray(p, 2),
                    padded,
                    p.getInput(3),
                    p.getInput(4)},
                   careful);
  });
}

TEST_P(BackwardKernelsTest, KeyProductsKeepToTheirQueriesAndKeys) {
  CpuCase c(context, GetParam(), {1, 1, 9, 9, 4, 4});
  const int64_t lanes = c.spec.prefill.getQBlockSize();
  for (int64_t columns : {3, 40}) {
    const int64_t stride = llvm::alignTo(columns, 16);
    Phase phase = makeKeyProduct(c, columns, stride, /*careful=*/false);
    for (int64_t keys : {1, 6, 13})
      for (int64_t queries : {int64_t(1), lanes - 1, lanes}) {
        std::vector<float> p = draw(keys * lanes), rows = draw(lanes * stride),
                           sums = draw((keys + 1) * stride), before = sums;
        for (int64_t lane = queries; lane < lanes; ++lane) {
          rows[lane * stride] = kNaN;
          for (int64_t key = 0; key < keys; ++key)
            p[key * lanes + lane] = kNaN;
        }
        phase.run(
            0, {addressOf(p), addressOf(rows), addressOf(sums), queries, keys});
        for (int64_t key = 0; key <= keys; ++key)
          for (int64_t column = 0; column < columns; ++column) {
            double expected = before[key * stride + column];
            for (int64_t lane = 0; key < keys && lane < queries; ++lane)
              expected += static_cast<double>(p[key * lanes + lane]) *
                          rows[lane * stride + column];
            ASSERT_EQ(sums[key * stride + column], expected)
                << "key " << key << " of " << keys << ", column " << column;
          }
      }
  }
}

TEST_P(BackwardKernelsTest, CarefulKeyProductsLeaveOutZeros) {
  CpuCase c(context, GetParam(), {1, 1, 9, 9, 4, 4});
  const int64_t lanes = c.spec.prefill.getQBlockSize(), keys = 7, stride = 32;
  std::vector<float> p = draw(keys * lanes), rows = draw(lanes * stride);
  // Keys 2 and 5 have no part in what is not finite.
  for (int64_t key : {2, 5})
    p[key * lanes + 3] = 0.0f;
  for (int64_t key : {0, 1, 3, 4, 6})
    p[key * lanes + 3] = 1.0f;
  std::vector<float> plain(keys * stride, 0.0f), careful = plain, dirty = plain;
  const auto run = [&](Phase &phase, std::vector<float> &sums) {
    phase.run(0, {addressOf(p), addressOf(rows), addressOf(sums), lanes, keys});
  };
  Phase plainly = makeKeyProduct(c, stride, stride, /*careful=*/false),
        carefully = makeKeyProduct(c, stride, stride, /*careful=*/true);
  run(plainly, plain);
  run(carefully, careful);
  EXPECT_EQ(plain, careful);
  for (int64_t column = 0; column < stride; ++column)
    rows[3 * stride + column] = column % 2 ? kNaN : kInfinity;
  run(carefully, dirty);
  for (int64_t key = 0; key < keys; ++key)
    for (int64_t column = 0; column < stride; ++column) {
      const float got = dirty[key * stride + column];
      if (key == 2 || key == 5)
        ASSERT_EQ(got, plain[key * stride + column]) << "key " << key;
      else
        ASSERT_FALSE(std::isfinite(got)) << "key " << key;
    }
}

//===----------------------------------------------------------------------===//
// Between products
//===----------------------------------------------------------------------===//

/// Planes and lanes of a block, and what its kernels must make of them.
struct Maps {
  int64_t lanes, keys = 11;
  std::vector<float> e[2], products, factors[2], lambda, sums[2], slopes[2];

  double getWeight(int map, int64_t key, int64_t lane) const {
    return static_cast<double>(e[map][key * lanes + lane]) *
           factors[map][lane] * (map ? lambda[lane] : 1.0f);
  }
};

TEST_P(BackwardKernelsTest, HiddenScoresHaveNoGradients) {
  CpuCase c(context, GetParam(), {1, 1, 9, 9, 4, 4});
  const CpuPrefillAttr schedule = c.spec.prefill;
  Maps maps;
  maps.lanes = schedule.getQBlockSize();
  const int64_t plane = maps.keys * maps.lanes;
  for (int map : {0, 1}) {
    maps.e[map] = draw(plane);
    for (float &exponential : maps.e[map])
      exponential = 2.5f + exponential;
    maps.factors[map] = draw(maps.lanes);
    maps.sums[map] = draw(maps.lanes);
    maps.slopes[map] = draw(plane);
  }
  maps.products = draw(plane);
  maps.lambda = draw(maps.lanes);
  // Key 4 is hidden from the odd lanes, and its products are anything.
  const auto isHidden = [](int64_t key, int64_t lane) {
    return key == 4 && lane % 2;
  };
  for (int64_t lane = 1; lane < maps.lanes; lane += 2) {
    const int64_t at = 4 * maps.lanes + lane;
    maps.e[0][at] = maps.e[1][at] = 0.0f;
    maps.products[at] = lane % 4 == 1 ? kNaN : kInfinity;
    maps.slopes[0][at] = maps.slopes[1][at] = kNaN;
  }
  const int64_t vectors = maps.lanes / schedule.getLanes();
  Maps got = maps;
  Phase rowSums(c, [&](PhaseBuilder &p) {
    callWithInputs(
        p, getRowSumsKernel(p.b, p.module, schedule, vectors, /*hidden=*/true));
  });
  rowSums.run(0, {addressOf(got.e[0]), addressOf(got.e[1]),
                  addressOf(got.products), addressOf(got.factors[0]),
                  addressOf(got.factors[1]), maps.keys, addressOf(got.sums[0]),
                  addressOf(got.sums[1])});
  for (int64_t lane = 0; lane < maps.lanes; ++lane)
    for (int map : {0, 1}) {
      double expected = maps.sums[map][lane];
      for (int64_t key = 0; key < maps.keys; ++key)
        if (!isHidden(key, lane))
          expected += static_cast<double>(maps.factors[map][lane]) *
                      maps.e[map][key * maps.lanes + lane] *
                      maps.products[key * maps.lanes + lane];
      ASSERT_NEAR(got.sums[map][lane], expected, 1e-4);
    }

  got = maps;
  Phase gradients(c, [&](PhaseBuilder &p) {
    callWithInputs(p, getScoreGradientsKernel(p.b, p.module, schedule, vectors,
                                              /*hidden=*/true,
                                              /*capped=*/true));
  });
  gradients.run(0, {addressOf(got.e[0]), addressOf(got.e[1]),
                    addressOf(got.products), addressOf(got.factors[0]),
                    addressOf(got.factors[1]), addressOf(got.lambda),
                    addressOf(got.sums[0]), addressOf(got.sums[1]), maps.keys,
                    addressOf(got.slopes[0]), addressOf(got.slopes[1])});
  for (int64_t key = 0; key < maps.keys; ++key)
    for (int64_t lane = 0; lane < maps.lanes; ++lane) {
      const int64_t at = key * maps.lanes + lane;
      if (isHidden(key, lane)) {
        ASSERT_EQ(got.products[at], 0.0f);
        ASSERT_EQ(got.e[0][at], 0.0f);
        ASSERT_EQ(got.e[1][at], 0.0f);
        continue;
      }
      const double a1 = maps.getWeight(0, key, lane),
                   a2 = maps.getWeight(1, key, lane),
                   product = maps.products[at];
      ASSERT_NEAR(got.products[at], a1 - a2, 1e-4);
      ASSERT_NEAR(got.e[0][at],
                  a1 * (product - maps.sums[0][lane]) * maps.slopes[0][at],
                  1e-4);
      ASSERT_NEAR(got.e[1][at],
                  a2 * (maps.sums[1][lane] - product) * maps.slopes[1][at],
                  1e-4);
    }
}

} // namespace
