//===- CapturedCall.cpp - a call that is captured once --------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/CapturedCall.h"

#include <cstring>
#include <new>
#include <utility>

using namespace diffattn_rt;

/// Functions with assertions that one call may go through.
static constexpr int32_t kMaxChecks = 16;

static Failure cannotCapture(const FunctionSignature &function,
                             const std::string &part, const char *expected) {
  return {ErrorClass::Usage,
          part + " of '" + function.name + "': expected " + expected};
}

static Failure checkCaptured(const FunctionSignature &function,
                             ListRef<ArrayView> args) {
  constexpr const char *kNoNumber =
      "an array, because the call is captured, but got a number";
  for (size_t i = 0; i < args.size(); ++i) {
    const ValueType &type = function.arguments[i];
    const std::string part = "argument " + std::to_string(i);
    if (type.kind == ValueType::Scalar)
      return cannotCapture(function, part, kNoNumber);
    if (args[i].onDevice)
      continue;
    if (type.inPlace || type.kind == ValueType::MemRef)
      return cannotCapture(function, part,
                           "an array on the device, because the call is "
                           "captured and may update it, but got one in memory "
                           "of the host");
    if (!isDense(args[i]))
      return cannotCapture(function, part,
                           "a dense row-major array, because the call is "
                           "captured, but got a strided view");
  }
  for (size_t i = 0; i < function.results.size(); ++i)
    if (function.results[i].kind == ValueType::Scalar)
      return cannotCapture(function, "result " + std::to_string(i), kNoNumber);
  return {};
}

CapturedCall::CapturedCall(DeviceProgram &program,
                           const FunctionSignature &function, EntryPoint entry,
                           ListRef<ArrayView> given)
    : program(program), function(function), entry(entry),
      args(given.begin(), given.end()) {
  // The caller's lists of sizes need not stay.
  sizes.reserve(2 * args.size());
  for (ArrayView &view : args) {
    view.shape = sizes.emplace_back(view.shape.begin(), view.shape.end());
    if (view.strides)
      view.strides = SizeList(
          sizes.emplace_back(view.strides->begin(), view.strides->end()));
  }
}

Failure CapturedCall::create(DeviceProgram &program,
                             const FunctionSignature &function,
                             EntryPoint entry, ListRef<ArrayView> args,
                             std::unique_ptr<CapturedCall> &result) {
  if (Failure failure = checkCaptured(function, args))
    return failure;
  std::unique_ptr<CapturedCall> call(
      new CapturedCall(program, function, entry, args));
  call->context = diffattn_context_create(
      &program.getDevice(), program.getModule(), program.getOwnStream());
  if (program.hasHostAccess())
    call->fallbackReason = "the host computes a part of this program";
  if (Failure failure = call->takeInputs())
    return failure;
  call->prepared = std::make_unique<PreparedCall>(function, call->args);
  if (Failure failure = call->prepared->prepare())
    return failure;
  result = std::move(call);
  return {};
}

CapturedCall::~CapturedCall() {
  diffattn_device *table = &program.getDevice();
  // Every run has waited for its end, so nothing is under way; and to wait for
  // the stream here would break a capture of another thread. Failures are
  // ignored: the call before has reported them.
  dropGraph();
  diffattn_context_destroy(context);
  (void)table->release(table, inputMemory);
  (void)table->host_release(table, inputHere);
  (void)table->host_release(table, words);
  (void)table->host_release(table, outputHere);
}

/// A place on the device for every argument in memory of the host, which is
/// then an argument on the device.
Failure CapturedCall::takeInputs() {
  diffattn_device *table = &program.getDevice();
  void *here = nullptr;
  if (Failure failure = check(
          table->host_allocate(table, kMaxChecks * sizeof(int32_t), &here)))
    return failure;
  words = static_cast<int32_t *>(here);
  std::vector<ArrayView *> views;
  for (ArrayView &view : args) {
    if (view.onDevice)
      continue;
    int64_t bytes = getDTypeBytes(view.dtype);
    for (int64_t size : view.shape)
      bytes *= size;
    inputs.push_back({view.data, bytes, inputBytes});
    inputBytes += DeviceProgram::aligned(bytes);
    views.push_back(&view);
  }
  if (inputs.empty())
    return {};
  if (Failure failure = check(table->host_allocate(table, inputBytes, &here)))
    return failure;
  inputHere = static_cast<char *>(here);
  if (Failure failure = check(table->allocate(
          table, inputBytes, "arguments of a captured call", &inputMemory)))
    return failure;
  diffattn_traffic traffic = {};
  traffic.allocations = 1;
  program.count(traffic);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const diffattn_address there = inputMemory + inputs[i].offset;
    views[i]->data = reinterpret_cast<void *>(there);
    views[i]->strides.reset();
    views[i]->onDevice = true;
    if (Failure failure = check(table->name_range(
            table, there, inputs[i].bytes, "argument of a captured call")))
      return failure;
  }
  return {};
}

/// Finds where compiled code left the results, and allocates host memory for
/// those that are no arguments.
Failure CapturedCall::placeOutputs() {
  diffattn_device *table = &program.getDevice();
  outputs.clear();
  results.assign(function.results.size(), {});
  int64_t totalBytes = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    PlacedResult placed = prepared->locate(i);
    const DType dtype = function.results[i].dtype;
    const int64_t size = getDTypeBytes(dtype);
    results[i] = {placed.argument, nullptr, dtype, placed.shape};
    if (placed.argument)
      continue;
    auto [low, high] = getElementSpan(placed.shape, placed.strides);
    outputs.push_back(
        {std::move(placed), i, low * size, (high - low) * size, totalBytes});
    totalBytes += DeviceProgram::aligned(outputs.back().bytes);
  }
  if (totalBytes <= outputBytes)
    return {};
  outputBytes = 0;
  if (Failure failure =
          check(table->host_release(table, std::exchange(outputHere, nullptr))))
    return failure;
  void *here = nullptr;
  if (Failure failure = check(table->host_allocate(table, totalBytes, &here)))
    return failure;
  outputHere = static_cast<char *>(here);
  outputBytes = totalBytes;
  return {};
}

Failure CapturedCall::record(int64_t threads) {
  diffattn_device *table = &program.getDevice();
  diffattn_stream *stream = program.getOwnStream();
  for (const Input &input : inputs)
    if (Failure failure =
            check(table->copy_in(table, stream, inputMemory + input.offset,
                                 inputHere + input.offset, input.bytes)))
      return failure;
  diffattn_context_defer_checks(context, words, kMaxChecks);
  const int64_t mark = diffattn_rt_mark();
  Failure failure = prepared->invoke(
      entry, threads, [this](void (*run)(void *), void *argument) {
        return diffattn_rt_call_on(context, run, argument);
      });
  diffattn_rt_release(mark);
  diffattn_context_release(context, 0);
  if (!failure)
    failure = placeOutputs();
  for (const Output &output : outputs) {
    if (failure)
      return failure;
    const char *from = output.placed.data + output.low;
    failure = check(table->copy_out(table, stream, outputHere + output.offset,
                                    reinterpret_cast<diffattn_address>(from),
                                    output.bytes));
  }
  return failure;
}

Failure CapturedCall::launchKernels(int64_t threads) {
  diffattn_device *table = &program.getDevice();
  // Arguments may still be written there.
  if (program.getStream() != program.getOwnStream())
    if (Failure failure = check(table->stream_wait(table, program.getStream())))
      return failure;
  diffattn_context_counters before, after;
  diffattn_context_count(context, &before);
  Failure failure = record(threads);
  diffattn_context_count(context, &after);
  diffattn_traffic traffic = {};
  traffic.allocations = after.allocations - before.allocations;
  traffic.bytes_within = after.copied_bytes - before.copied_bytes;
  traffic.launches = after.launches - before.launches;
  program.count(traffic);
  Failure waited = check(table->stream_wait(table, program.getOwnStream()));
  return failure ? failure : waited;
}

void CapturedCall::capture(int64_t threads) {
  diffattn_device *table = &program.getDevice();
  diffattn_stream *stream = program.getOwnStream();
  diffattn_context_counters before, after;
  diffattn_context_count(context, &before);
  if (diffattn_context_settle(context)) {
    fallbackReason = diffattn_rt_error();
    return;
  }
  diffattn_context_count(context, &after);
  diffattn_traffic traffic = {};
  traffic.allocations = after.allocations - before.allocations;
  program.count(traffic);
  Failure failure = check(table->capture_begin(table, stream));
  if (!failure) {
    try {
      failure = record(threads);
    } catch (const std::bad_alloc &) {
      // A stream that records takes no other calls.
      (void)table->capture_end(table, stream, &graph);
      dropGraph();
      throw;
    }
    Failure ended = check(table->capture_end(table, stream, &graph));
    if (!failure)
      failure = ended;
  }
  if (!failure)
    return;
  dropGraph();
  fallbackReason = failure.getMessage();
}

Failure CapturedCall::launchGraph(int64_t threads) {
  diffattn_device *table = &program.getDevice();
  diffattn_stream *stream = program.getStream();
  CallThreads limit(threads);
  diffattn_traffic traffic = {};
  traffic.launches = 1;
  program.count(traffic);
  if (Failure failure = check(table->graph_launch(table, graph, stream)))
    return failure;
  return check(table->stream_wait(table, stream));
}

void CapturedCall::dropGraph() {
  diffattn_device *table = &program.getDevice();
  (void)table->graph_destroy(table, graph);
  graph = nullptr;
}

Failure CapturedCall::run(int64_t threads) {
  diffattn_traffic traffic = {};
  for (const Input &input : inputs) {
    memcpy(inputHere + input.offset, input.from, input.bytes);
    traffic.bytes_in += input.bytes;
  }
  const bool first = !graph;
  if (Failure failure = first ? launchKernels(threads) : launchGraph(threads))
    return failure;
  for (const Output &output : outputs)
    traffic.bytes_out += output.bytes;
  program.count(traffic);
  if (const char *message = diffattn_context_deferred(context))
    return {ErrorClass::Run, "'" + function.name + "': " + message};
  if (first && fallbackReason.empty())
    capture(threads);
  return takeResults();
}

Failure CapturedCall::takeResults() {
  copies.clear();
  for (const Output &output : outputs) {
    Result &result = results[output.result];
    char *here = outputHere + output.offset;
    result.data = here;
    const ArrayView view = {here - output.low, result.dtype,
                            output.placed.shape,
                            SizeList(output.placed.strides)};
    if (isDense(view))
      continue;
    if (Failure failure = copyDense(view, copies.emplace_back()))
      return failure;
    result.data = copies.back().data.get();
  }
  return {};
}
