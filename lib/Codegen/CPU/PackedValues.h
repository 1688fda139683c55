//===- PackedValues.h - values that all blocks of queries share -*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A product of packs reads values of several keys in one lane, as they do not
// lie in memory. Where several blocks of queries read a head's values, all of
// them are packed before the blocks begin; else each block packs what it meets.
// Numbers are the same either way.
//
// The context has one slot more than the spec counts: the address of the
// panels, [batch][head of V][pack of keys][column, padded to vectors] as i32,
// or 0 where blocks are to pack.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_PACKEDVALUES_H
#define DIFFATTN_LIB_CODEGEN_CPU_PACKEDVALUES_H

#include "KernelValues.h"

namespace mlir::diffattn {

/// Whether there is anything to pack that every block finds at the same place.
bool mayPackValues(const AttentionSpec &spec);

/// Values in the calling function: whether packing pays, its work items, and
/// the bytes of the panels.
struct PackedValuesPlan {
  Value pays, items, bytes;
};
PackedValuesPlan emitPackedValuesPlan(KernelBuilder &b,
                                      const AttentionSpec &spec,
                                      const CallSizes &sizes);

/// Work items that fill the panels.
LLVM::LLVMFuncOp emitPackValues(KernelBuilder &b, ModuleOp module,
                                StringRef name, const AttentionSpec &spec);

/// The address of `n` packed keys from `first` on: in the panels if they are
/// packed there and the last pack has no other key, else the result of `pack`.
Value findPackedValues(KernelValues &v, Value context, Value batch, Value head,
                       Value first, Value n, function_ref<Value()> pack);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_PACKEDVALUES_H
