//===- GradientsCase.h - gradients of products on the simulator -*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_GPU_GRADIENTSCASE_H
#define DIFFATTN_UNITTESTS_GPU_GRADIENTSCASE_H

#include "KernelRun.h"

#include "DiffAttn/Testing/Reference/AttentionBackward.h"

#include <optional>

namespace mlir::diffattn {

/// A call of both kernels of products, and the schedule of these.
struct GradientsCase {
  std::string name;
  reference::Element type = reference::Element::BF16,
                     result = reference::Element::BF16;
  int64_t d = 64, dv = 128, maps = 2;
  bool sharedKeys = false;
  /// `keyHeads` of K1, K2 and V each.
  int64_t batches = 1, signal = 1, noise = 1, keyHeads = 1, queries = 40,
          keys = 75;
  int64_t left = -1, right = -1;
  double scale = 0.17, softcap = 0.0;
  /// [B,Tq,Hs], else one number.
  bool lambdaOfQueries = false, sigmoid = false;
  bool bias = false, segments = false;
  /// A number for each batch, or packed sequence; empty: not given.
  std::vector<int64_t> kvLen, qOffset;
  /// Queries and keys of each packed sequence, whose sums `queries` and `keys`
  /// are; empty: there are batches.
  std::vector<int64_t> queryLengths, keyLengths;
  /// Elements between neighbours.
  int64_t step = 1;
  int64_t keyWarps = 4, qBlockSize = 32, queryWarps = 4, kvBlockSize = 32,
          stages = 2;
  /// On sm_90a, of kernels by warpgroups; 0: those of the numbers above.
  int64_t wgmmaQBlockSize = 0, wgmmaQStages = 0, wgmmaKvBlockSize = 0,
          wgmmaKvStages = 0;
  bool isWgmma() const { return wgmmaQBlockSize || wgmmaKvBlockSize; }
};

inline std::ostream &operator<<(std::ostream &os, const GradientsCase &c) {
  return os << c.name;
}

/// `c` with packed sequences of these numbers of queries and keys.
GradientsCase packSequences(GradientsCase c, std::vector<int64_t> queries,
                            std::vector<int64_t> keys);

/// The results of both kernels, and the faults of their launches.
struct Gradients {
  std::map<std::string, std::vector<double>> values;
  uint64_t mmaFlops = 0, conflicts = 0;
  std::vector<sim::LaunchReport> reports;
  bool isClean() const;
  bool has(llvm::ArrayRef<sim::FaultKind> kinds) const;
  /// Text of the reports.
  std::string str() const;
};

/// Both kernels of a case, on operands that are drawn. dX is d_out, as without
/// norm, gate and scale of the output, and its row sums are those of f64.
class GradientsRun : public KernelRun {
public:
  explicit GradientsRun(const GradientsCase &c);

  /// With `alone`, that kernel without the other one, whose gradients stay NaN.
  Gradients run(const sim::SimOptions &options,
                std::optional<GpuKernelKind> alone = std::nullopt);
  /// The largest error in units of the bound, of gradients that a kernel of the
  /// run stores.
  double worst(const Gradients &gradients) const;
  /// One of the kernels.
  const GpuKernelSpec &getSpec(GpuKernelKind kind) const {
    return kind == GpuKernelKind::GradientKeys ? keys : queries;
  }

private:
  void draw();
  /// Computes the gradients, and what the kernels take of the forward pass and
  /// of rows of gradients.
  void computeExpected();
  void compile();
  /// Adds to `result` what a launch tells.
  void launch(const GpuKernelSpec &spec, sim::Dim3 grid,
              const sim::SimOptions &options, Gradients &result);
  std::vector<std::string> getGradients() const {
    std::vector<std::string> names = {"d_q1", "d_k1", "d_v"};
    if (c.maps == 2)
      names.emplace_back("d_q2");
    if (c.maps == 2 && !c.sharedKeys)
      names.emplace_back("d_k2");
    return names;
  }

  const GradientsCase c;
  reference::AttentionArguments arguments;
  double scoreMagnitude = 0.0;
  /// d_k1 is the sum over both maps where they share keys.
  reference::AttentionGradients expected;
  GpuKernelSpec keys, queries;
};

/// Expects gradients within the bound of f64, no fault, and the same bits in
/// another order of threads, blocks and copies.
void expectOracleValues(const GradientsCase &c);

/// Cases whose products `expectProducts` counts, of two K and of one.
std::vector<GradientsCase> getCountedCases();
/// Expects that no product is made twice: in units of 2 Nq Nk d they are 14 of
/// two maps with dv = 2 d, 11 of one K and 7 of one map with dv = d.
void expectProducts(const GradientsCase &c);
} // namespace mlir::diffattn

#endif // DIFFATTN_UNITTESTS_GPU_GRADIENTSCASE_H
