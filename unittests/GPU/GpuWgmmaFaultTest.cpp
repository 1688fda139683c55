//===- GpuWgmmaFaultTest.cpp - kernels by tensor maps, broken -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// As GpuFaultTest.cpp: each kernel by warpgroups, and decode by tensor maps,
// with one instruction changed.
//
//===----------------------------------------------------------------------===//
#include "GpuCase.h"
#include "HopperInjection.h"

#include "DiffAttn/Schedule/GpuSchedule.h"

#include "llvm/Transforms/Utils/Cloning.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace mlir::diffattn;
using sim::HopperInjection;

namespace {

/// Whether it shows on keys that grow: random scores grow too little after the
/// first tile for their sums to be rescaled.
bool needsGrowth(HopperInjection injection) {
  return injection == HopperInjection::VoteAll;
}

/// Whether it shows on more tiles of keys: of one warpgroup, any warp's arrival
/// says that all have read, so that arrivals must run ahead by those of four
/// warps.
bool needsManyTiles(HopperInjection injection) {
  return injection == HopperInjection::CountOneLess;
}

/// Whether only kernels that store their result by a tensor map have places
/// for `injection`.
bool isOfStores(HopperInjection injection) {
  return injection == HopperInjection::DropStore ||
         injection == HopperInjection::ShiftStore ||
         injection == HopperInjection::MisalignStore ||
         injection == HopperInjection::DropStoreWait;
}

/// Whether only kernels whose warpgroups take turns have places for it.
bool isOfTurns(HopperInjection injection) {
  return injection == HopperInjection::DropTurn ||
         injection == HopperInjection::WrongTurn;
}

/// Whether it removes the order between products and uses of their registers,
/// or a rescale of sums: every place is tried.
bool isOfProducts(HopperInjection injection) {
  return injection == HopperInjection::DropMatrixWait ||
         injection == HopperInjection::WeakenMatrixWait ||
         injection == HopperInjection::DropMatrixFence ||
         injection == HopperInjection::DropMatrixCommit ||
         injection == HopperInjection::PackEarly ||
         injection == HopperInjection::VoteAll;
}

/// Whether only kernels of clusters have places for it.
bool isOfClusters(HopperInjection injection) {
  return injection == HopperInjection::WrongMask ||
         injection == HopperInjection::DropClusterWait;
}

/// Whether only kernels by warpgroups have places for it: decode multiplies by
/// mma.sync, and copies nothing to a place that threads wrote.
bool isOfWarpgroups(HopperInjection injection) {
  if (isOfStores(injection) || isOfClusters(injection) || isOfTurns(injection))
    return true;
  switch (injection) {
  case HopperInjection::DropMatrixWait:
  case HopperInjection::WeakenMatrixWait:
  case HopperInjection::DropMatrixFence:
  case HopperInjection::DropMatrixCommit:
  case HopperInjection::PackEarly:
  case HopperInjection::WrongStride:
  case HopperInjection::DropProxyFence:
    return true;
  default:
    return false;
  }
}

/// Arrivals at barriers in memory, and waits.
bool isOfBarriers(HopperInjection injection) {
  return injection == HopperInjection::FlipParity ||
         injection == HopperInjection::DropPhaseWait ||
         injection == HopperInjection::DropArrive ||
         injection == HopperInjection::CountMore;
}

/// Places of an instruction that are changed, one after another.
enum class Places {
  /// One in the middle: for a row whose kernel has the instructions of another
  /// row's, which differs in widths alone.
  Middle,
  /// The first, the last, and one between them.
  Some,
  /// Places of `Some`, and all of products.
  AllProducts,
  /// Places of `AllProducts`, and all arrivals at barriers and waits.
  AllBarriers,
};

/// The kernel of a signature, of which some order in some of the shapes shows
/// every change.
class Broken {
public:
  Broken(const Signature &signature, std::vector<Shape> shapes)
      : signature(signature), shapes(std::move(shapes)) {}
  /// Expects that each injection for which `isPart` holds has places in the
  /// kernel and is found at `places`, except those for which `isIdle` holds.
  void expectAllFound(
      llvm::function_ref<bool(HopperInjection)> isPart,
      llvm::function_ref<bool(HopperInjection, unsigned at, unsigned count)>
          isIdle = [](HopperInjection, unsigned, unsigned) { return false; },
      Places places = Places::AllProducts);

private:
  /// Whether some order of threads and timing of copies shows it.
  bool isDetected(CompiledCase &compiled, HopperInjection injection,
                  std::string &reports) {
    for (const Shape &shape : getShapes(injection))
      if (isShownInSomeOrder([&](const sim::SimOptions &options) {
            return shows(compiled, shape, sim::getExpectedOutcome(injection),
                         options, reports);
          }))
        return true;
    return false;
  }

  /// Whether one run shows it. What it shows instead goes to `reports`.
  static bool shows(CompiledCase &compiled, const Shape &shape,
                    const sim::ExpectedOutcome &expected,
                    const sim::SimOptions &options, std::string &reports) {
    // A launch ends with its first fault, which most often is of such a kind.
    // One whose numbers count must come to its end.
    if (!expected.wrong) {
      sim::SimOptions first = options;
      first.maxFaults = 1;
      Outcome outcome = compiled.run(shape, kSeed, first, /*compare=*/false);
      const bool isExpected = outcome.report.has(expected.kinds);
      if (outcome.report.clean() || isExpected) {
        reports += outcome.report.str() + "\n";
        return isExpected;
      }
    }
    Outcome outcome =
        compiled.run(shape, kSeed, options, /*compare=*/expected.wrong);
    reports += outcome.report.str() + "\n";
    if (expected.wrong)
      reports += "error in bounds: " + std::to_string(outcome.worst()) + "\n";
    return outcome.report.has(expected.kinds) ||
           (expected.wrong && outcome.worst() > 1.0);
  }

  std::vector<Shape> getShapes(HopperInjection injection) const {
    Shape shape = shapes.front();
    shape.growth = needsGrowth(injection) ? 0.5 : 0.0;
    if (needsManyTiles(injection))
      shape.length += 2 * shape.keys, shape.keys *= 3;
    return needsGrowth(injection) || needsManyTiles(injection)
               ? std::vector{shape}
               : shapes;
  }

  static constexpr unsigned kSeed = 7;
  Signature signature;
  std::vector<Shape> shapes;
};

void Broken::expectAllFound(
    llvm::function_ref<bool(HopperInjection)> isPart,
    llvm::function_ref<bool(HopperInjection, unsigned, unsigned)> isIdle,
    Places places) {
  CompiledCase compiled(signature);
  Outcome whole;
  for (const Shape &shape : shapes) {
    whole = compiled.run(shape, kSeed);
    ASSERT_TRUE(whole.report.clean()) << whole.report.str();
    ASSERT_LE(whole.worst(), 1.0);
  }
  // The first kernel is decode; the merge copies nothing.
  const std::string name =
      llvm::StringRef(whole.kernels).split(' ').first.str();
  std::unique_ptr<llvm::Module> alone =
      llvm::CloneModule(compiled.getKernels());
  for (HopperInjection injection : sim::getHopperInjections()) {
    const std::string title = stringifyInjection(injection).str();
    const unsigned count = sim::countInjections(*alone, name, injection);
    EXPECT_EQ(count > 0, isPart(injection)) << title;
    const bool isOne = places == Places::Middle;
    const bool everywhere =
        (places >= Places::AllProducts && isOfProducts(injection)) ||
        (places == Places::AllBarriers && isOfBarriers(injection));
    const unsigned step = isOne        ? count
                          : everywhere ? 1
                                       : std::max(1u, (count + 1) / 2);
    for (unsigned at = isOne ? count / 2 : 0; at < count; at += step) {
      if (isIdle(injection, at, count))
        continue;
      compiled.replaceKernels(
          *sim::getBroken(*alone, name, injection, std::min(at, count - 1)));
      std::string reports;
      EXPECT_TRUE(isDetected(compiled, injection, reports))
          << title << " at place " << at << " of " << count << ": " << reports;
    }
  }
}

bool combinesInStage(const GpuWgmmaRow &row) {
  return row.placement == GpuPlacement::Apart && row.valueDim > row.headDim;
}

/// Whether `row` is the first of `rows` with its value of `getKind`.
template <typename Kind>
bool isFirst(const GpuWgmmaRow &row, llvm::ArrayRef<GpuWgmmaRow> rows,
             Kind getKind) {
  const GpuWgmmaRow &first = *llvm::find_if(
      rows, [&](const GpuWgmmaRow &of) { return getKind(of) == getKind(row); });
  auto identify = [](const GpuWgmmaRow &of) {
    return std::tuple(of.headDim, of.valueDim, of.keys, of.stages, of.maps);
  };
  return identify(first) == identify(row);
}

/// The parts of a row that decide which instructions its kernel has; its widths
/// decide how many of them there are.
auto getInstructions(const GpuWgmmaRow &row) {
  return std::tuple(row.placement, row.maps, row.overlap, row.cluster > 1,
                    row.sharedKeys, combinesInStage(row),
                    row.persistentBlocks > 0);
}

class GpuWgmmaFaultTest : public ::testing::TestWithParam<GpuWgmmaRow> {};

/// The ring comes round, and the last tile holds keys that no row may see, also
/// where it is the first one. A short ring comes round sooner.
TEST_P(GpuWgmmaFaultTest, IsFound) {
  GpuWgmmaRow row = GetParam();
  row.stages = 2;
  Signature s = ofRow(row);
  s.weight.clear();
  s.rms = s.causal = s.kvLen = s.nanBehind = true;
  const bool isBoth = row.placement == GpuPlacement::Both;
  Shape shape{1, isBoth ? 128 : row.cluster * 64,
              (2 * row.stages + 1) * row.keys};
  shape.length = shape.keys - 3;
  Shape ofOneTile = shape;
  ofOneTile.keys = row.keys;
  ofOneTile.length = row.keys - 3;
  auto isPart = [&](HopperInjection injection) {
    return (isBoth || !isOfStores(injection)) &&
           (row.cluster > 1 || !isOfClusters(injection)) &&
           (!row.overlap || !isOfTurns(injection)) &&
           (row.overlap || injection != HopperInjection::PackEarly);
  };
  // With overlap, no thread waits for the release of the last tile; with one
  // map, products with V in the loop are never those of the last tile. With
  // both, P of one is written while that of the other is read, and the first
  // sums of the second are zeros.
  auto isIdle = [&](HopperInjection injection, unsigned at, unsigned count) {
    if (!row.overlap)
      return false;
    return (injection == HopperInjection::DropArrive && at + 1 == count) ||
           (injection == HopperInjection::DropProxyFence && !isBoth &&
            at == 0) ||
           (injection == HopperInjection::PackEarly && isBoth) ||
           (injection == HopperInjection::VoteAll && isBoth && at == 0);
  };
  // The order of products depends on where maps are and what runs beside them.
  auto getOrder = [](const GpuWgmmaRow &of) {
    return std::tuple(of.placement, of.overlap);
  };
  const std::vector<GpuWgmmaRow> rows = getWgmmaRowsOfBlocks();
  const Places places =
      isFirst(GetParam(), rows, getOrder)          ? Places::AllProducts
      : isFirst(GetParam(), rows, getInstructions) ? Places::Some
                                                   : Places::Middle;
  Broken(s, {shape, ofOneTile}).expectAllFound(isPart, isIdle, places);
}

class GpuPersistentFaultTest : public ::testing::TestWithParam<GpuWgmmaRow> {};

/// A block takes three tiles, so that its queries' place is filled again, and
/// leaves when there are no more.
TEST_P(GpuPersistentFaultTest, IsFound) {
  const GpuWgmmaRow &row = GetParam();
  if (!row.persistentBlocks)
    return;
  Signature s = ofPersistent(row, /*blocks=*/1);
  s.weight.clear();
  s.rms = s.causal = s.kvLen = s.nanBehind = true;
  const bool isBoth = row.placement == GpuPlacement::Both;
  Shape shape{1, (isBoth ? 128 : 64) * 3, (row.stages + 1) * row.keys};
  shape.length = shape.keys - 3;
  std::vector<Shape> shapes{shape};
  // Where maps pass through a stage, its being free says that the queries'
  // place is too, but for tiles of queries with one tile of keys.
  if (combinesInStage(row)) {
    shapes.push_back({1, 64 * 5, row.keys});
    shapes.back().length = row.keys - 3;
  }
  // Arrivals and waits are the same where maps meet at the same place.
  auto getMeeting = [](const GpuWgmmaRow &of) {
    return std::tuple(of.placement, combinesInStage(of),
                      of.persistentBlocks > 0);
  };
  const Places places =
      isFirst(row, getGpuWgmmaTable(), getMeeting)        ? Places::AllBarriers
      : isFirst(row, getGpuWgmmaTable(), getInstructions) ? Places::Some
                                                          : Places::Middle;
  Broken(s, shapes).expectAllFound(
      [&](HopperInjection injection) {
        return (isBoth || !isOfStores(injection)) && !isOfClusters(injection) &&
               injection != HopperInjection::PackEarly;
      },
      [](HopperInjection, unsigned, unsigned) { return false; }, places);
}

/// Whether a run shows that boxes of the map `wrong` have `more` rows more: by
/// bytes that a barrier does not expect, places that others write, or numbers.
bool findsBox(CompiledCase &compiled, Shape shape, int64_t wrong, int64_t more,
              std::string &reports) {
  constexpr unsigned kSeed = 7;
  shape.wrongMap = wrong;
  shape.moreRows = more;
  return isShownInSomeOrder([&](sim::SimOptions options) {
    options.maxFaults = 1;
    Outcome outcome = compiled.run(shape, kSeed, options);
    if (!outcome.report.clean() || outcome.worst() > 1.0)
      return true;
    reports += " error in bounds: " + std::to_string(outcome.worst()) + "\n";
    return false;
  });
}

/// Expects that boxes of one row less or more than the kernel's, a mistake of
/// the host, are found.
void expectBoxesFound(const Signature &s, const Shape &shape) {
  CompiledCase compiled(s);
  const Outcome whole = compiled.run(shape, /*seed=*/7);
  ASSERT_TRUE(whole.report.clean()) << whole.report.str();
  ASSERT_LE(whole.worst(), 1.0);
  ASSERT_GT(whole.maps, 0);
  for (int64_t map = 0; map < whole.maps; ++map)
    for (int64_t more : {-1, 1}) {
      std::string reports;
      EXPECT_TRUE(findsBox(compiled, shape, map, more, reports))
          << "map " << map << " with " << more << " rows more: " << reports;
    }
}

TEST_P(GpuPersistentFaultTest, AWrongBoxIsFound) {
  const GpuWgmmaRow &row = GetParam();
  Signature s = ofRow(row);
  s.weight.clear();
  const int64_t rows = row.placement == GpuPlacement::Both ? 128 : 64;
  expectBoxesFound(s, {1, rows * std::max<int64_t>(1, row.cluster),
                       (row.stages + 1) * row.keys});
}

TEST(GpuBulkDecodeFaultTest, AWrongBoxIsFound) {
  Signature s;
  s.chip = "sm_90a";
  s.queries = 4;
  s.schedule =
      "#diffattn.when<tensor_maps = true : #diffattn.gpu_split_kv<warps = 2, "
      "stages = 2, q_in_registers = true, bulk_copies = true, kv_split_size = "
      "160>>, #diffattn.gpu_split_kv<warps = 2, kv_split_size = 160>";
  expectBoxesFound(s, {1, 4, 160});
}

TEST(GpuBulkDecodeFaultTest, IsFound) {
  Signature s;
  s.chip = "sm_90a";
  // Several, so that scores of some grow.
  s.queries = 4;
  s.kvLen = s.nanBehind = true;
  s.schedule =
      "#diffattn.when<tensor_maps = true : #diffattn.gpu_split_kv<warps = 2, "
      "stages = 2, q_in_registers = true, bulk_copies = true, kv_split_size = "
      "160>>, #diffattn.gpu_split_kv<warps = 2, kv_split_size = 160>";
  Shape shape{1, 4, 160};
  shape.length = shape.keys - 3;
  Broken(s, {shape}).expectAllFound([](HopperInjection injection) {
    return !isOfWarpgroups(injection);
  });
}

INSTANTIATE_TEST_SUITE_P(EveryRow, GpuWgmmaFaultTest,
                         ::testing::ValuesIn(getWgmmaRowsOfBlocks()));
INSTANTIATE_TEST_SUITE_P(EveryRow, GpuPersistentFaultTest,
                         ::testing::ValuesIn(getGpuWgmmaTable()));

} // namespace
