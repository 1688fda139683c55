//===- DeviceProgram.h - a program's side on a device --------- -*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_RUNTIME_PROGRAM_DEVICEPROGRAM_H
#define DIFFATTN_RUNTIME_PROGRAM_DEVICEPROGRAM_H

#include "DiffAttn/Runtime/ABI/DeviceCalls.h"
#include "DiffAttn/Runtime/Program/Call.h"
#include "DiffAttn/Runtime/Program/DeviceCode.h"

#include "diffattn-c/Types.h"

#include <functional>

namespace diffattn_rt {

/// A table of the runtime's that is closed with its last owner.
using DeviceHandle = std::shared_ptr<diffattn_device>;

/// The device's message about the last call of this thread, as a failure of
/// class Run; none for status 0.
Failure deviceFailure(diffattn_device &device, int32_t status);

/// The kernels, weights and arguments of a program on its device. Arguments
/// that do not lie there are copied for a call and, where the function may have
/// changed them, back.
class DeviceProgram final : public CallMemory {
public:
  /// Loads the kernels of `code`, and its constants into `slots`.
  static Failure create(const DeviceCode &code, DeviceHandle device,
                        diffattn_weight *constantSlots,
                        std::unique_ptr<DeviceProgram> &program);
  ~DeviceProgram() override;
  DeviceProgram(const DeviceProgram &) = delete;
  DeviceProgram &operator=(const DeviceProgram &) = delete;

  /// Called between weights with bytes done and bytes in all; false stops.
  using Progress = std::function<bool(int64_t done, int64_t total)>;

  /// Copies the weights of a signature, whose slots point to memory of the
  /// host, and lets the slots point to the copies, whose addresses are the same
  /// every time, in the order of `getWeightBlocks`.
  Failure loadWeights(const Signature &signature, diffattn_weight *slots,
                      const Progress &progress);

  /// Device operations since the program was loaded, without the loading of
  /// kernels, constants and weights.
  diffattn_traffic getTraffic() const;
  /// Adds operations that were made without functions of this class.
  void count(const diffattn_traffic &more);

  /// The stream of calls and copies from now on: a CUstream that stays the
  /// caller's, or null for the program's own. Waits for the one before. A call
  /// all of whose arrays lie on the device leaves its work to the stream.
  Failure setStream(void *native);

  /// Handles for CapturedCall. The program's own stream is the one that can be
  /// captured; `getStream` is the one of `setStream`.
  diffattn_device &getDevice() const { return *device; }
  diffattn_module *getModule() const { return module; }
  diffattn_stream *getOwnStream() const { return ownStream; }
  diffattn_stream *getStream() const { return stream; }
  /// Whether host code reads or writes buffers of the device, so that a call is
  /// more than the work of its stream.
  bool hasHostAccess() const { return hostAccess; }

  /// `bytes` rounded up to the alignment of device memory, by which kernels
  /// choose whether to copy 16 bytes at a time.
  static constexpr int64_t aligned(int64_t bytes) {
    return (bytes + kAlign - 1) / kAlign * kAlign;
  }
  /// Allocates an array that stays on the device between calls, with undefined
  /// contents. Its owner releases it, before the program is destroyed.
  Failure allocate(int64_t bytes, diffattn_address &address);
  Failure release(diffattn_address address);
  /// Copies between such memory and the host's, and waits for the copy.
  Failure write(diffattn_address to, const void *from, int64_t bytes);
  Failure read(void *to, diffattn_address from, int64_t bytes);
  /// Sets every byte to `value`, 0 to 255.
  Failure fill(diffattn_address to, int32_t value, int64_t bytes);
  /// Copies `rows` pieces of `bytes` bytes that begin every `toPitch` and
  /// `fromPitch` bytes.
  Failure copyRows(diffattn_address to, int64_t toPitch, diffattn_address from,
                   int64_t fromPitch, int64_t bytes, int64_t rows);

  /// Elements of an argument that lie side by side.
  struct Run {
    char *data;
    int64_t bytes;
  };
  Failure enter(const FunctionSignature &function, ListRef<ArrayView> args,
                std::vector<std::vector<int64_t>> &descriptors) override;
  int32_t call(void (*run)(void *argument), void *argument) override;
  Failure fetch(const char *from, int64_t bytes, const char *&here) override;
  Failure leave() override;

private:
  /// Alignment of the runtime's workspace and of buffers here, in bytes.
  static constexpr int64_t kAlign = 256;

  explicit DeviceProgram(DeviceHandle device) : device(std::move(device)) {}

  /// Device memory that is kept for the next call.
  struct Buffer {
    diffattn_address address = 0;
    int64_t bytes = 0;
  };
  /// Bytes of the host that arguments lie in. Arguments that share bytes share
  /// a range.
  struct Range {
    char *low, *high;
    bool changes = false;
    bool anywhere = true; // at an address that has no bits of the host's
    std::string name;
    /// The parts that are copied: few elements far apart, or all of it.
    std::vector<Run> runs;
    diffattn_address address = 0;

    diffattn_address there(const char *here) const {
      return address + (here - low);
    }
  };

  Failure check(int32_t status) const { return deviceFailure(*device, status); }
  Failure grow(Buffer &buffer, int64_t bytes, const std::string &name);
  Failure loadConstants(const std::vector<std::string> &constants,
                        diffattn_weight *slots);
  static std::vector<Range>
  findRanges(const FunctionSignature &function, ListRef<ArrayView> args,
             const std::vector<std::vector<int64_t>> &descriptors);
  static std::vector<Run> findRuns(const std::vector<int64_t> &words,
                                   size_t rank, int64_t size);
  Failure copyIn();

  DeviceHandle device;
  diffattn_module *module = nullptr;
  diffattn_stream *ownStream = nullptr;
  diffattn_stream *stream = nullptr; // `ownStream`, or a wrapper of `native`
  void *native = nullptr;
  diffattn_context *context = nullptr;
  bool hostAccess = false;
  Buffer constantMemory, weightMemory;
  diffattn_traffic traffic = {};
  std::vector<Buffer> arguments;
  // State of the call in progress.
  std::vector<Range> ranges;
  int64_t mark = 0;
  std::vector<char> fetched;
};

} // namespace diffattn_rt

#endif // DIFFATTN_RUNTIME_PROGRAM_DEVICEPROGRAM_H
