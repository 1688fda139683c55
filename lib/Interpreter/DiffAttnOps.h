//===- DiffAttnOps.h - what ops of ours share -------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_INTERPRETER_DIFFATTNOPS_H
#define DIFFATTN_LIB_INTERPRETER_DIFFATTNOPS_H

#include "CodeBuilder.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Reference/Attention.h"

namespace mlir::diffattn::interpreter {

/// An array as the reference reads it, with the axes of layout bhtd; a view of
/// nothing for no array.
reference::View viewOf(const Array &array, Layout layout = Layout::BHTD);

/// The array of a register; none for a negative number.
inline Array arrayOf(const Machine &m, int32_t number) {
  return number < 0 ? Array() : m.tensors[number];
}

/// Emits a check of the rules about sizes that the verifier could not decide.
void emitSizeRules(CodeBuilder &b, Operation *op);

/// `online_attention`, `merge` and `finalize`.
void addOnlineOps(OpTable &table);

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_INTERPRETER_DIFFATTNOPS_H
