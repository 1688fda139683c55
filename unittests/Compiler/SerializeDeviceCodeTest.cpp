//===- SerializeDeviceCodeTest.cpp - tables of a program on a device ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SerializeDeviceCode.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/JSON.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace diffattn_rt;

TEST(DeviceCode, IsReadAsItWasWritten) {
  DeviceCode code;
  code.kernels = {{"k", "hash", "p48"}, {"l", "", ""}};
  code.images = {{"sm_90", 0, 13000, std::string("cubin\0\1", 7)},
                 {"sm_90", 1, 12000, "ptx"}};
  code.constants = {"", "abc"};
  code.hostAccess = true;
  llvm::json::Object json = toJSON(code);
  const std::string blobs = getBlobs(code);
  auto read = deviceCodeFromJSON(json, blobs);
  ASSERT_TRUE(read);
  ASSERT_EQ(read->kernels.size(), 2u);
  EXPECT_EQ(read->kernels[0].parameters, "p48");
  EXPECT_EQ(read->kernels[0].hash, "hash");
  ASSERT_EQ(read->images.size(), 2u);
  EXPECT_EQ(read->images[0].data, code.images[0].data);
  EXPECT_EQ(read->images[1].driver, 12000);
  EXPECT_EQ(read->constants, code.constants);
  EXPECT_TRUE(read->hostAccess);
  // Bytes that are missing, or too many.
  EXPECT_FALSE(deviceCodeFromJSON(json, blobs.substr(1)));
  EXPECT_FALSE(deviceCodeFromJSON(json, blobs + "x"));
  json["images"] = 3;
  EXPECT_FALSE(deviceCodeFromJSON(json, blobs));
}

TEST(DeviceCode, ConstantsAsTheyLieInMemory) {
  MLIRContext context;
  Builder b(&context);
  auto bytes = [&](Type type, ArrayRef<Attribute> values, int64_t size) {
    return llvm::cantFail(getElementBytes(
        DenseElementsAttr::get(RankedTensorType::get({size}, type), values)));
  };
  EXPECT_EQ(bytes(b.getF32Type(), {b.getF32FloatAttr(1)}, 2),
            std::string("\0\0\x80\x3f\0\0\x80\x3f", 8));
  EXPECT_EQ(bytes(b.getBF16Type(), {b.getFloatAttr(b.getBF16Type(), 1)}, 1),
            std::string("\x80\x3f", 2));
  EXPECT_EQ(
      bytes(b.getI1Type(), {b.getBoolAttr(true), b.getBoolAttr(false)}, 2),
      std::string("\1\0", 2));
  EXPECT_EQ(bytes(b.getI64Type(), {b.getI64IntegerAttr(-1)}, 1),
            std::string(8, '\xff'));
}
