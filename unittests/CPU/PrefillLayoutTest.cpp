//===- PrefillLayoutTest.cpp - scratch of a block of queries --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Phase.h"

using namespace mlir;
using namespace mlir::diffattn;

namespace {

class PrefillLayoutTest : public CpuPhaseTest {};
INSTANTIATE_TEST_SUITE_P(, PrefillLayoutTest,
                         ::testing::ValuesIn(getCaseKinds()),
                         [](const auto &kind) { return kind.param.getName(); });

/// A part of scratch: its address, and the f32 that phases write there.
struct Part {
  std::string name;
  Value address;
  int64_t count;
};

/// The parts that are there, which phases of a case use as the comments of the
/// layout say.
struct Parts : std::vector<Part> {
  void add(const char *name, Value address, int64_t count) {
    if (address)
      push_back({name, address, count});
  }
};

Parts getScoringParts(const CpuCase &c, const ScoringLayout &s) {
  const int64_t rows = c.spec.prefill.getQBlockSize();
  const ProductAtom &atom = c.spec.getAtom();
  const int64_t blocks =
      llvm::divideCeil(c.sizes.keys, CpuCase::kKvBlockSize) + 3;
  const bool isTwoPass = getKeyPaths(c.spec).shared;
  const int64_t planeKeys = isTwoPass ? c.sizes.keys : CpuCase::kKvBlockSize;
  Parts parts;
  for (int map : {0, 1}) {
    parts.add("queries", s.queries[map],
              llvm::divideCeil(c.sizes.headDim, atom.pack) * rows);
    for (Value part : {s.maxima[map], s.sums[map], s.factors[map]})
      parts.add("lanes", part, rows);
    parts.add("history", s.history[map], blocks * rows);
    parts.add("scores", s.scores[map],
              llvm::divideCeil(planeKeys * rows, atom.usesTiles ? 2 : 1));
  }
  for (Value part : {s.newMaxima, s.lambda, s.lows, s.highs})
    parts.add("lanes", part, rows);
  parts.add("bias", s.bias, CpuCase::kKvBlockSize * rows);
  parts.add("raw scores", s.rawScores, CpuCase::kKvBlockSize * rows);
  const int64_t panelKeys =
      atom.usesTiles && c.sizes.headDim % 32 == 0 ? 16 : CpuCase::kKvBlockSize;
  const int64_t panelColumns =
      atom.usesTiles ? llvm::alignTo(c.sizes.headDim, 32) / 2 : c.sizes.headDim;
  parts.add("key panel", s.keyPanel, panelKeys * panelColumns);
  const int64_t bytes = c.k[0].element.getIntOrFloatBitWidth() / 8;
  parts.add("paged keys", s.pagedKeys,
            CpuCase::kKvBlockSize * c.sizes.headDim * bytes / 4);
  parts.add("relations", s.relations, blocks);
  for (Value part : s.integers)
    parts.add("integers", part, 2 * rows);
  return parts;
}

void addValueParts(const CpuCase &c, const ValuesLayout &s, Parts &parts) {
  const int64_t rows = c.spec.prefill.getQBlockSize();
  for (Value output : s.output)
    parts.add("output", output, rows * c.sizes.valueDim);
  parts.add("probabilities", s.probabilities,
            CpuCase::kKvBlockSize * rows / c.spec.getAtom().pack);
  const int64_t bytes = c.v.element.getIntOrFloatBitWidth() / 8;
  parts.add("paged values", s.pagedValues,
            CpuCase::kKvBlockSize * c.sizes.valueDim * bytes / 4);
  parts.add("value panel", s.valuePanel,
            CpuCase::kKvBlockSize * c.sizes.valueDim / c.spec.getAtom().pack);
}

/// `total`: the f32 of the layout.
void expectApart(const Phase &phase, const Parts &parts, int64_t total) {
  const char *scratch = phase.getScratch();
  auto getBegin = [&](size_t i) {
    return phase.getPointer<const char>(i) - scratch;
  };
  auto getEnd = [&](size_t i) { return getBegin(i) + 4 * parts[i].count; };
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(getBegin(i) % 64, 0) << parts[i].name;
    EXPECT_GE(getBegin(i), 0) << parts[i].name;
    EXPECT_LE(getEnd(i), 4 * total) << parts[i].name;
    for (size_t j = 0; j < i; ++j)
      EXPECT_TRUE(getEnd(i) <= getBegin(j) || getEnd(j) <= getBegin(i))
          << parts[i].name << " and " << parts[j].name;
  }
}

/// Sizes, masks and pages that have parts of their own.
template <typename Body>
void forEachCase(MLIRContext &context, const CaseKind &kind, Body body) {
  for (int64_t headDim : {1, 32, 37})
    for (int64_t twoPassKeys : {0, 4096}) {
      CaseSizes sizes{1, 1, 50, 96, headDim, 21};
      CpuCase plain(context, kind, sizes, twoPassKeys);
      body(plain);
      CpuCase masked(context, kind, sizes, twoPassKeys);
      masked.addSegments(std::vector<int64_t>(50), std::vector<int64_t>(96));
      masked.addBooleanMask(std::vector<uint8_t>(50 * 96, 1));
      body(masked);
      CpuCase paged(context, kind, sizes, twoPassKeys);
      paged.movePages(16);
      body(paged);
      CpuCase single(context, kind, sizes, twoPassKeys);
      single.dropSecondMap();
      body(single);
    }
}

TEST_P(PrefillLayoutTest, PartsOfScoringAreApartWithoutValues) {
  forEachCase(context, GetParam(), [](CpuCase &c) {
    Parts parts;
    Phase phase(c, [&](PhaseBuilder &p) {
      ScoringBuilder scoring(p, c.spec);
      parts = getScoringParts(c, scoring.s);
      for (const Part &part : parts)
        p.expose(part.address);
    });
    phase.run(0);
    expectApart(phase, parts, phase.getScratchBytes() / 4);
  });
}

TEST_P(PrefillLayoutTest, PartsOfAttentionAreApartAndWithinTheTotal) {
  forEachCase(context, GetParam(), [](CpuCase &c) {
    Parts parts;
    Phase phase(c, [&](PhaseBuilder &p) {
      ScratchParts memory(p.b, p.scratch);
      Value keys = p.b.index(c.sizes.keys);
      Value headDim = p.b.index(c.sizes.headDim);
      Value valueDim = p.b.index(c.sizes.valueDim);
      PrefillLayout s =
          layOutPrefill(memory, c.spec, {headDim, keys}, valueDim);
      parts = getScoringParts(c, s);
      addValueParts(c, s, parts);
      for (const Part &part : parts)
        p.expose(part.address);
      p.expose(memory.getTotal());
      p.expose(emitPrefillScratch(p.b, c.spec, keys, headDim, valueDim));
    });
    phase.run(0);
    const int64_t total = phase.getNumber(parts.size());
    EXPECT_EQ(phase.getNumber(parts.size() + 1), 4 * total);
    expectApart(phase, parts, total);
  });
}

// One map has no parts of a second one, nor of the combination of both.
TEST_P(PrefillLayoutTest, OneMapHasNoPartsOfTwo) {
  CpuCase c(context, GetParam(), {1, 1, 50, 96, 32, 21});
  c.dropSecondMap();
  Phase phase(c, [&](PhaseBuilder &p) {
    ScratchParts memory(p.b, p.scratch);
    PrefillLayout s = layOutPrefill(
        memory, c.spec, {p.b.index(32), p.b.index(96)}, p.b.index(21));
    for (Value part :
         {s.queries[1], s.maxima[1], s.sums[1], s.factors[1], s.history[0],
          s.history[1], s.scores[1], s.output[1], s.lambda})
      EXPECT_FALSE(part);
    EXPECT_EQ(static_cast<bool>(s.probabilities), c.spec.getAtom().pack > 1);
    EXPECT_TRUE(s.scores[0]);
    p.expose(memory.getTotal());
  });
  phase.run(0);
}

} // namespace
