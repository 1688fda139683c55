//===- DeviceValues.h - values on the device alone ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_DEVICEVALUES_H
#define DIFFATTN_LIB_MODEL_NVVM_DEVICEVALUES_H

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

namespace mlir::diffattn::linalggpu {

/// Which values of host functions only the device can compute: elements of
/// memrefs, what is computed from them, and views at offsets that are.
struct DeviceValues {
  static bool contains(Value value);
  /// Whether `value` depends on the counter of one of `loops`.
  static bool dependsOn(Value value, ArrayRef<scf::ForOp> loops);
  /// Whether a kernel can compute `value` from elements, from what the host
  /// knows and from the counters of `loops`.
  static bool canCompute(Value value, ArrayRef<scf::ForOp> loops);
};

/// The buffer that `memref` is a view of.
Value rootOf(Value memref);
/// The `memref.get_global` of a constant that `memref` is a view of, or null.
/// One whose value is a resource is memory like an argument: it is copied to
/// the device when the program is loaded.
memref::GetGlobalOp constantOf(Value memref);
/// Whether two memrefs may share an element. Arguments of one function and what
/// calls return may be parts of one buffer if their elements have one type.
bool mayAlias(Value a, Value b);

/// Whether `a` and `b` lie in different arguments of a function, one of which
/// it updates, and no caller may pass what overlaps: those of public functions
/// promise it, and of others every call is looked at.
bool areSeparateArguments(Value a, Value b);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_DEVICEVALUES_H
