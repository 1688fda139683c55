//===- CInterfaceTest.cpp - mistakes of callers in C ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/CInterface.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "gtest/gtest.h"

#include <functional>

using namespace diffattn_rt;

namespace {

struct CInterface : testing::Test {
  CInterface() {
    const ValueType value{ValueType::Tensor, DIFFATTN_F32, {-1, 4}, {}, false,
                          "tensor<?x4xf32>"};
    signature.functions = {{"f", {value}, {value}}};
  }

  std::string view(const diffattn_array &array) {
    std::vector<ArrayView> views;
    Failure failure = viewArguments(signature, "f", &array, 1, views);
    return failure ? failure.getMessage() : "";
  }

  float numbers[8] = {};
  int64_t shape[2] = {2, 4}, strides[2] = {4, 1};
  diffattn_array array{numbers, DIFFATTN_F32, 2, shape, strides};
  diffattn_result result;
  Signature signature;
};

TEST_F(CInterface, TakesWhatIsRight) {
  EXPECT_EQ(view(array), "");
  array.strides = nullptr;
  EXPECT_EQ(view(array), "");
  array = {numbers, DIFFATTN_F32, 0, nullptr, nullptr};
  EXPECT_EQ(view(array), "");
  shape[0] = 0;
  array = {nullptr, DIFFATTN_F32, 2, shape, strides};
  EXPECT_EQ(view(array), "");
}

TEST_F(CInterface, RefusesArraysThatCannotBeLookedAt) {
  auto expect = [&](std::function<void(diffattn_array &)> damage,
                    const std::string &message) {
    diffattn_array damaged = array;
    damage(damaged);
    EXPECT_EQ(view(damaged), "argument 0 of 'f': expected " + message);
  };
  for (int32_t rank : {-1, INT32_MIN, 17, INT32_MAX})
    expect([&](diffattn_array &a) { a.rank = rank; },
           "a rank from 0 to 16, but got " + std::to_string(rank));
  expect([](diffattn_array &a) { a.dtype = 99; },
         "a known element type, but got code 99");
  expect([](diffattn_array &a) { a.data = nullptr; },
         "the address of its elements, but got null");
  expect([](diffattn_array &a) { a.shape = nullptr; },
         "the address of its sizes, but got null");
  int64_t negative[] = {-2, 4}, many[] = {int64_t(1) << 40, int64_t(1) << 40};
  expect([&](diffattn_array &a) { a.shape = negative; },
         "sizes of an array that memory can hold, but got [-2, 4]");
  expect([&](diffattn_array &a) { a.shape = many; },
         "sizes of an array that memory can hold, but got [1099511627776, "
         "1099511627776]");
  int64_t far[] = {INT64_MAX, 1};
  expect([&](diffattn_array &a) { a.strides = far; },
         "strides of an array that memory can hold, but got "
         "[9223372036854775807, 1]");
}

TEST_F(CInterface, RefusesCallsWithoutTheirParts) {
  std::vector<ArrayView> views;
  auto message = [&](const char *entry, const diffattn_array *arguments,
                     int32_t count, diffattn_result *results) -> std::string {
    Failure failure = viewArguments(signature, entry, arguments, count, views);
    if (!failure)
      failure = checkResults(signature, entry, results, 1);
    return failure ? failure.getMessage() : "";
  };
  EXPECT_EQ(message(nullptr, &array, 1, &result),
            "expected the name of a function, but got null");
  EXPECT_EQ(message("f", nullptr, 1, &result),
            "'f': expected a list of arguments, but got null");
  EXPECT_EQ(message("f", &array, -1, &result),
            "'f': expected 1 arguments, but got -1");
  EXPECT_EQ(message("f", &array, INT32_MAX, &result),
            "'f': expected 1 arguments, but got 2147483647");
  EXPECT_EQ(message("f", &array, 1, nullptr),
            "'f': expected room for 1 results, but got null");
}

} // namespace
