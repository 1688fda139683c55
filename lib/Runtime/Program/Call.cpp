//===- Call.cpp - calls of compiled functions on arrays -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/Call.h"
#include "DiffAttn/Runtime/Program/Overlap.h"

#include "DiffAttn/Runtime/ABI/Runtime.h"

#include <algorithm>
#include <cstring>
#include <new>

using namespace diffattn_rt;

/// A strided memref's descriptor for any rank: two addresses, an offset, sizes,
/// strides.
static size_t descriptorWords(size_t rank) { return 3 + 2 * rank; }

static int64_t alignTo(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

static Failure argumentFailure(std::string_view entry, size_t i,
                               const std::string &message) {
  return {ErrorClass::Input, "argument " + std::to_string(i) + " of '" +
                                 std::string(entry) + "': " + message};
}

bool diffattn_rt::isEmpty(const ArrayView &array) {
  return std::find(array.shape.begin(), array.shape.end(), 0) !=
         array.shape.end();
}

bool diffattn_rt::isDense(const ArrayView &array) {
  if (!array.strides || isEmpty(array))
    return true;
  int64_t expected = 1;
  for (size_t i = array.shape.size(); i-- > 0;) {
    if (array.shape[i] != 1 && (*array.strides)[i] != expected)
      return false;
    expected *= array.shape[i];
  }
  return true;
}

static void denseStrides(SizeList shape, int64_t *strides) {
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
}

/// The i8 of a graph has no sign, so that bytes of either kind are its bits
/// (importers write uint8 so).
static bool canHold(DType expected, DType actual) {
  return actual == expected ||
         (expected == DIFFATTN_I8 && actual == DIFFATTN_U8);
}

/// The first difference between `array` and `type`; empty if there is none.
static std::string findMismatch(const ValueType &type, const ArrayView &array) {
  if (!canHold(type.dtype, array.dtype))
    return "element type " + stringifyDType(array.dtype) + ", not " +
           stringifyDType(type.dtype);
  if (array.shape.size() != type.shape.size())
    return "rank " + std::to_string(array.shape.size()) + ", not " +
           std::to_string(type.shape.size());
  for (size_t axis = 0; axis < type.shape.size(); ++axis)
    if (type.shape[axis] >= 0 && type.shape[axis] != array.shape[axis])
      return "size " + std::to_string(array.shape[axis]) + " on axis " +
             std::to_string(axis) + ", not " + std::to_string(type.shape[axis]);
  return {};
}

static Failure checkArgument(std::string_view entry, size_t i,
                             const ValueType &type, const ArrayView &array) {
  if (std::string mismatch = findMismatch(type, array); !mismatch.empty())
    return argumentFailure(entry, i,
                           "expected " + type.text + ", but got " +
                               describeType(array.shape, array.dtype) + " (" +
                               mismatch + ")");
  if (array.onDevice && type.kind == ValueType::Scalar)
    return argumentFailure(entry, i,
                           "expected a number in memory of the host, but got "
                           "one on a device");
  if (array.onDevice && type.kind == ValueType::Tensor && !isDense(array))
    return argumentFailure(entry, i,
                           "expected a dense row-major array, because it is "
                           "used in place on the device, but got a strided "
                           "view");
  if (type.kind == ValueType::Tensor && type.inPlace && !isDense(array))
    return argumentFailure(entry, i,
                           "expected a dense row-major array, because "
                           "it is updated in place, but got a strided "
                           "view");
  if (type.kind != ValueType::MemRef || isEmpty(array))
    return {};
  std::vector<int64_t> strides(array.shape.size());
  if (array.strides)
    std::copy(array.strides->begin(), array.strides->end(), strides.begin());
  else
    denseStrides(array.shape, strides.data());
  for (size_t axis = 0; axis < type.strides.size(); ++axis)
    if (type.strides[axis] != kAnyStride &&
        type.strides[axis] != strides[axis] && array.shape[axis] > 1)
      return argumentFailure(entry, i,
                             "expected stride " +
                                 std::to_string(type.strides[axis]) +
                                 " of axis " + std::to_string(axis) +
                                 ", but got " + std::to_string(strides[axis]));
  return {};
}

/// Checks that an argument that the function may update shares no memory with
/// another one: reads would depend on the order of writes.
static Failure checkShared(const FunctionSignature &function,
                           ListRef<ArrayView> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const ValueType &type = function.arguments[i];
    if (type.kind == ValueType::Scalar || !type.inPlace)
      continue;
    if (repeatsElements(args[i]))
      return argumentFailure(function.name, i,
                             "expected elements that share no memory, because "
                             "it is updated in place, but got strides that "
                             "reach one twice");
    for (size_t j = 0; j < args.size(); ++j) {
      const ValueType &other = function.arguments[j];
      if (j == i || other.kind == ValueType::Scalar ||
          (other.inPlace && j < i) || args[i].onDevice != args[j].onDevice ||
          !shareMemory(args[i], args[j]))
        continue;
      return argumentFailure(function.name, j,
                             "expected an array that shares no memory with "
                             "argument " +
                                 std::to_string(i) +
                                 ", which is updated in place, but got one "
                                 "that overlaps it");
    }
  }
  return {};
}

Failure diffattn_rt::checkArgumentCount(const FunctionSignature &function,
                                        int64_t count) {
  if (count == static_cast<int64_t>(function.arguments.size()))
    return {};
  return {ErrorClass::Usage, "'" + function.name + "': expected " +
                                 std::to_string(function.arguments.size()) +
                                 " arguments, but got " +
                                 std::to_string(count)};
}

Failure diffattn_rt::checkArguments(const Signature &signature,
                                    std::string_view entry,
                                    ListRef<ArrayView> args) {
  const FunctionSignature *function;
  if (Failure failure = signature.get(entry, function))
    return failure;
  std::string quoted = "'" + std::string(entry) + "'";
  for (const auto *types : {&function->arguments, &function->results})
    for (const ValueType &type : *types)
      if (type.kind == ValueType::Unsupported)
        return {ErrorClass::Usage, quoted +
                                       ": expected arguments and results that "
                                       "arrays can hold, but got " +
                                       type.text};
  if (Failure failure = checkArgumentCount(*function, args.size()))
    return failure;
  for (size_t i = 0; i < args.size(); ++i)
    if (Failure failure =
            checkArgument(entry, i, function->arguments[i], args[i]))
      return failure;
  return checkShared(*function, args);
}

Failure diffattn_rt::copyDense(const ArrayView &array, HostArray &copy) {
  if (Failure failure = copy.allocate(array.dtype, array.shape))
    return failure;
  int64_t count = copy.getNumElements();
  if (count == 0)
    return {};
  // By runs of elements that lie together.
  int64_t bytes = getDTypeBytes(array.dtype);
  size_t rank = array.shape.size(), outer = rank;
  int64_t run = 1;
  while (outer > 0 && (array.shape[outer - 1] == 1 || !array.strides ||
                       (*array.strides)[outer - 1] == run))
    run *= array.shape[--outer];
  std::vector<int64_t> index(outer, 0);
  for (int64_t i = 0; i < count; i += run) {
    int64_t at = 0;
    for (size_t axis = 0; axis < outer; ++axis)
      at += index[axis] * (*array.strides)[axis];
    memcpy(copy.data.get() + i * bytes,
           static_cast<const char *>(array.data) + at * bytes, run * bytes);
    for (size_t axis = outer; axis-- > 0;) {
      if (++index[axis] < array.shape[axis])
        break;
      index[axis] = 0;
    }
  }
  return {};
}

static bool returnsByAddress(const FunctionSignature &function) {
  return function.results.size() > 1 ||
         (function.results.size() == 1 &&
          function.results[0].kind != ValueType::Scalar);
}

/// The offset of result `i` in the C interface's struct of results; for `i` the
/// number of results, the struct's size.
static int64_t resultOffset(const FunctionSignature &function, size_t i) {
  int64_t offset = 0;
  for (size_t r = 0; r < function.results.size(); ++r) {
    const ValueType &type = function.results[r];
    bool scalar = type.kind == ValueType::Scalar;
    int64_t bytes =
        scalar ? getDTypeBytes(type.dtype)
               : 8 * static_cast<int64_t>(descriptorWords(type.shape.size()));
    offset = alignTo(offset, scalar ? bytes : 8);
    if (r == i)
      return offset;
    offset += bytes;
  }
  return alignTo(offset, 8);
}

Failure PreparedCall::prepare() {
  descriptors.reserve(args.size());
  int64_t resultBytes = resultOffset(function, function.results.size());
  results.reset(static_cast<char *>(std::calloc(resultBytes + 8, 1)));
  if (!results)
    return {ErrorClass::Run, "expected memory for results"};
  if (returnsByAddress(function))
    pointers.push_back(results.get());
  for (size_t i = 0; i < args.size(); ++i) {
    const ValueType &type = function.arguments[i];
    const ArrayView &array = args[i];
    if (type.kind == ValueType::Scalar) {
      pointers.push_back(array.data);
      continue;
    }
    size_t rank = array.shape.size();
    void *data = array.data;
    if (type.kind == ValueType::Tensor && !isDense(array)) {
      HostArray copy;
      if (Failure failure = copyDense(array, copy))
        return failure;
      data = copy.data.get();
      copies.push_back(std::move(copy));
    }
    std::vector<int64_t> &words =
        descriptors.emplace_back(descriptorWords(rank), 0);
    words[0] = words[1] = reinterpret_cast<int64_t>(data);
    std::copy(array.shape.begin(), array.shape.end(), words.begin() + 3);
    // An axis of one element may come with any stride; code for dense tensors
    // assumes the row-major one.
    if (!array.strides || type.kind == ValueType::Tensor)
      denseStrides(array.shape, words.data() + 3 + rank);
    else
      std::copy(array.strides->begin(), array.strides->end(),
                words.begin() + 3 + rank);
    pointers.push_back(words.data());
  }
  if (!returnsByAddress(function))
    pointers.push_back(results.get());
  return {};
}

PlacedResult PreparedCall::locate(size_t i) const {
  const ValueType &type = function.results[i];
  const char *at = results.get() +
                   (returnsByAddress(function) ? resultOffset(function, i) : 0);
  const size_t rank = type.shape.size();
  std::vector<int64_t> words(descriptorWords(rank));
  memcpy(words.data(), at, 8 * words.size());
  PlacedResult placed;
  placed.shape.assign(words.begin() + 3, words.begin() + 3 + rank);
  placed.strides.assign(words.begin() + 3 + rank, words.end());
  placed.data =
      reinterpret_cast<char *>(words[1]) + words[2] * getDTypeBytes(type.dtype);
  for (size_t a = 0, d = 0; a < args.size(); ++a) {
    if (function.arguments[a].kind == ValueType::Scalar)
      continue;
    // Where compiled code saw the argument need not be where the caller has it.
    const int64_t seen = descriptors[d++][1];
    if (function.arguments[a].inPlace &&
        seen == reinterpret_cast<int64_t>(placed.data) &&
        args[a].dtype == type.dtype &&
        args[a].shape == SizeList(placed.shape)) {
      placed.argument = static_cast<int>(a);
      break;
    }
  }
  return placed;
}

/// Makes `array` the memory that compiled code allocated for the result
/// `view`, if it did and nothing else is in it.
static bool keepWhole(const ArrayView &view, HostArray &array) {
  const std::optional<int64_t> bytes = getByteSize(view.shape, view.dtype);
  if (!bytes || *bytes == 0 || !isDense(view) ||
      !diffattn_rt_take_result(view.data, *bytes))
    return false;
  array.dtype = view.dtype;
  array.shape.assign(view.shape.begin(), view.shape.end());
  array.data.reset(static_cast<char *>(view.data));
  return true;
}

Failure PreparedCall::takeResult(size_t i, CallResult &result,
                                 CallMemory *memory) const {
  const ValueType &type = function.results[i];
  if (type.kind == ValueType::Scalar) {
    const int64_t at =
        returnsByAddress(function) ? resultOffset(function, i) : 0;
    if (Failure failure = result.array.allocate(type.dtype, {}))
      return failure;
    memcpy(result.array.data.get(), results.get() + at,
           getDTypeBytes(type.dtype));
    if (type.dtype == DIFFATTN_BOOL)
      result.array.data.get()[0] &= 1;
    return {};
  }
  const PlacedResult placed = locate(i);
  result.argument = placed.argument;
  if (placed.argument)
    return {};
  char *data = placed.data;
  if (memory) {
    auto [low, high] = getElementSpan(placed.shape, placed.strides);
    const int64_t bytes = getDTypeBytes(type.dtype);
    const char *here = nullptr;
    if (Failure failure =
            memory->fetch(data + low * bytes, (high - low) * bytes, here))
      return failure;
    data = const_cast<char *>(here) - low * bytes;
  }
  const ArrayView view{data, type.dtype, placed.shape,
                       SizeList(placed.strides)};
  if (!memory && keepWhole(view, result.array))
    return {};
  return copyDense(view, result.array);
}

std::pair<int64_t, int64_t> diffattn_rt::getElementSpan(SizeList shape,
                                                        SizeList strides) {
  int64_t low = 0, high = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0)
      return {0, 0};
    (strides[axis] < 0 ? low : high) += (shape[axis] - 1) * strides[axis];
  }
  return {low, high + 1};
}

CallThreads::CallThreads(int64_t threads) {
  if (threads > 0)
    before = diffattn_rt_set_threads(threads);
}

CallThreads::~CallThreads() {
  if (before)
    diffattn_rt_set_threads(*before);
}

Failure PreparedCall::invoke(EntryPoint entry, int64_t threads,
                             const Caller &caller) {
  struct Guarded {
    EntryPoint entry;
    void **pointers;
  } guarded{entry, pointers.data()};
  auto guard = [](void *arg) {
    auto &call = *static_cast<Guarded *>(arg);
    call.entry(call.pointers);
  };
  CallThreads limit(threads);
  if (!caller(guard, &guarded))
    return {};
  const std::string message = diffattn_rt_error();
  // Checks of sizes name the argument and the function themselves.
  if (message.rfind("argument ", 0) == 0)
    return {ErrorClass::Run, message};
  return {ErrorClass::Run, "'" + function.name + "': " + message};
}

Failure diffattn_rt::checkThreads(int64_t threads) {
  if (threads >= 0 && threads <= kMaxThreads)
    return {};
  return {ErrorClass::Usage, "threads: expected 0 to " +
                                 std::to_string(kMaxThreads) + ", but got " +
                                 std::to_string(threads)};
}

/// The memory of a call while it runs: the results that are kept, the arena,
/// and `memory`. It goes back too where a list of the call finds no memory.
class PreparedCall::Frame {
public:
  explicit Frame(CallMemory *memory)
      : memory(memory), mark(diffattn_rt_mark()) {
    diffattn_rt_keep_results(!memory);
  }
  Frame(const Frame &) = delete;
  ~Frame() {
    if (isLeft)
      return;
    try {
      (void)leave();
    } catch (const std::bad_alloc &) {
      // Another error is on its way.
    }
  }
  Failure leave() {
    isLeft = true;
    diffattn_rt_keep_results(false);
    diffattn_rt_release(mark);
    return memory ? memory->leave() : Failure();
  }

private:
  CallMemory *memory;
  int64_t mark;
  bool isLeft = false;
};

Failure PreparedCall::run(EntryPoint entry, int64_t threads,
                          std::vector<CallResult> &called, CallMemory *memory) {
  if (Failure failure = checkThreads(threads))
    return failure;
  if (memory)
    if (Failure failure = memory->enter(function, args, descriptors))
      return failure;
  for (size_t i = 0; i < args.size() && !memory; ++i)
    if (args[i].onDevice)
      return argumentFailure(
          function.name, i,
          "expected an array in memory of the host, because "
          "the code is for the CPU, but got one on a device");
  Frame frame(memory);
  Caller caller = diffattn_rt_call;
  if (memory)
    caller = [memory](void (*run)(void *), void *argument) {
      return memory->call(run, argument);
    };
  Failure failure = invoke(entry, threads, caller);
  for (size_t i = 0; i < function.results.size() && !failure; ++i)
    failure = takeResult(i, called.emplace_back(), memory);
  Failure left = frame.leave();
  return failure ? failure : left;
}
