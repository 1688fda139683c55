//===- PassEnums.cpp - enums of passes and pipelines ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/PassEnums.h"

using namespace mlir::diffattn;
using llvm::ArrayRef;
using llvm::StringRef;

#include "DiffAttn/Model/PassEnums.cpp.inc"

/// Tells words from `stringify`, for all values up to `last`.
template <typename Enum>
static std::vector<StringRef> listWords(unsigned last,
                                        StringRef (*stringify)(Enum)) {
  std::vector<StringRef> words;
  for (unsigned value = 0; value <= last; ++value)
    words.push_back(stringify(static_cast<Enum>(value)));
  return words;
}

template <>
ArrayRef<StringRef> mlir::diffattn::getEnumWords<Stage>() {
  static const std::vector<StringRef> words =
      listWords<Stage>(getMaxEnumValForStage(), stringifyStage);
  return words;
}

template <>
ArrayRef<StringRef> mlir::diffattn::getEnumWords<BatchInvariance>() {
  static const std::vector<StringRef> words = listWords<BatchInvariance>(
      getMaxEnumValForBatchInvariance(), stringifyBatchInvariance);
  return words;
}
