//===- CublasLtPlacesTest.cpp - Paths of cuBLASLt -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CublasLtPlaces.h"

#include "gtest/gtest.h"

#include <filesystem>
#include <fstream>

using namespace diffattn_rt::cuda;

namespace {

using Places = std::vector<std::string>;

TEST(CublasLtPlaces, APathIsTheOnlyPlace) {
  EXPECT_EQ(cublasLtPlaces("/a/libcublasLt.so", {"/packages"}),
            Places{"/a/libcublasLt.so"});
}

TEST(CublasLtPlaces, NewestFirst) {
  EXPECT_EQ(cublasLtPlaces("", {}),
            (Places{"libcublasLt.so.13", "libcublasLt.so.12",
                    "/usr/local/cuda/lib64/libcublasLt.so.13",
                    "/usr/local/cuda/lib64/libcublasLt.so.12"}));
}

TEST(CublasLtPlaces, PythonPackages) {
  namespace fs = std::filesystem;
  fs::path packages = fs::path(testing::TempDir()) / "site-packages";
  fs::path there = packages / "nvidia/cu13/lib/libcublasLt.so.13";
  fs::create_directories(there.parent_path());
  std::ofstream(there) << "not a library";
  Places places = cublasLtPlaces("", {"/no/such/folder", packages.string()});
  fs::remove_all(packages);
  // A pattern without a match stays in the list.
  EXPECT_EQ(
      Places(places.begin() + 4, places.end()),
      (Places{"/no/such/folder/nvidia/*/lib/libcublasLt.so.13",
              "/no/such/folder/nvidia/*/lib/libcublasLt.so.12", there.string(),
              (packages / "nvidia/*/lib/libcublasLt.so.12").string()}));
}

} // namespace
