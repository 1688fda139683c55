//===- SignatureReader.cpp - a signature written as JSON ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/SignatureReader.h"

#include <algorithm>
#include <iterator>
#include <set>

using namespace diffattn_rt;

/// More axes than any array that a caller can describe.
static constexpr size_t kMaxRank = 32;

bool SignatureReader::record(std::initializer_list<std::string_view> needed,
                             const Member &member) {
  std::set<std::string, std::less<>> seen;
  bool read = json.object([&](std::string_view key) {
    seen.emplace(key);
    return member(key);
  });
  if (!read)
    return false;
  for (std::string_view key : needed)
    if (!seen.count(key))
      return json.fail("expected '" + std::string(key) + "' in the object");
  return true;
}

bool SignatureReader::number(int64_t &value) {
  uint64_t wide;
  if (!json.integer(wide))
    return false;
  value = static_cast<int64_t>(wide);
  return true;
}

bool SignatureReader::sizes(std::vector<int64_t> &list) {
  return json.array([&] {
    int64_t size = -1;
    if (list.size() == kMaxRank)
      return json.fail("expected at most " + std::to_string(kMaxRank) +
                       " sizes");
    if (!json.eatNull() && !number(size))
      return false;
    list.push_back(size);
    return true;
  });
}

bool SignatureReader::strides(std::vector<int64_t> &list) {
  return json.array([&] {
    int64_t stride = kAnyStride;
    if (list.size() == kMaxRank)
      return json.fail("expected at most " + std::to_string(kMaxRank) +
                       " strides");
    if (!json.eatNull() && !json.signedInteger(stride))
      return false;
    list.push_back(stride);
    return true;
  });
}

bool SignatureReader::dtype(DType &value) {
  std::string name;
  if (!text(name))
    return false;
  std::optional<DType> known = parseDType(name);
  if (!known)
    return json.fail("expected a known element type, but got '" + name + "'");
  value = *known;
  return true;
}

bool SignatureReader::types(std::vector<ValueType> &list) {
  return json.array([&] { return type(list.emplace_back()); });
}

bool SignatureReader::type(ValueType &value) {
  std::string kind;
  bool read =
      record({"kind", "dtype", "shape", "in_place", "type"}, [&](auto key) {
        if (key == "kind")
          return text(kind);
        if (key == "dtype")
          return dtype(value.dtype);
        if (key == "shape")
          return sizes(value.shape);
        if (key == "strides")
          return strides(value.strides);
        if (key == "in_place")
          return json.boolean(value.inPlace);
        if (key == "type")
          return text(value.text);
        return json.skip();
      });
  if (!read)
    return false;
  auto *it = std::find(std::begin(kValueKinds), std::end(kValueKinds),
                       std::string_view(kind));
  if (it == std::end(kValueKinds))
    return json.fail("expected a known kind of value, but got '" + kind + "'");
  value.kind = static_cast<ValueType::Kind>(it - std::begin(kValueKinds));
  if (value.kind == ValueType::Scalar && !value.shape.empty())
    return json.fail("expected no sizes of a scalar");
  if (value.kind == ValueType::MemRef &&
      value.strides.size() != value.shape.size())
    return json.fail("expected a stride for each axis of a memref");
  return true;
}

bool SignatureReader::function(Signature &signature) {
  FunctionSignature &function = signature.functions.emplace_back();
  bool read = record({"name", "arguments", "results"}, [&](auto key) {
    if (key == "name")
      return text(function.name);
    if (key == "arguments")
      return types(function.arguments);
    if (key == "results")
      return types(function.results);
    return json.skip();
  });
  return read && (signature.find(function.name) == &function ||
                  json.fail("expected each function once, but got '" +
                            function.name + "' twice"));
}

bool SignatureReader::weight(WeightDeclaration &declared, const Member &other) {
  bool read = record({"name", "dtype", "shape", "layers"}, [&](auto key) {
    if (key == "name")
      return text(declared.name);
    if (key == "source")
      return text(declared.source);
    if (key == "dtype")
      return dtype(declared.dtype);
    if (key == "shape")
      return sizes(declared.shape);
    if (key == "layers")
      return number(declared.layers);
    if (key == "first_layer")
      return number(declared.firstLayer);
    if (key == "layer_step")
      return number(declared.layerStep);
    if (key == "transpose")
      return json.boolean(declared.transpose);
    if (key == "row_block_size")
      return number(declared.rowBlockSize);
    if (key == "row_blocks")
      return json.array([&] { // as many as a weight has rows
        return number(declared.rowBlocks.emplace_back());
      });
    if (key == "finite")
      return json.boolean(declared.finite);
    if (key == "follows")
      return text(declared.follows);
    return other(key);
  });
  if (!read)
    return false;
  if (std::optional<std::string> fault = declared.findFault())
    return json.fail("weight '" + declared.name + "': " + *fault);
  return true;
}

bool SignatureReader::signature(Signature &signature) {
  bool read = record({"functions", "weights"}, [&](auto key) {
    if (key == "functions")
      return json.array([&] { return function(signature); });
    if (key == "weights")
      return json.array([&] {
        return weight(signature.weights.emplace_back(),
                      [&](auto) { return json.skip(); });
      });
    return json.skip();
  });
  return read && json.end() && checkFollowing(signature);
}

bool SignatureReader::checkFollowing(const Signature &signature) {
  std::optional<std::string> fault = signature.findFollowsFault();
  return !fault || json.fail(*fault);
}

Failure diffattn_rt::parseSignature(std::string_view text,
                                    Signature &signature) {
  SignatureReader reader(text);
  if (reader.signature(signature))
    return {};
  return {ErrorClass::Compile, "expected the signature of compiled code, but "
                               "got other JSON: " +
                                   reader.getError()};
}
