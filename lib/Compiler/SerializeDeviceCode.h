//===- SerializeDeviceCode.h - a device's tables as JSON --------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_COMPILER_SERIALIZEDEVICECODE_H
#define DIFFATTN_LIB_COMPILER_SERIALIZEDEVICECODE_H

#include "DiffAttn/Compiler/Compile.h"
#include "DiffAttn/Runtime/ABI/Device.h"

#include "mlir/IR/BuiltinAttributes.h"

namespace llvm {
class Module;
namespace json {
class Object;
} // namespace json
} // namespace llvm

namespace mlir::diffattn {

/// The oldest drivers that load cubins of CUDA 13's ptxas, and PTX 8.0.
constexpr int32_t kCubinDriver = 13000, kPtxDriver = 12000;

/// `list` is that of listGpuKernels; hashes are of the functions in `kernels`.
std::vector<diffattn_rt::DeviceCode::Kernel>
describeKernels(ArrayAttr list, const llvm::Module &kernels);

/// The elements of a dense attribute as they lie in memory, row-major; an i1
/// takes a byte.
llvm::Expected<std::string> getElementBytes(Attribute value);

/// The two parts of a record: all but the bytes of images and constants in
/// JSON, and these one after another.
llvm::json::Object toJSON(const diffattn_rt::DeviceCode &code);
std::string getBlobs(const diffattn_rt::DeviceCode &code);
/// The code of a record; nothing if the two parts do not belong together.
std::optional<diffattn_rt::DeviceCode>
deviceCodeFromJSON(const llvm::json::Object &json, llvm::StringRef blobs);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_COMPILER_SERIALIZEDEVICECODE_H
