//===- Sha256.h - checksums of files ----------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_RUNTIME_BUNDLE_SHA256_H
#define DIFFATTN_LIB_RUNTIME_BUNDLE_SHA256_H

#include <string>
#include <string_view>

namespace diffattn_rt {

/// SHA-256 (FIPS 180-4) of `bytes`, as 64 hexadecimal digits in lower case.
std::string sha256(std::string_view bytes);

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_BUNDLE_SHA256_H
