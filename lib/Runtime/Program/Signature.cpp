//===- Signature.cpp - signatures of compiled code ------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Signature.h"

#include "DiffAttn/Runtime/ABI/Table.h"
#include "DiffAttn/Runtime/Support/Printable.h"

#include <algorithm>
#include <map>

using namespace diffattn_rt;

const FunctionSignature *Signature::find(std::string_view name) const {
  for (const FunctionSignature &function : functions)
    if (function.name == name)
      return &function;
  return nullptr;
}

Failure Signature::get(std::string_view name,
                       const FunctionSignature *&function) const {
  function = find(name);
  if (function)
    return {};
  if (functions.empty())
    return {ErrorClass::Usage, "expected an entry of the module, but it has no "
                               "public functions"};
  std::string names;
  for (const FunctionSignature &known : functions)
    names += (names.empty() ? "" : ", ") + printable(known.name);
  return {ErrorClass::Usage, "expected an entry of " + names + ", but got '" +
                                 printable(name) + "'"};
}

int64_t Signature::getNumWeightSlots() const {
  int64_t count = 0;
  for (const WeightDeclaration &weight : weights)
    count += weight.getNumSlots();
  return count;
}

/// Whether `blocks` name each block of `size` rows once, or there are none.
static bool areRowBlocks(SizeList shape, int64_t size, SizeList blocks) {
  if (!size && blocks.empty())
    return true;
  const auto count = static_cast<int64_t>(blocks.size());
  if (size < 1 || shape.empty() || shape[0] % size || shape[0] / size != count)
    return false;
  std::vector<bool> seen(blocks.size());
  for (int64_t block : blocks) {
    if (block < 0 || block >= count || seen[static_cast<size_t>(block)])
      return false;
    seen[static_cast<size_t>(block)] = true;
  }
  return true;
}

std::optional<std::string> WeightDeclaration::findFault() const {
  if (!isDType(dtype) || !getByteSize(shape, dtype))
    return "expected a shape that memory can hold";
  if (layers < 0 || layers > DIFFATTN_MAX_LAYERS)
    return "expected layers to be at most " +
           std::to_string(DIFFATTN_MAX_LAYERS) + ", but got " +
           std::to_string(layers);
  if (firstLayer < 0 || firstLayer > INT32_MAX)
    return "expected first_layer to be from 0, but got " +
           std::to_string(firstLayer);
  if (layerStep < 1 || layerStep > INT32_MAX)
    return "expected layer_step to be from 1, but got " +
           std::to_string(layerStep);
  if (transpose && shape.size() != 2)
    return "expected two sizes, because it is transposed";
  if (finite && !isFloatDType(dtype))
    return "expected floats, because they are to be finite";
  if (!areRowBlocks(shape, rowBlockSize, rowBlocks))
    return "expected row_blocks that name each block of rows once";
  return std::nullopt;
}

/// Whether the rows of `weight` can go on behind those of `first`.
static bool canFollow(const WeightDeclaration &weight,
                      const WeightDeclaration &first) {
  if (weight.layers != first.layers || weight.dtype != first.dtype ||
      weight.shape.empty() || first.shape.empty() ||
      !std::equal(weight.shape.begin() + 1, weight.shape.end(),
                  first.shape.begin() + 1, first.shape.end()))
    return false;
  std::optional<int64_t> bytes = getByteSize(first.shape, first.dtype);
  return bytes && *bytes % DIFFATTN_WEIGHT_ALIGNMENT == 0;
}

std::optional<std::string> Signature::findFollowsFault() const {
  // Weights before this one that no other follows yet.
  std::map<std::string_view, const WeightDeclaration *> earlier;
  for (const WeightDeclaration &weight : weights) {
    if (!weight.follows.empty()) {
      auto first = earlier.find(weight.follows);
      if (first == earlier.end() || !canFollow(weight, *first->second))
        return "weight '" + weight.name +
               "': expected to follow a weight before it that no other "
               "follows, of as many layers, of the same columns and elements, "
               "and of a multiple of " +
               std::to_string(DIFFATTN_WEIGHT_ALIGNMENT) + " bytes, but got '" +
               weight.follows + "'";
      earlier.erase(first);
    }
    earlier[weight.name] = &weight;
  }
  return std::nullopt;
}

std::vector<std::vector<size_t>> Signature::getWeightBlocks() const {
  // A weight comes after the one that it follows, whose blocks exist then.
  std::vector<std::vector<size_t>> blocks;
  std::map<std::string_view, size_t> firstBlocks;
  size_t slot = 0;
  for (const WeightDeclaration &weight : weights) {
    auto before = firstBlocks.find(weight.follows);
    const bool isFirst = weight.follows.empty() || before == firstBlocks.end();
    const size_t at = isFirst ? blocks.size() : before->second;
    const auto count = static_cast<size_t>(weight.getNumSlots());
    if (isFirst)
      blocks.resize(at + count);
    for (size_t i = 0; i < count; ++i)
      blocks[at + i].push_back(slot++);
    firstBlocks[weight.name] = at;
  }
  return blocks;
}

std::string WeightDeclaration::getFileName(int64_t i) const {
  std::string result = source.empty() ? name : source;
  if (!layers)
    return result;
  // A name may have the layer's number more than once.
  std::string number = std::to_string(firstLayer + i * layerStep);
  for (size_t hole = result.find("{}"); hole != std::string::npos;
       hole = result.find("{}", hole + number.size()))
    result.replace(hole, 2, number);
  return result;
}

static void addNumbers(std::string &text, SizeList numbers) {
  for (int64_t number : numbers)
    text += std::to_string(number) + ",";
  text += ";";
}

static void addTypes(std::string &text, const std::vector<ValueType> &types) {
  for (const ValueType &type : types) {
    addNumbers(text, {type.kind, type.dtype, type.inPlace});
    addNumbers(text, type.shape);
    // Any stride is -1 here, as ever; -1 itself is written apart.
    for (int64_t stride : type.strides)
      text += stride == kAnyStride ? "-1,"
              : stride < 0         ? "(" + std::to_string(stride) + "),"
                                   : std::to_string(stride) + ",";
    text += ";";
  }
  text += "\n";
}

std::string diffattn_rt::getContractText(const Signature &signature) {
  std::string text;
  for (const FunctionSignature &function : signature.functions) {
    text += "function " + function.name + "\n";
    addTypes(text, function.arguments);
    addTypes(text, function.results);
  }
  for (const WeightDeclaration &weight : signature.weights) {
    text += "weight " + weight.name + "\n";
    addNumbers(text, {weight.dtype, weight.layers, weight.transpose,
                      weight.rowBlockSize});
    addNumbers(text, weight.shape);
    addNumbers(text, weight.rowBlocks);
    if (!weight.follows.empty())
      text += "follows " + weight.follows;
    text += "\n";
  }
  return text;
}

std::string diffattn_rt::getEntryPointName(std::string_view function) {
  return "diffattn_entry_" + std::string(function);
}
