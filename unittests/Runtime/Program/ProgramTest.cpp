//===- ProgramTest.cpp - common parts of programs and bundles -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Program.h"
#include "DiffAttn/Runtime/ABI/ElementType.h"

#include "gtest/gtest.h"

using namespace diffattn_rt;

namespace {

/// Two functions of one number: `first` and `second`.
class TwoFunctions final : public Program {
public:
  TwoFunctions() {
    ValueType number;
    number.kind = ValueType::Scalar;
    number.dtype = DIFFATTN_F32;
    signature.functions = {{"first", {number}, {}}, {"second", {number}, {}}};
  }

  const Signature &getSignature() const override { return signature; }
  DeviceProgram *getDevice() const override { return nullptr; }

  bool ready = true;
  static inline std::string called;

protected:
  Failure checkReady() const override {
    return ready ? Failure() : Failure(ErrorClass::Weights, "not ready");
  }
  EntryPoint getEntryPoint(const FunctionSignature &function) const override {
    if (function.name == "first")
      return [](void **) { called += "first "; };
    return [](void **) { called += "second "; };
  }
  std::pair<std::string, std::string> describeNoDevice() const override {
    return {"a program on a device", "one without"};
  }

private:
  Signature signature;
};

TEST(Program, CallsTheFunctionThatIsNamed) {
  TwoFunctions program;
  float number = 1;
  ArrayView view;
  view.data = &number;
  view.dtype = DIFFATTN_F32;
  std::vector<CallResult> results;
  for (const char *name : {"second", "first"}) {
    Failure failure = program.call(name, {view}, 0, results);
    EXPECT_FALSE(failure) << failure.getMessage();
  }
  EXPECT_EQ(TwoFunctions::called, "second first ");
}

TEST(Program, ArgumentsAreCheckedBeforeWhetherItIsReady) {
  TwoFunctions program;
  program.ready = false;
  float number = 1;
  ArrayView view;
  view.data = &number;
  view.dtype = DIFFATTN_F32;
  std::vector<CallResult> results;
  EXPECT_EQ(program.call("third", {view}, 0, results).getClass(),
            ErrorClass::Usage);
  EXPECT_EQ(program.call("first", {}, 0, results).getClass(),
            ErrorClass::Usage);
  EXPECT_EQ(program.call("first", {view}, 0, results).getMessage(),
            "not ready");
}

TEST(Program, CapturesOnADeviceAlone) {
  TwoFunctions program;
  std::unique_ptr<CapturedCall> call;
  EXPECT_EQ(program.capture("first", {}, call).getMessage(),
            "expected a program on a device to capture calls of, but got one "
            "without");
  EXPECT_EQ(program.checkDevice("").getMessage(),
            "expected a program on a device, but got one without");
}

} // namespace
