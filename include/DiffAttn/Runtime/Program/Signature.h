//===- Signature.h - signatures of compiled code ----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_SIGNATURE_H
#define DIFFATTN_RUNTIME_PROGRAM_SIGNATURE_H

#include "DiffAttn/Runtime/Program/HostArray.h"

#include <string>
#include <string_view>
#include <vector>

namespace diffattn_rt {

/// A stride that may be any number. Others may be negative.
constexpr int64_t kAnyStride = INT64_MIN;

/// The type of an argument or a result.
struct ValueType {
  enum Kind {
    Tensor,      // dense and row-major; copied if the caller's is not
    MemRef,      // used where it lies, with its strides
    Scalar,      // passed by value
    Unsupported, // a call with it cannot be made; `text` says what it is
  };
  Kind kind = Tensor;
  DType dtype = 0;
  std::vector<int64_t> shape;   // -1: any size
  std::vector<int64_t> strides; // of a memref, in elements; kAnyStride
  bool inPlace = false; // an argument that the function updates (a cache)
  std::string text;     // as MLIR prints it
};

struct FunctionSignature {
  std::string name;
  std::vector<ValueType> arguments, results;
};

/// A weight that the module declares: an `ml_program.global` with an extern
/// value. A name with `{}` stands for one weight a layer.
struct WeightDeclaration {
  std::string name;
  std::string source; // its name in the file, if another
  DType dtype = 0;
  std::vector<int64_t> shape;
  int64_t layers = 0; // 0: one weight, not numbered
  int64_t firstLayer = 0;
  int64_t layerStep = 1;  // from one layer's number to the next one's
  bool transpose = false; // the file holds [columns, rows]
  int64_t rowBlockSize = 0;
  std::vector<int64_t> rowBlocks; // new block i is the file's block [i]
  bool finite = false;            // NaN and infinity are an error
  /// The weight in whose memory on a device this one goes on, layer by layer:
  /// compiled code reads the rows of both as one matrix. Empty: none.
  std::string follows;

  /// Checks a declaration that was read from a file. Returns the first property
  /// that was expected but does not hold; nothing if the declaration is valid.
  std::optional<std::string> findFault() const;

  /// Slots of the weight table that this declaration takes.
  int64_t getNumSlots() const { return layers ? layers : 1; }
  /// The name in the file of its slot `i`.
  std::string getFileName(int64_t i) const;
};

/// Functions and weights of a program, kept beside its object code so that it
/// can be called without its IR.
struct Signature {
  std::vector<FunctionSignature> functions;
  std::vector<WeightDeclaration> weights;

  const FunctionSignature *find(std::string_view name) const;
  /// As `find`, with a failure of class Usage that names the functions there
  /// are.
  Failure get(std::string_view name, const FunctionSignature *&function) const;
  int64_t getNumWeightSlots() const;

  /// The first `follows` that cannot be laid out, and why; nothing if all can.
  std::optional<std::string> findFollowsFault() const;
  /// The slots of the weight table in the order in which they lie on a device:
  /// those of one block lie side by side. Every slot is in one block.
  std::vector<std::vector<size_t>> getWeightBlocks() const;
};

/// The properties that callers and compiled code must agree on, as text: names
/// and types of functions and weights, and how weights are arranged.
/// Signatures with equal text are interchangeable.
std::string getContractText(const Signature &signature);

/// The symbol of compiled code that calls `function`: it takes an array of
/// pointers to the arguments of the function's C interface and, last, to its
/// result.
std::string getEntryPointName(std::string_view function);

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_SIGNATURE_H
