//===- ManifestTest.cpp - valid and invalid manifests ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Manifest.h"

#include "DiffAttn/Runtime/ABI/Device.h"

#include "gtest/gtest.h"

using namespace diffattn_rt;

namespace {

const std::string kDigest(64, 'a');

const std::string kText = R"({
 "format": "diffattn bundle", "version": 1, "tool": "diffattn",
 "later": [{"unknown": null}],
 "cpu": {"architecture": "x86_64", "isa": "avx2", "features": ["avx2"]},
 "devices": [{"chip": "sm_80", "library": "sm_80/model.so",
  "images": [{"format": "ptx", "path": "sm_80/kernels.ptx", "driver": 12000}],
  "kernels": [{"name": "k", "hash": "h", "parameters": "p8"}],
  "constants": "sm_80/constants.bin", "constant_bytes": [4, 8]}],
 "files": [{"path": "model.so", "bytes": 7, "sha256": ")" +
                          kDigest + R"("},
  {"path": "sm_80/model.so", "bytes": 7, "sha256": ")" +
                          kDigest + R"("},
  {"path": "sm_80/kernels.ptx", "bytes": 9, "sha256": ")" +
                          kDigest + R"("},
  {"path": "sm_80/constants.bin", "bytes": 12, "sha256": ")" +
                          kDigest + R"("}],
 "functions": [{"name": "f",
  "arguments": [{"kind": "memref", "dtype": "f32", "shape": [null, 4],
                 "strides": [null, 1], "in_place": true, "type": "memref<?x4xf32>"}],
  "results": [{"kind": "scalar", "dtype": "i64", "shape": [], "in_place": false, "type": "i64"}]}],
 "weight_files": [{"path": "../w.safetensors", "bytes": 200, "header_bytes": 80,
                   "header_sha256": ")" +
                          kDigest + R"("}],
 "weights": [{"name": "l.{}", "dtype": "f32", "shape": [4, 2], "layers": 2,
  "row_block_size": 2, "row_blocks": [1, 0],
  "tensors": [{"name": "l.0", "file": 0, "offset": 80, "dtype": "f32"},
              {"name": "l.1", "file": 0, "offset": 184, "dtype": "bf16"}]}]
})";

std::string replaced(const std::string &from, const std::string &to) {
  std::string text = kText;
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Manifest, IsRead) {
  Manifest manifest;
  Failure failure = parseManifest(kText, manifest);
  ASSERT_FALSE(failure) << failure.getMessage();
  EXPECT_EQ(manifest.isa, "avx2");
  EXPECT_EQ(manifest.cpuFeatures, std::vector<std::string>{"avx2"});
  ASSERT_NE(manifest.findFile("model.so"), nullptr);
  ASSERT_EQ(manifest.devices.size(), 1u);
  const DevicePart &part = manifest.devices[0];
  EXPECT_EQ(part.chip, "sm_80");
  ASSERT_EQ(part.images.size(), 1u);
  EXPECT_EQ(part.images[0].format, DIFFATTN_IMAGE_PTX);
  EXPECT_EQ(part.images[0].driver, 12000u);
  EXPECT_EQ(part.kernels[0].parameters, "p8");
  EXPECT_EQ(part.constantBytes, (std::vector<uint64_t>{4, 8}));
  const FunctionSignature *f = manifest.signature.find("f");
  ASSERT_NE(f, nullptr);
  EXPECT_EQ(f->arguments[0].kind, ValueType::MemRef);
  EXPECT_EQ(f->arguments[0].shape, (std::vector<int64_t>{-1, 4}));
  EXPECT_EQ(f->arguments[0].strides, (std::vector<int64_t>{kAnyStride, 1}));
  EXPECT_TRUE(f->arguments[0].inPlace);
  EXPECT_EQ(f->results[0].dtype, DIFFATTN_I64);
  ASSERT_EQ(manifest.places.size(), 2u);
  EXPECT_EQ(manifest.places[1].offset, 184u);
  EXPECT_EQ(manifest.places[1].dtype, DIFFATTN_BF16);
  EXPECT_EQ(manifest.signature.weights[0].rowBlocks,
            (std::vector<int64_t>{1, 0}));
}

TEST(Manifest, EveryWrongPartIsNamed) {
  struct Case {
    const char *from, *to, *message;
  };
  const Case cases[] = {
      {"\"format\": \"diffattn bundle\"", "\"format\": \"other\"",
       "expected format 'diffattn bundle', but got 'other'"},
      {"\"format\": \"diffattn bundle\", ", "", "'format' as the first key"},
      {"\"version\": 1, ", "", "'version' as the second key"},
      {"\"version\": 1", "\"version\": 2", "a newer diffattn has written it"},
      {"\"version\": 1", "\"version\": -1", "plain non-negative integer"},
      {"x86_64", "aarch64",
       "expected a bundle for x86_64, but got one for "
       "aarch64"},
      {"\"devices\": [", "\"devices\": [{\"chip\": \"sm_90\"}, ",
       "expected 'library' in the object"},
      {"\"chip\": \"sm_80\"", "\"chip\": \"sm_80x\"",
       "expected a chip of the form sm_80, but got 'sm_80x'"},
      {"\"format\": \"ptx\"", "\"format\": \"elf\"",
       "expected a known format of kernels, but got 'elf'"},
      {"\"driver\": 12000", "\"driver\": 4294967296",
       "expected the version of a driver, but got 4294967296"},
      {"\"parameters\": \"p8\"", "\"parameters\": \"p3\"",
       "kernel 'k': expected parameters of p, m, 1, 2, 4 and 8, but got 'p3'"},
      {"\"library\": \"sm_80", "\"library\": \"sm_90",
       "sm_80: expected 'sm_90/model.so' among the files"},
      {"\"format\": \"ptx\", \"path\": \"sm_80",
       "\"format\": \"ptx\", \"path\": \"sm_90",
       "sm_80: expected 'sm_90/kernels.ptx' among the files"},
      {"\"constants\": \"sm_80/constants.bin\", ", "",
       "sm_80: expected '' among the files"},
      {"\"constant_bytes\": [4, 8]", "\"constant_bytes\": [4, 9]",
       "a file with constants of 13 bytes, but got one of 12"},
      {"\"constant_bytes\": [4, 8]",
       "\"constant_bytes\": [9223372036854775807, 9223372036854775807, 14]",
       "expected constants that memory can hold"},
      {"\"path\": \"model.so\"", "\"path\": \"../model.so\"",
       "expected the path of a file in the bundle"},
      {"\"path\": \"model.so\"", "\"path\": \"/model.so\"",
       "expected the path of a file in the bundle"},
      {"\"bytes\": 7, ", "", "expected 'bytes' in the object"},
      {"aaaa\"}],\n \"functions\"", "aaag\"}],\n \"functions\"",
       "expected 64 hexadecimal digits"},
      {"\"kind\": \"memref\"", "\"kind\": \"vector\"",
       "expected a known kind of value, but got 'vector'"},
      {"\"dtype\": \"i64\"", "\"dtype\": \"i65\"",
       "expected a known element type, but got 'i65'"},
      {"\"strides\": [null, 1]", "\"strides\": [1]",
       "expected a stride for each axis"},
      {"\"dtype\": \"i64\", \"shape\": []",
       "\"dtype\": \"i64\", \"shape\": [1]", "expected no sizes of a scalar"},
      {"\"shape\": [4, 2]", "\"shape\": [4, null]",
       "expected a shape that memory can hold"},
      {"\"shape\": [4, 2]", "\"shape\": [4, 9223372036854775807]",
       "expected a shape that memory can hold"},
      {"\"layers\": 2", "\"layers\": 3", "expected a tensor for each layer"},
      {"\"layers\": 2", "\"layers\": 2, \"follows\": \"l.{}\"",
       "weight 'l.{}': expected to follow a weight before it"},
      {"\"row_blocks\": [1, 0]", "\"row_blocks\": [1, 1]",
       "expected row_blocks that name each block"},
      {"\"row_blocks\": [1, 0]", "\"row_blocks\": [0, 2]",
       "expected row_blocks that name each block"},
      {"\"dtype\": \"bf16\"", "\"dtype\": \"i32\"",
       "expected element type f32, but got i32"},
      {"\"file\": 0, \"offset\": 80", "\"file\": 1, \"offset\": 80",
       "expected its data within a weight file"},
      {"\"offset\": 80", "\"offset\": 79", "expected its data within"},
      {"\"offset\": 184", "\"offset\": 185", "expected its data within"},
      {"\"header_bytes\": 80", "\"header_bytes\": 201",
       "expected a header within the file"},
      {"\"weights\": [", "\"weights\": 3, \"x\": [", "expected '['"},
      {"\"tool\"", "\"version\"", "expected each name once"},
  };
  for (const Case &invalid : cases) {
    Manifest manifest;
    Failure failure =
        parseManifest(replaced(invalid.from, invalid.to), manifest);
    ASSERT_TRUE(static_cast<bool>(failure)) << invalid.to;
    EXPECT_EQ(failure.getClass(), ErrorClass::Bundle);
    EXPECT_NE(failure.getMessage().find(invalid.message), std::string::npos)
        << invalid.to << ": " << failure.getMessage();
  }
}

TEST(Manifest, NoBeginningOfItIsAManifest) {
  for (size_t length = 0; length + 1 < kText.size(); ++length) {
    Manifest manifest;
    EXPECT_TRUE(static_cast<bool>(
        parseManifest(std::string_view(kText).substr(0, length), manifest)))
        << length;
  }
}

} // namespace
