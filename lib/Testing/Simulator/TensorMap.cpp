//===- TensorMap.cpp - a tensor as the copy engine sees it ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Testing/Simulator/TensorMap.h"

#include "llvm/ADT/Twine.h"

#include <cstring>

using namespace mlir::diffattn::sim;
using llvm::Twine;

/// Begins every handle: no bytes that lie around are taken for one.
static constexpr uint64_t kMark = 0x70616d5f6d6973ull;

namespace {
struct Stored {
  uint64_t mark;
  TensorMap map;
};
} // namespace
static_assert(sizeof(Stored) <= sizeof(TensorMapHandle));
static_assert(std::is_trivially_copyable_v<Stored>);

uint32_t TensorMap::getBoxBytes() const {
  uint32_t bytes = elementBytes;
  for (uint32_t axis = 0; axis < rank; ++axis)
    bytes *= box[axis];
  return bytes;
}

static llvm::Error expected(const Twine &what, const Twine &got) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 "tensor map: expected " + what + ", but got " +
                                     got);
}

static llvm::Error check(const TensorMap &map) {
  if (map.rank < 1 || map.rank > 5)
    return expected("rank to be 1 to 5", Twine(map.rank));
  const uint32_t width = map.elementBytes;
  if (width != 1 && width != 2 && width != 4 && width != 8)
    return expected("elements of 1, 2, 4 or 8 bytes", Twine(width));
  if (map.base % 16)
    return expected("base to be a multiple of 16", Twine(map.base));
  for (uint32_t axis = 0; axis < map.rank; ++axis) {
    if (map.sizes[axis] < 1 || map.sizes[axis] > uint64_t(1) << 32)
      return expected("sizes[" + Twine(axis) + "] to be 1 to 2^32",
                      Twine(map.sizes[axis]));
    if (map.box[axis] < 1 || map.box[axis] > 256)
      return expected("box[" + Twine(axis) + "] to be 1 to 256",
                      Twine(map.box[axis]));
  }
  for (uint32_t axis = 0; axis + 1 < map.rank; ++axis)
    if (map.strides[axis] % 16 || map.strides[axis] >= uint64_t(1) << 40)
      return expected("strides[" + Twine(axis) +
                          "] to be a multiple of 16 below 2^40",
                      Twine(map.strides[axis]));
  const uint32_t row = map.box[0] * width;
  if (row % 16)
    return expected("rows of the box, box[0] elements, to be a multiple of 16 "
                    "bytes",
                    Twine(row));
  if (map.swizzle128 && row != 128)
    return expected("rows of the box to be 128 bytes with the 128-byte swizzle",
                    Twine(row));
  return llvm::Error::success();
}

llvm::Expected<TensorMapHandle>
mlir::diffattn::sim::encodeTensorMap(const TensorMap &map) {
  if (llvm::Error error = check(map))
    return std::move(error);
  TensorMapHandle handle;
  const Stored stored{kMark, map};
  memcpy(handle.bytes.data(), &stored, sizeof(stored));
  return handle;
}

std::optional<TensorMap>
mlir::diffattn::sim::decodeTensorMap(const void *bytes) {
  Stored stored;
  memcpy(&stored, bytes, sizeof(stored));
  if (stored.mark != kMark)
    return std::nullopt;
  if (llvm::Error error = check(stored.map)) {
    llvm::consumeError(std::move(error));
    return std::nullopt;
  }
  return stored.map;
}
