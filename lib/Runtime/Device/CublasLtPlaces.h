//===- CublasLtPlaces.h - Paths of cuBLASLt ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef DIFFATTN_LIB_RUNTIME_DEVICE_CUBLASLTPLACES_H
#define DIFFATTN_LIB_RUNTIME_DEVICE_CUBLASLTPLACES_H

#include <string>
#include <vector>

namespace diffattn_rt::cuda {

/// The versions that CublasLt.h declares, newest first.
std::vector<std::string> cublasLtSonames();

/// Paths of the library to try, in order: `path` alone if it is not empty; else
/// the loader's own search, the toolkit's folder, and the folders of Python's
/// packages below each of `packageFolders` (`nvidia/*/lib`). A folder without a
/// match stays in the list as its pattern, so that the error names it.
std::vector<std::string>
cublasLtPlaces(const std::string &path,
               const std::vector<std::string> &packageFolders);

} // namespace diffattn_rt::cuda

#endif // DIFFATTN_LIB_RUNTIME_DEVICE_CUBLASLTPLACES_H
