//===- WriteSignature.cpp - a signature as JSON ---------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "WriteSignature.h"

#include "DiffAttn/Runtime/Program/SignatureReader.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace diffattn_rt;
using llvm::StringRef;
namespace json = llvm::json;

/// Numbers, with null for `any`.
static void writeNumbers(json::OStream &out, StringRef key, SizeList numbers,
                         int64_t any) {
  out.attributeArray(key, [&] {
    for (int64_t number : numbers)
      out.value(number == any ? json::Value(nullptr) : json::Value(number));
  });
}

static void writeTypes(json::OStream &out, StringRef key,
                       const std::vector<ValueType> &types) {
  out.attributeArray(key, [&] {
    for (const ValueType &type : types)
      out.object([&] {
        out.attribute("kind", kValueKinds[type.kind]);
        out.attribute("dtype", stringifyDType(type.dtype));
        writeNumbers(out, "shape", type.shape, /*any=*/-1);
        if (!type.strides.empty())
          writeNumbers(out, "strides", type.strides, kAnyStride);
        else if (type.kind == ValueType::MemRef)
          out.attributeArray("strides", [] {});
        out.attribute("in_place", type.inPlace);
        out.attribute("type", type.text);
      });
  });
}

void diffattn::writeFunctions(json::OStream &out, const Signature &signature) {
  out.attributeArray("functions", [&] {
    for (const FunctionSignature &function : signature.functions)
      out.object([&] {
        out.attribute("name", function.name);
        writeTypes(out, "arguments", function.arguments);
        writeTypes(out, "results", function.results);
      });
  });
}

void diffattn::writeWeight(json::OStream &out,
                           const WeightDeclaration &declared) {
  out.attribute("name", declared.name);
  if (!declared.source.empty())
    out.attribute("source", declared.source);
  out.attribute("dtype", stringifyDType(declared.dtype));
  writeNumbers(out, "shape", declared.shape, /*any=*/-1);
  out.attribute("layers", declared.layers);
  if (declared.firstLayer)
    out.attribute("first_layer", declared.firstLayer);
  if (declared.layerStep != 1)
    out.attribute("layer_step", declared.layerStep);
  if (declared.transpose)
    out.attribute("transpose", true);
  if (declared.rowBlockSize) {
    out.attribute("row_block_size", declared.rowBlockSize);
    writeNumbers(out, "row_blocks", declared.rowBlocks, /*any=*/-1);
  }
  if (declared.finite)
    out.attribute("finite", true);
  if (!declared.follows.empty())
    out.attribute("follows", declared.follows);
}

std::string diffattn::writeSignature(const Signature &signature) {
  std::string text;
  llvm::raw_string_ostream os(text);
  json::OStream out(os);
  out.object([&] {
    writeFunctions(out, signature);
    out.attributeArray("weights", [&] {
      for (const WeightDeclaration &declared : signature.weights)
        out.object([&] { writeWeight(out, declared); });
    });
  });
  return text;
}
