//===- Call.h - calls of compiled functions on arrays -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_HOST_CALL_H
#define DIFFATTN_HOST_CALL_H

#include "DiffAttn/Host/Signature.h"

namespace mlir::diffattn {

/// An array of the caller's: strides in elements, row-major if there are none.
struct ArrayView {
  void *data = nullptr;
  DType dtype = 0;
  SizeList shape;
  std::optional<SizeList> strides;
};

/// A result of a call: an array of its own, or the argument that the function
/// updated in place.
struct CallResult {
  HostArray array;             // unset if an argument is the result
  std::optional<int> argument; // its number
};

/// A compiled function as `getEntryPointName` describes it.
using EntryPoint = void (*)(void **);

/// Checks the entry, the number of arguments, and of each its type, shape and
/// strides.
Failure checkArguments(const Signature &signature, std::string_view entry,
                       ListRef<ArrayView> args);

/// One call of a function. The arguments must have been checked, and they and
/// the signature must outlive the call.
class PreparedCall {
public:
  PreparedCall(const FunctionSignature &function, ListRef<ArrayView> args)
      : function(function), args(args) {}

  /// Puts the arguments into the form that compiled code takes; arrays that are
  /// not dense are copied where the function takes tensors.
  Failure prepare();
  /// Those copies.
  const std::vector<HostArray> &getCopies() const { return copies; }

  /// Calls `entry` with `threads` threads (0: the runtime's default) and takes
  /// the results out of the workspace. A failure of the compiled code is of
  /// class Run.
  Failure run(EntryPoint entry, int64_t threads,
              std::vector<CallResult> &results);

private:
  Failure takeResult(size_t i, CallResult &result) const;

  const FunctionSignature &function;
  ListRef<ArrayView> args;
  std::vector<std::vector<int64_t>> descriptors;
  std::vector<HostArray> copies;
  std::vector<void *> pointers;
  std::unique_ptr<char, FreeMemory> results;
};

} // namespace mlir::diffattn

#endif // DIFFATTN_HOST_CALL_H
