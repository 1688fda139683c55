//===- Overlap.cpp - arrays that share memory -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Overlap.h"

#include <algorithm>
#include <numeric>

using namespace diffattn_rt;

namespace {
/// The type of sums of products of strides and counts, which 64 bits do not
/// hold.
using Wide = __int128;

/// `stride * x` for an x from 0 to `last`.
struct Term {
  int64_t stride;
  Wide last;
};

/// The bytes of an array: `first` plus one number of each term.
struct Bytes {
  Wide first;
  std::vector<Term> terms;
  Wide reach = 0; // from the first byte to the last
};

/// Whether `sum` is a sum of one number of each term.
class SumSearch {
public:
  explicit SumSearch(std::vector<Term> given) : terms(std::move(given)) {
    std::sort(terms.begin(), terms.end(),
              [](const Term &a, const Term &b) { return a.stride > b.stride; });
    size_t last = 0;
    for (size_t i = 1; i < terms.size(); ++i) {
      if (terms[i].stride == terms[last].stride)
        terms[last].last += terms[i].last;
      else
        terms[++last] = terms[i];
    }
    terms.resize(std::min(terms.size(), last + 1));
    below.resize(terms.size() + 1, 0);
    divisors.resize(terms.size() + 1, 0);
    for (size_t i = terms.size(); i-- > 0;) {
      below[i] = below[i + 1] + terms[i].stride * terms[i].last;
      divisors[i] = std::gcd(divisors[i + 1], terms[i].stride);
    }
  }

  bool finds(Wide sum, size_t from = 0) {
    if (sum < 0 || sum > below[from])
      return false;
    if (from == terms.size())
      return sum == 0;
    if (sum % divisors[from] != 0)
      return false;
    if (++steps > kMaxSteps)
      return true;
    const auto [stride, last] = terms[from];
    Wide least = 0;
    if (sum > below[from + 1])
      least = (sum - below[from + 1] + stride - 1) / stride;
    const Wide most = std::min(last, sum / stride);
    for (Wide x = most; x >= least; --x)
      if (finds(sum - x * stride, from + 1))
        return true;
    return false;
  }

private:
  static constexpr int kMaxSteps = 100'000;

  std::vector<Term> terms;
  std::vector<Wide> below;       // what terms from here on reach
  std::vector<int64_t> divisors; // of all of them
  int steps = 0;
};
} // namespace

static Bytes bytesOf(const ArrayView &array) {
  Bytes bytes{static_cast<Wide>(reinterpret_cast<uintptr_t>(array.data)), {}};
  const int64_t element = getDTypeBytes(array.dtype);
  int64_t dense = 1;
  for (size_t axis = array.shape.size(); axis-- > 0;) {
    const int64_t size = array.shape[axis];
    int64_t stride = array.strides ? (*array.strides)[axis] : dense;
    if (!array.strides) // else sizes may be those of no memory
      dense *= size;
    if (size < 2 || stride == 0)
      continue; // a stride that leads nowhere may be any number
    stride *= element;
    if (stride < 0) {
      bytes.first += Wide(stride) * (size - 1);
      stride = -stride;
    }
    bytes.terms.push_back({stride, size - 1});
  }
  if (element > 1)
    bytes.terms.push_back({1, element - 1});
  for (const Term &term : bytes.terms)
    bytes.reach += term.stride * term.last;
  return bytes;
}

bool diffattn_rt::shareMemory(const ArrayView &a, const ArrayView &b) {
  if (isEmpty(a) || isEmpty(b))
    return false;
  Bytes x = bytesOf(a);
  const Bytes y = bytesOf(b);
  // x.first + X = y.first + Y, where y.reach - Y is again such a sum.
  const Wide sum = y.first - x.first + y.reach;
  x.terms.insert(x.terms.end(), y.terms.begin(), y.terms.end());
  return SumSearch(std::move(x.terms)).finds(sum);
}

bool diffattn_rt::repeatsElements(const ArrayView &array) {
  if (isEmpty(array) || !array.strides)
    return false;
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (size_t axis = 0; axis < array.shape.size(); ++axis)
    if (array.shape[axis] > 1)
      steps.push_back(
          {std::abs((*array.strides)[axis]), array.shape[axis] - 1});
  std::sort(steps.begin(), steps.end());
  Wide reach = 1;
  for (auto [step, last] : steps) {
    if (step < reach)
      return true;
    reach += Wide(step) * last;
  }
  return false;
}
