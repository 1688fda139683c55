//===- MergedGemm.h - which products become one -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_SCHEDULE_MERGEDGEMM_H
#define DIFFATTN_MODEL_SCHEDULE_MERGEDGEMM_H

#include <cstdint>

namespace mlir::diffattn {

/// Whether products on a GPU with the same left side should become one, as far
/// as the weight `[rows, columns]` of one of them goes, with elements of
/// `weightBytes` bytes in it and of `resultBytes` in the result.
///
/// A launch less is worth it at any size: the larger product has the same
/// arithmetic and reads its left side once. The readers of the results, which
/// become columns of wider rows, must not get slower: each has to begin at a
/// multiple of 16 bytes, as vector loads, copies of 16 bytes and tensor maps
/// need. And the weights must be able to lie side by side, each where the
/// device's memory puts a weight of its own.
bool canMergeGemm(int64_t rows, int64_t columns, int64_t weightBytes,
                  int64_t resultBytes);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_SCHEDULE_MERGEDGEMM_H
