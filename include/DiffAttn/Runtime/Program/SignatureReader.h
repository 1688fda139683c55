//===- SignatureReader.h - a signature written as JSON ----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_SIGNATUREREADER_H
#define DIFFATTN_RUNTIME_PROGRAM_SIGNATUREREADER_H

#include "DiffAttn/Runtime/Program/Signature.h"
#include "DiffAttn/Runtime/Support/StrictJson.h"

#include <functional>
#include <initializer_list>

namespace diffattn_rt {

/// Kinds of values as JSON spells them, in the order of ValueType::Kind.
constexpr const char *kValueKinds[] = {"tensor", "memref", "scalar",
                                       "unsupported"};

/// Reads functions and weights, as the manifests of bundles and the compiler's
/// cache hold them (docs/bundles.md; lib/Compiler/WriteSignature.cpp writes
/// them). Every function returns false on an error, which the reader of the
/// JSON keeps. Keys that are not known are passed over.
class SignatureReader {
public:
  explicit SignatureReader(std::string_view text) : json(text) {}

  using Member = std::function<bool(std::string_view key)>;

  /// `{"functions": [...], "weights": [...]}` and nothing after it.
  bool signature(Signature &signature);
  const std::string &getError() const { return json.getError(); }

protected:
  /// An object with at least the keys `needed`, of which `member` reads those
  /// that it knows and skips others.
  bool record(std::initializer_list<std::string_view> needed,
              const Member &member);
  bool text(std::string &value) { return json.string(value); }
  bool number(uint64_t &value) { return json.integer(value); }
  bool number(int64_t &value);
  /// Reads a list of sizes: numbers, or null for a dynamic one.
  bool sizes(std::vector<int64_t> &list);
  bool dtype(DType &value);

  /// Reads a function and adds it to `signature`.
  bool function(Signature &signature);
  /// Reads a declaration; `other` reads further members of the object.
  bool weight(WeightDeclaration &declared, const Member &other);
  /// Whether weights can follow one another as they say, once all are read.
  bool checkFollowing(const Signature &signature);

  StrictJson json;

private:
  bool strides(std::vector<int64_t> &list);
  bool types(std::vector<ValueType> &list);
  bool type(ValueType &value);
};

/// The signature that `text` holds; failures are of class Compile.
Failure parseSignature(std::string_view text, Signature &signature);

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_SIGNATUREREADER_H
