//===- Report.cpp - results of a simulated launch -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Testing/Simulator/Report.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir::diffattn::sim;

llvm::StringRef mlir::diffattn::sim::stringifyFaultKind(FaultKind kind) {
  switch (kind) {
  case FaultKind::Deadlock:
    return "deadlock";
  case FaultKind::Divergence:
    return "divergence";
  case FaultKind::BarrierMismatch:
    return "barrier mismatch";
  case FaultKind::OutOfBounds:
    return "out of bounds";
  case FaultKind::Misaligned:
    return "misaligned";
  case FaultKind::Uninitialized:
    return "uninitialized";
  case FaultKind::NotArrived:
    return "not arrived";
  case FaultKind::Race:
    return "race";
  case FaultKind::Order:
    return "sum in any order";
  case FaultKind::MissingFence:
    return "missing fence";
  case FaultKind::InFlight:
    return "in flight";
  case FaultKind::Descriptor:
    return "descriptor";
  case FaultKind::Registers:
    return "registers";
  case FaultKind::Index:
    return "index out of range";
  case FaultKind::Early:
    return "before the wait for earlier kernels";
  case FaultKind::Trap:
    return "trap";
  case FaultKind::Undefined:
    return "undefined";
  case FaultKind::NoProgress:
    return "no progress";
  }
  return "unknown";
}

llvm::raw_ostream &mlir::diffattn::sim::operator<<(llvm::raw_ostream &os,
                                                   const SourcePoint &point) {
  os << point.op;
  if (!point.file.empty())
    os << " at " << point.file << ":" << point.line << ":" << point.column;
  if (!point.function.empty())
    os << " in @" << point.function;
  return os;
}

llvm::raw_ostream &mlir::diffattn::sim::operator<<(llvm::raw_ostream &os,
                                                   const Fault &fault) {
  os << stringifyFaultKind(fault.kind) << ": " << fault.message << " ["
     << fault.where;
  if (!fault.other.op.empty())
    os << "; the other: " << fault.other;
  os << "; block (" << fault.block[0] << ", " << fault.block[1] << ", "
     << fault.block[2] << "), thread " << fault.thread;
  if (fault.count > 1)
    os << ", seen " << fault.count << " times";
  return os << "]";
}

const BufferStats *LaunchStats::findBuffer(llvm::StringRef name) const {
  auto it = llvm::find_if(
      buffers, [&](const BufferStats &buffer) { return buffer.name == name; });
  return it == buffers.end() ? nullptr : &*it;
}

bool LaunchReport::has(llvm::ArrayRef<FaultKind> kinds) const {
  return llvm::any_of(faults, [&](const Fault &fault) {
    return llvm::is_contained(kinds, fault.kind);
  });
}

std::string LaunchReport::str() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  for (const Fault &fault : faults)
    os << fault << "\n";
  return text;
}
