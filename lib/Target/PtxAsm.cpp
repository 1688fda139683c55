//===- PtxAsm.cpp - the inline assembly of GPU kernels --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Target/PtxAsm.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

#include <cassert>

using namespace llvm;
using namespace mlir::diffattn;

static constexpr StringLiteral kWgmmaHead = "{ .reg .pred p; setp.ne.b32 p, $";
static constexpr StringLiteral kWgmmaName = "wgmma.mma_async.sync.aligned.m64n";
static constexpr StringLiteral kWaitHead = "wgmma.wait_group.sync.aligned ";
/// A comment, because a text of nothing is easily taken for a mistake.
static constexpr StringLiteral kTie = "// registers end here";
static constexpr StringLiteral kGridWait = "griddepcontrol.wait;";
static constexpr StringLiteral kCheckHead = "// expects an index in range: ";

/// The operands `first`, `first + 1`, ... of a text, in braces.
static std::string list(unsigned first, unsigned count) {
  std::string text = "{";
  for (unsigned i = 0; i < count; ++i)
    text += (Twine(i ? ", $" : "$") + Twine(first + i)).str();
  return text + "}";
}

/// Results in registers, then the arguments that lie in the same ones.
static std::string tied(unsigned floats, unsigned integers,
                        unsigned pointers = 0) {
  std::string text;
  for (auto [name, count] :
       {std::pair("=f,", floats), std::pair("=r,", integers),
        std::pair("=l,", pointers)})
    for (unsigned i = 0; i < count; ++i)
      text += name;
  for (unsigned i = 0; i < floats + integers + pointers; ++i)
    text += std::to_string(i) + ",";
  return text;
}

AsmText mlir::diffattn::getPtxAsm(const Wgmma &wgmma) {
  assert(wgmma.n % 8 == 0 && wgmma.n >= 8 && wgmma.n <= 256);
  const unsigned results = wgmma.n / 2, a = 2 * results,
                 b = a + (wgmma.aInRegisters ? 4 : 1), scale = b + 1;
  const std::string type = wgmma.bfloat ? "bf16" : "f16";
  std::string text = (kWgmmaHead + Twine(scale) + ", 0; " + kWgmmaName +
                      Twine(wgmma.n) + "k16.f32." + type + "." + type + " ")
                         .str();
  text += list(0, results) + ", ";
  text += wgmma.aInRegisters ? list(a, 4) : "$" + std::to_string(a);
  text += ", $" + std::to_string(b) + ", p, 1, 1";
  // Only an A in memory has the operand that transposes it.
  text += wgmma.aInRegisters ? "" : ", 0";
  text += wgmma.transposeB ? ", 1; }" : ", 0; }";
  return {std::move(text), tied(results, 0) +
                               (wgmma.aInRegisters ? "r,r,r,r," : "l,") +
                               "l,r,~{memory}"};
}

AsmText mlir::diffattn::getPtxAsm(const WgmmaWait &wait) {
  assert(wait.pending <= 7);
  return {(kWaitHead + Twine(wait.pending) + ";").str(),
          tied(wait.floats, wait.integers) + "~{memory}"};
}

AsmText mlir::diffattn::getPtxAsm(const RegisterTie &tie) {
  assert(tie.floats + tie.integers > 0);
  return {kTie.str(), tied(tie.floats, tie.integers) + "~{memory}"};
}

AsmText mlir::diffattn::getPtxAsm(const IndexCheck &check) {
  return {(kCheckHead + check.table).str(), "b,l"};
}

AsmText mlir::diffattn::getPtxAsm(const GridWait &wait) {
  assert(wait.pointers > 0);
  return {kGridWait.str(), tied(0, 0, wait.pointers) + "~{memory}"};
}

/// Whether the end of a comment is the name of a table, and nothing that ends
/// the comment.
static bool isName(StringRef text) {
  return !text.empty() && text.find_if_not([](char c) {
    return isLower(c) || isDigit(c) || c == '_';
  }) == StringRef::npos;
}

static std::optional<PtxAsm> readText(StringRef text, StringRef constraints) {
  PtxAsm result;
  const unsigned floats = constraints.count("=f"),
                 integers = constraints.count("=r");
  if (text == kTie) {
    if (floats + integers > 0)
      result.tie = RegisterTie{floats, integers};
  } else if (text == kGridWait) {
    if (unsigned pointers = constraints.count("=l"))
      result.gridWait = GridWait{pointers};
  } else if (text.consume_front(kCheckHead)) {
    if (isName(text))
      result.check = IndexCheck{text.str()};
  } else if (text.consume_front(kWaitHead)) {
    WgmmaWait wait{0, floats, integers};
    if (!text.consumeInteger(10, wait.pending) && wait.pending <= 7)
      result.wait = wait;
  } else if (size_t at = text.find(kWgmmaName); at != StringRef::npos) {
    text = text.drop_front(at + kWgmmaName.size());
    Wgmma wgmma;
    if (!text.consumeInteger(10, wgmma.n) && wgmma.n % 8 == 0 && wgmma.n >= 8 &&
        wgmma.n <= 256) {
      wgmma.bfloat = text.starts_with("k16.f32.bf16.");
      wgmma.aInRegisters = constraints.contains(",r,r,r,r,");
      wgmma.transposeB = text.ends_with(", 1; }");
      result.wgmma = wgmma;
    }
  }
  if (!result.tie && !result.wait && !result.wgmma && !result.check &&
      !result.gridWait)
    return std::nullopt;
  return result;
}

std::optional<PtxAsm> mlir::diffattn::parsePtxAsm(StringRef text,
                                                  StringRef constraints) {
  std::optional<PtxAsm> result = readText(text, constraints);
  if (!result)
    return std::nullopt;
  // Every character counts: write it again, and compare.
  const AsmText again = result->wgmma      ? getPtxAsm(*result->wgmma)
                        : result->wait     ? getPtxAsm(*result->wait)
                        : result->check    ? getPtxAsm(*result->check)
                        : result->gridWait ? getPtxAsm(*result->gridWait)
                                           : getPtxAsm(*result->tie);
  if (again.text != text || again.constraints != constraints)
    return std::nullopt;
  return result;
}
