//===- ReaderFuzzTest.cpp - damaged files are errors, never crashes -------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each case damages a sound input and reads it. What comes back must be an
// error of the right class, or an object of which every byte can be read and
// that agrees with the file: fuzz/Readers.cpp asks that of most readers, here
// is what a fuzz target does not try. More cases: DIFFATTN_FUZZ_CASES=100000.
//
#include "Mutation.h"
#include "Targets.h"

#include "DiffAttn/Compiler/Npy.h"
#include "DiffAttn/Compiler/WeightFiles.h"
#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "llvm/Support/Endian.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"
#include "gtest/gtest.h"

#include <numeric>
#include <set>

using namespace mlir::diffattn;
using namespace diffattn_rt;
using llvm::StringRef;

namespace {

constexpr unsigned kQuickCases = 1500;

/// A folder of its own for the files of a test.
class ReaderFuzz : public testing::Test {
protected:
  void SetUp() override {
    ASSERT_FALSE(llvm::sys::fs::createUniqueDirectory("diffattn-fuzz", folder));
  }
  void TearDown() override { llvm::sys::fs::remove_directories(folder); }

  std::string write(StringRef name, StringRef content) {
    llvm::SmallString<128> path(folder);
    llvm::sys::path::append(path, name);
    std::error_code ec;
    llvm::raw_fd_ostream os(path, ec);
    EXPECT_FALSE(ec) << ec.message();
    os << content;
    return path.str().str();
  }

  llvm::SmallString<128> folder;
};

void expectError(llvm::Error error, ErrorClass expected, StringRef path,
                 size_t inputBytes) {
  auto [errorClass, message] = describeError(std::move(error));
  EXPECT_EQ(errorClass, expected) << message;
  EXPECT_NE(message.find(path.str()), std::string::npos) << message;
  EXPECT_TRUE(StringRef(message).contains("expected") ||
              StringRef(message).contains("malformed"))
      << message;
  // It may name what the file names, and not much more.
  EXPECT_LT(message.size(), 4 * inputBytes + 1000);
}

std::string dataBytes(size_t count) {
  std::string data(count, '\0');
  std::iota(data.begin(), data.end(), 1);
  return data;
}

// The f16 tensor starts at an odd offset, as files may have it.
constexpr StringRef kHeader =
    R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]},)"
    R"("flag":{"dtype":"BOOL","shape":[1],"data_offsets":[48,49]},)"
    R"("h\u00e9":{"dtype":"F16","shape":[2,0,7],"data_offsets":[49,49]},)"
    R"("layers.0.b":{"dtype":"F16","shape":[3],"data_offsets":[49,55]}})";
constexpr size_t kDataBytes = 55;

std::string safetensors(StringRef header, uint64_t length, StringRef data) {
  char bytes[8];
  llvm::support::endian::write64le(bytes, length);
  return std::string(bytes, 8) + header.str() + data.str();
}

std::string damagedSafetensors(Mutator &mutator) {
  std::string header = kHeader.str(), data = dataBytes(kDataBytes);
  switch (mutator.below(4)) {
  case 0:
    return mutator.mutate(safetensors(header, header.size(), data));
  case 1:
    return safetensors(header, mutator.lieAboutLength(header.size()), data);
  case 2:
    data = mutator.mutate(data);
    break;
  default:
    break;
  }
  header = mutator.mutate(header);
  return safetensors(header, header.size(), data);
}

/// Every tensor lies in its file, agrees with its shape and can be read.
void expectWhole(const WeightFiles &files) {
  std::set<std::string> names;
  uint64_t sum = 0;
  for (const std::string &name : files.getNames()) {
    EXPECT_TRUE(names.insert(name).second) << name;
    const FileTensor *tensor = files.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    if (tensor->dtype)
      EXPECT_EQ(getByteSize(tensor->shape, *tensor->dtype), tensor->bytes);
    for (int64_t i = 0; i < tensor->bytes; ++i)
      sum += static_cast<unsigned char>(tensor->data[i]);
    EXPECT_EQ(files.suggest(name), name);
  }
  // The sum is used, so that the reads stay.
  EXPECT_LE(sum, uint64_t(255) * kDataBytes * 1000);
}

TEST_F(ReaderFuzz, Safetensors) {
  const std::string good =
      write("good.safetensors",
            safetensors(kHeader, kHeader.size(), dataBytes(kDataBytes)));
  unsigned taken = 0;
  forEachCase(getNumCases(kQuickCases), [&](unsigned i, Mutator &mutator) {
    std::string bytes = damagedSafetensors(mutator);
    std::string path = write("w.safetensors", bytes);
    WeightFiles files;
    bool second = i % 4 == 0;
    if (second)
      ASSERT_FALSE(static_cast<bool>(files.add(good)));
    size_t before = files.getNames().size();
    if (llvm::Error error = files.add(path)) {
      expectError(std::move(error), ErrorClass::Weights, path, bytes.size());
      EXPECT_EQ(files.getNames().size(), before);
    } else {
      ++taken;
      int64_t used = 0;
      for (const std::string &name :
           llvm::ArrayRef(files.getNames()).drop_front(before))
        used += files.find(name)->bytes;
      uint64_t header = llvm::support::endian::read64le(bytes.data());
      EXPECT_EQ(8 + header + used, bytes.size());
    }
    expectWhole(files);
  });
  // Some changes do no harm (a byte of data): both ways out are tried.
  EXPECT_GT(taken, 0u);
}

TEST_F(ReaderFuzz, ShardedIndex) {
  constexpr StringRef first =
      R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})";
  constexpr StringRef second =
      R"({"v":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"u":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}})";
  constexpr StringRef index =
      R"({"metadata":{"total_size":22,"x":[1.5e3,null,true]},)"
      R"("weight_map":{"u":"b.safetensors","v":"b.safetensors","w":"a.safetensors"}})";
  write("a.safetensors", safetensors(first, first.size(), dataBytes(12)));
  const std::string b = safetensors(second, second.size(), dataBytes(10));
  unsigned taken = 0;
  forEachCase(getNumCases(kQuickCases), [&](unsigned i, Mutator &mutator) {
    bool shard = i % 8 == 0; // else the index
    std::string text = shard ? index.str() : mutator.mutate(index);
    write("b.safetensors", shard ? mutator.mutate(b) : b);
    std::string path = write("model.safetensors.index.json", text);
    WeightFiles files;
    if (llvm::Error error = files.add(i % 2 ? path : folder.str().str()))
      expectError(std::move(error), ErrorClass::Weights, folder.str(),
                  text.size() + b.size());
    else
      ++taken;
    expectWhole(files);
  });
  EXPECT_GT(taken, 0u);
}

std::string damagedNpy(Mutator &mutator) {
  static constexpr StringRef headers[] = {
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n",
      "{'descr': '|b1', 'fortran_order': False, 'shape': (24,), }\n",
      "{\"shape\": (), 'fortran_order': False, 'descr': '<V2'}",
      "{'descr': '<i8', 'fortran_order': False, 'shape': (3, 1, 1), }\n"};
  std::string header = headers[mutator.below(std::size(headers))].str();
  std::string data = dataBytes(StringRef(header).contains("V2") ? 2 : 24);
  uint64_t version = 1 + mutator.below(3);
  uint64_t way = mutator.below(4);
  if (way == 0)
    data = mutator.mutate(data);
  if (way >= 2)
    header = mutator.mutate(header);
  uint64_t length =
      way == 1 ? mutator.lieAboutLength(header.size()) : header.size();
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i)
    bytes += static_cast<char>(length >> (8 * i));
  bytes += header + data;
  return way == 3 ? mutator.mutate(bytes) : bytes;
}

TEST_F(ReaderFuzz, Npy) {
  unsigned taken = 0;
  forEachCase(getNumCases(kQuickCases), [&](unsigned, Mutator &mutator) {
    std::string bytes = damagedNpy(mutator);
    if (!fuzz::readNpyFile(bytes))
      return;
    ++taken;
    // An array that was read can be written, and is then the same. Each file
    // waits for the disk, so not all are written.
    if (taken % 16 != 0)
      return;
    auto array = readNpy(write("x.npy", bytes));
    ASSERT_TRUE(static_cast<bool>(array));
    std::string copy = write("copy.npy", "");
    ASSERT_FALSE(static_cast<bool>(
        writeNpy(copy, array->data.get(), array->dtype, array->shape)));
    auto back = readNpy(copy);
    ASSERT_TRUE(static_cast<bool>(back));
    EXPECT_EQ(back->dtype, array->dtype);
    EXPECT_EQ(back->shape, array->shape);
    EXPECT_EQ(StringRef(back->data.get(), back->getNumBytes()),
              StringRef(array->data.get(), array->getNumBytes()));
  });
  EXPECT_GT(taken, 0u);
}

TEST(ReaderFuzzJson, StrictJsonTakesNothingThatIsNoJson) {
  constexpr StringRef seeds[] = {
      kHeader,
      R"( [ 1 , -2.5e3, true, null, {}, "\u0041\n\\\"\/\ud83d\ude00" ] )",
      R"({"a": {"b": [[0, 1.5], 9223372036854775807]}, "c": "", "d": -0E+1})"};
  unsigned taken = 0;
  forEachCase(4 * getNumCases(kQuickCases), [&](unsigned i, Mutator &mutator) {
    std::string text = mutator.mutate(seeds[i % std::size(seeds)]);
    taken += fuzz::readJson(text);
  });
  EXPECT_GT(taken, 0u);
}

TEST(ReaderFuzzJson, SignaturesAreSoundOrRefused) {
  constexpr StringRef seed =
      R"({"functions":[{"name":"f","arguments":[{"kind":"tensor","dtype":"bf16","shape":[null,4],"in_place":true,"type":"t"}],)"
      R"("results":[{"kind":"memref","dtype":"f32","shape":[2],"strides":[-1],"in_place":false,"type":"m"}]}],)"
      R"("weights":[{"name":"w.{}","source":"v","dtype":"f32","shape":[4,2],"layers":3,"first_layer":1,"layer_step":2,"transpose":true,"row_block_size":2,"row_blocks":[1,0]}]})";
  unsigned taken = 0;
  forEachCase(getNumCases(kQuickCases), [&](unsigned, Mutator &mutator) {
    taken += fuzz::readSignatureText(mutator.mutate(seed));
  });
  EXPECT_GT(taken, 0u);
}

TEST(ReaderFuzzJson, ManifestsOfBundlesAreSoundOrRefused) {
  const std::string digest(64, 'a');
  const std::string seed =
      R"({"format":"diffattn bundle","version":1,"tool":"diffattn","cpu":{"architecture":"x86_64","isa":"avx2","features":["avx2"]},)"
      R"("devices":[],"files":[{"path":"model.so","bytes":7,"sha256":")" +
      digest +
      R"("}],"functions":[{"name":"f","arguments":[{"kind":"memref","dtype":"f32","shape":[null,4],"strides":[null,1],)"
      R"("in_place":true,"type":"m"}],"results":[{"kind":"scalar","dtype":"i64","shape":[],"in_place":false,"type":"i64"}]}],)"
      R"("weight_files":[{"path":"../w.safetensors","bytes":200,"header_bytes":80,"header_sha256":")" +
      digest +
      R"("}],"weights":[{"name":"l.{}","dtype":"f32","shape":[4,2],"layers":2,"row_block_size":2,"row_blocks":[1,0],)"
      R"("tensors":[{"name":"l.0","file":0,"offset":80,"dtype":"f32"},{"name":"l.1","file":0,"offset":184,"dtype":"bf16"}]}]})";
  unsigned taken = 0;
  forEachCase(getNumCases(kQuickCases), [&](unsigned, Mutator &mutator) {
    taken += fuzz::readManifest(mutator.mutate(seed));
  });
  EXPECT_GT(taken, 0u);
}

} // namespace
