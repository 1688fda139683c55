//===- HostAccess.h - accesses of the host to buffers -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_MODEL_CONVERSION_HOSTACCESS_H
#define DIFFATTN_MODEL_CONVERSION_HOSTACCESS_H

#include "mlir/IR/BuiltinOps.h"

namespace mlir::diffattn {

/// The first op outside of kernels of a module in stage `gpu` that would read
/// or write the elements of a buffer on the host, or null: then every buffer
/// may lie on a device. Launches, allocations, views, products and copies
/// between contiguous buffers are the runtime's, and not the host's.
Operation *findHostAccess(ModuleOp module);

} // namespace mlir::diffattn

#endif // DIFFATTN_MODEL_CONVERSION_HOSTACCESS_H
