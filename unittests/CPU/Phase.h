//===- Phase.h - a phase of a CPU kernel, compiled and run ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_CPU_PHASE_H
#define DIFFATTN_UNITTESTS_CPU_PHASE_H

#include "CpuCase.h"
#include "PrefillValues.h"

#include "mlir/ExecutionEngine/ExecutionEngine.h"

namespace mlir::diffattn {

/// The function of a phase while it is emitted.
struct PhaseBuilder {
  KernelBuilder &b;
  ModuleOp module;
  /// The context of the case, the number of the item, and scratch.
  Value context, index, scratch;
  /// The address of exposed values.
  Value exposed;
  int64_t count = 0;

  /// Input `i` of the run, an i64.
  Value getInput(int64_t i) {
    return b.load(b.i64, exposed, b.i64, b.index(kInputs + i));
  }
  static constexpr int64_t kInputs = 4000;
  /// Stores an address or an i64 for the test to read, under the next number.
  void expose(Value value) { b.store(value, exposed, b.i64, b.index(count++)); }
};

/// A function made of phases of a kernel, compiled for the CPU of a case and
/// loaded. Scratch is full of NaN when it begins, as are 4 KiB on both sides of
/// it, which must stay so.
class Phase {
public:
  using Body = function_ref<void(PhaseBuilder &)>;
  Phase(CpuCase &c, Body body);

  void run(int64_t index, ArrayRef<int64_t> inputs = {});

  /// Memory that all work items share; without it each packs its own values.
  void *callMemory = nullptr;

  /// The exposed value `i` of the last run.
  template <typename T>
  T *getPointer(int64_t i) const {
    return reinterpret_cast<T *>(exposed[i]);
  }
  int64_t getNumber(int64_t i) const { return exposed[i]; }
  /// The numbers that the phase itself stored, from exposed value `i` on.
  template <typename T>
  T *getExposed(int64_t i) const {
    return reinterpret_cast<T *>(exposed.data() + i);
  }
  char *getScratch() const { return scratch; }
  size_t getScratchBytes() const { return kScratchBytes; }

private:
  static constexpr size_t kGuardBytes = 4096, kScratchBytes = 4 << 20,
                          kMaxExposed = 4096;

  CpuCase &c;
  std::vector<char> memory;
  char *scratch;
  std::vector<int64_t> exposed;
  OwningOpRef<ModuleOp> module;
  std::unique_ptr<ExecutionEngine> engine;
  void (*function)(void *context, int64_t index, void *scratch, void *exposed);
};

/// One block of queries of a head.
struct QueryBlock {
  int64_t batch, head, firstRow, rows;
};

/// Runs `phase` and `body` for each block of queries of a case.
template <typename Body>
void forEachQueryBlock(const CpuCase &c, Phase &phase, Body body,
                       ArrayRef<int64_t> inputs = {}) {
  for (int64_t batch = 0; batch < c.sizes.batch; ++batch)
    for (int64_t head = 0; head < c.sizes.heads; ++head)
      for (int64_t block = 0; block < c.getBlocks(); ++block) {
        phase.run(c.getItem(batch, head, block), inputs);
        body(QueryBlock{batch, head, block * c.spec.prefill.getQBlockSize(),
                        c.getBlockRows(block)});
      }
}

/// The parts of phases of scoring, without anything of the values.
struct ScoringBuilder : PhaseBuilder {
  ScoringBuilder(const PhaseBuilder &phase, const AttentionSpec &spec);

  const AttentionSpec &spec;
  KernelValues v;
  ScoringSizes sizes;
  PrefillItem item;
  KernelMasks masks;
  ScoringLayout s;
  KeyHeads heads;
  PrefillScoring scoring;
};

/// The parts of phases of the product with V.
struct ValuesBuilder : PhaseBuilder {
  ValuesBuilder(const PhaseBuilder &phase, const AttentionSpec &spec);

  const AttentionSpec &spec;
  KernelValues v;
  ScoringSizes sizes;
  PrefillItem item;
  KernelMasks masks;
  PrefillLayout s;
  KeyHeads keyHeads;
  ValueHead valueHead;
  PrefillScoring scoring;
  PrefillValues values;
};

/// Emits the phases before the scores of the first KV block.
KeyPartition emitBegin(PrefillScoring &scoring, const PrefillItem &item,
                       const ScoringLayout &s);

} // namespace mlir::diffattn

#endif // DIFFATTN_UNITTESTS_CPU_PHASE_H
