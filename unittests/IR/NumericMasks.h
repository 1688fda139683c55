//===- NumericMasks.h - masks computed with numbers -------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_UNITTESTS_IR_NUMERICMASKS_H
#define DIFFATTN_UNITTESTS_IR_NUMERICMASKS_H

#include "DiffAttn/IR/MaskBuilder.h"

#include "llvm/ADT/bit.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace mlir::diffattn {

/// Sizes and operands of one batch and one noise head.
struct MaskNumbers {
  int64_t queries = 0, keys = 0;
  std::optional<int64_t> kvLen, qOffset;
  /// [query][key]; of a boolean operand 0 and 1.
  std::vector<double> bias;
  bool biasIsBoolean = false;
  /// Segments of queries and of keys; both or none.
  std::vector<int64_t> qSegments, kvSegments;
};

/// The end of i64 where `x` is beyond it.
inline int64_t saturated(__int128 x) {
  constexpr int64_t lowest = std::numeric_limits<int64_t>::min(),
                    highest = std::numeric_limits<int64_t>::max();
  return x < lowest ? lowest : x > highest ? highest : static_cast<int64_t>(x);
}

/// A MaskBuilder whose values are numbers.
class NumericMasks final : public MaskBuilder {
public:
  explicit NumericMasks(const MaskNumbers &numbers) : numbers(numbers) {}

  static MaskValue number(int64_t x) {
    return MaskValue(static_cast<uint64_t>(x));
  }
  static int64_t number(MaskValue x) {
    return static_cast<int64_t>(x.getBits());
  }

  MaskValue min(MaskValue a, MaskValue b) override {
    return number(std::min(number(a), number(b)));
  }
  MaskValue max(MaskValue a, MaskValue b) override {
    return number(std::max(number(a), number(b)));
  }
  MaskValue less(MaskValue a, MaskValue b) override {
    return number(number(a) < number(b));
  }
  MaskValue equal(MaskValue a, MaskValue b) override {
    return number(number(a) == number(b));
  }
  MaskValue either(MaskValue a, MaskValue b) override {
    return number(number(a) || number(b));
  }
  MaskValue both(MaskValue a, MaskValue b) override {
    return number(number(a) && number(b));
  }
  MaskValue load(MaskOperand operand, const MaskPoint &point) override {
    if (operand == MaskOperand::QSegments)
      return number(numbers.qSegments.at(number(point.query)));
    if (operand == MaskOperand::KvSegments)
      return number(numbers.kvSegments.at(number(point.key)));
    double element =
        numbers.bias.at(number(point.query) * numbers.keys + number(point.key));
    return numbers.biasIsBoolean ? number(element != 0.0)
                                 : MaskValue(llvm::bit_cast<uint64_t>(element));
  }
  MaskValue lowest(MaskOperand operand, const MaskTile &tile) override {
    auto [first, end] = range(operand, tile);
    return number(*std::min_element(first, end));
  }
  MaskValue highest(MaskOperand operand, const MaskTile &tile) override {
    auto [first, end] = range(operand, tile);
    return number(*std::max_element(first, end));
  }
  MaskValue isNotMinusInfinity(MaskValue element) override {
    return number(llvm::bit_cast<double>(element.getBits()) !=
                  -std::numeric_limits<double>::infinity());
  }
  MaskValue length() override {
    return number(numbers.kvLen.value_or(numbers.keys));
  }
  MaskValue keyBefore(MaskValue query, int64_t left) override {
    return number(
        saturated(__int128(shifted(-__int128(left))) + number(query)));
  }
  MaskValue endAfter(MaskValue query, int64_t right) override {
    int64_t last = saturated(__int128(shifted(right)) + number(query));
    return number(saturated(__int128(last) + 1));
  }
  MaskValue isWithinLeft(const MaskPoint &point, int64_t left) override {
    return number(number(point.key) - number(point.query) >=
                  shifted(-__int128(left)));
  }
  MaskValue isWithinRight(const MaskPoint &point, int64_t right) override {
    return number(number(point.key) - number(point.query) <= shifted(right));
  }

private:
  using Iterator = std::vector<int64_t>::const_iterator;
  std::pair<Iterator, Iterator> range(MaskOperand operand,
                                      const MaskTile &tile) const {
    const std::vector<int64_t> &all = operand == MaskOperand::QSegments
                                          ? numbers.qSegments
                                          : numbers.kvSegments;
    return {all.begin() + number(tile.first),
            all.begin() + number(tile.last) + 1};
  }

  /// The position of query 0, moved.
  int64_t shifted(__int128 by) const {
    int64_t offset = numbers.qOffset.value_or(saturated(
        __int128(numbers.kvLen.value_or(numbers.keys)) - numbers.queries));
    return saturated(offset + by);
  }

  const MaskNumbers &numbers;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_UNITTESTS_IR_NUMERICMASKS_H
