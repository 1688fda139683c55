//===- GivenInputs.cpp - arguments drawn from a seed ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GivenInputs.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/IR/BuiltinTypes.h"
#include "llvm/ADT/APFloat.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::fuzz;
using interpreter::Array;

namespace {
/// SplitMix64: a few lines that give the same numbers everywhere.
class Random {
public:
  explicit Random(uint64_t seed) : state(seed) {}
  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// Near enough to a normal distribution, and never far out.
  double normal() {
    double sum = 0;
    for (int i = 0; i < 6; ++i)
      sum += uniform();
    return (sum - 3) * 1.41421356;
  }

private:
  uint64_t state;
};

double rounded(double value, FloatType type) {
  llvm::APFloat number(value);
  bool loses;
  number.convert(type.getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven,
                 &loses);
  number.convert(llvm::APFloat::IEEEdouble(),
                 llvm::APFloat::rmNearestTiesToEven, &loses);
  return number.convertToDouble();
}
} // namespace

std::vector<Case> fuzz::splitCases(StringRef file) {
  constexpr StringLiteral mark = "// seed=";
  std::vector<Case> cases;
  size_t at = file.find(mark);
  while (at != StringRef::npos) {
    size_t next = file.find(mark, at + mark.size());
    StringRef text = file.slice(at, next);
    Case one;
    SmallVector<StringRef> words;
    text.take_until([](char c) { return c == '\n'; }).split(words, ' ');
    for (StringRef word : words) {
      auto [name, value] = word.split('=');
      if (name == "seed")
        (void)!value.getAsInteger(10, one.seed);
      else if (name == "changed")
        one.isChanged = value == "1";
      else if (name == "inputs")
        one.inputs = value.str();
      else if (name == "dump")
        one.dump = value.str();
    }
    one.text = text;
    cases.push_back(one);
    at = next;
  }
  return cases;
}

llvm::Expected<std::vector<Array>> fuzz::drawInputs(const Case &given,
                                                    MLIRContext *context) {
  std::vector<Array> arrays;
  SmallVector<StringRef> parts;
  StringRef(given.inputs).split(parts, ',', -1, /*KeepEmpty=*/false);
  for (auto [number, part] : llvm::enumerate(parts)) {
    auto [values, shape] = part.split('@');
    SmallVector<StringRef> words;
    shape.split(words, 'x');
    SmallVector<int64_t> sizes;
    for (StringRef word : ArrayRef(words).drop_back()) {
      int64_t size;
      if (word.getAsInteger(10, size))
        return llvm::createStringError("expected sizes, but got " +
                                       shape.str());
      sizes.push_back(size);
    }
    Type type = parseType(words.back(), context);
    if (!type)
      return llvm::createStringError("expected a type, but got " + shape.str());
    auto array = Array::create(type, sizes);
    if (!array)
      return array.takeError();
    Random random(given.seed * 1000003 + number);
    SmallVector<StringRef> range;
    values.split(range, ':');
    int64_t low = 0, high = 1;
    if (range.size() == 3 &&
        (range[1].getAsInteger(10, low) || range[2].getAsInteger(10, high)))
      return llvm::createStringError("expected a range, but got " +
                                     values.str());
    for (int64_t i = 0; i < array->getNumElements(); ++i) {
      interpreter::Slot &slot = array->begin()[i];
      const bool isNormal = values == "normal";
      int64_t integer =
          low + static_cast<int64_t>(random.uniform() * double(high - low + 1));
      if (auto floats = dyn_cast<FloatType>(type))
        slot.f = isNormal ? rounded(random.normal(), floats) : double(integer);
      else
        slot.i = type.isInteger(1) ? -integer : integer; // i1 is signed
    }
    arrays.push_back(*array);
  }
  return arrays;
}
