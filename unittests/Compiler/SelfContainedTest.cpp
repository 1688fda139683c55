//===- SelfContainedTest.cpp - a bundle's needs of a system ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SelfContained.h"
#include "SystemSymbols.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include "llvm/Support/MemoryBuffer.h"
#include "gtest/gtest.h"

#include <dlfcn.h>
#include <set>

using namespace mlir::diffattn;
using namespace diffattn_rt;

namespace {

TEST(SystemSymbols, AreInTheSystemInTheseVersions) {
  std::set<std::string> seen;
  for (const SystemSymbol &symbol : getSystemSymbols()) {
    EXPECT_TRUE(seen.insert(symbol.name.str()).second) << symbol.name.str();
    void *library = dlopen(symbol.library.str().c_str(), RTLD_LAZY);
    ASSERT_NE(library, nullptr) << dlerror();
    EXPECT_NE(dlvsym(library, symbol.name.data(), symbol.version.data()),
              nullptr)
        << symbol.name.str() << "@" << symbol.version.str();
  }
}

TEST(SelfContained, RefusesOtherLibraries) {
  Dl_info runtime;
  ASSERT_NE(dladdr(reinterpret_cast<void *>(&diffattn_rt_gemm), &runtime), 0);
  auto file = llvm::MemoryBuffer::getFile(runtime.dli_fname);
  ASSERT_TRUE(static_cast<bool>(file));
  auto [errorClass, message] =
      describeError(checkSelfContained((*file)->getBuffer()));
  EXPECT_EQ(errorClass, ErrorClass::Compile);
  EXPECT_NE(message.find("but it needs lib"), std::string::npos) << message;
}

TEST(SelfContained, RefusesNewVersions) {
  auto file = llvm::MemoryBuffer::getFile(NEWER_GLIBC);
  ASSERT_TRUE(static_cast<bool>(file));
  auto [errorClass, message] =
      describeError(checkSelfContained((*file)->getBuffer()));
  EXPECT_NE(
      message.find("expected symbols of at most GLIBC_2.28, but got GLIBC_2."),
      std::string::npos)
      << message;
}

} // namespace
