//===- Compare.cpp - results against what is expected ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Compare.h"

#include "DiffAttn/Compiler/Oracle.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Program/Elements.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>

using namespace mlir::diffattn;
using namespace diffattn_rt;

static int64_t countElements(llvm::ArrayRef<int64_t> shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    count *= size;
  return count;
}

DType mlir::diffattn::getCoarsestType(llvm::ArrayRef<DType> types) {
  for (DType coarse : {DIFFATTN_BF16, DIFFATTN_F16})
    if (llvm::is_contained(types, coarse))
      return coarse;
  return DIFFATTN_F32;
}

/// Tolerance for one rounding to the type and a different order of sums.
/// Numbers that are computed from a coarser type are rounded to it on the way.
static Tolerance resolve(Tolerance tolerance, DType dtype) {
  const DType coarsest = getCoarsestType({dtype, tolerance.computedFrom});
  double defaults[2] = {1e-5, 1e-4};
  if (!isFloatDType(dtype))
    defaults[0] = defaults[1] = 0;
  else if (coarsest == DIFFATTN_F16)
    defaults[0] = defaults[1] = 1e-3;
  else if (coarsest == DIFFATTN_BF16)
    defaults[0] = defaults[1] = 1e-2;
  if (tolerance.rtol < 0)
    tolerance.rtol = defaults[0];
  if (tolerance.atol < 0)
    tolerance.atol = defaults[1];
  return tolerance;
}

llvm::Expected<Comparison> mlir::diffattn::compareArrays(llvm::StringRef name,
                                                         DenseView got,
                                                         DenseView expected,
                                                         Tolerance tolerance) {
  if (got.dtype != expected.dtype || got.shape != expected.shape)
    return makeError(ErrorClass::Input,
                     name + ": expected values of " +
                         describeType(got.shape, got.dtype) +
                         " to compare with, but got " +
                         describeType(expected.shape, expected.dtype));
  Tolerance limits = resolve(tolerance, got.dtype);
  int64_t wrong = 0, worst = -1, count = countElements(got.shape);
  double worstExcess = -1, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    double g = readElement(got.data, got.dtype, i);
    double e = readElement(expected.data, expected.dtype, i);
    bool same = g == e || (std::isnan(g) && std::isnan(e));
    double difference = same ? 0 : std::fabs(g - e);
    double excess = difference - (limits.atol + limits.rtol * std::fabs(e));
    // A NaN or infinity on one side alone compares false and is the worst.
    if (!same && !(excess <= 0)) {
      ++wrong;
      if (!std::isfinite(excess))
        excess = INFINITY;
    }
    if (std::isfinite(difference))
      largest = std::max(largest, difference);
    if (excess > worstExcess || worst < 0) {
      worstExcess = excess;
      worst = i;
    }
  }
  Comparison result;
  result.matches = wrong == 0;
  llvm::raw_string_ostream os(result.text);
  os << name << ": ";
  if (result.matches) {
    os << "matches, largest difference " << llvm::format("%.3g", largest)
       << " (rtol " << llvm::format("%g", limits.rtol) << ", atol "
       << llvm::format("%g", limits.atol) << ")";
    return result;
  }
  os << wrong << " of " << count << " elements differ; at "
     << formatIndex(worst, got.shape) << " expected "
     << llvm::format("%.9g", readElement(expected.data, got.dtype, worst))
     << ", but got "
     << llvm::format("%.9g", readElement(got.data, got.dtype, worst))
     << " (rtol " << llvm::format("%g", limits.rtol) << ", atol "
     << llvm::format("%g", limits.atol) << ")";
  return result;
}

/// Integers as they are, which a double may not hold.
static void writeElement(llvm::raw_ostream &os, DenseView array, int64_t i) {
  if (array.dtype == DIFFATTN_I64)
    os << static_cast<const int64_t *>(array.data)[i];
  else
    os << llvm::format(isFloatDType(array.dtype) ? "%.6g" : "%.0f",
                       readElement(array.data, array.dtype, i));
}

std::string mlir::diffattn::summarizeArray(DenseView array) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << describeType(array.shape, array.dtype);
  int64_t count = countElements(array.shape), nans = 0, numbers = 0;
  double low = INFINITY, high = -INFINITY, sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    double value = readElement(array.data, array.dtype, i);
    if (std::isnan(value)) {
      ++nans;
      continue;
    }
    low = std::min(low, value);
    high = std::max(high, value);
    sum += value;
    ++numbers;
  }
  const char *format = isFloatDType(array.dtype) ? "%.6g" : "%.0f";
  if (numbers > 1)
    os << ", " << llvm::format(format, low) << " to "
       << llvm::format(format, high) << ", mean "
       << llvm::format("%.6g", sum / static_cast<double>(numbers));
  if (nans)
    os << ", " << nans << " NaN";
  os << ": [";
  constexpr int64_t kShown = 8;
  for (int64_t i = 0; i < std::min(count, kShown); ++i)
    writeElement(os << (i ? ", " : ""), array, i);
  os << (count > kShown ? ", ...]" : "]");
  return text;
}
