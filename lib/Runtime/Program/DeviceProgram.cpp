//===- DeviceProgram.cpp - a program's side on a device -------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/DeviceProgram.h"
#include "DiffAttn/Runtime/Program/ConvertWeight.h"

#include <algorithm>
#include <utility>

using namespace diffattn_rt;

/// The bits of a host address that a strided argument keeps: kernels choose by
/// them whether to copy 16 bytes at a time.
static constexpr int64_t kKept = 16;
/// A view of which less than one in so many bytes belongs to it is copied row
/// by row.
static constexpr int64_t kSparse = 4;

Failure diffattn_rt::deviceFailure(diffattn_device &device, int32_t status) {
  if (!status)
    return {};
  return {ErrorClass::Run, device.last_error(&device)};
}

Failure DeviceProgram::create(const DeviceCode &code, DeviceHandle device,
                              diffattn_weight *constantSlots,
                              std::unique_ptr<DeviceProgram> &result) {
  // A caller may have made it, with another version of the libraries.
  if (device->version != DIFFATTN_DEVICE_VERSION ||
      device->struct_bytes != int32_t(sizeof(diffattn_device)))
    return {ErrorClass::Usage,
            "expected a device table of version " +
                std::to_string(DIFFATTN_DEVICE_VERSION) + " with " +
                std::to_string(sizeof(diffattn_device)) +
                " bytes, but got version " + std::to_string(device->version) +
                " with " + std::to_string(device->struct_bytes)};
  std::unique_ptr<DeviceProgram> program(new DeviceProgram(std::move(device)));
  diffattn_device *table = program->device.get();
  program->hostAccess = code.hostAccess;
  std::vector<diffattn_image> images;
  for (const DeviceCode::Image &image : code.images)
    images.push_back({image.chip.c_str(), image.format, image.driver,
                      image.data.data(),
                      static_cast<int64_t>(image.data.size())});
  std::vector<diffattn_kernel> kernels;
  for (const DeviceCode::Kernel &kernel : code.kernels)
    kernels.push_back({kernel.name.c_str(), kernel.hash.c_str(),
                       kernel.parameters.c_str(), kernel.startsEarly});
  if (!kernels.empty())
    if (Failure failure = program->check(table->module_load(
            table, images.data(), static_cast<int32_t>(images.size()),
            kernels.data(), static_cast<int32_t>(kernels.size()),
            &program->module)))
      return failure;
  if (Failure failure =
          program->check(table->stream_create(table, &program->ownStream)))
    return failure;
  program->stream = program->ownStream;
  program->context =
      diffattn_context_create(table, program->module, program->stream);
  if (Failure failure = program->loadConstants(code.constants, constantSlots))
    return failure;
  result = std::move(program);
  return {};
}

DeviceProgram::~DeviceProgram() {
  diffattn_device *table = device.get();
  // Failures are ignored: the call before has reported them.
  if (stream)
    (void)table->stream_wait(table, stream);
  diffattn_context_destroy(context);
  for (Buffer &buffer : arguments)
    (void)table->release(table, buffer.address);
  (void)table->release(table, constantMemory.address);
  (void)table->release(table, weightMemory.address);
  (void)table->module_destroy(table, module);
  if (stream != ownStream)
    (void)table->stream_destroy(table, stream);
  (void)table->stream_destroy(table, ownStream);
}

Failure DeviceProgram::grow(Buffer &buffer, int64_t bytes,
                            const std::string &name) {
  if (buffer.address && buffer.bytes >= bytes)
    return {};
  diffattn_device *table = device.get();
  // Memory whose release fails is not released again.
  const diffattn_address before = std::exchange(buffer, {}).address;
  if (Failure failure = check(table->release(table, before)))
    return failure;
  if (Failure failure =
          check(table->allocate(table, bytes, name.c_str(), &buffer.address)))
    return failure;
  buffer.bytes = bytes;
  ++traffic.allocations;
  return {};
}

diffattn_traffic DeviceProgram::getTraffic() const {
  diffattn_context_counters calls;
  diffattn_context_count(context, &calls);
  diffattn_traffic result = traffic;
  result.allocations += calls.allocations;
  result.bytes_within += calls.copied_bytes;
  result.launches += calls.launches;
  return result;
}

void DeviceProgram::count(const diffattn_traffic &more) {
  traffic.allocations += more.allocations;
  traffic.bytes_in += more.bytes_in;
  traffic.bytes_out += more.bytes_out;
  traffic.bytes_within += more.bytes_within;
  traffic.launches += more.launches;
}

Failure DeviceProgram::setStream(void *requested) {
  if (requested == native)
    return {};
  diffattn_device *table = device.get();
  // The workspace is reused in the order of one stream.
  if (Failure failure = check(table->stream_wait(table, stream)))
    return failure;
  diffattn_stream *next = ownStream;
  if (requested)
    if (Failure failure = check(table->stream_wrap(table, requested, &next)))
      return failure;
  diffattn_stream *before = std::exchange(stream, next);
  native = requested;
  diffattn_context_set_stream(context, stream);
  if (before == ownStream)
    return {};
  // The wrapper is gone even where this fails.
  return check(table->stream_destroy(table, before));
}

Failure DeviceProgram::allocate(int64_t bytes, diffattn_address &address) {
  ++traffic.allocations;
  return check(device->allocate(device.get(), std::max<int64_t>(bytes, 1),
                                "an array", &address));
}

Failure DeviceProgram::release(diffattn_address address) {
  return check(device->release(device.get(), address));
}

Failure DeviceProgram::write(diffattn_address to, const void *from,
                             int64_t bytes) {
  diffattn_device *table = device.get();
  traffic.bytes_in += bytes;
  if (Failure failure = check(table->copy_in(table, stream, to, from, bytes)))
    return failure;
  return check(table->stream_wait(table, stream));
}

Failure DeviceProgram::read(void *to, diffattn_address from, int64_t bytes) {
  diffattn_device *table = device.get();
  traffic.bytes_out += bytes;
  if (Failure failure = check(table->copy_out(table, stream, to, from, bytes)))
    return failure;
  return check(table->stream_wait(table, stream));
}

Failure DeviceProgram::fill(diffattn_address to, int32_t value, int64_t bytes) {
  return check(device->fill(device.get(), stream, to, value, bytes));
}

Failure DeviceProgram::copyRows(diffattn_address to, int64_t toPitch,
                                diffattn_address from, int64_t fromPitch,
                                int64_t bytes, int64_t rows) {
  if (bytes < 0 || rows < 0)
    return {ErrorClass::Usage,
            "expected numbers of bytes and rows from 0, but got " +
                std::to_string(bytes) + " and " + std::to_string(rows)};
  if (bytes == 0)
    return {};
  // So every row is another place, and those of a number that is wrong end
  // where the memory does.
  if (rows > 1 && toPitch < bytes && toPitch > -bytes)
    return {ErrorClass::Usage,
            "expected rows of " + std::to_string(bytes) +
                " bytes that do not overlap, but got a pitch of " +
                std::to_string(toPitch)};
  for (int64_t row = 0; row < rows; ++row)
    if (Failure failure =
            check(device->copy(device.get(), stream, to + row * toPitch,
                               from + row * fromPitch, bytes)))
      return failure;
  traffic.bytes_within += bytes * rows;
  return {};
}

Failure DeviceProgram::loadConstants(const std::vector<std::string> &constants,
                                     diffattn_weight *slots) {
  diffattn_device *table = device.get();
  int64_t total = 0;
  for (const std::string &constant : constants)
    total += aligned(static_cast<int64_t>(constant.size()));
  if (total == 0)
    return {};
  if (Failure failure = grow(constantMemory, total, "constants"))
    return failure;
  diffattn_address at = constantMemory.address;
  for (const std::string &constant : constants) {
    const auto bytes = static_cast<int64_t>(constant.size());
    if (Failure failure =
            check(table->copy_in(table, stream, at, constant.data(), bytes)))
      return failure;
    if (Failure failure =
            check(table->name_range(table, at, bytes, "constant")))
      return failure;
    (slots++)->data = reinterpret_cast<void *>(at);
    at += aligned(bytes);
  }
  return check(table->stream_wait(table, stream));
}

Failure DeviceProgram::loadWeights(const Signature &signature,
                                   diffattn_weight *slots,
                                   const Progress &progress) {
  diffattn_device *table = device.get();
  auto bytesOf = [](const diffattn_weight &slot) {
    return slot.rows * slot.cols * getDTypeBytes(slot.dtype);
  };
  const std::vector<std::vector<size_t>> blocks = signature.getWeightBlocks();
  int64_t total = 0, alignedTotal = 0, done = 0;
  for (const std::vector<size_t> &block : blocks) {
    int64_t bytes = 0;
    for (size_t slot : block)
      bytes += bytesOf(slots[slot]);
    total += bytes;
    alignedTotal += aligned(bytes);
  }
  if (blocks.empty())
    return {};
  if (Failure failure = grow(weightMemory, alignedTotal, "weights"))
    return failure;
  diffattn_address at = weightMemory.address;
  for (const std::vector<size_t> &block : blocks) {
    // A buffer of its own, which one product may read as a whole.
    const diffattn_address begin = at;
    std::string name = "weight";
    for (size_t number : block) {
      diffattn_weight &slot = slots[number];
      const int64_t bytes = bytesOf(slot);
      name += (at == begin ? " " : ", ") + std::to_string(number);
      if (Failure failure =
              check(table->copy_in(table, stream, at, slot.data, bytes)))
        return failure;
      slot.data = reinterpret_cast<void *>(at);
      at += bytes;
      done += bytes;
      if (progress && !progress(done, total))
        return stoppedAfter(done, total);
    }
    if (Failure failure =
            check(table->name_range(table, begin, at - begin, name.c_str())))
      return failure;
    at = begin + aligned(at - begin);
  }
  return check(table->stream_wait(table, stream));
}

/// Sorts the runs and joins those that touch: arguments that are interleaved in
/// one array are copied once.
static void joinRuns(std::vector<DeviceProgram::Run> &runs) {
  using Run = DeviceProgram::Run;
  std::sort(runs.begin(), runs.end(),
            [](const Run &a, const Run &b) { return a.data < b.data; });
  size_t last = 0;
  for (const Run &run : runs) {
    Run &into = runs[last];
    if (run.data > into.data + into.bytes)
      runs[++last] = run;
    else
      into.bytes = std::max(into.bytes, run.data + run.bytes - into.data);
  }
  runs.resize(std::min(runs.size(), last + 1));
}

std::vector<DeviceProgram::Run>
DeviceProgram::findRuns(const std::vector<int64_t> &words, size_t rank,
                        int64_t size) {
  const int64_t *shape = words.data() + 3, *strides = shape + rank;
  size_t outer = rank;
  int64_t run = 1, count = 1;
  while (outer > 0 && (shape[outer - 1] == 1 || strides[outer - 1] == run))
    run *= shape[--outer];
  for (size_t axis = 0; axis < outer; ++axis)
    count *= shape[axis];
  std::vector<Run> runs;
  std::vector<int64_t> index(outer, 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0;
    for (size_t axis = 0; axis < outer; ++axis)
      at += index[axis] * strides[axis];
    runs.push_back(
        {reinterpret_cast<char *>(words[1]) + at * size, run * size});
    for (size_t axis = outer; axis-- > 0;) {
      if (++index[axis] < shape[axis])
        break;
      index[axis] = 0;
    }
  }
  return runs;
}

std::vector<DeviceProgram::Range> DeviceProgram::findRanges(
    const FunctionSignature &function, ListRef<ArrayView> args,
    const std::vector<std::vector<int64_t>> &descriptors) {
  std::vector<Range> unmerged;
  for (size_t i = 0, d = 0; i < function.arguments.size(); ++i) {
    const ValueType &type = function.arguments[i];
    if (type.kind == ValueType::Scalar)
      continue;
    const std::vector<int64_t> &words = descriptors[d++];
    if (args[i].onDevice)
      continue;
    const size_t rank = type.shape.size();
    auto [low, high] = getElementSpan({words.data() + 3, rank},
                                      {words.data() + 3 + rank, rank});
    if (low == high)
      continue;
    const int64_t size = getDTypeBytes(type.dtype);
    char *data = reinterpret_cast<char *>(words[1]);
    // A signature does not have whether a function writes to a memref.
    const bool isMemRef = type.kind == ValueType::MemRef;
    int64_t count = 1;
    for (size_t axis = 0; axis < rank; ++axis)
      count *= words[3 + axis];
    Range &range = unmerged.emplace_back();
    range.low = data + low * size;
    range.high = data + high * size;
    range.changes = isMemRef || type.inPlace;
    range.anywhere = !isMemRef;
    range.name = "argument " + std::to_string(i);
    if (count < (high - low) / kSparse)
      range.runs = findRuns(words, rank, size);
    else
      range.runs = {{range.low, (high - low) * size}};
  }
  std::sort(unmerged.begin(), unmerged.end(),
            [](const Range &a, const Range &b) { return a.low < b.low; });
  std::vector<Range> merged;
  for (Range &range : unmerged) {
    if (merged.empty() || range.low >= merged.back().high) {
      merged.push_back(std::move(range));
      continue;
    }
    Range &into = merged.back();
    into.high = std::max(into.high, range.high);
    into.changes |= range.changes;
    into.anywhere &= range.anywhere;
    into.name += ", " + range.name;
    into.runs.insert(into.runs.end(), range.runs.begin(), range.runs.end());
  }
  for (Range &range : merged)
    joinRuns(range.runs);
  return merged;
}

Failure DeviceProgram::copyIn() {
  diffattn_device *table = device.get();
  if (arguments.size() < ranges.size())
    arguments.resize(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    Range &range = ranges[i];
    const int64_t bytes = range.high - range.low;
    if (Failure failure = grow(arguments[i], bytes + kKept, range.name))
      return failure;
    range.address = arguments[i].address;
    if (!range.anywhere)
      range.address += reinterpret_cast<uint64_t>(range.low) % kKept;
    if (Failure failure = check(
            table->name_range(table, range.address, bytes, range.name.c_str())))
      return failure;
    for (const Run &run : range.runs) {
      traffic.bytes_in += run.bytes;
      if (Failure failure = check(table->copy_in(
              table, stream, range.there(run.data), run.data, run.bytes)))
        return failure;
    }
  }
  return {};
}

Failure DeviceProgram::enter(const FunctionSignature &function,
                             ListRef<ArrayView> args,
                             std::vector<std::vector<int64_t>> &descriptors) {
  ranges = findRanges(function, args, descriptors);
  mark = diffattn_context_mark(context);
  if (Failure failure = copyIn())
    return failure;
  for (size_t i = 0, d = 0; i < args.size(); ++i) {
    if (function.arguments[i].kind == ValueType::Scalar)
      continue;
    std::vector<int64_t> &words = descriptors[d++];
    if (args[i].onDevice)
      continue;
    char *data = reinterpret_cast<char *>(words[1]);
    diffattn_address there = 0;
    for (const Range &range : ranges)
      if (data >= range.low && data < range.high)
        there = range.there(data);
    words[0] = words[1] = static_cast<int64_t>(there);
  }
  return {};
}

int32_t DeviceProgram::call(void (*run)(void *), void *argument) {
  return diffattn_rt_call_on(context, run, argument);
}

Failure DeviceProgram::fetch(const char *from, int64_t bytes,
                             const char *&here) {
  diffattn_device *table = device.get();
  fetched.resize(bytes);
  traffic.bytes_out += bytes;
  here = fetched.data();
  if (Failure failure = check(
          table->copy_out(table, stream, fetched.data(),
                          reinterpret_cast<diffattn_address>(from), bytes)))
    return failure;
  return check(table->stream_wait(table, stream));
}

Failure DeviceProgram::leave() {
  diffattn_device *table = device.get();
  diffattn_context_release(context, mark);
  if (ranges.empty())
    return {};
  for (const Range &range : ranges) {
    if (!range.changes)
      continue;
    // Elements between the rows of a view were not copied to the device.
    for (const Run &run : range.runs) {
      traffic.bytes_out += run.bytes;
      if (Failure failure = check(table->copy_out(
              table, stream, run.data, range.there(run.data), run.bytes)))
        return failure;
    }
  }
  return check(table->stream_wait(table, stream));
}
