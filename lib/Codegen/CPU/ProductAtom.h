//===- ProductAtom.h - how two operands are multiplied ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_PRODUCTATOM_H
#define DIFFATTN_LIB_CODEGEN_CPU_PRODUCTATOM_H

#include "KernelBuilder.h"

namespace mlir::diffattn {

/// What the products are made of: f32, or pairs of bf16 that are neighbours
/// along the contracted axis, as i32, with sums in f32.
enum class ProductInput { F32, Bf16Pairs };

/// The instruction at the heart of a register tile: sums in f32 of lanes of 32
/// bits, each of which packs `pack` numbers that are neighbours along the
/// contracted axis. A new instruction is a class in a file of its own, a value
/// of ProductInput, a row of getProductAtom, and a row of getCpuMicroKernels
/// (lib/Schedule) with its tiles.
class ProductAtom {
public:
  /// Part of the names of kernels: "" or, for example, "_bf16".
  const StringRef suffix;
  const int64_t pack;

  virtual ~ProductAtom() = default;
  /// The type that a packed row holds, and that one number in it has.
  virtual Type getPacked(KernelBuilder &b) const = 0;
  virtual Type getNumber(KernelBuilder &b) const = 0;
  /// One pack, and a vector of them.
  Value loadScalar(KernelBuilder &b, Value base, Value index) const;
  virtual Value loadVector(KernelBuilder &b, Value base, Value index) const = 0;
  /// The first number of pack `index`, with zeros for the others, which are not
  /// read.
  virtual Value loadFirst(KernelBuilder &b, Value base, Value index) const = 0;
  /// Vectors of f32, `pack` of them, as one vector.
  virtual Value makePack(KernelBuilder &b, ArrayRef<Value> parts) const = 0;
  /// sum + x * y.
  virtual Value multiplyAdd(KernelBuilder &b, Value x, Value y,
                            Value sum) const = 0;

protected:
  ProductAtom(StringRef suffix, int64_t pack) : suffix(suffix), pack(pack) {}
};

const ProductAtom &getProductAtom(ProductInput input);
/// Multiply-adds of f32: FmaF32.cpp.
const ProductAtom &getFmaF32();
/// VDPBF16PS: DotBf16.cpp.
const ProductAtom &getDotBf16();

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_PRODUCTATOM_H
