//===- ConvertWeight.h - weights in the order and type declared -*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_CONVERTWEIGHT_H
#define DIFFATTN_RUNTIME_PROGRAM_CONVERTWEIGHT_H

#include "DiffAttn/Runtime/Program/Signature.h"

struct diffattn_weight;

namespace diffattn_rt {

/// A weight as it lies in a file: row-major, of the declared shape (with
/// `transpose`, of the shape with its two sizes exchanged), without alignment.
struct WeightSource {
  const char *data = nullptr;
  DType dtype = 0;
  std::string name; // in the file, for messages
};

/// Whether weights of type `from` can be bound where `to` is declared: the same
/// type, or two floats.
bool canConvertWeight(DType from, DType to);

/// Fills one slot of the table that compiled code reads. A weight of the
/// declared type and order stays where it lies; others are converted once, on
/// all threads, into an array that is added to `owned`. Fails where a weight
/// that is declared finite is not.
Failure convertWeight(const WeightDeclaration &declared,
                      const WeightSource &source, diffattn_weight &slot,
                      std::vector<HostArray> &owned);

/// The failure of weights whose caller did not want the rest of them.
Failure stoppedAfter(int64_t done, int64_t total);

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_CONVERTWEIGHT_H
