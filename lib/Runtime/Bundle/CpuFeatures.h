//===- CpuFeatures.h - features of this CPU ---------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_RUNTIME_BUNDLE_CPUFEATURES_H
#define DIFFATTN_LIB_RUNTIME_BUNDLE_CPUFEATURES_H

#include <string_view>

namespace diffattn_rt {

enum class FeatureState { Present, Missing, Refused, Unknown };

/// Whether this CPU has the feature that LLVM calls `name`, and the system
/// saves its registers. Refused: the CPU has it, but the system does not let
/// this process use it. Unknown: this loader has not heard of it.
FeatureState getCpuFeature(std::string_view name);

} // namespace diffattn_rt

#endif // DIFFATTN_LIB_RUNTIME_BUNDLE_CPUFEATURES_H
