//===- WeightHeader.cpp - headers of weight files -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "WeightHeader.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Support/StrictJson.h"

#include <unordered_map>

using namespace diffattn_rt;

/// The name in safetensors of a type of weights; empty if it has none.
static std::string_view getFileType(DType dtype) {
  switch (dtype) {
  case DIFFATTN_F32:
    return "F32";
  case DIFFATTN_F16:
    return "F16";
  case DIFFATTN_BF16:
    return "BF16";
  case DIFFATTN_F64:
    return "F64";
  case DIFFATTN_I8:
    return "I8";
  default:
    return {};
  }
}

Failure diffattn_rt::checkWeightHeader(std::string_view header,
                                       const Manifest &manifest,
                                       size_t number) {
  // The length of the JSON text comes first.
  constexpr size_t prefix = sizeof(uint64_t);
  if (header.size() < prefix)
    return {ErrorClass::Weights, "expected a header of safetensors"};
  std::unordered_map<std::string_view, std::vector<const TensorPlace *>>
      expected;
  for (const TensorPlace &place : manifest.places)
    if (place.file == number)
      expected[place.name].push_back(&place);

  StrictJson json(header.substr(prefix));
  std::string error;
  auto compare = [&](std::string_view name, std::string_view type,
                     uint64_t begin) {
    auto it = expected.find(name);
    if (it == expected.end())
      return;
    for (const TensorPlace *place : it->second)
      if (error.empty() && (place->offset != header.size() + begin ||
                            getFileType(place->dtype) != type))
        error = "tensor '" + std::string(name) +
                "': expected the type and place that the bundle has, " +
                std::string(getFileType(place->dtype)) + " at byte " +
                std::to_string(place->offset) + ", but got " +
                std::string(type) + " at byte " +
                std::to_string(header.size() + begin);
    expected.erase(it);
  };
  bool read = json.object([&](std::string_view name) {
    if (name == "__metadata__")
      return json.skip();
    const std::string tensor(name);
    std::string type;
    uint64_t begin = 0;
    bool known = json.object([&](std::string_view key) {
      if (key == "dtype")
        return json.string(type);
      if (key != "data_offsets")
        return json.skip();
      bool isFirst = true;
      return json.array([&] {
        uint64_t offset;
        if (!json.integer(offset))
          return false;
        if (std::exchange(isFirst, false))
          begin = offset;
        return true;
      });
    });
    if (known)
      compare(tensor, type, begin);
    return known;
  });
  if (!read)
    return {ErrorClass::Weights, "malformed header: " + json.getError()};
  if (error.empty() && !expected.empty())
    error = "expected tensor '" + std::string(expected.begin()->first) +
            "', which the bundle takes from the file, but there is none";
  return error.empty() ? Failure() : Failure(ErrorClass::Weights, error);
}
