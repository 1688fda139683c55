//===- QuantizedBuilder.h - code that reads quantized weights ---*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_PRODUCTS_QUANTIZEDBUILDER_H
#define DIFFATTN_LIB_MODEL_PRODUCTS_QUANTIZEDBUILDER_H

#include "DiffAttn/Codegen/CPU/KernelBuilder.h"
#include "DiffAttn/Model/Products/QuantizedGemm.h"

namespace mlir::diffattn {

/// Reads the integers of a quantized weight, one unit at a time: the `lanes`
/// bytes that give one vector of 8-bit integers, or two of 4-bit ones, of which
/// the first has those with even numbers.
class QuantizedBuilder : public KernelBuilder {
public:
  QuantizedBuilder(Location loc, const QuantizedGemmSpec &spec);

  const QuantizedGemmSpec &spec;
  const QuantizedGemmSchedule schedule;
  /// Vectors of a unit, and integers.
  const int64_t parts, unit;

  /// The integers of the unit whose first byte is byte `index` of `base`, as
  /// f32.
  SmallVector<Value> loadUnit(Value base, Value index);
  /// Vectors of consecutive numbers in the order of a unit, and back.
  SmallVector<Value> toUnit(SmallVector<Value> inOrder);
  SmallVector<Value> fromUnit(SmallVector<Value> parts);
  /// Bytes of `count` integers.
  Value bytesOf(Value count) { return div(count, 8 / spec.bits); }

  /// The name of a kernel of `kind` for this weight.
  std::string nameOf(StringRef kind) const;
  /// Calls the function `item(context, index, scratch)` for ranges of the
  /// `rowsOfB` rows of B, on all threads; the context is `slots`.
  void callItems(ModuleOp module, LLVM::LLVMFuncOp item, Value rowsOfB,
                 Value depth, ValueRange slots, Value maxThreads);
  /// The slots of these types, and the rows of range `index`.
  struct Item {
    SmallVector<Value> slots;
    Value first, last;
  };
  Item readItem(Value context, Value index, TypeRange types);
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_PRODUCTS_QUANTIZEDBUILDER_H
