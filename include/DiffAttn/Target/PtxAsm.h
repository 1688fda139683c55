//===- PtxAsm.h - PTX instructions that have no intrinsic -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The one list of inline assembly that a kernel may hold: one PTX instruction
// per asm. What emits kernels takes text and constraints from here, the
// simulator knows what each row does and refuses every other asm. Where LLVM
// has an intrinsic for an instruction, the intrinsic is used and the
// instruction has no row.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TARGET_PTXASM_H
#define DIFFATTN_TARGET_PTXASM_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>

namespace mlir::diffattn {

enum class PtxAsm : uint8_t {
  /// Arrive at barrier $0 of $1 threads without waiting.
  BarArrive,
  /// Copy 16 bytes to shared $0 from global $1, the first $2 of them from there
  /// and the rest zero; the L2 cache fetches 128 bytes.
  CpAsyncL2Prefetch128,
  /// The same; the L2 cache fetches 256 bytes.
  CpAsyncL2Prefetch256,
  /// Load 16 bytes that nothing writes and that need no place in L1.
  LoadStreaming,
  /// Store 16 bytes that need no place in L1.
  StoreStreaming,
  /// tanh with a relative error of up to 2^-11.
  TanhApprox,
  /// Any bitwise function of three words, by its truth table $4.
  Lop3,
};

struct PtxAsmRow {
  PtxAsm instruction;
  llvm::StringLiteral text;
  llvm::StringLiteral constraints;
  /// What the asm is to be marked with: whether it must stay where all threads
  /// of a warp reach it together, and whether it does more than compute its
  /// results.
  bool convergent;
  bool sideEffects;
};

inline constexpr PtxAsmRow kPtxAsmRows[] = {
    {PtxAsm::BarArrive, "bar.arrive $0, $1;", "n,n", true, true},
    {PtxAsm::CpAsyncL2Prefetch128,
     "cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;", "r,l,r", false,
     true},
    {PtxAsm::CpAsyncL2Prefetch256,
     "cp.async.cg.shared.global.L2::256B [$0], [$1], 16, $2;", "r,l,r", false,
     true},
    {PtxAsm::LoadStreaming,
     "ld.global.nc.L1::no_allocate.v4.b32 {$0, $1, $2, $3}, [$4];",
     "=r,=r,=r,=r,l", false, false},
    {PtxAsm::StoreStreaming,
     "st.global.L1::no_allocate.v4.b32 [$0], {$1, $2, $3, $4};", "l,r,r,r,r",
     false, true},
    {PtxAsm::TanhApprox, "tanh.approx.f32 $0, $1;", "=f,f", false, false},
    {PtxAsm::Lop3, "lop3.b32 $0, $1, $2, $3, $4;", "=r,r,r,r,n", false, false},
};

inline llvm::ArrayRef<PtxAsmRow> getPtxAsmRows() { return kPtxAsmRows; }

inline const PtxAsmRow &getPtxAsm(PtxAsm instruction) {
  return kPtxAsmRows[static_cast<uint8_t>(instruction)];
}

/// The row whose text is `text`, or null.
inline const PtxAsmRow *findPtxAsm(llvm::StringRef text) {
  for (const PtxAsmRow &row : kPtxAsmRows)
    if (row.text == text.trim())
      return &row;
  return nullptr;
}

} // namespace mlir::diffattn

#endif // DIFFATTN_TARGET_PTXASM_H
