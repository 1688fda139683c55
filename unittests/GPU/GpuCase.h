//===- GpuCase.h - one attention op on the simulator ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_GPU_GPUCASE_H
#define DIFFATTN_UNITTESTS_GPU_GPUCASE_H

#include "HostEvaluator.h"

#include "DiffAttn/Schedule/GpuSchedule.h"
#include "DiffAttn/Target/GpuTarget.h"
#include "DiffAttn/Testing/Reference/Attention.h"
#include "DiffAttn/Testing/Simulator/Simulator.h"

#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"

#include "llvm/ADT/Hashing.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/raw_ostream.h"

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>

namespace mlir::diffattn {

/// The properties of a case that are fixed when its kernel is compiled.
struct Signature {
  std::string type = "bf16";
  /// Element type of the result; empty: `type`.
  std::string result;
  int64_t d = 64, dv = 128;
  /// 1: without q2, k2 and lambda, and `noise` is `signal`.
  int64_t maps = 2;
  int64_t signal = 1, noise = 1, key1 = 1, key2 = 1, value = 1;
  /// Static number of queries; 0 if dynamic.
  int64_t queries = 0;
  bool causal = false;
  int64_t left = -1, right = -1;
  double scale = 0.17, softcap = 0.0;
  /// Empty, or i1, f32 or `type`.
  std::string bias, weight;
  bool gate = false, kvLen = false, qOffset = false, rms = false,
       epsOutside = false;
  /// Keys and values at or behind kvLen are NaN.
  bool nanBehind = false;
  /// Whether the op has segments, whose numbers are i64.
  bool segments = false;
  /// Sequences that follow one another, and keys in pages (with kv_len, and
  /// instead of packed keys); tables are i64.
  bool packed = false, paged = false;
  /// 0: scalar, 1: signal heads, 2: tokens and signal heads, 3: tokens and
  /// noise heads.
  int lambda = 0;
  bool sigmoid = false;
  double outScale = 1.0;
  bool bthd = false, sharedKeys = false;
  /// Innermost stride of Q, K, V and O.
  int64_t step = 1;
  /// Body of #diffattn.gpu_forward, or the schedules; empty for the pass's
  /// choice.
  std::string schedule;
  std::string chip = "sm_80";
};

/// Heads of `d` and `dv` on sm_90a, with a norm and its weight.
inline Signature onHopper(int64_t d, int64_t dv) {
  Signature s;
  s.chip = "sm_90a";
  s.d = d;
  s.dv = dv;
  s.rms = true;
  s.weight = s.type;
  return s;
}

/// As `onHopper`, with the schedule of `row`, and another one for operands that
/// tensor maps cannot describe.
inline Signature ofRow(const GpuWgmmaRow &row) {
  Signature s = onHopper(row.headDim, row.valueDim);
  s.maps = row.maps;
  s.sharedKeys = row.sharedKeys;
  MLIRContext context(MLIRContext::Threading::DISABLED);
  context.loadDialect<DiffAttnDialect>();
  llvm::raw_string_ostream(s.schedule)
      << "#diffattn.when<tensor_maps = true : "
      << Attribute(row.getSchedule(&context))
      << ">, #diffattn.gpu_forward<placement = "
      << (row.maps == 1 ? "both, warps = 4" : "pair, warps = 8")
      << ", kv_block_size = 16, stages = 2>";
  return s;
}

/// As `ofRow`, with `blocks` persistent blocks that share out the tiles of
/// queries.
inline Signature ofPersistent(GpuWgmmaRow row, int64_t blocks) {
  row.persistentBlocks = blocks;
  return ofRow(row);
}

/// The rows of the table, with a block for each tile of queries.
inline std::vector<GpuWgmmaRow> getWgmmaRowsOfBlocks() {
  std::vector<GpuWgmmaRow> rows = getGpuWgmmaTable().vec();
  for (GpuWgmmaRow &row : rows)
    row.persistentBlocks = 0;
  return rows;
}

struct Shape {
  int64_t batch = 1, queries = 16, keys = 32;
  /// 1 for a broadcast axis.
  bool biasBatch = false, biasHeads = true, biasQueries = true;
  /// Elements behind each row of the bias.
  int64_t biasPad = 1;
  /// Elements between rows of Q, K, V and O, for addresses that are far apart.
  int64_t gap = 0;
  /// Each key has so much more in every column than the one before it: scores
  /// of some rows then grow from tile to tile, and those of others fall.
  double growth = 0.0;
  /// kv_len of each batch; drawn if it is negative.
  int64_t length = -1;
  /// Queries and keys of each sequence; without packed queries, keys alone.
  /// `batch`, `queries` and, without pages, `keys` are not read then. With
  /// pages, `keys` is the capacity of a row of the table, a multiple of
  /// `pageRows`; keys and values outside all sequences are NaN.
  std::vector<int64_t> queryLengths = {}, keyLengths = {};
  int64_t pageRows = 16;
  /// Whether entries of the table that keys need are out of range.
  bool wrongPages = false;
  /// The factor of each drawn element of V, by its key.
  std::function<double(int64_t)> valueSize = {};
  /// The segment of each query and key.
  std::function<int64_t(int64_t)> ofQuery = {}, ofKey = {};
  /// Boxes of the `wrongMap`-th map that the run makes, from 0, have so many
  /// rows more than they should.
  int64_t wrongMap = -1, moreRows = 0;
};

/// The results of a run, and the reference's.
struct Outcome {
  /// The report of the first launch with a fault, else of the last one.
  sim::LaunchReport report;
  /// Counts of every launch, in order.
  std::vector<sim::LaunchStats> stats;
  reference::AttentionResult expected;
  std::vector<double> output;
  /// Parts of the allowed error: relative to M; to N, for weights in the
  /// operands' type; and absolute, for the result.
  double bound = 0.0, weightStep = 0.0, resultStep = 0.0;
  std::string kernels;
  /// The number of tensor maps that were made.
  int64_t maps = 0;
  /// Processor time of the launches.
  double seconds = 0.0;
  /// The largest error in units of the bound, infinite with a NaN or an
  /// untouched element.
  double worst() const;
};

/// One compiled signature.
class CompiledCase {
public:
  explicit CompiledCase(const Signature &signature);
  ~CompiledCase();
  /// Runs the kernels. Without `compare` the expected result is not computed,
  /// which takes longer than to find a fault.
  Outcome run(const Shape &shape, unsigned seed,
              const sim::SimOptions &options = {}, bool compare = true);
  const Signature &getSignature() const { return signature; }
  /// The kernels of the last run as they go to NVPTX, alone.
  const llvm::Module &getKernels() const { return *running->module; }
  /// Runs `module` in the place of all kernels from now on.
  void replaceKernels(const llvm::Module &module);
  /// Makes the host fill no memory, or counters begin with `number`, from now
  /// on.
  void dropFills() { dropsFills = true; }
  void beginAt(uint32_t number) { counter = number; }

private:
  /// Kernels that are launched together: an op has more of them than a test
  /// runs, and compiling takes the most time.
  struct Prepared {
    std::unique_ptr<llvm::Module> module;
    std::unique_ptr<sim::Simulator> simulator;
  };
  std::string text() const;
  void prepare(llvm::ArrayRef<DeviceMemref> arguments);
  Signature signature;
  std::unique_ptr<MLIRContext> context;
  OwningOpRef<ModuleOp> module;
  std::unique_ptr<llvm::LLVMContext> llvmContext;
  std::unique_ptr<llvm::Module> kernels; // before optimization
  GpuTarget target;
  sim::SimChip chip;
  std::map<std::string, Prepared> prepared;
  Prepared replaced;
  Prepared *running = nullptr;
  bool dropsFills = false;
  std::optional<uint32_t> counter;
  /// Hash of the operands whose reference result is `expected`.
  std::optional<llvm::hash_code> expectedOf;
  reference::AttentionResult expected;
};

/// Whether `shows` holds for some order of threads, with copies landing late or
/// early; traffic is not counted.
bool isShownInSomeOrder(
    llvm::function_ref<bool(const sim::SimOptions &)> shows);

/// Runs `shapes` under several orders of threads, with copies landing late and
/// early, and expects no fault, no bank conflict, and results in the bound.
void expectRight(const Signature &signature, const std::vector<Shape> &shapes);

} // namespace mlir::diffattn

#endif // DIFFATTN_UNITTESTS_GPU_GPUCASE_H
