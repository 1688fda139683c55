//===- EmittedMasks.cpp - masks as emitted code ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Semantics/EmittedMasks.h"

using namespace mlir;
using namespace mlir::diffattn;

Value EmittedMasks::maskScore(ArrayRef<MaskAttrInterface> masks,
                              const MaskPoint &point, Value score) {
  for (MaskAttrInterface mask : masks)
    if (MaskValue term = mask.getScoreTerm(*this, point))
      score = addToScore(score, unwrap(term));
  MaskValue visible;
  for (MaskAttrInterface mask : masks)
    visible = bothIfAny(visible, mask.isVisible(*this, point));
  return visible ? hideScore(unwrap(visible), score) : score;
}
