//===- CorpusTest.cpp - the corpora of the fuzz targets as tests ----------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Targets.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/PrettyStackTrace.h"
#include "llvm/Support/Signals.h"
#include "gtest/gtest.h"

using namespace mlir::diffattn::fuzz;

namespace {

/// The files of the corpus of a target, by name.
std::vector<std::string> getCorpus(llvm::StringRef target) {
  std::vector<std::string> files;
  std::error_code ec;
  for (llvm::sys::fs::directory_iterator
           it(DIFFATTN_FUZZ_CORPUS + llvm::Twine("/") + target, ec),
       end;
       !ec && it != end; it.increment(ec))
    files.push_back(it->path());
  EXPECT_FALSE(ec) << ec.message();
  llvm::sort(files);
  return files;
}

class FuzzCorpus : public testing::TestWithParam<FuzzTarget> {
protected:
  static void SetUpTestSuite() {
    llvm::sys::PrintStackTraceOnErrorSignal("");
    llvm::EnablePrettyStackTrace();
  }
};

/// Seeds, whose names begin with "seed", are taken; what was found once may be
/// refused and ends the process no more.
TEST_P(FuzzCorpus, IsTakenOrRefused) {
  unsigned seeds = 0;
  for (const std::string &path : getCorpus(GetParam().name)) {
    llvm::PrettyStackTraceFormat trace("%s", path.c_str());
    auto bytes = llvm::MemoryBuffer::getFile(path);
    ASSERT_TRUE(bytes) << path;
    bool taken = GetParam().run((*bytes)->getBuffer());
    bool isSeed = llvm::sys::path::filename(path).starts_with("seed");
    EXPECT_TRUE(taken || !isSeed) << path;
    seeds += isSeed;
  }
  EXPECT_GT(seeds, 0u);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpus, testing::ValuesIn(getTargets()),
                         [](const auto &info) {
                           std::string name = info.param.name.str();
                           llvm::replace(name, '-', '_');
                           return name;
                         });

} // namespace
