//===- BindWeights.cpp - weights by name, in the order and type declared --===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Execution/Program.h"
#include "DiffAttn/Runtime/Runtime.h"

#include "llvm/ADT/StringExtras.h"

#include <cstring>

using namespace mlir;
using namespace mlir::diffattn;
using llvm::Twine;

namespace {

/// How the rows of a weight come out of the file's: element [r, c] of the
/// result is element [r', c] of the file's, or [c, r'] with `transpose`.
struct Rearranged {
  const FileTensor &from;
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
      memcpy(out, from.data + first * bytes, columns * bytes);
      return;
    }
    for (int64_t c = 0; c < columns; ++c)
      memcpy(out + c * bytes, from.data + (first + c * step) * bytes, bytes);
  }

  template <typename From, typename To>
  void convertRow(int64_t row) const {
    auto [first, step] = rowStart(row);
    for (int64_t c = 0; c < columns; ++c) {
      From element;
      memcpy(&element, from.data + (first + c * step) * sizeof(From),
             sizeof(From));
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
  static BF16 fromWide(float wide) {
    uint32_t all;
    memcpy(&all, &wide, sizeof all);
    if (wide != wide)
      return {static_cast<uint16_t>(all >> 16 | 0x40)};
    return {static_cast<uint16_t>((all + 0x7fff + (all >> 16 & 1)) >> 16)};
  }
  static BF16 fromWide(double wide) {
    BF16 result;
    writeElement(&result, DIFFATTN_BF16, 0, wide);
    return result;
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

/// All rows of one weight, on all threads.
void convertRows(Rearranged rearranged) {
  struct Work {
    Rearranged rearranged;
    RowFunction row;
  } work{rearranged,
         chooseRowFunction(*rearranged.from.dtype, rearranged.declared.dtype)};
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

} // namespace

static llvm::Error weightError(const FileTensor *tensor, const Twine &name,
                               const Twine &message) {
  return makeError(ErrorClass::Weights,
                   (tensor ? tensor->file + ": " : std::string()) + "weight '" +
                       name + "': " + message);
}

/// Finds the tensor of slot `i` of a declaration and checks that it fits.
static llvm::Expected<const FileTensor *>
findTensor(const WeightDeclaration &declared, int64_t i,
           const WeightFiles &files) {
  std::string name = declared.getFileName(i);
  const FileTensor *tensor = files.find(name);
  if (!tensor) {
    std::string near = files.suggest(name);
    return weightError(nullptr, name,
                       "expected it in the weight files, but they lack it" +
                           (near.empty()
                                ? Twine("")
                                : " (the nearest name is '" + near + "')"));
  }
  llvm::SmallVector<int64_t> shape(declared.shape);
  if (declared.transpose)
    std::swap(shape[0], shape[1]);
  if (llvm::ArrayRef<int64_t>(shape) != llvm::ArrayRef(tensor->shape))
    return weightError(
        tensor, name,
        "expected shape [" +
            llvm::join(llvm::map_range(
                           shape, [](int64_t s) { return std::to_string(s); }),
                       ", ") +
            "], but got [" +
            llvm::join(
                llvm::map_range(tensor->shape,
                                [](int64_t s) { return std::to_string(s); }),
                ", ") +
            "]");
  bool same = tensor->dtype == declared.dtype;
  bool floats = tensor->dtype && isFloatDType(*tensor->dtype) &&
                isFloatDType(declared.dtype);
  if (!same && !floats)
    return weightError(
        tensor, name,
        "expected element type " + stringifyDType(declared.dtype) +
            (isFloatDType(declared.dtype) ? " or another float" : "") +
            ", but got " + tensor->dtypeName);
  return tensor;
}

llvm::Error mlir::diffattn::bindWeightSlots(const Signature &signature,
                                            const WeightFiles &files,
                                            const Program::Progress &progress,
                                            std::vector<BoundWeight> &slots,
                                            std::vector<HostArray> &owned) {
  // Everything is found and checked before anything is converted.
  std::vector<const FileTensor *> tensors;
  int64_t total = 0, done = 0;
  for (const WeightDeclaration &declared : signature.weights)
    for (int64_t i = 0; i < declared.getNumSlots(); ++i) {
      auto tensor = findTensor(declared, i, files);
      if (!tensor)
        return tensor.takeError();
      tensors.push_back(*tensor);
      total += (*tensor)->bytes;
    }
  size_t slot = 0;
  for (const WeightDeclaration &declared : signature.weights)
    for (int64_t i = 0; i < declared.getNumSlots(); ++i, ++slot) {
      const FileTensor &tensor = *tensors[slot];
      BoundWeight bound;
      bound.dtype = declared.dtype;
      bound.rows = declared.shape.empty() ? 1 : declared.shape[0];
      bound.columns = 1;
      for (int64_t size :
           llvm::drop_begin(declared.shape, !declared.shape.empty()))
        bound.columns *= size;
      bound.data = tensor.data;
      bool asIs = tensor.dtype == declared.dtype && !declared.transpose &&
                  !declared.rowBlockSize && declared.dtype != DIFFATTN_BOOL;
      if (!asIs) {
        auto copy = HostArray::create(declared.dtype, declared.shape);
        if (!copy)
          return copy.takeError();
        convertRows(
            {tensor, declared, copy->data.get(), bound.rows, bound.columns});
        if (declared.dtype == DIFFATTN_BOOL)
          for (int64_t e = 0; e < copy->getNumBytes(); ++e)
            copy->data.get()[e] = copy->data.get()[e] != 0;
        bound.data = copy->data.get();
        owned.push_back(std::move(*copy));
      }
      slots.push_back(bound);
      done += tensor.bytes;
      if (progress)
        progress(done, total);
    }
  return llvm::Error::success();
}
