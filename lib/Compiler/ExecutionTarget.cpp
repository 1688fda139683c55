//===- ExecutionTarget.cpp - where compiled code runs ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Compiler/ExecutionTarget.h"

#include "DiffAttn/Target/CpuTarget.h"
#include "DiffAttn/Target/GpuTarget.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir::diffattn;
using namespace diffattn_rt;

llvm::Expected<ExecutionTarget>
mlir::diffattn::parseTarget(llvm::StringRef text) {
  auto [place, number] = text.split('@');
  auto [device, detail] = place.split(':');
  ExecutionTarget target;
  if (place.size() != text.size() &&
      (device != "cuda" || number.getAsInteger(10, target.ordinal) ||
       target.ordinal < 0))
    return makeError(ErrorClass::Usage,
                     "expected a target cuda:<chip>@<number of the GPU>, but "
                     "got '" +
                         text + "'");
  if (place.ends_with(":"))
    return makeError(ErrorClass::Usage,
                     "expected a target with a name after ':', but got '" +
                         text + "'");
  if (device == "cuda" || device == "cuda-sim") {
    target.device =
        device == "cuda" ? ExecutionDevice::Cuda : ExecutionDevice::CudaSim;
    auto [chip, isa] = detail.split('/');
    target.chipNamed = !chip.empty();
    target.chip = chip.empty() ? "sm_80" : chip.str();
    if (chip.size() != detail.size())
      target.isa = isa.str();
    if (!llvm::is_contained(getCpuIsaNames(), target.isa))
      return makeError(
          ErrorClass::Usage,
          "expected a target " + device + ":<chip>/<isa> with an isa of " +
              llvm::join(getCpuIsaNames(), ", ") + ", but got '" + text + "'");
    std::string error;
    if (!getGpuTarget(target.chip, error))
      return makeError(ErrorClass::Usage, error + " in target '" + text + "'");
    return target;
  }
  if (!detail.empty())
    target.isa = detail.str();
  if (device != "cpu" || !llvm::is_contained(getCpuIsaNames(), target.isa))
    return makeError(ErrorClass::Usage,
                     "expected target cpu, cpu:<isa> with an isa of " +
                         llvm::join(getCpuIsaNames(), ", ") +
                         ", cuda:<chip> or cuda-sim:<chip> with a chip of " +
                         llvm::join(getGpuChipNames(), ", ") +
                         " or newer, but got '" + text + "'");
  return target;
}
