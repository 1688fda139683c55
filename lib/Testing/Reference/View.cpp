//===- View.cpp - strided arrays and their element types ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Testing/Reference/Attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

using namespace mlir::diffattn::reference;

int64_t mlir::diffattn::reference::byteSize(Element element) {
  switch (element) {
  case Element::F64:
  case Element::I64:
    return 8;
  case Element::F32:
    return 4;
  case Element::F16:
  case Element::BF16:
    return 2;
  case Element::Bool:
    return 1;
  }
  return 0;
}

/// Value of a binary float with `exponentBits` and `fractionBits`.
static double decode(uint32_t bits, int exponentBits, int fractionBits) {
  int bias = (1 << (exponentBits - 1)) - 1;
  uint32_t fraction = bits & ((1u << fractionBits) - 1);
  int exponent = (bits >> fractionBits) & ((1 << exponentBits) - 1);
  double sign = (bits >> (exponentBits + fractionBits)) & 1 ? -1.0 : 1.0;
  if (exponent == (1 << exponentBits) - 1)
    return fraction ? std::nan("") : sign * INFINITY;
  if (exponent == 0)
    return sign * std::ldexp(fraction, 1 - bias - fractionBits);
  // Most of what is read: the same fields, wider. A call of ldexp for each
  // element took half of the time of tests.
  constexpr int wideBias = 1023, wideFractionBits = 52;
  uint64_t wide =
      static_cast<uint64_t>(exponent - bias + wideBias) << wideFractionBits |
      static_cast<uint64_t>(fraction) << (wideFractionBits - fractionBits);
  double magnitude;
  std::memcpy(&magnitude, &wide, sizeof(magnitude));
  return sign * magnitude;
}

/// The nearest such float, ties to even.
static uint32_t encode(double value, int exponentBits, int fractionBits) {
  int bias = (1 << (exponentBits - 1)) - 1, top = (1 << exponentBits) - 1;
  uint32_t sign = std::signbit(value) ? 1u << (exponentBits + fractionBits) : 0;
  if (std::isnan(value))
    return sign | (static_cast<uint32_t>(top) << fractionBits) |
           (1u << (fractionBits - 1));
  double magnitude = std::fabs(value);
  if (magnitude == 0.0)
    return sign;
  if (std::isinf(magnitude))
    return sign | static_cast<uint32_t>(top) << fractionBits;
  int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  // Units in the last place; nearbyint rounds ties to even.
  auto units = static_cast<uint64_t>(
      std::nearbyint(std::ldexp(magnitude, fractionBits - exponent)));
  // A carry out of the fraction moves into the exponent by itself, and a
  // subnormal has its exponent field 0.
  uint64_t hidden = uint64_t(1) << fractionBits;
  uint64_t field = units < hidden ? units
                                  : (static_cast<uint64_t>(exponent + bias)
                                     << fractionBits) +
                                        units - hidden;
  return sign | static_cast<uint32_t>(std::min<uint64_t>(
                    field, static_cast<uint64_t>(top) << fractionBits));
}

double mlir::diffattn::reference::load(Element element, const void *data) {
  auto read = [&](auto value) {
    std::memcpy(&value, data, sizeof(value));
    return value;
  };
  switch (element) {
  case Element::F64:
    return read(double());
  case Element::F32:
    return read(float());
  case Element::F16:
    return decode(read(uint16_t()), 5, 10);
  case Element::BF16:
    return decode(read(uint16_t()), 8, 7);
  case Element::I64:
    return static_cast<double>(read(int64_t()));
  case Element::Bool:
    return read(uint8_t()) ? 1.0 : 0.0;
  }
  return 0.0;
}

void mlir::diffattn::reference::store(Element element, void *data,
                                      double value) {
  auto write = [&](auto stored) { std::memcpy(data, &stored, sizeof(stored)); };
  switch (element) {
  case Element::F64:
    return write(value);
  case Element::F32:
    return write(static_cast<float>(value));
  case Element::F16:
    return write(static_cast<uint16_t>(encode(value, 5, 10)));
  case Element::BF16:
    return write(static_cast<uint16_t>(encode(value, 8, 7)));
  case Element::I64:
  case Element::Bool:
    assert(false && "expected a float element");
  }
}

View::View(const void *data, Element element, std::vector<int64_t> shape)
    : data(data), element(element), sizes(std::move(shape)),
      strides(sizes.size(), 1) {
  for (int64_t axis = rank() - 2; axis >= 0; --axis)
    strides[axis] = strides[axis + 1] * sizes[axis + 1];
}

bool View::isEmpty() const {
  return std::count(sizes.begin(), sizes.end(), 0) > 0;
}

static const char *addressOf(const View &view,
                             const std::vector<int64_t> &index) {
  assert(index.size() == view.sizes.size() &&
         "expected one number for each axis");
  int64_t offset = 0;
  for (size_t axis = 0; axis < index.size(); ++axis)
    offset += index[axis] * view.strides[axis];
  return static_cast<const char *>(view.data) + offset * byteSize(view.element);
}

double View::at(const std::vector<int64_t> &index) const {
  return load(element, addressOf(*this, index));
}

int64_t View::integerAt(const std::vector<int64_t> &index) const {
  assert(element == Element::I64 && "expected integers");
  int64_t value;
  std::memcpy(&value, addressOf(*this, index), sizeof(value));
  return value;
}

View View::transposed(int64_t axis0, int64_t axis1) const {
  View view = *this;
  std::swap(view.sizes[axis0], view.sizes[axis1]);
  std::swap(view.strides[axis0], view.strides[axis1]);
  return view;
}

View View::sliced(int64_t axis, int64_t offset, int64_t count,
                  int64_t step) const {
  View view = *this;
  view.data = static_cast<const char *>(data) +
              offset * strides[axis] * byteSize(element);
  view.sizes[axis] = count;
  view.strides[axis] *= step;
  return view;
}

View View::split(int64_t axis, int64_t inner) const {
  View view = *this;
  view.sizes[axis] = sizes[axis] / inner;
  view.strides[axis] = strides[axis] * inner;
  view.sizes.insert(view.sizes.begin() + axis + 1, inner);
  view.strides.insert(view.strides.begin() + axis + 1, strides[axis]);
  return view;
}
