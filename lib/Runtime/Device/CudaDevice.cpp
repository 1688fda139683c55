//===- CudaDevice.cpp - A device over the CUDA driver ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CudaDevice.h"

#include <cstdio>
#include <cstring>

using namespace diffattn_rt::cuda;

/// The oldest driver whose functions these are and that takes PTX 8.0.
static constexpr int kOldestDriver = 12000;

static thread_local std::string lastError;

int32_t diffattn_rt::cuda::fail(int32_t status, std::string text) {
  lastError = std::move(text);
  return status;
}

static std::string versionText(int version) {
  return std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

int32_t CudaDevice::failed(const std::string &expected, Result result) {
  return fail(result == kOutOfMemory ? DIFFATTN_DEVICE_MEMORY
                                     : DIFFATTN_DEVICE_FAULT,
              "expected " + expected +
                  ", but the driver says: " + driver.describe(result));
}

int32_t CudaDevice::openDriver(const diffattn_cuda_options &options) {
  std::string error;
  if (!driver.open(options.driver_library ? options.driver_library : "", error))
    return fail(DIFFATTN_DEVICE_MISSING, error);
  const std::string &path = driver.library.getPath();
  Result result = driver.cuInit(0);
  if (result != kSuccess && result != kNoDevice)
    return fail(DIFFATTN_DEVICE_MISSING,
                "expected " + path + " to start, but the driver says: " +
                    driver.describe(result));
  int version = 0, count = 0;
  driver.cuDriverGetVersion(&version);
  if (version < kOldestDriver)
    return fail(DIFFATTN_DEVICE_MISSING,
                "expected a driver of CUDA " + versionText(kOldestDriver) +
                    " or newer, but " + path + " is of CUDA " +
                    versionText(version));
  if (result == kSuccess)
    result = driver.cuDeviceGetCount(&count);
  if (result != kSuccess || count == 0)
    return fail(DIFFATTN_DEVICE_MISSING,
                "expected an NVIDIA GPU, but the driver " + path +
                    " finds none" +
                    (result == kSuccess ? "" : ": " + driver.describe(result)));
  if (options.ordinal < 0 || options.ordinal >= count)
    return fail(DIFFATTN_DEVICE_MISSING,
                "expected a device from 0 to " + std::to_string(count - 1) +
                    ", but got " + std::to_string(options.ordinal));
  size_t memory = 0;
  int major = 0, minor = 0, multiprocessors = 0, shared = 0;
  auto attribute = [&](int &out, DeviceAttribute which) {
    if (result == kSuccess)
      result = driver.cuDeviceGetAttribute(&out, which, device);
  };
  result = driver.cuDeviceGet(&device, options.ordinal);
  if (result == kSuccess)
    result = driver.cuDeviceGetName(facts.name, sizeof facts.name, device);
  if (result == kSuccess)
    result = driver.cuDeviceTotalMem_v2(&memory, device);
  attribute(major, kComputeCapabilityMajor);
  attribute(minor, kComputeCapabilityMinor);
  attribute(multiprocessors, kMultiprocessorCount);
  attribute(shared, kMaxSharedMemoryPerBlockOptin);
  // The primary context: the one that the CUDA runtime uses, and so PyTorch and
  // cuBLASLt.
  if (result == kSuccess)
    result = driver.cuDevicePrimaryCtxRetain(&context, device);
  if (result != kSuccess)
    return failed("device " + std::to_string(options.ordinal) + " to open",
                  result);
  capability = 10 * major + minor;
  snprintf(facts.chip, sizeof facts.chip, "sm_%d", capability);
  facts.ordinal = options.ordinal;
  facts.multiprocessors = multiprocessors;
  facts.driver = version;
  facts.memory_bytes = static_cast<int64_t>(memory);
  facts.shared_bytes = shared;
  if (options.gemm_library)
    gemmLibrary = options.gemm_library;
  for (int32_t i = 0; i < options.num_package_folders; ++i)
    packageFolders.push_back(options.package_folders[i]);
  return DIFFATTN_DEVICE_OK;
}

CudaDevice *CudaDevice::open(const diffattn_cuda_options &options,
                             int32_t &status) {
  std::unique_ptr<CudaDevice> device(new CudaDevice());
  status = device->openDriver(options);
  if (status)
    return nullptr;
  device->fillTable();
  return device.release();
}

int32_t CudaDevice::getProperties(diffattn_device_properties *out) {
  std::lock_guard<std::mutex> lock(gemmMutex);
  *out = facts;
  if (gemmEngine)
    snprintf(out->gemm_library, sizeof out->gemm_library, "%s",
             gemmEngine->getName().c_str());
  return DIFFATTN_DEVICE_OK;
}

static Event eventOf(diffattn_event *event) {
  return reinterpret_cast<Event>(event);
}

static GraphExec graphOf(diffattn_graph *graph) {
  return reinterpret_cast<GraphExec>(graph);
}

void CudaDevice::fillTable() {
  using D = diffattn_device;
  version = DIFFATTN_DEVICE_VERSION;
  struct_bytes = sizeof(diffattn_device);
  close = [](D *d) {
    CudaDevice &me = self(d);
    me.run("the device to end its work", [&] {
      const Result result = me.driver.cuCtxSynchronize();
      // Within the context that its handle was made in.
      me.gemmEngine.reset();
      return result;
    });
    if (me.defaultStream.workspace)
      d->release(d, me.defaultStream.workspace);
    me.driver.cuDevicePrimaryCtxRelease_v2(me.device);
    delete &me;
  };
  last_error = [](D *) { return lastError.c_str(); };
  properties = [](D *d, diffattn_device_properties *out) {
    return self(d).getProperties(out);
  };

  allocate = [](D *d, int64_t bytes, const char *name, diffattn_address *out) {
    CudaDevice &me = self(d);
    if (bytes < 0)
      return fail(DIFFATTN_DEVICE_INVALID,
                  "expected a size of memory, but got " +
                      std::to_string(bytes));
    Pointer pointer = 0;
    std::string expected = std::to_string(bytes) + " bytes of memory on " +
                           me.facts.name + " for " + name;
    // The driver gives no empty memory; an address is wanted all the same.
    int32_t status = me.run(expected.c_str(), [&] {
      return me.driver.cuMemAlloc_v2(&pointer, bytes ? bytes : 1);
    });
    *out = pointer;
    return status;
  };
  release = [](D *d, diffattn_address memory) {
    if (!memory)
      return int32_t(DIFFATTN_DEVICE_OK);
    return self(d).run("memory to be freed",
                       [&] { return self(d).driver.cuMemFree_v2(memory); });
  };
  host_allocate = [](D *d, int64_t bytes, void **out) {
    CudaDevice &me = self(d);
    std::string expected =
        std::to_string(bytes) + " bytes of memory of the host for copies";
    return me.run(expected.c_str(), [&] {
      return me.driver.cuMemHostAlloc(out, bytes ? bytes : 1, 0);
    });
  };
  host_release = [](D *d, void *memory) {
    if (!memory)
      return int32_t(DIFFATTN_DEVICE_OK);
    return self(d).run("memory of the host to be freed",
                       [&] { return self(d).driver.cuMemFreeHost(memory); });
  };
  name_range = [](D *, diffattn_address, int64_t, const char *) {
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  copy_in = [](D *d, diffattn_stream *stream, diffattn_address to,
               const void *from, int64_t bytes) {
    CudaDevice &me = self(d);
    return bytes <= 0 ? int32_t(DIFFATTN_DEVICE_OK)
                      : me.run("a copy to the device", [&] {
                          return me.driver.cuMemcpyHtoDAsync_v2(
                              to, from, bytes, me.stateOf(stream).native);
                        });
  };
  copy_out = [](D *d, diffattn_stream *stream, void *to, diffattn_address from,
                int64_t bytes) {
    CudaDevice &me = self(d);
    return bytes <= 0 ? int32_t(DIFFATTN_DEVICE_OK)
                      : me.run("a copy from the device", [&] {
                          return me.driver.cuMemcpyDtoHAsync_v2(
                              to, from, bytes, me.stateOf(stream).native);
                        });
  };
  copy = [](D *d, diffattn_stream *stream, diffattn_address to,
            diffattn_address from, int64_t bytes) {
    CudaDevice &me = self(d);
    return bytes <= 0 ? int32_t(DIFFATTN_DEVICE_OK)
                      : me.run("a copy on the device", [&] {
                          return me.driver.cuMemcpyDtoDAsync_v2(
                              to, from, bytes, me.stateOf(stream).native);
                        });
  };
  fill = [](D *d, diffattn_stream *stream, diffattn_address memory,
            int32_t value, int64_t bytes) {
    CudaDevice &me = self(d);
    return bytes <= 0 ? int32_t(DIFFATTN_DEVICE_OK)
                      : me.run("memory to be filled", [&] {
                          return me.driver.cuMemsetD8Async(
                              memory, static_cast<unsigned char>(value), bytes,
                              me.stateOf(stream).native);
                        });
  };

  stream_create = [](D *d, diffattn_stream **out) {
    auto state = std::make_unique<StreamState>();
    state->owned = true;
    int32_t status = self(d).run("a stream", [&] {
      return self(d).driver.cuStreamCreate(&state->native, kStreamNonBlocking);
    });
    if (!status)
      *out = reinterpret_cast<diffattn_stream *>(state.release());
    return status;
  };
  stream_wrap = [](D *, void *native, diffattn_stream **out) {
    auto *state = new StreamState();
    state->native = static_cast<Stream>(native);
    *out = reinterpret_cast<diffattn_stream *>(state);
    return int32_t(DIFFATTN_DEVICE_OK);
  };
  stream_destroy = [](D *d, diffattn_stream *stream) {
    if (!stream)
      return int32_t(DIFFATTN_DEVICE_OK);
    CudaDevice &me = self(d);
    StreamState &state = me.stateOf(stream);
    int32_t status =
        state.workspace ? d->release(d, state.workspace) : DIFFATTN_DEVICE_OK;
    int32_t destroyed = DIFFATTN_DEVICE_OK;
    if (state.owned)
      destroyed = me.run("a stream to be destroyed", [&] {
        return me.driver.cuStreamDestroy_v2(state.native);
      });
    delete &state;
    return status ? status : destroyed;
  };
  stream_wait = [](D *d, diffattn_stream *stream) {
    CudaDevice &me = self(d);
    return me.run("the work of a stream to end well", [&] {
      return me.driver.cuStreamSynchronize(me.stateOf(stream).native);
    });
  };
  stream_wait_event = [](D *d, diffattn_stream *stream, diffattn_event *event) {
    CudaDevice &me = self(d);
    return me.run("a stream to wait for an event", [&] {
      return me.driver.cuStreamWaitEvent(me.stateOf(stream).native,
                                         eventOf(event), 0);
    });
  };

  event_create = [](D *d, diffattn_event **out) {
    Event event = nullptr;
    int32_t status = self(d).run(
        "an event", [&] { return self(d).driver.cuEventCreate(&event, 0); });
    *out = reinterpret_cast<diffattn_event *>(event);
    return status;
  };
  event_destroy = [](D *d, diffattn_event *event) {
    if (!event)
      return int32_t(DIFFATTN_DEVICE_OK);
    return self(d).run("an event to be destroyed", [&] {
      return self(d).driver.cuEventDestroy_v2(eventOf(event));
    });
  };
  event_record = [](D *d, diffattn_event *event, diffattn_stream *stream) {
    CudaDevice &me = self(d);
    return me.run("an event to be recorded", [&] {
      return me.driver.cuEventRecord(eventOf(event), me.stateOf(stream).native);
    });
  };
  event_wait = [](D *d, diffattn_event *event) {
    return self(d).run("an event to come", [&] {
      return self(d).driver.cuEventSynchronize(eventOf(event));
    });
  };
  event_elapsed = [](D *d, diffattn_event *start, diffattn_event *end,
                     float *milliseconds) {
    return self(d).run("two events that were recorded", [&] {
      return self(d).driver.cuEventElapsedTime(milliseconds, eventOf(start),
                                               eventOf(end));
    });
  };

  capture_begin = [](D *d, diffattn_stream *stream) {
    CudaDevice &me = self(d);
    if (!stream)
      return fail(DIFFATTN_DEVICE_INVALID,
                  "expected a stream of its own to capture, but got the "
                  "default stream");
    int32_t status = me.run("a stream to be captured", [&] {
      return me.driver.cuStreamBeginCapture_v2(me.stateOf(stream).native,
                                               kCaptureThreadLocal);
    });
    me.stateOf(stream).capturing = status == DIFFATTN_DEVICE_OK;
    return status;
  };
  capture_end = [](D *d, diffattn_stream *stream, diffattn_graph **out) {
    CudaDevice &me = self(d);
    me.stateOf(stream).capturing = false;
    *out = nullptr;
    return me.run("a graph of what was captured", [&] {
      Graph graph = nullptr;
      Result result =
          me.driver.cuStreamEndCapture(me.stateOf(stream).native, &graph);
      if (result != kSuccess)
        return result;
      GraphExec exec = nullptr;
      result = me.driver.cuGraphInstantiateWithFlags(&exec, graph, 0);
      me.driver.cuGraphDestroy(graph);
      *out = reinterpret_cast<diffattn_graph *>(exec);
      return result;
    });
  };
  graph_launch = [](D *d, diffattn_graph *graph, diffattn_stream *stream) {
    CudaDevice &me = self(d);
    return me.run("a graph to be launched", [&] {
      return me.driver.cuGraphLaunch(graphOf(graph), me.stateOf(stream).native);
    });
  };
  graph_destroy = [](D *d, diffattn_graph *graph) {
    if (!graph)
      return int32_t(DIFFATTN_DEVICE_OK);
    return self(d).run("a graph to be destroyed", [&] {
      return self(d).driver.cuGraphExecDestroy(graphOf(graph));
    });
  };

  module_load = [](D *d, const diffattn_image *images, int32_t numImages,
                   const diffattn_kernel *kernels, int32_t numKernels,
                   diffattn_module **out) {
    return self(d).loadModule(images, numImages, kernels, numKernels, out);
  };
  module_destroy = [](D *d, diffattn_module *module) {
    if (!module)
      return int32_t(DIFFATTN_DEVICE_OK);
    std::unique_ptr<ModuleState> state(reinterpret_cast<ModuleState *>(module));
    return self(d).run("a module to be unloaded", [&] {
      return self(d).driver.cuModuleUnload(state->native);
    });
  };
  launch = [](D *d, diffattn_module *module, int32_t kernel,
              const diffattn_launch_shape *shape, diffattn_stream *stream,
              const uint64_t *arguments) {
    return self(d).launchKernel(*reinterpret_cast<ModuleState *>(module),
                                kernel, *shape, self(d).stateOf(stream).native,
                                arguments);
  };
  tensor_map = [](D *d, const diffattn_tensor *tensor, void *map) {
    return self(d).encode(*tensor, map);
  };
  gemm = [](D *d, diffattn_stream *stream, const diffattn_product *product) {
    return self(d).multiply(self(d).stateOf(stream), *product);
  };
}

int32_t diffattn_cuda_open(const diffattn_cuda_options *options,
                           diffattn_device **out) {
  const diffattn_cuda_options none = {};
  int32_t status = DIFFATTN_DEVICE_OK;
  *out = CudaDevice::open(options ? *options : none, status);
  return status;
}

const char *diffattn_cuda_open_error(void) { return lastError.c_str(); }
