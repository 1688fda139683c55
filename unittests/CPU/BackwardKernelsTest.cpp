//===- BackwardKernelsTest.cpp - kernels of gradients against double ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "BackwardMicroKernels.h"
#include "Phase.h"
#include "RegisterProducts.h"

#include "llvm/ADT/bit.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// The kinds of cases whose gradients have kernels of their own.
std::vector<CaseKind> getBackwardKinds() {
  std::vector<CaseKind> kinds = getCaseKinds();
  llvm::erase_if(kinds, [](const CaseKind &kind) {
    const CpuTarget target = *getCpuTarget(kind.target);
    return kind.isBf16 && !target.hasBf16Dot() && !target.hasTiles();
  });
  return kinds;
}

/// Queries of which those that a product contracts are a multiple, with zeros
/// behind the last one.
int64_t getPanelQueries(const CpuCase &c) {
  return c.spec.getAtom().getPanelKeys();
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
                         ::testing::ValuesIn(getBackwardKinds()),
                         [](const auto &kind) { return kind.param.getName(); });

/// Tiles have no products that look at single numbers.
std::vector<CaseKind> getCarefulKinds() {
  std::vector<CaseKind> kinds = getBackwardKinds();
  llvm::erase_if(kinds, [](const CaseKind &kind) {
    return kind.isBf16 && getCpuTarget(kind.target)->hasTiles();
  });
  return kinds;
}

class CarefulProductsTest : public BackwardKernelsTest {};
INSTANTIATE_TEST_SUITE_P(, CarefulProductsTest,
                         ::testing::ValuesIn(getCarefulKinds()),
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

template <typename T>
int64_t addressOf(std::vector<T> &numbers) {
  return reinterpret_cast<int64_t>(numbers.data());
}

/// The upper half of a number: that of the same bf16, where there is one.
uint16_t toBf16(float number) { return llvm::bit_cast<uint32_t>(number) >> 16; }

float fromBf16(uint16_t bits) {
  return llvm::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Numbers as products read them: f32, or bf16 in the same order.
struct Numbers {
  Numbers(const CpuCase &c, const std::vector<float> &f32) : f32(f32) {
    if (c.spec.getAtom().pack == 1)
      return;
    for (float number : f32)
      bf16.push_back(toBf16(number));
  }
  int64_t getAddress() {
    return bf16.empty() ? addressOf(f32) : addressOf(bf16);
  }

  std::vector<float> f32;
  std::vector<uint16_t> bf16;
};

/// The first `count` rows of `stride` numbers in packs of rows, with zeros up
/// to a multiple of those that a product contracts.
Numbers packRows(const CpuCase &c, const std::vector<float> &rows,
                 int64_t stride, int64_t count) {
  if (c.spec.getAtom().pack == 1)
    return Numbers(c, rows);
  std::vector<float> pairs;
  const auto get = [&](int64_t row, int64_t column) {
    return row < count ? rows[row * stride + column] : 0.0f;
  };
  const int64_t end = llvm::alignTo(count, getPanelQueries(c));
  for (int64_t row = 0; row < end; row += 2)
    for (int64_t column = 0; column < stride; ++column) {
      pairs.push_back(get(row, column));
      pairs.push_back(get(row + 1, column));
    }
  return Numbers(c, pairs);
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
    emitKeyProduct(p.b, p.module, c.spec.prefill, c.spec.getAtom(),
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
    for (int64_t keys : {1, 6, 13, 83})
      for (int64_t queries : {int64_t(1), lanes - 1, lanes}) {
        // Tiles read whole tiles of keys: memory behind the last key may hold
        // anything.
        const int64_t read = llvm::alignTo(keys, 16);
        std::vector<float> p = draw(read * lanes), rows = draw(lanes * stride),
                           sums = draw((keys + 1) * stride), before = sums;
        for (int64_t at = keys * lanes; at < read * lanes; ++at)
          p[at] = kNaN;
        for (int64_t lane = queries; lane < lanes; ++lane) {
          rows[lane * stride] = kNaN;
          // In packs those behind the last query are multiplied with 0.
          if (lane < llvm::alignTo(queries, getPanelQueries(c)))
            continue;
          for (int64_t key = 0; key < keys; ++key)
            p[key * lanes + lane] = kNaN;
        }
        Numbers coefficients(c, p), packed = packRows(c, rows, stride, queries);
        phase.run(0, {coefficients.getAddress(), packed.getAddress(),
                      addressOf(sums), queries, keys});
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

TEST_P(CarefulProductsTest, KeyProductsLeaveOutZeros) {
  CpuCase c(context, GetParam(), {1, 1, 9, 9, 4, 4});
  const int64_t lanes = c.spec.prefill.getQBlockSize(), keys = 7, stride = 32;
  std::vector<float> p = draw(keys * lanes), rows = draw(lanes * stride);
  // Keys 2 and 5 have weight 0, so numbers that are not finite add nothing.
  for (int64_t key : {2, 5})
    p[key * lanes + 3] = 0.0f;
  for (int64_t key : {0, 1, 3, 4, 6})
    p[key * lanes + 3] = 1.0f;
  std::vector<float> plain(keys * stride, 0.0f), careful = plain, dirty = plain;
  const auto run = [&](Phase &phase, std::vector<float> &sums) {
    Numbers coefficients(c, p), packed = packRows(c, rows, stride, lanes);
    phase.run(0, {coefficients.getAddress(), packed.getAddress(),
                  addressOf(sums), lanes, keys});
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

/// Planes and lanes of a block, and the expected results of its kernels.
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
    callWithInputs(p, getRowSumsKernel(p.b, p.module, schedule, vectors,
                                       /*maps=*/2, /*hidden=*/true));
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
  const ProductAtom &atom = c.spec.getAtom();
  const bool pairs = atom.pack > 1;
  Phase gradients(c, [&](PhaseBuilder &p) {
    callWithInputs(p, getScoreGradientsKernel(p.b, p.module, schedule, vectors,
                                              /*maps=*/2, atom, /*hidden=*/true,
                                              /*capped=*/true));
  });
  const int64_t evenPlane = llvm::alignTo(maps.keys, 2) * maps.lanes;
  std::vector<uint16_t> rows[3], packed[2];
  for (std::vector<uint16_t> &plane : rows)
    plane.resize(evenPlane, toBf16(kNaN));
  for (std::vector<uint16_t> &plane : packed)
    plane.resize(evenPlane, toBf16(kNaN));
  SmallVector<int64_t> inputs = {addressOf(got.e[0]),
                                 addressOf(got.e[1]),
                                 addressOf(got.products),
                                 addressOf(got.factors[0]),
                                 addressOf(got.factors[1]),
                                 addressOf(got.lambda),
                                 addressOf(got.sums[0]),
                                 addressOf(got.sums[1]),
                                 maps.keys,
                                 addressOf(got.slopes[0]),
                                 addressOf(got.slopes[1])};
  if (pairs)
    inputs.append({addressOf(rows[0]), addressOf(rows[1]), addressOf(rows[2]),
                   addressOf(packed[0]), addressOf(packed[1])});
  gradients.run(0, inputs);
  if (pairs) {
    // Rounded numbers lie where f32 does without pairs, and each gradient is
    // stored in both orders.
    EXPECT_EQ(got.e[0], maps.e[0]);
    EXPECT_EQ(got.e[1], maps.e[1]);
    for (int64_t key = 0; key < maps.keys; ++key)
      for (int64_t lane = 0; lane < maps.lanes; ++lane) {
        const int64_t at = key * maps.lanes + lane;
        got.products[at] = fromBf16(rows[0][at]);
        const int64_t inPairs = 2 * (key / 2 * maps.lanes + lane) + key % 2;
        for (int map : {0, 1}) {
          got.e[map][at] = fromBf16(rows[1 + map][at]);
          ASSERT_EQ(packed[map][inPairs], rows[1 + map][at])
              << "key " << key << ", lane " << lane;
        }
      }
    // The last key has no partner.
    for (int map : {0, 1})
      for (int64_t lane = 0; lane < maps.lanes; ++lane)
        ASSERT_EQ(packed[map][evenPlane - 2 * maps.lanes + 2 * lane + 1], 0);
  }
  const auto isNear = [&](float value, double expected) {
    // Half a unit in the last place of a bf16.
    const double rounding = pairs ? std::abs(expected) / 256 : 0.0;
    return std::abs(value - expected) <= 1e-4 + rounding;
  };
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
      ASSERT_PRED2(isNear, got.products[at], a1 - a2);
      ASSERT_PRED2(isNear, got.e[0][at],
                   a1 * (product - maps.sums[0][lane]) * maps.slopes[0][at]);
      ASSERT_PRED2(isNear, got.e[1][at],
                   a2 * (maps.sums[1][lane] - product) * maps.slopes[1][at]);
    }
}

} // namespace
