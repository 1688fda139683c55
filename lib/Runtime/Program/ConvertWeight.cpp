//===- ConvertWeight.cpp - weights in the order and type declared ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/ConvertWeight.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Program/Elements.h"
#include "DiffAttn/Runtime/Support/Printable.h"
#include "DiffAttn/Runtime/Support/Rounding.h"

#include <cmath>
#include <cstring>

using namespace diffattn_rt;

namespace {

/// The rearrangement of the file's rows: element [r, c] of the result is
/// element [r', c] of the file's, or [c, r'] with `transpose`.
struct Rearranged {
  const char *from;
  DType fromType;
  const WeightDeclaration &declared;
  void *to;
  int64_t rows, columns;

  int64_t sourceRow(int64_t row) const {
    if (!declared.rowBlockSize)
      return row;
    int64_t block = declared.rowBlocks[row / declared.rowBlockSize];
    return block * declared.rowBlockSize + row % declared.rowBlockSize;
  }

  /// First element of the file's that row `row` takes, and the step to the
  /// next.
  std::pair<int64_t, int64_t> rowStart(int64_t row) const {
    int64_t source = sourceRow(row);
    return declared.transpose ? std::pair(source, rows)
                              : std::pair(source * columns, int64_t(1));
  }

  void copyRow(int64_t row) const {
    auto [first, step] = rowStart(row);
    int64_t bytes = getDTypeBytes(declared.dtype);
    char *out = static_cast<char *>(to) + row * columns * bytes;
    if (step == 1) {
      memcpy(out, from + first * bytes, columns * bytes);
      return;
    }
    for (int64_t c = 0; c < columns; ++c)
      memcpy(out + c * bytes, from + (first + c * step) * bytes, bytes);
  }

  template <typename From, typename To>
  void convertRow(int64_t row) const {
    auto [first, step] = rowStart(row);
    for (int64_t c = 0; c < columns; ++c) {
      From element;
      memcpy(&element, from + (first + c * step) * sizeof(From), sizeof(From));
      To converted = To::fromWide(element.toWide());
      memcpy(static_cast<char *>(to) + (row * columns + c) * sizeof(To),
             &converted, sizeof(To));
    }
  }
};

// Element types by how they become a wider number and come back, rounded once.
struct F64 {
  double value;
  double toWide() const { return value; }
  static F64 fromWide(double wide) { return {wide}; }
};
struct F32 {
  float value;
  float toWide() const { return value; }
  static F32 fromWide(double wide) { return {static_cast<float>(wide)}; }
};
struct F16 {
  _Float16 value;
  float toWide() const { return static_cast<float>(value); }
  static F16 fromWide(float wide) { return {static_cast<_Float16>(wide)}; }
  static F16 fromWide(double wide) { return {static_cast<_Float16>(wide)}; }
};
struct BF16 {
  uint16_t bits;
  float toWide() const {
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  static BF16 fromWide(float wide) { return {diffattn_rt::toBFloat(wide)}; }
  static BF16 fromWide(double wide) {
    return {diffattn_rt::toBFloat(diffattn_rt::toOdd(wide))};
  }
};

using RowFunction = void (Rearranged::*)(int64_t) const;

template <typename From>
RowFunction chooseTo(DType to) {
  switch (to) {
  case DIFFATTN_F64:
    return &Rearranged::convertRow<From, F64>;
  case DIFFATTN_F32:
    return &Rearranged::convertRow<From, F32>;
  case DIFFATTN_F16:
    return &Rearranged::convertRow<From, F16>;
  default:
    return &Rearranged::convertRow<From, BF16>;
  }
}

RowFunction chooseRowFunction(DType from, DType to) {
  if (from == to)
    return &Rearranged::copyRow;
  switch (from) {
  case DIFFATTN_F64:
    return chooseTo<F64>(to);
  case DIFFATTN_F32:
    return chooseTo<F32>(to);
  case DIFFATTN_F16:
    return chooseTo<F16>(to);
  default:
    return chooseTo<BF16>(to);
  }
}

/// Converts all rows of one weight, on all threads.
void convertRows(Rearranged rearranged) {
  struct Work {
    Rearranged rearranged;
    RowFunction row;
  } work{rearranged,
         chooseRowFunction(rearranged.fromType, rearranged.declared.dtype)};
  // A model has hundreds of vectors, and waking the threads for each would take
  // longer than to convert it.
  constexpr int64_t kOneThread = 1 << 20;
  int64_t bytes = rearranged.rows * rearranged.columns *
                  getDTypeBytes(rearranged.declared.dtype);
  diffattn_rt_parallel_for(
      [](void *ctx, int64_t row, void *) {
        auto &work = *static_cast<Work *>(ctx);
        (work.rearranged.*work.row)(row);
      },
      &work, rearranged.rows, /*scratch_bytes=*/0, kOneThread >= bytes ? 1 : 0);
}

/// The first NaN or infinity of the rows in `data`, as it is to be read.
Failure checkFinite(const WeightDeclaration &declared, const std::string &name,
                    const void *data, int64_t rows, int64_t columns) {
  for (int64_t e = 0; e < rows * columns; ++e) {
    double value = readElement(data, declared.dtype, e);
    if (std::isfinite(value))
      continue;
    return {ErrorClass::Weights, "weight '" + printable(name) +
                                     "': expected finite numbers, but got " +
                                     (std::isnan(value) ? "nan"
                                      : value > 0       ? "inf"
                                                        : "-inf") +
                                     " in row " + std::to_string(e / columns) +
                                     ", column " + std::to_string(e % columns)};
  }
  return {};
}

/// Puts the weight in the order and type declared; a copy is added to `owned`.
Failure arrange(const WeightDeclaration &declared, const WeightSource &source,
                diffattn_weight &slot, std::vector<HostArray> &owned) {
  // Compiled code and the products read whole elements where they lie. In a
  // file they may lie anywhere: its header has any length.
  bool isAligned = reinterpret_cast<uintptr_t>(source.data) %
                       getDTypeBytes(declared.dtype) ==
                   0;
  bool asIs = isAligned && source.dtype == declared.dtype &&
              !declared.transpose && !declared.rowBlockSize &&
              declared.dtype != DIFFATTN_BOOL;
  if (asIs)
    return {};
  HostArray copy;
  if (Failure failure = copy.allocate(declared.dtype, declared.shape))
    return failure;
  convertRows({source.data, source.dtype, declared, copy.data.get(), slot.rows,
               slot.cols});
  if (declared.dtype == DIFFATTN_BOOL)
    for (int64_t e = 0; e < copy.getNumBytes(); ++e)
      copy.data.get()[e] = copy.data.get()[e] != 0;
  slot.data = copy.data.get();
  owned.push_back(std::move(copy));
  return {};
}

} // namespace

bool diffattn_rt::canConvertWeight(DType from, DType to) {
  return from == to || (isFloatDType(from) && isFloatDType(to));
}

Failure diffattn_rt::convertWeight(const WeightDeclaration &declared,
                                   const WeightSource &source,
                                   diffattn_weight &slot,
                                   std::vector<HostArray> &owned) {
  int64_t rows = declared.shape.empty() ? 1 : declared.shape[0], columns = 1;
  for (size_t axis = 1; axis < declared.shape.size(); ++axis)
    columns *= declared.shape[axis];
  // A vector is read where it lies, also by a product that takes it for a
  // matrix: bindings need not bind it anew where its elements change.
  int32_t flags = declared.shape.size() < 2 ? DIFFATTN_WEIGHT_NO_PACK : 0;
  slot = {const_cast<char *>(source.data),
          nullptr,
          rows,
          columns,
          declared.dtype,
          flags};
  if (Failure failure = arrange(declared, source, slot, owned))
    return failure;
  return declared.finite
             ? checkFinite(declared, source.name, slot.data, rows, columns)
             : Failure();
}

Failure diffattn_rt::stoppedAfter(int64_t done, int64_t total) {
  return {ErrorClass::Run, "expected to bind all weights, but was told to stop "
                           "after " +
                               std::to_string(done) + " of " +
                               std::to_string(total) + " bytes"};
}
