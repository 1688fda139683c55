//===- CInterface.h - calls by the types of the C interfaces ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_CINTERFACE_H
#define DIFFATTN_RUNTIME_PROGRAM_CINTERFACE_H

#include "DiffAttn/Runtime/Program/CapturedCall.h"

#include "diffattn-c/Types.h"

#include <initializer_list>

struct diffattn_graph {
  std::unique_ptr<diffattn_rt::CapturedCall> call;
};

namespace diffattn_rt {

/// The last failure of a thread, as the C interfaces give it.
class LastError {
public:
  /// Keeps the message of `failure` and returns the number of its class; 0,
  /// and the message before stays, if it is none.
  int32_t keep(const Failure &failure) {
    if (!failure)
      return 0;
    isOutOfMemory = false;
    text = failure.getMessage();
    return static_cast<int32_t>(failure.getClass());
  }
  /// Keeps that memory ran out, which takes none.
  int32_t keepOutOfMemory() {
    isOutOfMemory = true;
    return static_cast<int32_t>(ErrorClass::Run);
  }
  const char *get() const {
    return isOutOfMemory ? "expected memory for the call's own lists and "
                           "texts, but the system has no more"
                         : text.c_str();
  }

private:
  std::string text;
  bool isOutOfMemory = false;
};

/// A pointer that a caller gave, and the name of its parameter.
struct NamedPointer {
  const char *name;
  const void *pointer;
};

/// Fails at the first that is null.
Failure checkPointers(std::initializer_list<NamedPointer> pointers);

/// Fails where a list of `count` texts, or one of them, is null.
Failure checkTexts(const char *name, const char *const *texts, int32_t count);

/// Describes value `i` of `types`. Fails if there is none.
Failure describeValue(const std::vector<ValueType> &types, int32_t i,
                      diffattn_type *type);

/// Views of the arguments of a call. Fails if the list has another length than
/// that of the function, before it is read, or if an array is not valid: an
/// unknown element type, a rank, sizes or strides that memory cannot hold, or a
/// null address.
Failure viewArguments(const Signature &signature, const char *entry,
                      const diffattn_array *arguments, int32_t numArguments,
                      std::vector<ArrayView> &views);

/// Dense copies of arrays of the host, checked as arguments of `entry`.
Failure copyArguments(const Signature &signature, const char *entry,
                      const diffattn_array *arrays, int32_t count,
                      std::vector<HostArray> &copies);

/// Fails if `signature` has the entry and there is not room for as many results
/// as it has.
Failure checkResults(const Signature &signature, const char *entry,
                     const diffattn_result *results, int32_t numResults);

/// Runs `graph`; the memory of the results stays its own.
Failure launchGraph(diffattn_graph &graph, int32_t threads,
                    diffattn_result *results, int32_t numResults);

/// Passes the results' memory to the caller, which frees it with `free`.
Failure giveResults(std::vector<CallResult> called,
                    const std::vector<ArrayView> &views,
                    diffattn_result *results);

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_CINTERFACE_H
