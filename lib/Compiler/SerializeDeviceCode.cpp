//===- SerializeDeviceCode.cpp - a device's tables as JSON ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SerializeDeviceCode.h"

#include "mlir/IR/AsmState.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/SHA256.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;
namespace json = llvm::json;

std::vector<DeviceCode::Kernel>
mlir::diffattn::describeKernels(ArrayAttr list, const llvm::Module &kernels) {
  std::vector<DeviceCode::Kernel> result;
  for (auto entry : list.getAsRange<DictionaryAttr>()) {
    DeviceCode::Kernel kernel;
    kernel.name = entry.getAs<StringAttr>("name").str();
    kernel.parameters = entry.getAs<StringAttr>("parameters").str();
    kernel.startsEarly = entry.contains("starts_early");
    std::string text;
    llvm::raw_string_ostream os(text);
    if (const llvm::Function *function = kernels.getFunction(kernel.name))
      function->print(os);
    kernel.hash = llvm::toHex(
        llvm::SHA256::hash(llvm::arrayRefFromStringRef(text)), true);
    result.push_back(std::move(kernel));
  }
  return result;
}

llvm::Expected<std::string> mlir::diffattn::getElementBytes(Attribute value) {
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(value)) {
    AsmResourceBlob *blob = resource.getRawHandle().getBlob();
    Type type = resource.getType().getElementType();
    if (blob && type.isIntOrFloat() && type.getIntOrFloatBitWidth() % 8 == 0)
      return std::string(blob->getData().begin(), blob->getData().end());
    return makeError(ErrorClass::Compile,
                     "expected a constant with data of whole bytes");
  }
  auto dense = cast<DenseElementsAttr>(value);
  std::string bytes;
  auto append = [&](const llvm::APInt &bits) {
    const unsigned size = std::max(1u, bits.getBitWidth() / 8);
    const uint64_t word = bits.getZExtValue();
    bytes.append(reinterpret_cast<const char *>(&word), size);
  };
  Type type = dense.getElementType();
  if (isa<FloatType>(type)) {
    for (const llvm::APFloat &element : dense.getValues<llvm::APFloat>())
      append(element.bitcastToAPInt());
    return bytes;
  }
  if (!isa<IntegerType, IndexType>(type))
    return makeError(ErrorClass::Compile,
                     "expected a constant of numbers on the device");
  for (const llvm::APInt &element : dense.getValues<llvm::APInt>())
    append(element);
  return bytes;
}

json::Object mlir::diffattn::toJSON(const DeviceCode &code) {
  json::Array kernels, images, constants;
  for (const DeviceCode::Kernel &kernel : code.kernels)
    kernels.push_back(json::Object{{"name", kernel.name},
                                   {"hash", kernel.hash},
                                   {"parameters", kernel.parameters},
                                   {"starts_early", kernel.startsEarly}});
  for (const DeviceCode::Image &image : code.images)
    images.push_back(json::Object{{"chip", image.chip},
                                  {"format", image.format},
                                  {"driver", image.driver},
                                  {"bytes", int64_t(image.data.size())}});
  for (const std::string &constant : code.constants)
    constants.push_back(int64_t(constant.size()));
  return json::Object{{"kernels", std::move(kernels)},
                      {"images", std::move(images)},
                      {"constants", std::move(constants)},
                      {"host_access", code.hostAccess}};
}

std::string mlir::diffattn::getBlobs(const DeviceCode &code) {
  std::string blobs;
  for (const DeviceCode::Image &image : code.images)
    blobs += image.data;
  for (const std::string &constant : code.constants)
    blobs += constant;
  return blobs;
}

std::optional<DeviceCode>
mlir::diffattn::deviceCodeFromJSON(const json::Object &root,
                                   llvm::StringRef blobs) {
  const json::Array *kernels = root.getArray("kernels"),
                    *images = root.getArray("images"),
                    *constants = root.getArray("constants");
  auto hostAccess = root.getBoolean("host_access");
  if (!kernels || !images || !constants || !hostAccess)
    return std::nullopt;
  DeviceCode code;
  code.hostAccess = *hostAccess;
  auto take = [&](std::optional<int64_t> bytes, std::string &out) {
    if (!bytes || *bytes < 0 || uint64_t(*bytes) > blobs.size())
      return false;
    out = blobs.take_front(*bytes).str();
    blobs = blobs.drop_front(*bytes);
    return true;
  };
  for (const json::Value &value : *kernels) {
    const json::Object *kernel = value.getAsObject();
    auto name = kernel ? kernel->getString("name") : std::nullopt;
    auto hash = kernel ? kernel->getString("hash") : std::nullopt;
    auto parameters = kernel ? kernel->getString("parameters") : std::nullopt;
    auto early = kernel ? kernel->getBoolean("starts_early") : std::nullopt;
    if (!name || !hash || !parameters || !early)
      return std::nullopt;
    code.kernels.push_back(
        {name->str(), hash->str(), parameters->str(), *early});
  }
  for (const json::Value &value : *images) {
    const json::Object *object = value.getAsObject();
    auto chip = object ? object->getString("chip") : std::nullopt;
    auto format = object ? object->getInteger("format") : std::nullopt;
    auto driver = object ? object->getInteger("driver") : std::nullopt;
    DeviceCode::Image image;
    if (!chip || !format || !driver ||
        !take(object->getInteger("bytes"), image.data))
      return std::nullopt;
    image.chip = chip->str();
    image.format = static_cast<int32_t>(*format);
    image.driver = static_cast<int32_t>(*driver);
    code.images.push_back(std::move(image));
  }
  for (const json::Value &value : *constants)
    if (!take(value.getAsInteger(), code.constants.emplace_back()))
      return std::nullopt;
  if (!blobs.empty())
    return std::nullopt;
  return code;
}
