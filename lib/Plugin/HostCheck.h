//===- HostCheck.h - whether a host may load a plugin of ours ---*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_PLUGIN_HOSTCHECK_H
#define DIFFATTN_LIB_PLUGIN_HOSTCHECK_H

#include <cstdint>

namespace mlir::diffattn {

/// The plugin API's version if host and plugin share one MLIR, else a version
/// that no host accepts, after a message on the standard error.
uint32_t checkHost();

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_PLUGIN_HOSTCHECK_H
