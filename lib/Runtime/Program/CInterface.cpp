//===- CInterface.cpp - calls by the types of the C interfaces ------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/CInterface.h"

#include <cstring>

using namespace diffattn_rt;

static Failure failAtNull(const std::string &name) {
  return {ErrorClass::Usage, name + ": expected an address, but got null"};
}

Failure
diffattn_rt::checkPointers(std::initializer_list<NamedPointer> pointers) {
  for (const NamedPointer &given : pointers)
    if (!given.pointer)
      return failAtNull(given.name);
  return {};
}

Failure diffattn_rt::checkTexts(const char *name, const char *const *texts,
                                int32_t count) {
  if (count < 0)
    return {ErrorClass::Usage, std::string(name) +
                                   ": expected a number of them from 0, but "
                                   "got " +
                                   std::to_string(count)};
  if (count > 0 && !texts)
    return failAtNull(name);
  for (int32_t i = 0; i < count; ++i)
    if (!texts[i])
      return failAtNull(std::string(name) + "[" + std::to_string(i) + "]");
  return {};
}

Failure diffattn_rt::describeValue(const std::vector<ValueType> &types,
                                   int32_t i, diffattn_type *type) {
  if (i < 0 || static_cast<size_t>(i) >= types.size())
    return {ErrorClass::Usage, "expected a number below " +
                                   std::to_string(types.size()) + ", but got " +
                                   std::to_string(i)};
  const ValueType &value = types[i];
  memset(type, 0, sizeof *type);
  bool fits = value.shape.size() <= DIFFATTN_MOST_RANK;
  type->kind = fits ? static_cast<int32_t>(value.kind) : DIFFATTN_UNSUPPORTED;
  type->dtype = value.dtype;
  type->in_place = value.inPlace;
  if (!fits)
    return {};
  type->rank = static_cast<int32_t>(value.shape.size());
  std::copy(value.shape.begin(), value.shape.end(), type->shape);
  return {};
}

/// Fails if there is not room for the results of `function` and no more.
static Failure checkRoom(const FunctionSignature &function,
                         const diffattn_result *results, int32_t numResults) {
  if (static_cast<size_t>(numResults) == function.results.size()) {
    if (results || numResults == 0)
      return {};
    return {ErrorClass::Usage, "'" + function.name + "': expected room for " +
                                   std::to_string(numResults) +
                                   " results, but got null"};
  }
  return {ErrorClass::Usage, "'" + function.name + "': expected room for " +
                                 std::to_string(function.results.size()) +
                                 " results, but got " +
                                 std::to_string(numResults)};
}

/// The element type of an array, whether it lies on a device or not.
static int32_t dtypeOf(const diffattn_array &array) {
  const bool onDevice = array.dtype >= DIFFATTN_ON_DEVICE + DIFFATTN_F32;
  return array.dtype - (onDevice ? DIFFATTN_ON_DEVICE : 0);
}

static std::string describeSizes(SizeList sizes) {
  std::string text;
  for (int64_t size : sizes)
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

/// Checks that `array` is valid in itself. Whether it fits the function is
/// checked later.
static Failure checkArray(const char *entry, int32_t i,
                          const diffattn_array &array) {
  auto fail = [&](const std::string &message) -> Failure {
    return {ErrorClass::Input, "argument " + std::to_string(i) + " of '" +
                                   std::string(entry) + "': " + message};
  };
  const int32_t dtype = dtypeOf(array);
  if (!isDType(dtype))
    return fail("expected a known element type, but got code " +
                std::to_string(array.dtype));
  if (array.rank < 0 || array.rank > DIFFATTN_MOST_RANK)
    return fail("expected a rank from 0 to " +
                std::to_string(DIFFATTN_MOST_RANK) + ", but got " +
                std::to_string(array.rank));
  if (array.rank > 0 && !array.shape)
    return fail("expected the address of its sizes, but got null");
  const SizeList shape(array.shape, static_cast<size_t>(array.rank));
  std::optional<int64_t> bytes = getByteSize(shape, dtype);
  if (!bytes)
    return fail("expected sizes of an array that memory can hold, but got " +
                describeSizes(shape));
  if (*bytes > 0 && !array.data)
    return fail("expected the address of its elements, but got null");
  if (*bytes == 0 || !array.strides)
    return {};
  const SizeList strides(array.strides, static_cast<size_t>(array.rank));
  int64_t low = 0, high = getDTypeBytes(dtype);
  for (int32_t axis = 0; axis < array.rank; ++axis) {
    int64_t reach;
    int64_t &end = strides[axis] < 0 ? low : high;
    if (__builtin_mul_overflow(shape[axis] - 1, strides[axis], &reach) ||
        __builtin_mul_overflow(reach, getDTypeBytes(dtype), &reach) ||
        __builtin_add_overflow(end, reach, &end))
      return fail(
          "expected strides of an array that memory can hold, but got " +
          describeSizes(strides));
  }
  return {};
}

Failure diffattn_rt::copyArguments(const Signature &signature,
                                   const char *entry,
                                   const diffattn_array *arrays, int32_t count,
                                   std::vector<HostArray> &copies) {
  std::vector<ArrayView> views;
  Failure failure = viewArguments(signature, entry, arrays, count, views);
  if (!failure)
    failure = checkArguments(signature, entry, views);
  for (size_t i = 0; i < views.size() && !failure; ++i) {
    if (views[i].onDevice)
      return {ErrorClass::Input,
              "argument " + std::to_string(i) + " of '" + entry +
                  "': expected an array in memory of the host, but got one on "
                  "a device"};
    failure = copyDense(views[i], copies.emplace_back());
  }
  return failure;
}

Failure diffattn_rt::checkResults(const Signature &signature, const char *entry,
                                  const diffattn_result *results,
                                  int32_t numResults) {
  const FunctionSignature *function = signature.find(entry);
  return function ? checkRoom(*function, results, numResults) : Failure();
}

Failure diffattn_rt::viewArguments(const Signature &signature,
                                   const char *entry,
                                   const diffattn_array *arguments,
                                   int32_t numArguments,
                                   std::vector<ArrayView> &views) {
  if (!entry)
    return {ErrorClass::Usage, "expected the name of a function, but got null"};
  const FunctionSignature *function;
  if (Failure failure = signature.get(entry, function))
    return failure;
  if (Failure failure = checkArgumentCount(*function, numArguments))
    return failure;
  if (numArguments > 0 && !arguments)
    return {ErrorClass::Usage,
            "'" + function->name +
                "': expected a list of arguments, but got null"};
  views.resize(numArguments);
  for (int32_t i = 0; i < numArguments; ++i) {
    const diffattn_array &array = arguments[i];
    if (Failure failure = checkArray(entry, i, array))
      return failure;
    const int32_t dtype = dtypeOf(array);
    const size_t rank = static_cast<size_t>(array.rank);
    views[i].data = array.data;
    views[i].dtype = dtype;
    views[i].onDevice = dtype != array.dtype;
    views[i].shape = SizeList(array.shape, rank);
    if (array.strides)
      views[i].strides = SizeList(array.strides, rank);
  }
  return {};
}

/// Describes a result, but for its memory.
static Failure describeResult(SizeList shape, DType dtype,
                              const std::optional<int> &argument,
                              diffattn_result &out) {
  if (shape.size() > DIFFATTN_MOST_RANK)
    return {ErrorClass::Usage, "expected results of rank 16 at most"};
  memset(&out, 0, sizeof out);
  out.argument = argument ? *argument : -1;
  out.dtype = dtype;
  out.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), out.shape);
  return {};
}

Failure diffattn_rt::launchGraph(diffattn_graph &graph, int32_t threads,
                                 diffattn_result *results, int32_t numResults) {
  CapturedCall &call = *graph.call;
  if (Failure failure = checkThreads(threads))
    return failure;
  if (Failure failure = checkRoom(call.getFunction(), results, numResults))
    return failure;
  if (Failure failure = call.run(threads))
    return failure;
  for (const CapturedCall::Result &result : call.getResults()) {
    diffattn_result &out = *results++;
    if (Failure failure =
            describeResult(result.shape, result.dtype, result.argument, out))
      return failure;
    out.data = const_cast<char *>(result.data);
  }
  return {};
}

Failure diffattn_rt::giveResults(std::vector<CallResult> called,
                                 const std::vector<ArrayView> &views,
                                 diffattn_result *results) {
  for (size_t i = 0; i < called.size(); ++i) {
    const CallResult &result = called[i];
    SizeList shape = result.array.shape;
    DType dtype = result.array.dtype;
    if (result.argument) {
      shape = views[*result.argument].shape;
      dtype = views[*result.argument].dtype;
    }
    if (Failure failure =
            describeResult(shape, dtype, result.argument, results[i]))
      return failure;
  }
  // Only where all can be given.
  for (size_t i = 0; i < called.size(); ++i)
    results[i].data = called[i].array.data.release();
  return {};
}
