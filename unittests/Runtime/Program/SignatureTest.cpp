//===- SignatureTest.cpp - what callers and code must agree on ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Signature.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "gtest/gtest.h"

#include <functional>

using namespace diffattn_rt;

namespace {

Signature makeSignature() {
  ValueType tensor{ValueType::Tensor, DIFFATTN_F32, {-1, 4}, {}, false, "t"};
  ValueType memref{ValueType::MemRef, DIFFATTN_F32, {2}, {-1}, true, "m"};
  WeightDeclaration weight;
  weight.name = "w";
  weight.shape = {4, 2};
  weight.rowBlockSize = 2;
  weight.rowBlocks = {1, 0};
  return {{{"f", {tensor, memref}, {tensor}}}, {weight}};
}

TEST(Signature, ContractsDifferInWhateverCallsDependOn) {
  const std::string text = getContractText(makeSignature());
  const std::function<void(Signature &)> changes[] = {
      [](Signature &s) { s.functions[0].name = "g"; },
      [](Signature &s) { s.functions.push_back(s.functions[0]); },
      [](Signature &s) {
        s.functions[0].arguments[0].kind = ValueType::Scalar;
      },
      [](Signature &s) { s.functions[0].arguments[0].dtype = DIFFATTN_F16; },
      [](Signature &s) { s.functions[0].arguments[0].shape = {-1, 4, 4}; },
      [](Signature &s) { s.functions[0].arguments[1].strides = {1}; },
      [](Signature &s) { s.functions[0].arguments[1].inPlace = false; },
      [](Signature &s) { s.functions[0].results.clear(); },
      [](Signature &s) {
        s.functions[0].results.push_back(s.functions[0].arguments[0]);
        s.functions[0].arguments.erase(s.functions[0].arguments.begin());
      },
      [](Signature &s) { s.weights[0].name = "v"; },
      [](Signature &s) { s.weights[0].dtype = DIFFATTN_F16; },
      [](Signature &s) { s.weights[0].shape = {2, 4}; },
      [](Signature &s) { s.weights[0].layers = 1; },
      [](Signature &s) { s.weights[0].transpose = true; },
      [](Signature &s) { s.weights[0].rowBlockSize = 1; },
      [](Signature &s) { s.weights[0].rowBlocks = {0, 1}; },
      [](Signature &s) { s.weights.clear(); },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Signature changed = makeSignature();
    changes[i](changed);
    EXPECT_NE(getContractText(changed), text) << i;
  }
}

TEST(Signature, ContractsSayNothingOfMessagesAndFiles) {
  Signature changed = makeSignature();
  changed.functions[0].arguments[0].text = "other";
  changed.weights[0].source = "elsewhere";
  EXPECT_EQ(getContractText(changed), getContractText(makeSignature()));
}

} // namespace
