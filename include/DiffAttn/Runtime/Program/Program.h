//===- Program.h - functions that can be called -----------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_PROGRAM_H
#define DIFFATTN_RUNTIME_PROGRAM_PROGRAM_H

#include "DiffAttn/Runtime/Program/CapturedCall.h"

namespace diffattn_rt {

/// Compiled functions with their weights, wherever they come from: compiled in
/// this process (CompiledProgram), or out of a bundle (LoadedBundle). One call
/// of a program at a time.
class Program {
public:
  Program() = default;
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;
  virtual ~Program();

  virtual const Signature &getSignature() const = 0;
  /// The part of the program on its device; null if it runs on the CPU.
  virtual DeviceProgram *getDevice() const = 0;

  /// Fails if `entry` cannot be called with `args` now.
  Failure check(std::string_view entry, ListRef<ArrayView> args) const;

  /// Calls a function. `threads` 0: the runtime's default.
  Failure call(std::string_view entry, ListRef<ArrayView> args, int64_t threads,
               std::vector<CallResult> &results);

  /// Captures a call of a program on a device. `call` is to be destroyed before
  /// the program.
  Failure capture(std::string_view entry, ListRef<ArrayView> args,
                  std::unique_ptr<CapturedCall> &call);

  /// Fails if it has no device. `purpose`, for the message: " to capture calls
  /// of", or empty.
  Failure checkDevice(const std::string &purpose) const;

protected:
  /// Fails where no function can be called yet.
  virtual Failure checkReady() const = 0;
  /// The code of a function of the signature.
  virtual EntryPoint getEntryPoint(const FunctionSignature &function) const = 0;
  /// The two parts of `checkDevice`'s message, before and after the purpose:
  /// the expected kind of program, and this one.
  virtual std::pair<std::string, std::string> describeNoDevice() const = 0;
};

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_PROGRAM_H
