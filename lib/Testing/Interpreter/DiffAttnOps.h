//===- DiffAttnOps.h - shared code of the dialect's ops ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_INTERPRETER_DIFFATTNOPS_H
#define DIFFATTN_LIB_TESTING_INTERPRETER_DIFFATTNOPS_H

#include "CodeBuilder.h"

#include "DiffAttn/IR/DiffAttn.h"
#include "DiffAttn/Testing/Reference/Attention.h"

#include <array>
#include <vector>

namespace mlir::diffattn::interpreter {

/// An array as the reference reads it, with the axes of layout bhtd; a view of
/// nothing for no array.
reference::View viewOf(const Array &array, Layout layout = Layout::BHTD);

/// The operands that masks read, as the reference reads them; arrays of truth
/// values are copied, and must be kept.
struct MaskViews {
  /// Sets those of `arguments` that `operand` gives.
  void read(reference::AttentionArguments &arguments,
            llvm::function_ref<Array(MaskOperand)> operand);

  std::vector<uint8_t> truths;
};

/// The attributes of masks.
inline void readMaskAttributes(reference::AttentionArguments &arguments,
                               DifferentialMapsOpInterface op) {
  arguments.isCausal = op.getIsCausal();
  if (auto window = op.getWindow()) {
    arguments.left = (*window)[0];
    arguments.right = (*window)[1];
  }
}

/// The registers of the operands that masks read; -1: absent.
inline std::array<int32_t, std::size(kMaskOperands)>
registersOfMasks(CodeBuilder &b, DifferentialMapsOpInterface op) {
  std::array<int32_t, std::size(kMaskOperands)> numbers;
  for (auto [which, number] : llvm::zip_equal(kMaskOperands, numbers)) {
    OpOperand *use = op.findMaskOperand(which);
    number = use ? b.scalar(use->get()) : -1;
  }
  return numbers;
}

/// The array of a register; none for a negative number.
inline Array arrayOf(const Machine &m, int32_t number) {
  return number < 0 ? Array() : m.tensors[number];
}

/// Emits a check of the rules about sizes that the verifier could not decide.
void emitSizeRules(CodeBuilder &b, Operation *op);

/// `online_attention`, `merge` and `finalize`.
void addOnlineOps(OpTable &table);

/// `gemm`, `gated_gemm` and `quantized_gemm`.
void addProductOps(OpTable &table);

} // namespace mlir::diffattn::interpreter

#endif // DIFFATTN_LIB_TESTING_INTERPRETER_DIFFATTNOPS_H
