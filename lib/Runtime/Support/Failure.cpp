//===- Failure.cpp - classes of failures ----------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Support/Failure.h"

#include "DiffAttn/Runtime/Support/Printable.h"

using namespace diffattn_rt;

const char *diffattn_rt::stringifyErrorClass(ErrorClass errorClass) {
  switch (errorClass) {
  case ErrorClass::Mismatch:
    return "mismatch";
  case ErrorClass::Usage:
    return "usage";
  case ErrorClass::IR:
    return "ir";
  case ErrorClass::Compile:
    return "compile";
  case ErrorClass::Weights:
    return "weights";
  case ErrorClass::Input:
    return "input";
  case ErrorClass::Run:
    return "run";
  case ErrorClass::Output:
    return "output";
  case ErrorClass::Bundle:
    return "bundle";
  }
  return "unknown";
}

std::string diffattn_rt::printableMessage(ErrorClass errorClass,
                                          const std::string &message) {
  const bool isOneLine = errorClass == ErrorClass::Weights ||
                         errorClass == ErrorClass::Input ||
                         errorClass == ErrorClass::Output;
  return printable(message, isOneLine ? Lines::Escape : Lines::Keep);
}
