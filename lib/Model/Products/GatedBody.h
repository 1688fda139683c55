//===- GatedBody.h - silu(g) * u in the body of an op -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_PRODUCTS_GATEDBODY_H
#define DIFFATTN_LIB_MODEL_PRODUCTS_GATEDBODY_H

#include "DiffAttn/IR/DiffAttn.h"

#include <optional>

namespace mlir::diffattn {

/// Arguments and roundings of a body that yields silu(g) * u.
struct GatedBody {
  /// The arguments that are g and u, two different ones of the inputs.
  unsigned gate, up;
  /// Steps before the product with u that are rounded to the narrow type.
  GateRounding rounded;
};

/// Reads the body of an element-wise op with two inputs and one init, in f32
/// and in type `narrow`; nothing if it is anything but g * (1 / (1 + exp(-g)))
/// * u, with factors and terms in any order, or if an op has flags that let it
/// be computed in another way.
std::optional<GatedBody> matchGatedBody(Block &body, Type narrow);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_PRODUCTS_GATEDBODY_H
