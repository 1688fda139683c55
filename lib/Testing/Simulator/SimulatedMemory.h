//===- SimulatedMemory.h - memory of a GPU that is simulated ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_SIMULATEDMEMORY_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_SIMULATEDMEMORY_H

#include "DiffAttn/Runtime/ABI/Device.h"

#include <map>
#include <string>

namespace mlir::diffattn::sim {

/// Allocations of a simulated device. A device address is one of this process
/// at which nothing may be read or written, so that host code which takes it
/// for its own faults at once; the bytes lie elsewhere.
class SimulatedMemory {
public:
  /// With `hostAccess` the bytes lie at their device address.
  explicit SimulatedMemory(bool hostAccess) : hostAccess(hostAccess) {}
  SimulatedMemory(const SimulatedMemory &) = delete;
  SimulatedMemory &operator=(const SimulatedMemory &) = delete;
  ~SimulatedMemory();

  /// Bytes that are NaNs as any float and -1 as any integer, if they are not
  /// too many: memory of a device is not zero. 0 if the system has none.
  diffattn_address allocate(int64_t bytes, const char *name);
  /// False if no allocation begins there.
  bool release(diffattn_address address);
  /// See diffattn_device::name_range. False if it lies in no allocation.
  bool nameRange(diffattn_address address, int64_t bytes, const char *name);

  /// Where `bytes` bytes at `address` lie; null if they lie in no allocation.
  char *find(diffattn_address address, int64_t bytes) const;

  /// The smallest named buffer that holds `address`.
  struct Buffer {
    diffattn_address address = 0;
    int64_t bytes = 0;
    const std::string *name = nullptr; // null: there is none
  };
  Buffer findBuffer(diffattn_address address) const;

private:
  struct Allocation {
    int64_t bytes, mapped;
    char *data;
    std::string name;
  };
  struct Range {
    int64_t bytes;
    std::string name;
  };
  using Allocations = std::map<diffattn_address, Allocation>;

  void forgetRanges(diffattn_address from, diffattn_address to);
  Allocations::const_iterator findAllocation(diffattn_address address) const;
  void unmap(Allocations::value_type &entry);

  const bool hostAccess;
  Allocations allocations;
  std::map<diffattn_address, Range> ranges;
};

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_SIMULATEDMEMORY_H
