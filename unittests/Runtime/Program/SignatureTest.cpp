//===- SignatureTest.cpp - contracts and faults of signatures -------------===//
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
      [](Signature &s) { s.weights[0].follows = "v"; },
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

WeightDeclaration makeWeight(const char *name, int64_t layers,
                             const char *follows = "") {
  WeightDeclaration weight;
  weight.name = name;
  weight.dtype = DIFFATTN_F32;
  weight.shape = {4, 16};
  weight.layers = layers;
  weight.follows = follows;
  return weight;
}

TEST(Signature, BlocksHoldWhatFollowsLayerByLayer) {
  const Signature signature{
      {},
      {makeWeight("embed", 0), makeWeight("q.{}", 2), makeWeight("norm.{}", 2),
       makeWeight("k.{}", 2, "q.{}"), makeWeight("v.{}", 2, "k.{}"),
       makeWeight("head", 0, "embed")}};
  EXPECT_EQ(signature.findFollowsFault(), std::nullopt);
  const std::vector<std::vector<size_t>> expected = {
      {0, 9}, {1, 5, 7}, {2, 6, 8}, {3}, {4}};
  EXPECT_EQ(signature.getWeightBlocks(), expected);
  EXPECT_TRUE(Signature().getWeightBlocks().empty());
}

TEST(Signature, FollowsWhatCanBeOneMatrixWithIt) {
  const std::function<void(Signature &)> changes[] = {
      [](Signature &s) { s.weights[1].follows = "c"; },
      [](Signature &s) { s.weights[1].follows = "b"; },
      [](Signature &s) { std::swap(s.weights[0], s.weights[1]); },
      [](Signature &s) { s.weights.push_back(makeWeight("c", 0, "a")); },
      [](Signature &s) { s.weights[1].layers = 1; },
      [](Signature &s) { s.weights[1].dtype = DIFFATTN_F16; },
      [](Signature &s) { s.weights[1].shape = {4, 8}; },
      [](Signature &s) { s.weights[1].shape = {}; },
      [](Signature &s) { s.weights[1].shape = {4, 4, 4}; },
      [](Signature &s) { s.weights[0].shape = {3, 16}; },
  };
  const Signature sound{{}, {makeWeight("a", 0), makeWeight("b", 0, "a")}};
  EXPECT_EQ(sound.findFollowsFault(), std::nullopt);
  for (size_t i = 0; i < std::size(changes); ++i) {
    Signature changed = sound;
    changes[i](changed);
    const std::optional<std::string> fault = changed.findFollowsFault();
    ASSERT_TRUE(fault) << i;
    EXPECT_NE(
        fault->find("expected to follow a weight before it that no other "
                    "follows, of as many layers, of the same columns and "
                    "elements, and of a multiple of 256 bytes, but got '"),
        std::string::npos)
        << *fault;
  }
}

} // namespace
