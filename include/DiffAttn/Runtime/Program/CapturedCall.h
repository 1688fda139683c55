//===- CapturedCall.h - a call that is captured once ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Host code of a program on a device depends on shapes and addresses alone:
// what lies in arrays is read by kernels. A call with the same arrays therefore
// gives a stream the same work every time. The first run gives it, and writes
// it down as a graph; later runs launch the graph, with the copies of what is
// in memory of the host in it.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_CAPTUREDCALL_H
#define DIFFATTN_RUNTIME_PROGRAM_CAPTUREDCALL_H

#include "DiffAttn/Runtime/Program/DeviceProgram.h"

namespace diffattn_rt {

/// A call of a function with fixed arguments: arrays on the device, which it
/// uses and updates there, and arrays in memory of the host, which every run
/// reads anew. It has a workspace of its own, and is destroyed before the
/// program.
class CapturedCall final {
public:
  /// Creates a call with arguments that have been checked and whose memory
  /// stays where it is. Fails if one is a number, or lies in memory of the host
  /// and is not dense or may be updated, or if a result is a number.
  static Failure create(DeviceProgram &program,
                        const FunctionSignature &function, EntryPoint entry,
                        ListRef<ArrayView> args,
                        std::unique_ptr<CapturedCall> &call);
  ~CapturedCall();
  CapturedCall(const CapturedCall &) = delete;
  CapturedCall &operator=(const CapturedCall &) = delete;

  const FunctionSignature &getFunction() const { return function; }

  /// Runs it and waits for its results; assertions of the function fail it
  /// then. `threads` as in PreparedCall::run.
  Failure run(int64_t threads);

  /// A result of the last run: the argument that it is, or a dense array, valid
  /// until the next run.
  struct Result {
    std::optional<int> argument;
    const char *data = nullptr;
    DType dtype = 0;
    std::vector<int64_t> shape;
  };
  const std::vector<Result> &getResults() const { return results; }

  /// Why runs are not captured, but given to the stream kernel by kernel. Empty
  /// if they are captured, or before the first attempt.
  const std::string &getFallbackReason() const { return fallbackReason; }

private:
  CapturedCall(DeviceProgram &program, const FunctionSignature &function,
               EntryPoint entry, ListRef<ArrayView> args);

  Failure check(int32_t status) const {
    return deviceFailure(program.getDevice(), status);
  }
  Failure takeInputs();
  Failure placeOutputs();
  /// Gives all work of a run to the stream.
  Failure record(int64_t threads);
  Failure launchKernels(int64_t threads);
  void capture(int64_t threads);
  Failure launchGraph(int64_t threads);
  void dropGraph();
  Failure takeResults();

  /// An argument in memory of the host.
  struct Input {
    const void *from;
    int64_t bytes, offset; // in both blocks of inputs
  };
  /// A result that is no argument: the bytes from its lowest element on.
  struct Output {
    PlacedResult placed;
    size_t result;
    int64_t low, bytes, offset; // `low` in bytes from its first element
  };

  DeviceProgram &program;
  const FunctionSignature &function;
  EntryPoint entry;
  std::vector<std::vector<int64_t>> sizes; // of `args`, and their strides
  std::vector<ArrayView> args;
  std::unique_ptr<PreparedCall> prepared;
  diffattn_context *context = nullptr;
  diffattn_graph *graph = nullptr;
  std::string fallbackReason;

  std::vector<Input> inputs;
  diffattn_address inputMemory = 0;
  /// Host memory for copies: the inputs, the words of assertions, the outputs.
  char *inputHere = nullptr;
  int32_t *words = nullptr;
  char *outputHere = nullptr;
  int64_t inputBytes = 0, outputBytes = 0;
  std::vector<Output> outputs;
  std::vector<Result> results;
  std::vector<HostArray> copies; // of results that are not dense
};

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_CAPTUREDCALL_H
