//===- Call.h - calls of compiled functions on arrays -----------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_CALL_H
#define DIFFATTN_RUNTIME_PROGRAM_CALL_H

#include "DiffAttn/Runtime/ABI/Runtime.h"
#include "DiffAttn/Runtime/Program/Signature.h"

#include <functional>

namespace diffattn_rt {

/// An array of the caller's: strides in elements, row-major if there are none.
/// `data` is an address of the device's if it lies there: the host must not
/// read it.
struct ArrayView {
  void *data = nullptr;
  DType dtype = 0;
  SizeList shape;
  std::optional<SizeList> strides;
  bool onDevice = false;
};

/// A result of a call: an array of its own, or the argument that the function
/// updated in place.
struct CallResult {
  HostArray array;             // unset if an argument is the result
  std::optional<int> argument; // its number
};

/// A compiled function as `getEntryPointName` describes it.
using EntryPoint = void (*)(void **);

/// The memory of a call's buffers, if that is not the host's.
class CallMemory {
public:
  virtual ~CallMemory() = default;

  /// Brings those of the arguments there that are not: `descriptors` has one
  /// for each argument that is no scalar, as compiled code takes it; their
  /// addresses are replaced.
  virtual Failure enter(const FunctionSignature &function,
                        ListRef<ArrayView> args,
                        std::vector<std::vector<int64_t>> &descriptors) = 0;
  /// As diffattn_rt_call.
  virtual int32_t call(void (*run)(void *argument), void *argument) = 0;
  /// Makes `bytes` bytes that compiled code has at `from` readable at `here`,
  /// until the next call.
  virtual Failure fetch(const char *from, int64_t bytes, const char *&here) = 0;
  /// Copies back arguments that the function may have changed, and frees the
  /// workspace.
  virtual Failure leave() = 0;
};

/// The elements of an array from its first address: [low, high), both 0 if it
/// is empty.
std::pair<int64_t, int64_t> getElementSpan(SizeList shape, SizeList strides);

/// Fails if `function` does not take `count` arguments.
Failure checkArgumentCount(const FunctionSignature &function, int64_t count);

/// Checks the entry, the number of arguments, and of each its type, shape and
/// strides.
Failure checkArguments(const Signature &signature, std::string_view entry,
                       ListRef<ArrayView> args);

/// The most threads that a call can be given.
constexpr int64_t kMaxThreads = DIFFATTN_RT_MAX_THREADS;

/// Fails unless `threads` is a number of threads, or 0 for the runtime's
/// default.
Failure checkThreads(int64_t threads);

/// The calling thread's threads while it lives; 0: as many as before.
class CallThreads {
public:
  explicit CallThreads(int64_t threads);
  ~CallThreads();
  CallThreads(const CallThreads &) = delete;
  CallThreads &operator=(const CallThreads &) = delete;

private:
  std::optional<int64_t> before;
};

/// Whether an array has no elements. No stride of one leads anywhere; NumPy
/// sets them to 0.
bool isEmpty(const ArrayView &array);
/// Whether elements lie side by side in row-major order.
bool isDense(const ArrayView &array);

/// A dense copy of a strided array in memory of the host.
Failure copyDense(const ArrayView &array, HostArray &copy);

/// The place of a result that is no number: an argument that the function
/// updated, or other memory.
struct PlacedResult {
  std::optional<int> argument;
  char *data = nullptr;
  std::vector<int64_t> shape, strides;
};

/// One call of a function. The arguments must have been checked, and they and
/// the signature must outlive the call.
class PreparedCall {
public:
  PreparedCall(const FunctionSignature &function, ListRef<ArrayView> args)
      : function(function), args(args) {}

  /// Puts the arguments into the form that compiled code takes; arrays that are
  /// not dense are copied where the function takes tensors.
  Failure prepare();

  /// Calls `entry` with `threads` threads (0: the runtime's default) and takes
  /// the results out of the workspace. A failure of the compiled code is of
  /// class Run. `memory` is null for code that works in memory of the host.
  Failure run(EntryPoint entry, int64_t threads,
              std::vector<CallResult> &results, CallMemory *memory = nullptr);

  /// The call alone, by `caller`: as diffattn_rt_call.
  using Caller =
      std::function<int32_t(void (*run)(void *argument), void *argument)>;
  Failure invoke(EntryPoint entry, int64_t threads, const Caller &caller);
  /// The place of result `i`.
  PlacedResult locate(size_t i) const;

private:
  class Frame;
  Failure takeResult(size_t i, CallResult &result, CallMemory *memory) const;

  const FunctionSignature &function;
  ListRef<ArrayView> args;
  std::vector<std::vector<int64_t>> descriptors;
  std::vector<HostArray> copies;
  std::vector<void *> pointers;
  std::unique_ptr<char, FreeMemory> results;
};

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_CALL_H
