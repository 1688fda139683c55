//===- WeightHeader.h - headers of weight files -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_RUNTIME_BUNDLE_WEIGHTHEADER_H
#define DIFFATTN_LIB_RUNTIME_BUNDLE_WEIGHTHEADER_H

#include "Manifest.h"

namespace diffattn_rt {

/// Checks that the header of a safetensors file, the manifest's weight file
/// `number`, has each tensor that the manifest takes from it, with the type and
/// place of the manifest. `header` is the beginning of the file, as long as the
/// manifest says. Failures are of class Weights and do not name the file.
Failure checkWeightHeader(std::string_view header, const Manifest &manifest,
                          size_t number);

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_BUNDLE_WEIGHTHEADER_H
