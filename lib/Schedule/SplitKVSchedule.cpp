//===- SplitKVSchedule.cpp - tiles of split-KV decode ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/SplitKVSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;

SplitKVTiles mlir::diffattn::selectSplitKVTiles(const SplitKVShape &shape,
                                                const CpuTarget &target) {
  const bool manyRegisters = target.vectorRegisters >= 32;
  SplitKVTiles tiles;
  tiles.scoreRows = manyRegisters ? 4 : 2;
  tiles.outputRows = manyRegisters ? 2 : 1;
  tiles.queryVectors = target.vectorRegisters / 2;
  tiles.sumVectors = target.vectorRegisters / 2;
  tiles.passVectors = 8;
  tiles.takesPasses =
      shape.valueDim && *shape.valueDim > tiles.passVectors * shape.lanes;
  // 4 KiB of values of width 128, so that memory is not left waiting for
  // arithmetic; of pairs, whose products take half as long, twice that. Memory
  // is slow where rows are read in parts: they must follow each other at once.
  tiles.valueKeys = 256 / shape.valueBits * (shape.bf16Pairs ? 2 : 1);
  if (tiles.takesPasses)
    tiles.valueKeys = 2;
  return tiles;
}
