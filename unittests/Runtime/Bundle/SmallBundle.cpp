//===- SmallBundle.cpp - a bundle that tests open and call ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SmallBundle.h"

#include "diffattn-c/DiffAttn.h"

#include "gtest/gtest.h"

#include <cstring>
#include <fstream>
#include <unistd.h>

using namespace diffattn_test;

static constexpr const char *kModule = R"(
ml_program.global private @w(#ml_program.extern<tensor<8x40xf32>>) : tensor<8x40xf32>
ml_program.global private @"layers.{}.b"(#ml_program.extern<tensor<3xf32>>) : tensor<3xf32> {diffattn.layers = 2 : i64}
!q = tensor<1x2x?x8xf32>
!v = tensor<1x2x?x16xf32>
func.func @attend(%q: !q, %k: !q, %v: !v, %lambda: tensor<f32>, %o: !v) -> !v {
  %0 = diffattn.attention ins(%q, %k, %q, %k, %v : !q, !q, !q, !q, !v) lambda(%lambda : tensor<f32>)
      outs(%o : !v) {scale = 0.25 : f32} -> !v
  return %0 : !v
}
func.func @project(%x: tensor<?x8xf32>) -> (tensor<?x40xf32>, f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %z = arith.constant 0.0 : f32
  %w = ml_program.global_load_const @w : tensor<8x40xf32>
  %b = diffattn.layer_weight @"layers.{}.b"[%c1] : tensor<3xf32>
  %s = tensor.extract %b[%c0] : tensor<3xf32>
  %n = tensor.dim %x, %c0 : tensor<?x8xf32>
  %e = tensor.empty(%n) : tensor<?x40xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x40xf32>) -> tensor<?x40xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x8xf32>, tensor<8x40xf32>) outs(%f : tensor<?x40xf32>) -> tensor<?x40xf32>
  return %y, %s : tensor<?x40xf32>, f32
}
)";

/// A safetensors file with the weights of the module: `w` of f32, and the
/// others of bf16, so that they are converted.
static std::string weightFile() {
  const std::string header =
      R"({"w":{"dtype":"F32","shape":[8,40],"data_offsets":[0,1280]},)"
      R"("layers.0.b":{"dtype":"BF16","shape":[3],"data_offsets":[1280,1286]},)"
      R"("layers.1.b":{"dtype":"BF16","shape":[3],"data_offsets":[1286,1292]}})";
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char *>(&length), sizeof length);
  file += header;
  for (int i = 0; i < 320; ++i) {
    const float value = 0.125f * static_cast<float>(i % 9);
    file.append(reinterpret_cast<const char *>(&value), sizeof value);
  }
  for (int i = 0; i < 6; ++i)
    file.append("\x80\x3f", 2); // 1.0
  return file;
}

SmallBundle::SmallBundle() {
  std::string pattern =
      std::filesystem::temp_directory_path() / "diffattn-bundle-XXXXXX";
  folder = mkdtemp(pattern.data());
  const std::string weights = folder / "model.safetensors";
  std::ofstream(weights, std::ios::binary) << weightFile();
  path = folder / "bundle";
  diffattn_options *options = diffattn_options_create();
  EXPECT_EQ(diffattn_options_set(options, "target", "cpu:avx2"), 0);
  const char *paths[] = {weights.c_str()};
  EXPECT_EQ(diffattn_write_bundle(kModule, strlen(kModule), options, paths, 1,
                                  nullptr, 1, path.c_str()),
            0)
      << diffattn_last_error();
  diffattn_options_destroy(options);
}

SmallBundle::~SmallBundle() { std::filesystem::remove_all(folder); }

diffattn_bundle *diffattn_test::openBundle(const std::string &path,
                                           Outcome &outcome) {
  diffattn_bundle *opened = nullptr;
  outcome.status = diffattn_bundle_open(path.c_str(), nullptr, &opened);
  EXPECT_EQ(opened != nullptr, outcome.status == 0);
  return opened;
}

/// Calls an entry of one result, or of two of which the second is a number.
static void call(diffattn_bundle *bundle, const char *entry,
                 const std::vector<diffattn_array> &arguments, int32_t threads,
                 int32_t numResults, Outcome &outcome) {
  if (outcome.status)
    return;
  diffattn_result results[2] = {};
  outcome.status = diffattn_bundle_call(bundle, entry, arguments.data(),
                                        static_cast<int32_t>(arguments.size()),
                                        threads, results, numResults);
  if (outcome.status)
    return;
  for (int32_t i = 0; i < numResults; ++i) {
    int64_t count = 1;
    for (int32_t axis = 0; axis < results[i].rank; ++axis)
      count *= results[i].shape[axis];
    const auto *data = static_cast<const float *>(results[i].data);
    outcome.numbers.insert(outcome.numbers.end(), data, data + count);
    diffattn_bundle_free(results[i].data);
  }
}

void diffattn_test::compute(diffattn_bundle *bundle, int64_t tokens,
                            int32_t threads, Outcome &outcome) {
  std::vector<float> values(4096);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 0.0625f * static_cast<float>(i % 17);
  float lambda = 0.5f;
  const int64_t q[] = {1, 2, tokens, 8}, v[] = {1, 2, tokens, 16},
                x[] = {tokens, 8}, wide[] = {16, 2};
  diffattn_array queries = {values.data(), DIFFATTN_F32, 4, q, nullptr};
  diffattn_array keys = {values.data() + 512, DIFFATTN_F32, 4, q, nullptr};
  diffattn_array data = {values.data() + 1024, DIFFATTN_F32, 4, v, nullptr};
  diffattn_array out = {values.data() + 2048, DIFFATTN_F32, 4, v, nullptr};
  diffattn_array factor = {&lambda, DIFFATTN_F32, 0, nullptr, nullptr};
  diffattn_array rows = {values.data() + 3072, DIFFATTN_F32, 2, x, wide};
  call(bundle, "attend", {queries, keys, data, factor, out}, threads, 1,
       outcome);
  call(bundle, "project", {rows}, threads, 2, outcome);
}
