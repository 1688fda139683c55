//===- CublasLtPlaces.cpp - Paths of cuBLASLt -----------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CublasLtPlaces.h"

#include <glob.h>

using namespace diffattn_rt;

std::vector<std::string> cuda::cublasLtSonames() {
  return {"libcublasLt.so.13", "libcublasLt.so.12"};
}

std::vector<std::string>
cuda::cublasLtPlaces(const std::string &path,
                     const std::vector<std::string> &packageFolders) {
  if (!path.empty())
    return {path};
  const std::vector<std::string> sonames = cublasLtSonames();
  std::vector<std::string> places = sonames;
  for (const std::string &soname : sonames)
    places.push_back("/usr/local/cuda/lib64/" + soname);
  for (const std::string &folder : packageFolders)
    for (const std::string &soname : sonames) {
      const std::string pattern = folder + "/nvidia/*/lib/" + soname;
      glob_t matches = {};
      // GLOB_NOCHECK: the pattern itself where nothing matches.
      if (glob(pattern.c_str(), GLOB_NOCHECK, nullptr, &matches) == 0)
        for (size_t i = 0; i < matches.gl_pathc; ++i)
          places.push_back(matches.gl_pathv[i]);
      globfree(&matches);
    }
  return places;
}
