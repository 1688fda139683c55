//===- CallTest.cpp - memory of the results of a call ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Call.h"
#include "DiffAttn/Runtime/ABI/ElementType.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "gtest/gtest.h"

#include <cstring>

using namespace diffattn_rt;

namespace {

/// A memref of f32 with one axis, as compiled code writes it.
struct Descriptor {
  float *allocated, *aligned;
  int64_t offset, size, stride;
};

float *allocate(int64_t count, float first, bool result = true) {
  const int64_t bytes = count * int64_t(sizeof(float));
  auto *memory = static_cast<float *>(result ? diffattn_rt_alloc_result(bytes)
                                             : diffattn_rt_alloc(bytes));
  for (int64_t i = 0; i < count; ++i)
    memory[i] = first + float(i);
  return memory;
}

/// Calls `entry`, which gives `count` vectors.
std::vector<CallResult> run(EntryPoint entry, size_t count, Failure &failure) {
  FunctionSignature function;
  function.name = "f";
  ValueType vector;
  vector.kind = ValueType::Tensor;
  vector.dtype = DIFFATTN_F32;
  vector.shape = {-1};
  function.results.assign(count, vector);
  PreparedCall call(function, {});
  failure = call.prepare();
  std::vector<CallResult> results;
  if (!failure)
    failure = call.run(entry, /*threads=*/1, results);
  return results;
}

std::vector<float> read(const CallResult &result) {
  auto *data = reinterpret_cast<const float *>(result.array.data.get());
  return {data, data + result.array.getNumElements()};
}

float *left; // where compiled code left a result

TEST(CallResults, MemoryOfAResultIsKept) {
  Failure failure;
  auto entry = [](void **pointers) {
    left = allocate(3, 1);
    *static_cast<Descriptor *>(pointers[0]) = {left, left, 0, 3, 1};
  };
  std::vector<CallResult> results = run(entry, 1, failure);
  ASSERT_FALSE(failure) << failure.getMessage();
  EXPECT_EQ(reinterpret_cast<float *>(results[0].array.data.get()), left);
  EXPECT_EQ(read(results[0]), std::vector<float>({1, 2, 3}));
}

TEST(CallResults, MemoryOfTheArenaIsCopied) {
  Failure failure;
  auto entry = [](void **pointers) {
    left = allocate(3, 1, /*result=*/false);
    *static_cast<Descriptor *>(pointers[0]) = {left, left, 0, 3, 1};
  };
  std::vector<CallResult> results = run(entry, 1, failure);
  ASSERT_FALSE(failure) << failure.getMessage();
  EXPECT_NE(reinterpret_cast<float *>(results[0].array.data.get()), left);
  EXPECT_EQ(read(results[0]), std::vector<float>({1, 2, 3}));
}

// A part of a buffer, one that is not dense, and a buffer that is two results.
TEST(CallResults, OneArrayDoesNotHoldTheMemoryOfAnother) {
  Failure failure;
  auto entry = [](void **pointers) {
    auto *out = static_cast<Descriptor *>(pointers[0]);
    float *part = left = allocate(4, 0), *whole = allocate(4, 10);
    out[0] = {part, part, 0, 2, 1};
    out[1] = {part, part, 1, 2, 2};
    out[2] = {whole, whole, 0, 4, 1};
    out[3] = {whole, whole, 0, 4, 1};
  };
  std::vector<CallResult> results = run(entry, 4, failure);
  ASSERT_FALSE(failure) << failure.getMessage();
  EXPECT_EQ(read(results[0]), std::vector<float>({0, 1}));
  EXPECT_NE(reinterpret_cast<float *>(results[0].array.data.get()), left);
  EXPECT_EQ(read(results[1]), std::vector<float>({1, 3}));
  EXPECT_EQ(read(results[2]), std::vector<float>({10, 11, 12, 13}));
  EXPECT_EQ(read(results[3]), read(results[2]));
  EXPECT_NE(results[3].array.data.get(), results[2].array.data.get());
}

// More results than the runtime keeps.
TEST(CallResults, ManyAreRight) {
  constexpr size_t kMany = 100;
  Failure failure;
  auto entry = [](void **pointers) {
    auto *out = static_cast<Descriptor *>(pointers[0]);
    for (size_t i = 0; i < kMany; ++i) {
      float *memory = allocate(2, float(i));
      out[i] = {memory, memory, 0, 2, 1};
    }
  };
  std::vector<CallResult> results = run(entry, kMany, failure);
  ASSERT_FALSE(failure) << failure.getMessage();
  for (size_t i = 0; i < kMany; ++i)
    EXPECT_EQ(read(results[i]), std::vector<float>({float(i), float(i + 1)}));
}

TEST(CallResults, AFailureLeavesNoneBehind) {
  Failure failure;
  auto entry = [](void **) {
    left = allocate(3, 1);
    diffattn_rt_fail("expected more");
  };
  run(entry, 1, failure);
  EXPECT_EQ(failure.getMessage(), "'f': expected more");
  EXPECT_FALSE(diffattn_rt_take_result(left, 3 * sizeof(float)));
}

TEST(CallResults, NoMemoryHoldsANegativeSize) {
  Failure failure;
  auto entry = [](void **) { diffattn_rt_alloc_result(-1); };
  run(entry, 1, failure);
  EXPECT_NE(failure.getMessage().find("sizes that memory can hold"),
            std::string::npos)
      << failure.getMessage();
}

// A caller of compiled code that does not keep results has them in the arena.
TEST(CallResults, LieInTheArenaOfACallerThatKeepsNone) {
  int64_t mark = diffattn_rt_mark();
  void *first = diffattn_rt_alloc_result(64);
  EXPECT_FALSE(diffattn_rt_take_result(first, 64));
  diffattn_rt_release(mark);
  EXPECT_EQ(diffattn_rt_alloc(64), first);
  diffattn_rt_release(mark);
}

} // namespace
