//===- EmittedMasks.h - masks as emitted code -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_SEMANTICS_EMITTEDMASKS_H
#define DIFFATTN_SEMANTICS_EMITTEDMASKS_H

#include "DiffAttn/IR/DiffAttn.h"

namespace mlir::diffattn {

/// A MaskBuilder whose values are SSA values: the base of the builder that each
/// code generator has.
class EmittedMasks : public MaskBuilder {
public:
  static MaskValue wrap(Value value) {
    return value ? MaskValue(
                       reinterpret_cast<uintptr_t>(value.getAsOpaquePointer()))
                 : MaskValue();
  }
  static Value unwrap(MaskValue value) {
    return value ? Value::getFromOpaquePointer(reinterpret_cast<const void *>(
                       static_cast<uintptr_t>(value.getBits())))
                 : Value();
  }

  /// The score of a pair by `masks`: what they add to it, or -inf where one of
  /// them hides the key.
  Value maskScore(ArrayRef<MaskAttrInterface> masks, const MaskPoint &point,
                  Value score);

protected:
  virtual Value addToScore(Value score, Value term) = 0;
  /// `score` where `visible`, else -inf: selected, so that a NaN that is hidden
  /// does not come back.
  virtual Value hideScore(Value visible, Value score) = 0;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_SEMANTICS_EMITTEDMASKS_H
