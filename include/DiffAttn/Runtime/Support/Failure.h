//===- Failure.h - classes of failures --------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_SUPPORT_FAILURE_H
#define DIFFATTN_RUNTIME_SUPPORT_FAILURE_H

#include <string>

namespace diffattn_rt {

/// Kinds of failures, by who can mend them. The numbers are exit codes of the
/// tools and codes of the C API.
enum class ErrorClass {
  Mismatch = 1, // results are not what was expected of them
  Usage = 2,    // options, names of entries, numbers of arguments
  IR = 3,       // the module does not parse or verify
  Compile = 4,  // a sound module that our passes could not lower
  Weights = 5,  // weight files: form, names, types, shapes
  Input = 6,    // arrays given to a call: form, types, shapes
  Run = 7,      // a check of the compiled code failed, or memory ran out
  Output = 8,   // results could not be written
  Bundle = 9,   // a bundle that is damaged, too new, or for another machine
};

/// The lower-case name of a class, for messages.
const char *stringifyErrorClass(ErrorClass errorClass);

/// A message of that class, safe to print on a terminal. Messages of the
/// compiler and of a device have lines; in the other classes a line break is
/// part of a name, and is escaped too.
std::string printableMessage(ErrorClass errorClass, const std::string &message);

/// Why something could not be done; false if it could.
class [[nodiscard]] Failure {
public:
  Failure() = default;
  Failure(ErrorClass errorClass, const std::string &message)
      : failed(true), errorClass(errorClass),
        message(printableMessage(errorClass, message)) {}

  explicit operator bool() const { return failed; }
  ErrorClass getClass() const { return errorClass; }
  const std::string &getMessage() const { return message; }

private:
  bool failed = false;
  ErrorClass errorClass = ErrorClass::Run;
  std::string message;
};

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_SUPPORT_FAILURE_H
