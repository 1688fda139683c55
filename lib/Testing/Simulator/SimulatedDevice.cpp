//===- SimulatedDevice.cpp - a GPU that is simulated ----------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "SimulatedDevice.h"

#include "DiffAttn/Target/GpuTarget.h"
#include "DiffAttn/Testing/Simulator/Device.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Bitcode/BitcodeReader.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/MemoryBuffer.h"

#include <cstring>

using namespace mlir::diffattn;
using namespace mlir::diffattn::sim;
using llvm::Twine;

static thread_local std::string lastError;

static int32_t fail(int32_t status, const Twine &text) {
  lastError = text.str();
  return status;
}

static bool isTensorMap(const sim::KernelParameter &parameter) {
  return parameter.bytes == DIFFATTN_TENSOR_MAP_BYTES;
}

static int32_t encodeMap(const diffattn_tensor &tensor, void *out) {
  if (tensor.dtype != DIFFATTN_F16 && tensor.dtype != DIFFATTN_BF16)
    return fail(DIFFATTN_DEVICE_INVALID,
                "expected a tensor of f16 or bf16, but got element type " +
                    Twine(tensor.dtype));
  sim::TensorMap map;
  map.base = tensor.base;
  map.rank = 4;
  map.elementBytes = 2;
  map.swizzle128 = true;
  llvm::copy(tensor.sizes, map.sizes.begin());
  llvm::copy(tensor.strides, map.strides.begin());
  map.box[0] = tensor.box_columns;
  map.box[1] = tensor.box_rows;
  auto handle = sim::encodeTensorMap(map);
  if (!handle)
    return fail(DIFFATTN_DEVICE_INVALID, llvm::toString(handle.takeError()));
  memcpy(out, &*handle, sizeof *handle);
  return DIFFATTN_DEVICE_OK;
}

static std::string describe(diffattn_address address, int64_t bytes) {
  return std::to_string(bytes) + " bytes at 0x" + llvm::utohexstr(address);
}

static int32_t outside(const char *what, diffattn_address address,
                       int64_t bytes) {
  return fail(DIFFATTN_DEVICE_INVALID,
              Twine("expected memory of the device ") + what + ", but got " +
                  describe(address, bytes) +
                  ", which lie in no allocation of it");
}

SimulatedDevice::SimulatedDevice(sim::SimChip chip, bool hostAccess)
    : diffattn_device(), chip(std::move(chip)), memory(hostAccess) {
  version = DIFFATTN_DEVICE_VERSION;
  struct_bytes = sizeof(diffattn_device);
  close = [](diffattn_device *d) { delete &self(d); };
  last_error = [](diffattn_device *) { return lastError.c_str(); };
  properties = [](diffattn_device *d, diffattn_device_properties *out) {
    SimulatedDevice &me = self(d);
    *out = {};
    snprintf(out->name, sizeof out->name, "simulated GPU");
    snprintf(out->chip, sizeof out->chip, "%s", me.chip.name.c_str());
    snprintf(out->gemm_library, sizeof out->gemm_library, "%s",
             diffattn_rt_gemm_library());
    out->multiprocessors = static_cast<int32_t>(diffattn_rt_threads());
    out->shared_bytes = me.chip.sharedBytesPerBlock;
    out->simulated = 1;
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  fillMemory();
  fillStreams();
  fillKernels();
}

/// Does `work` now, or writes it down if the stream is being captured.
int32_t SimulatedDevice::give(diffattn_stream *stream, Work work) {
  auto *to = reinterpret_cast<Stream *>(stream);
  if (!to || !to->capturing)
    return work();
  to->recorded.push_back(std::move(work));
  return DIFFATTN_DEVICE_OK;
}

SimulatedDevice::Stream *SimulatedDevice::getOwnCapture() const {
  // any order: a thread captures one stream at most
  for (Stream *stream : capturing)
    if (stream->capturer == std::this_thread::get_id())
      return stream;
  return nullptr;
}

int32_t SimulatedDevice::checkHostMemory(diffattn_stream *stream,
                                         const void *memory, int64_t bytes) {
  auto *to = reinterpret_cast<Stream *>(stream);
  if (!to || !to->capturing)
    return DIFFATTN_DEVICE_OK;
  const char *data = static_cast<const char *>(memory);
  auto after = hostMemory.upper_bound(data);
  if (after != hostMemory.begin()) {
    auto [start, size] = *std::prev(after);
    if (data + bytes <= start + size)
      return DIFFATTN_DEVICE_OK;
  }
  return fail(
      DIFFATTN_DEVICE_INVALID,
      "expected memory of the host that the device gave for a copy of " +
          Twine(bytes) + " bytes that is captured");
}

void SimulatedDevice::fillMemory() {
  using D = diffattn_device;
  allocate = [](D *d, int64_t bytes, const char *name, diffattn_address *out) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    const bool captures = me.getOwnCapture();
    if (bytes < 0 || captures)
      return fail(DIFFATTN_DEVICE_INVALID,
                  captures
                      ? Twine("expected no allocation while a stream "
                              "is captured, but got one for ") +
                            name
                      : "expected a size of memory, but got " + Twine(bytes));
    *out = me.memory.allocate(bytes, name);
    return *out ? int32_t(DIFFATTN_DEVICE_OK)
                : fail(DIFFATTN_DEVICE_MEMORY,
                       "expected " + Twine(bytes) + " bytes of memory for " +
                           name + ", but the system has no more");
  };
  release = [](D *d, diffattn_address address) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    return !address || me.memory.release(address)
               ? int32_t(DIFFATTN_DEVICE_OK)
               : outside("to release", address, 0);
  };
  name_range = [](D *d, diffattn_address address, int64_t bytes,
                  const char *name) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    const std::string text = name;
    auto work = [&me, address, bytes, text] {
      return me.memory.nameRange(address, bytes, text.c_str())
                 ? int32_t(DIFFATTN_DEVICE_OK)
                 : outside("to name", address, bytes);
    };
    // A launch of the graph meets the buffers as the captured call laid them
    // out.
    if (Stream *stream = me.getOwnCapture())
      stream->recorded.push_back(work);
    return work();
  };
  host_allocate = [](D *d, int64_t bytes, void **out) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    *out = bytes < 0 ? nullptr : std::malloc(std::max<int64_t>(bytes, 1));
    if (!*out)
      return fail(DIFFATTN_DEVICE_MEMORY,
                  "expected " + Twine(bytes) +
                      " bytes of memory of the host for copies, but the "
                      "system has no more");
    me.hostMemory[static_cast<char *>(*out)] = bytes;
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  host_release = [](D *d, void *memory) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    if (memory && !me.hostMemory.erase(static_cast<char *>(memory)))
      return fail(DIFFATTN_DEVICE_INVALID,
                  "expected memory of the host that the device gave");
    std::free(memory);
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  copy_in = [](D *d, diffattn_stream *stream, diffattn_address to,
               const void *from, int64_t bytes) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    if (int32_t status = me.checkHostMemory(stream, from, bytes))
      return status;
    return me.give(stream, [&me, to, from, bytes] {
      char *data = me.memory.find(to, bytes);
      if (bytes > 0 && !data)
        return outside("to copy to", to, bytes);
      if (bytes > 0)
        memcpy(data, from, bytes);
      return int32_t(DIFFATTN_DEVICE_OK);
    });
  };
  copy_out = [](D *d, diffattn_stream *stream, void *to, diffattn_address from,
                int64_t bytes) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    if (int32_t status = me.checkHostMemory(stream, to, bytes))
      return status;
    return me.give(stream, [&me, to, from, bytes] {
      const char *data = me.memory.find(from, bytes);
      if (bytes > 0 && !data)
        return outside("to copy from", from, bytes);
      if (bytes > 0)
        memcpy(to, data, bytes);
      return int32_t(DIFFATTN_DEVICE_OK);
    });
  };
  copy = [](D *d, diffattn_stream *stream, diffattn_address to,
            diffattn_address from, int64_t bytes) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    return me.give(stream, [&me, to, from, bytes] {
      char *target = me.memory.find(to, bytes);
      const char *source = me.memory.find(from, bytes);
      if (bytes > 0 && (!target || !source))
        return outside(target ? "to copy from" : "to copy to",
                       target ? from : to, bytes);
      if (bytes > 0)
        memmove(target, source, bytes);
      return int32_t(DIFFATTN_DEVICE_OK);
    });
  };
  fill = [](D *d, diffattn_stream *stream, diffattn_address address,
            int32_t value, int64_t bytes) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    return me.give(stream, [&me, address, value, bytes] {
      char *data = me.memory.find(address, bytes);
      if (bytes > 0 && !data)
        return outside("to fill", address, bytes);
      if (bytes > 0)
        memset(data, value, bytes);
      return int32_t(DIFFATTN_DEVICE_OK);
    });
  };
}

void SimulatedDevice::fillStreams() {
  using D = diffattn_device;
  stream_create = [](D *, diffattn_stream **out) {
    *out = reinterpret_cast<diffattn_stream *>(new Stream());
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  // A stream of CUDA's means nothing here; the order of calls is kept anyway.
  stream_wrap = [](D *d, void *, diffattn_stream **out) {
    return d->stream_create(d, out);
  };
  stream_destroy = [](D *, diffattn_stream *stream) {
    delete reinterpret_cast<Stream *>(stream);
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  stream_wait = [](D *, diffattn_stream *stream) {
    auto *state = reinterpret_cast<Stream *>(stream);
    return state && state->capturing
               ? fail(DIFFATTN_DEVICE_INVALID,
                      "expected no wait for a stream while it is captured")
               : int32_t(DIFFATTN_DEVICE_OK);
  };
  stream_wait_event = [](D *, diffattn_stream *, diffattn_event *) {
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  event_create = [](D *, diffattn_event **out) {
    *out = reinterpret_cast<diffattn_event *>(new Event());
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  event_destroy = [](D *, diffattn_event *event) {
    delete reinterpret_cast<Event *>(event);
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  event_record = [](D *d, diffattn_event *event, diffattn_stream *stream) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    return me.give(stream, [&me, event] {
      *reinterpret_cast<Event *>(event) = {true, me.launches};
      return int32_t(DIFFATTN_DEVICE_OK);
    });
  };
  event_wait = [](D *, diffattn_event *) {
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  event_elapsed = [](D *, diffattn_event *start, diffattn_event *end,
                     float *out) {
    auto *a = reinterpret_cast<Event *>(start),
         *b = reinterpret_cast<Event *>(end);
    if (!a->recorded || !b->recorded)
      return fail(DIFFATTN_DEVICE_FAULT,
                  "expected two events that were recorded");
    *out = static_cast<float>(b->launches) - static_cast<float>(a->launches);
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  capture_begin = [](D *d, diffattn_stream *stream) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    auto *state = reinterpret_cast<Stream *>(stream);
    if (!state || state->capturing)
      return fail(
          DIFFATTN_DEVICE_INVALID,
          Twine("expected a stream of its own to capture, but got ") +
              (state ? "one that is being captured" : "the default stream"));
    state->capturing = true;
    state->capturer = std::this_thread::get_id();
    me.capturing.insert(state);
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  capture_end = [](D *d, diffattn_stream *stream, diffattn_graph **out) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    auto *state = reinterpret_cast<Stream *>(stream);
    *out = nullptr;
    if (!state || !state->capturing)
      return fail(DIFFATTN_DEVICE_INVALID,
                  "expected a stream that is being captured");
    state->capturing = false;
    me.capturing.erase(state);
    *out = reinterpret_cast<diffattn_graph *>(
        new Graph{std::move(state->recorded)});
    state->recorded.clear();
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  graph_launch = [](D *d, diffattn_graph *graph, diffattn_stream *stream) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    for (const Work &work : reinterpret_cast<Graph *>(graph)->work)
      if (int32_t status = me.give(stream, work))
        return status;
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  graph_destroy = [](D *, diffattn_graph *graph) {
    delete reinterpret_cast<Graph *>(graph);
    return int32_t(DIFFATTN_DEVICE_OK);
  };
}

void SimulatedDevice::fillKernels() {
  using D = diffattn_device;
  module_load = [](D *d, const diffattn_image *images, int32_t numImages,
                   const diffattn_kernel *kernels, int32_t numKernels,
                   diffattn_module **out) {
    auto module = std::make_unique<Module>();
    if (int32_t status = self(d).load({images, size_t(numImages)},
                                      {kernels, size_t(numKernels)}, *module))
      return status;
    *out = reinterpret_cast<diffattn_module *>(module.release());
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  module_destroy = [](D *, diffattn_module *module) {
    delete reinterpret_cast<Module *>(module);
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  launch = [](D *d, diffattn_module *handle, int32_t kernel,
              const diffattn_launch_shape *shape, diffattn_stream *stream,
              const uint64_t *arguments) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    auto *module = reinterpret_cast<Module *>(handle);
    const int64_t count = module ? module->kernels.size() : 0;
    if (kernel < 0 || kernel >= count)
      return fail(DIFFATTN_DEVICE_INVALID, "expected a kernel from 0 to " +
                                               Twine(count - 1) + ", but got " +
                                               Twine(kernel));
    auto parameters = module->simulator->getParameters(module->kernels[kernel]);
    Arguments given;
    given.words.assign(arguments, arguments + parameters.size());
    for (auto [parameter, word] : llvm::zip_equal(parameters, given.words))
      if (isTensorMap(parameter)) {
        given.maps.emplace_back();
        memcpy(&given.maps.back(), reinterpret_cast<const void *>(word),
               sizeof(sim::TensorMapHandle));
      }
    return me.give(stream, [&me, module, kernel, shape = *shape,
                            given = std::move(given)] {
      return me.launchKernel(*module, kernel, shape, given);
    });
  };
  tensor_map = [](D *, const diffattn_tensor *tensor, void *out) {
    return encodeMap(*tensor, out);
  };
  gemm = [](D *d, diffattn_stream *stream, const diffattn_product *product) {
    SimulatedDevice &me = self(d);
    std::lock_guard<std::mutex> lock(me.mutex);
    // Products that the CUDA device refuses are refused here.
    if (const char *wrong = diffattn_device_check_product(product))
      return fail(DIFFATTN_DEVICE_UNSUPPORTED, wrong);
    return me.give(stream,
                   [&me, product = *product] { return me.multiply(product); });
  };
}

int32_t SimulatedDevice::load(llvm::ArrayRef<diffattn_image> images,
                              llvm::ArrayRef<diffattn_kernel> kernels,
                              Module &module) {
  // An image for this chip is taken, else one that all chips of its number run.
  const llvm::StringRef name = chip.name;
  const diffattn_image *match = nullptr;
  for (llvm::StringRef target :
       {name, name.rtrim("abcdefghijklmnopqrstuvwxyz")})
    for (const diffattn_image &image : images)
      if (!match && image.format == DIFFATTN_IMAGE_BITCODE &&
          target == image.chip)
        match = &image;
  if (!match)
    return fail(DIFFATTN_DEVICE_IMAGE,
                "expected kernels as bitcode of " + chip.name + ", but got " +
                    (images.empty() ? "none" : "others"));
  llvm::LLVMContext context;
  auto parsed = llvm::parseBitcodeFile(
      llvm::MemoryBufferRef(
          llvm::StringRef(static_cast<const char *>(match->data), match->bytes),
          "kernels"),
      context);
  if (!parsed)
    return fail(DIFFATTN_DEVICE_IMAGE, llvm::toString(parsed.takeError()));
  auto simulator = sim::Simulator::create(**parsed, chip);
  if (!simulator)
    return fail(DIFFATTN_DEVICE_IMAGE, llvm::toString(simulator.takeError()));
  for (const diffattn_kernel &kernel : kernels) {
    if (!(*simulator)->hasKernel(kernel.name))
      return fail(DIFFATTN_DEVICE_IMAGE,
                  Twine("expected kernel ") + kernel.name + " in its module");
    std::string layout;
    for (sim::KernelParameter parameter :
         (*simulator)->getParameters(kernel.name))
      layout += parameter.isPointer      ? 'p'
                : isTensorMap(parameter) ? 'm'
                                         : char('0' + parameter.bytes);
    if (layout != kernel.parameters)
      return fail(DIFFATTN_DEVICE_IMAGE,
                  Twine("kernel ") + kernel.name + ": expected parameters " +
                      kernel.parameters + ", but the image has " + layout);
    module.kernels.push_back(kernel.name);
  }
  module.simulator = std::move(*simulator);
  return DIFFATTN_DEVICE_OK;
}

namespace {
/// Buffers of one launch, each registered once.
struct Registered {
  sim::Simulator &simulator;
  std::map<diffattn_address, uint64_t> addresses;

  uint64_t find(const SimulatedMemory &memory, diffattn_address pointer) {
    SimulatedMemory::Buffer buffer = memory.findBuffer(pointer);
    // A pointer to nothing may be passed; to use it is a fault.
    if (!buffer.name)
      return pointer;
    auto [at, isNew] = addresses.try_emplace(buffer.address, 0);
    if (isNew)
      at->second =
          simulator.registerBuffer(memory.find(buffer.address, buffer.bytes),
                                   buffer.bytes, *buffer.name, {});
    return at->second + (pointer - buffer.address);
  }
  ~Registered() {
    for (auto [data, address] : addresses)
      simulator.releaseBuffer(address);
  }
};
} // namespace

int32_t SimulatedDevice::launchKernel(Module &module, int32_t number,
                                      const diffattn_launch_shape &shape,
                                      const Arguments &arguments) {
  if (uint64_t(shape.grid[0]) * shape.grid[1] * shape.grid[2] == 0)
    return DIFFATTN_DEVICE_OK;
  ++launches;
  const std::string &kernel = module.kernels[number];
  Registered registered{*module.simulator, {}};
  std::vector<sim::KernelArgument> values;
  // A map holds the device's address, kernels see that of the buffer.
  std::vector<sim::TensorMapHandle> maps;
  maps.reserve(arguments.maps.size());
  for (auto [parameter, bits] : llvm::zip_equal(
           module.simulator->getParameters(kernel), arguments.words)) {
    if (!isTensorMap(parameter)) {
      values.push_back(
          {parameter.isPointer && bits ? registered.find(memory, bits) : bits,
           parameter.bytes});
      continue;
    }
    auto map = sim::decodeTensorMap(&arguments.maps[maps.size()]);
    if (!map)
      return fail(DIFFATTN_DEVICE_INVALID,
                  "kernel " + kernel +
                      ": expected a tensor map, but got other bytes");
    map->base = registered.find(memory, map->base);
    maps.push_back(llvm::cantFail(sim::encodeTensorMap(*map)));
    values.push_back(sim::KernelArgument::map(maps.back()));
  }
  sim::LaunchShape launchShape;
  launchShape.grid = {shape.grid[0], shape.grid[1], shape.grid[2]};
  launchShape.block = {shape.block[0], shape.block[1], shape.block[2]};
  launchShape.dynamicSharedBytes = shape.shared_bytes;
  sim::SimOptions options;
  options.workers =
      static_cast<unsigned>(std::max<int64_t>(1, diffattn_rt_threads()));
  auto report = module.simulator->launch(kernel, launchShape, values, options);
  if (!report)
    return fail(DIFFATTN_DEVICE_INVALID, llvm::toString(report.takeError()));
  return report->clean() ? int32_t(DIFFATTN_DEVICE_OK)
                         : fail(DIFFATTN_DEVICE_FAULT,
                                "kernel " + kernel + "\n" + report->str());
}

int32_t SimulatedDevice::multiply(const diffattn_product &p) {
  if (p.m <= 0 || p.n <= 0 || p.batch <= 0)
    return DIFFATTN_DEVICE_OK;
#define DIFFATTN_ROW(name, number, text, bytes, isFloat) bytes,
  static constexpr int64_t kBytes[] = {DIFFATTN_DTYPES(DIFFATTN_ROW)};
#undef DIFFATTN_ROW
  // Where the last element ends.
  auto span = [&](int64_t rows, int64_t columns, int64_t leading,
                  int64_t stride, int32_t dtype) {
    const int64_t bytes = kBytes[dtype];
    if (rows == 0 || columns == 0)
      return int64_t(0);
    return ((p.batch - 1) * stride + (rows - 1) * leading + columns) * bytes;
  };
  const int64_t aBytes = span(p.m, p.k, p.lda, p.stride_a, p.dtype_a),
                bBytes = p.transpose_b
                             ? span(p.n, p.k, p.ldb, p.stride_b, p.dtype_b)
                             : span(p.k, p.n, p.ldb, p.stride_b, p.dtype_b),
                cBytes = span(p.m, p.n, p.ldc, p.stride_c, p.dtype_c);
  const char *a = memory.find(p.a, aBytes), *b = memory.find(p.b, bBytes);
  char *c = memory.find(p.c, cBytes);
  if (!c)
    return outside("for C of a product", p.c, cBytes);
  if (aBytes && !a)
    return outside("for A of a product", p.a, aBytes);
  if (bBytes && !b)
    return outside("for B of a product", p.b, bBytes);
  struct Call {
    const diffattn_product &p;
    const char *a, *b;
    char *c;
  } call{p, a, b, c};
  auto run = [](void *argument) {
    auto &call = *static_cast<Call *>(argument);
    const diffattn_product &p = call.p;
    diffattn_rt_batch_gemm(p.dtype_a, p.dtype_b, p.dtype_c, p.m, p.n, p.k,
                           call.a, p.lda, call.b, p.ldb, p.transpose_b, call.c,
                           p.ldc, p.beta, /*max_threads=*/0, p.batch,
                           p.stride_a, p.stride_b, p.stride_c);
  };
  return diffattn_rt_call(run, &call)
             ? fail(DIFFATTN_DEVICE_FAULT, diffattn_rt_error())
             : int32_t(DIFFATTN_DEVICE_OK);
}

/// "sm_80" is compute capability 8.0.
static unsigned getCapability(llvm::StringRef chip) {
  unsigned number = 0;
  chip.consume_front("sm_");
  return chip.consumeInteger(10, number) ? 80 : number;
}

diffattn_device *mlir::diffattn::sim::createDevice(llvm::StringRef chipName,
                                                   bool hostAccess,
                                                   std::string &message) {
  std::optional<GpuTarget> target = getGpuTarget(chipName, message);
  if (!target)
    return nullptr;
  SimChip chip;
  chip.name = target->chip;
  chip.capability = getCapability(target->chip);
  chip.sharedBytesPerBlock = target->sharedBytesPerBlock;
  return new SimulatedDevice(chip, hostAccess);
}
