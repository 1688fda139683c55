//===- CpuCase.h - an attention whose phases are tested ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_CPU_CPUCASE_H
#define DIFFATTN_UNITTESTS_CPU_CPUCASE_H

#include "AttentionSpec.h"

#include "DiffAttn/Testing/Reference/Attention.h"

#include "gtest/gtest.h"

#include <random>

namespace mlir::diffattn {

/// An array [batch][head][row][column] of f32, or of bf16, whose numbers it
/// holds exactly.
class Tensor {
public:
  Tensor() = default;
  Tensor(Type element, std::array<int64_t, 4> sizes)
      : element(element), sizes(sizes),
        bytes(sizes[0] * sizes[1] * sizes[2] * sizes[3] * getBytes()) {}

  void set(std::array<int64_t, 4> at, float value);
  float get(std::array<int64_t, 4> at) const;
  void *getData() { return bytes.data(); }
  reference::View getView() const;
  /// Fills it with eighths in [-2, 2].
  void fill(std::mt19937 &random);

  Type element;
  std::array<int64_t, 4> sizes = {};

private:
  int64_t getBytes() const { return element.getIntOrFloatBitWidth() / 8; }
  int64_t getOffset(std::array<int64_t, 4> at) const;

  std::vector<uint8_t> bytes;
};

/// Number `i` of those at `numbers`, which are bf16 or f32.
float readNumber(const char *numbers, int64_t i, bool isBf16);

struct CaseSizes {
  int64_t batch = 1, heads = 1, queries = 1, keys = 1, headDim = 1,
          valueDim = 1;
};

/// A CPU and a type of operands.
struct CaseKind {
  std::string target;
  bool isBf16 = false;

  std::string getName() const;
};

/// Kinds that this machine can run, whatever it is: tiles are emulated.
std::vector<CaseKind> getCaseKinds();

/// Operands in memory of an attention with as many heads of each operand, and
/// the spec that kernels are made from. Keys are cut into KV blocks of
/// `kKvBlockSize`.
class CpuCase {
public:
  static constexpr int64_t kKvBlockSize = 32;

  CpuCase(MLIRContext &context, const CaseKind &kind, const CaseSizes &sizes,
          int64_t twoPassKeys = 1 << 20);

  // Masks; each adds to those that there are.
  void addWindow(int64_t left, int64_t right);
  void addKvLength(std::vector<int64_t> lengths);
  void addSegments(std::vector<int64_t> ofQueries, std::vector<int64_t> ofKeys);
  /// [batch][1][query][key], for all heads.
  void addBooleanMask(std::vector<uint8_t> flags);
  void addBias(Tensor bias);
  void setSoftcap(float softcap) {
    spec.scores.softcap = softcap;
    arguments.softcap = softcap;
  }
  void setLambda(Tensor lambda, bool isSigmoid);
  /// Results go to `output`, which must stay.
  void setOutput(Tensor &output) { spec.output = bind(output); }
  /// Leaves the first map alone.
  void dropSecondMap() {
    spec.q2 = spec.k2 = spec.lambda = SpecOperand();
    arguments.q2 = arguments.k2 = arguments.lambda = {};
  }
  /// Has sizes read from the context, which kernels do not know.
  void forgetSizes();
  /// Moves keys and values into pages of `rows`, in an order of their own.
  void movePages(int64_t rows);

  /// The operands as the reference takes them, with dense keys and values.
  const reference::AttentionArguments &getArguments() const {
    return arguments;
  }
  /// Whether the query sees the key.
  bool isVisible(int64_t batch, int64_t query, int64_t key) const;
  /// Whether it is by positions and the number of keys.
  bool isInRange(int64_t batch, int64_t query, int64_t key) const;

  /// The work item of a block of queries.
  int64_t getItem(int64_t batch, int64_t head, int64_t block) const;
  int64_t getBlocks() const;
  int64_t getBlockRows(int64_t block) const;

  CaseSizes sizes;
  Tensor q[2], k[2], v;
  AttentionSpec spec;
  CpuTarget target;
  std::vector<int64_t> context;

private:
  SpecOperand bind(Tensor &tensor);
  void bindIntegers(MaskOperand operand, std::vector<int64_t> &integers,
                    int64_t batchStride);
  int64_t addSlot(void *address);
  template <typename Mask, typename... Parameters>
  void addMask(Parameters... parameters) {
    spec.scores.masks.push_back(cast<MaskAttrInterface>(
        Attribute(Mask::get(&mlirContext, parameters...))));
  }

  MLIRContext &mlirContext;
  /// All operands, and those without segments and bias.
  reference::AttentionArguments arguments, positions;
  std::vector<int64_t> lengths, segments[2], table;
  std::vector<uint8_t> flags;
  Tensor lambda, bias, pages[3];
};

/// A context with the dialects of phases.
class CpuPhaseTest : public ::testing::TestWithParam<CaseKind> {
protected:
  CpuPhaseTest();

  MLIRContext context;
  std::mt19937 random{1};
};

} // namespace mlir::diffattn

#endif // DIFFATTN_UNITTESTS_CPU_CPUCASE_H
