//===- MockCuda.cpp - a CUDA driver without a GPU -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The driver's entry points that the runtime uses, over memory of the host. It
// writes down every call, refuses calls without a current context and, while a
// stream is captured, what would break the capture, and does what streams and
// graphs would do. Kernels are host functions that it knows by
// name. `mock_cuda_*` are for the tests.
//
//===----------------------------------------------------------------------===//

#include "MockMemory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#define MOCK extern "C" __attribute__((visibility("default")))

namespace {

using Result = int;
using Work = std::function<void()>;

constexpr Result kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100,
                 kInvalidImage = 200, kInvalidContext = 201, kNoBinary = 209,
                 kCaptureInvalid = 900, kCaptureInvalidated = 901,
                 kNotFound = 500;

struct Stream {
  int number = 0;
  bool capturing = false, invalidated = false;
  std::vector<Work> recorded;
};
struct Event {
  bool recorded = false;
  double time = 0;
};
struct Graph {
  std::vector<Work> work;
};
struct Module {
  std::string text;
};
struct Function {
  std::string name;
  int sharedLimit = 48 << 10;
};

struct State {
  std::string log;
  std::map<std::string, long> settings;
  std::vector<int> contexts; // current ones of this one thread
  int retained = 0;
  std::set<uint64_t> memory;
  std::map<void *, size_t> pinned; // memory of the host
  Stream defaultStream;
  int streams = 0;             // made so far
  Stream *capturing = nullptr; // the last one that is
  double clock = 0;
  std::map<std::string, Function> functions;
  long calls = 0;                   // that can fail
  std::map<std::string, long> live; // objects by kind
};

State &state() {
  static State it;
  return it;
}

long setting(const std::string &name, long otherwise) {
  auto at = state().settings.find(name);
  return at == state().settings.end() ? otherwise : at->second;
}

/// Appends to the log, and to the file that MOCK_CUDA_LOG names, for tests of
/// tools.
void appendToLog(const std::string &line) {
  state().log += line + "\n";
  if (const char *path = getenv("MOCK_CUDA_LOG"))
    if (FILE *file = fopen(path, "a")) {
      fprintf(file, "%s\n", line.c_str());
      fclose(file);
    }
}

Stream &streamOf(void *stream) {
  return stream ? *static_cast<Stream *>(stream) : state().defaultStream;
}

/// Counts a call. Out of memory for the one that the test asked for by its
/// number, else success.
Result countCall() {
  return ++state().calls == setting("fail call", 0) ? kOutOfMemory : 0;
}

/// Logs a call. Returns the failure that the test asked for, or of a call that
/// lacks a context.
Result enter(const char *call, const std::string &details = "",
             bool needsContext = true) {
  appendToLog(std::string(call) + (details.empty() ? "" : " " + details));
  if (needsContext && state().contexts.empty())
    return kInvalidContext;
  if (Result failed = countCall())
    return failed;
  return static_cast<Result>(setting(std::string("fail ") + call, 0));
}

/// Invalidates the capture, if there is one, for a call that is not allowed
/// during it.
Result breaksCapture() {
  if (!state().capturing)
    return 0;
  state().capturing->invalidated = true;
  return kCaptureInvalid;
}

/// A captured copy must find its memory of the host where it was.
Result checkHostMemory(void *stream, const void *memory, size_t bytes) {
  if (!streamOf(stream).capturing)
    return 0;
  for (auto [start, size] : state().pinned)
    if (memory >= start && static_cast<const char *>(memory) + bytes <=
                               static_cast<char *>(start) + size)
      return 0;
  return breaksCapture();
}

std::string on(void *stream) {
  return "on " + std::to_string(streamOf(stream).number);
}

Result enqueue(void *stream, Work work) {
  Stream &to = streamOf(stream);
  if (to.capturing)
    to.recorded.push_back(std::move(work));
  else
    work();
  return 0;
}

/// The one kernel: x[i] *= factor, with the count between them.
void runScale(std::vector<uint64_t> words) {
  auto *x = static_cast<float *>(mock::hostOf(words[0]));
  int32_t count;
  float factor;
  memcpy(&count, &words[1], 4);
  memcpy(&factor, &words[2], 4);
  for (int32_t i = 0; i < count; ++i)
    x[i] *= factor;
}

} // namespace

#define CHECKED(...)                                                           \
  if (Result failed = enter(__VA_ARGS__))                                      \
  return failed
/// As CHECKED, for a call that gives something back: it does so, and then
/// returns `failed`, as the driver's do that report work of before.
#define RELEASING(...)                                                         \
  const Result failed = enter(__VA_ARGS__);                                    \
  if (failed == kInvalidContext)                                               \
  return failed
/// For a question, which is not logged.
#define ASKED                                                                  \
  if (Result failed = countCall())                                             \
  return failed

MOCK void mock_cuda_reset() { state() = State(); }
MOCK const char *mock_cuda_log() { return state().log.c_str(); }
MOCK void mock_cuda_set(const char *name, long value) {
  state().settings[name] = value;
}
MOCK long mock_cuda_live(const char *kind) {
  if (!strcmp(kind, "pinned"))
    return static_cast<long>(state().pinned.size());
  if (!strcmp(kind, "memory"))
    return static_cast<long>(state().memory.size());
  if (!strcmp(kind, "contexts"))
    return static_cast<long>(state().contexts.size());
  if (!strcmp(kind, "retained"))
    return state().retained;
  return state().live[kind];
}
/// How many calls could have failed so far.
MOCK long mock_cuda_calls() { return state().calls; }

MOCK Result cuInit(unsigned) { return enter("cuInit", "", false); }
MOCK Result cuDriverGetVersion(int *version) {
  *version = static_cast<int>(setting("version", 13000));
  return 0;
}
MOCK Result cuGetErrorName(Result result, const char **out) {
  *out = result == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
         : result == kNoDevice       ? "CUDA_ERROR_NO_DEVICE"
         : result == kInvalidImage   ? "CUDA_ERROR_INVALID_IMAGE"
         : result == kInvalidContext ? "CUDA_ERROR_INVALID_CONTEXT"
         : result == kNoBinary       ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
         : result == kNotFound       ? "CUDA_ERROR_NOT_FOUND"
         : result == kCaptureInvalid ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
         : result == kCaptureInvalidated
             ? "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
         : result == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE"
                                   : nullptr;
  return *out ? 0 : kInvalidValue;
}
MOCK Result cuGetErrorString(Result result, const char **out) {
  *out = result == kOutOfMemory ? "out of memory" : nullptr;
  return 0;
}
MOCK Result cuDeviceGetCount(int *count) {
  ASKED;
  *count = static_cast<int>(setting("devices", 1));
  return 0;
}
MOCK Result cuDeviceGet(int *device, int ordinal) {
  ASKED;
  *device = ordinal;
  return 0;
}
MOCK Result cuDeviceGetName(char *name, int bytes, int) {
  ASKED;
  strncpy(name, "Mock GPU", bytes);
  return 0;
}
MOCK Result cuDeviceGetAttribute(int *value, int attribute, int) {
  ASKED;
  const long capability = setting("capability", 90);
  *value = attribute == 16   ? 132
           : attribute == 75 ? static_cast<int>(capability / 10)
           : attribute == 76 ? static_cast<int>(capability % 10)
           : attribute == 97 ? 227 << 10
                             : -1;
  return 0;
}
MOCK Result cuDeviceTotalMem_v2(size_t *bytes, int) {
  ASKED;
  *bytes = size_t(80) << 30;
  return 0;
}
MOCK Result cuDevicePrimaryCtxRetain(void **context, int device) {
  CHECKED("cuDevicePrimaryCtxRetain", std::to_string(device), false);
  ++state().retained;
  *context = &state();
  return 0;
}
MOCK Result cuDevicePrimaryCtxRelease_v2(int device) {
  const Result failed =
      enter("cuDevicePrimaryCtxRelease", std::to_string(device), false);
  --state().retained;
  return failed;
}
MOCK Result cuCtxPushCurrent_v2(void *context) {
  if (context != &state())
    return kInvalidContext;
  state().contexts.push_back(0);
  return 0;
}
MOCK Result cuCtxPopCurrent_v2(void **context) {
  if (state().contexts.empty())
    return kInvalidContext;
  state().contexts.pop_back();
  *context = &state();
  return 0;
}
MOCK Result cuCtxSynchronize() {
  CHECKED("cuCtxSynchronize");
  return breaksCapture();
}

MOCK Result cuMemAlloc_v2(unsigned long long *out, size_t bytes) {
  CHECKED("cuMemAlloc", std::to_string(bytes));
  if (Result broken = breaksCapture())
    return broken;
  if (bytes > size_t(setting("memory", 1 << 28)))
    return kOutOfMemory;
  void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  // As on a GPU: no zeros. Only so far that large workspaces cost no time.
  memset(memory, 0xff, std::min<size_t>(bytes, 64 << 10));
  *out = mock::deviceOf(memory);
  state().memory.insert(*out);
  return 0;
}
MOCK Result cuMemFree_v2(unsigned long long pointer) {
  RELEASING("cuMemFree");
  if (Result broken = breaksCapture())
    return broken;
  if (!state().memory.erase(pointer))
    return kInvalidValue;
  free(mock::hostOf(pointer));
  return failed;
}
MOCK Result cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  CHECKED("cuMemHostAlloc",
          std::to_string(bytes) + " " + std::to_string(flags));
  if (Result broken = breaksCapture())
    return broken;
  *out = malloc(bytes);
  memset(*out, 0xff, bytes);
  state().pinned[*out] = bytes;
  return 0;
}
MOCK Result cuMemFreeHost(void *memory) {
  RELEASING("cuMemFreeHost");
  if (!state().pinned.erase(memory))
    return kInvalidValue;
  free(memory);
  return failed;
}
MOCK Result cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from,
                                 size_t bytes, void *stream) {
  CHECKED("cuMemcpyHtoDAsync", std::to_string(bytes) + " " + on(stream));
  if (Result broken = checkHostMemory(stream, from, bytes))
    return broken;
  return enqueue(stream, [=] { memcpy(mock::hostOf(to), from, bytes); });
}
MOCK Result cuMemcpyDtoHAsync_v2(void *to, unsigned long long from,
                                 size_t bytes, void *stream) {
  CHECKED("cuMemcpyDtoHAsync", std::to_string(bytes) + " " + on(stream));
  if (Result broken = checkHostMemory(stream, to, bytes))
    return broken;
  return enqueue(stream, [=] { memcpy(to, mock::hostOf(from), bytes); });
}
MOCK Result cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from,
                                 size_t bytes, void *stream) {
  CHECKED("cuMemcpyDtoDAsync", std::to_string(bytes));
  return enqueue(stream,
                 [=] { memmove(mock::hostOf(to), mock::hostOf(from), bytes); });
}
MOCK Result cuMemsetD8Async(unsigned long long to, unsigned char value,
                            size_t bytes, void *stream) {
  CHECKED("cuMemsetD8Async", std::to_string(bytes));
  return enqueue(stream, [=] { memset(mock::hostOf(to), value, bytes); });
}

MOCK Result cuStreamCreate(void **out, unsigned flags) {
  CHECKED("cuStreamCreate", std::to_string(flags));
  auto *stream = new Stream();
  stream->number = ++state().streams;
  ++state().live["streams"];
  *out = stream;
  return 0;
}
MOCK Result cuStreamDestroy_v2(void *stream) {
  RELEASING("cuStreamDestroy");
  delete static_cast<Stream *>(stream);
  --state().live["streams"];
  return failed;
}
MOCK Result cuStreamSynchronize(void *stream) {
  CHECKED("cuStreamSynchronize", on(stream));
  return streamOf(stream).capturing ? breaksCapture() : 0;
}
MOCK Result cuStreamWaitEvent(void *, void *, unsigned) {
  return enter("cuStreamWaitEvent");
}
MOCK Result cuStreamBeginCapture_v2(void *stream, int mode) {
  CHECKED("cuStreamBeginCapture", std::to_string(mode) + " " + on(stream));
  if (!stream)
    return kCaptureInvalid;
  streamOf(stream).capturing = true;
  state().capturing = &streamOf(stream);
  return 0;
}
MOCK Result cuStreamEndCapture(void *stream, void **graph) {
  Stream &from = streamOf(stream);
  const bool invalidated = from.invalidated;
  from.capturing = from.invalidated = false;
  state().capturing = nullptr;
  *graph = nullptr;
  std::vector<Work> recorded = std::move(from.recorded);
  from.recorded.clear();
  CHECKED("cuStreamEndCapture", on(stream));
  if (invalidated)
    return kCaptureInvalidated;
  *graph = new Graph{std::move(recorded)};
  ++state().live["graphs"];
  return 0;
}

MOCK Result cuEventCreate(void **out, unsigned) {
  CHECKED("cuEventCreate");
  *out = new Event();
  ++state().live["events"];
  return 0;
}
MOCK Result cuEventDestroy_v2(void *event) {
  RELEASING("cuEventDestroy");
  delete static_cast<Event *>(event);
  --state().live["events"];
  return failed;
}
MOCK Result cuEventRecord(void *event, void *) {
  CHECKED("cuEventRecord");
  *static_cast<Event *>(event) = {true, state().clock += 2.5};
  return 0;
}
MOCK Result cuEventSynchronize(void *) { return enter("cuEventSynchronize"); }
MOCK Result cuEventElapsedTime(float *out, void *start, void *end) {
  CHECKED("cuEventElapsedTime");
  auto *a = static_cast<Event *>(start), *b = static_cast<Event *>(end);
  if (!a->recorded || !b->recorded)
    return kInvalidValue;
  *out = static_cast<float>(b->time - a->time);
  return 0;
}

MOCK Result cuGraphInstantiateWithFlags(void **out, void *graph,
                                        unsigned long long) {
  CHECKED("cuGraphInstantiateWithFlags");
  *out = new Graph(*static_cast<Graph *>(graph));
  ++state().live["graphs"];
  return 0;
}
MOCK Result cuGraphDestroy(void *graph) {
  RELEASING("cuGraphDestroy");
  delete static_cast<Graph *>(graph);
  --state().live["graphs"];
  return failed;
}
#ifndef MOCK_OLD_DRIVER
MOCK Result cuGraphLaunch(void *graph, void *stream) {
  CHECKED("cuGraphLaunch", on(stream));
  for (const Work &work : static_cast<Graph *>(graph)->work)
    enqueue(stream, work);
  return 0;
}
#endif
MOCK Result cuGraphExecDestroy(void *graph) {
  RELEASING("cuGraphExecDestroy");
  delete static_cast<Graph *>(graph);
  --state().live["graphs"];
  return failed;
}

/// An image is text. "bad" is none, and a "cubin" is for the driver's CUDA only
/// if a test does not say otherwise.
MOCK Result cuModuleLoadDataEx(void **out, const void *image, unsigned count,
                               int *options, void **values) {
  std::string text(static_cast<const char *>(image));
  CHECKED("cuModuleLoadDataEx", text);
  if (text.find("bad") != std::string::npos) {
    for (unsigned i = 0; i < count; ++i)
      if (options[i] == 5)
        strcpy(static_cast<char *>(values[i]), "line 1: what is bad");
    return kInvalidImage;
  }
  if (text.find("foreign") != std::string::npos)
    return kNoBinary;
  *out = new Module{text};
  ++state().live["modules"];
  return 0;
}
MOCK Result cuModuleUnload(void *module) {
  RELEASING("cuModuleUnload");
  delete static_cast<Module *>(module);
  --state().live["modules"];
  return failed;
}
MOCK Result cuModuleGetFunction(void **out, void *module, const char *name) {
  CHECKED("cuModuleGetFunction", name);
  // Only the beginning of machine code is kept, so names are not looked for.
  const std::string &text = static_cast<Module *>(module)->text;
  if (text.find("ELF") != 1 && text.find(name) == std::string::npos)
    return kNotFound;
  Function &function = state().functions[name];
  function.name = name;
  *out = &function;
  return 0;
}
MOCK Result cuFuncSetAttribute(void *function, int attribute, int value) {
  CHECKED("cuFuncSetAttribute",
          std::to_string(attribute) + " " + std::to_string(value));
  if (attribute != 8 || value > 227 << 10)
    return kInvalidValue;
  static_cast<Function *>(function)->sharedLimit = value;
  return 0;
}
struct LaunchConfig {
  unsigned sizes[7];
  void *stream;
  struct {
    int id;
    alignas(8) int value[16];
  } *attributes;
  unsigned numAttributes;
};
MOCK Result cuLaunchKernelEx(const LaunchConfig *config, void *function,
                             void **parameters, void **) {
  void *stream = config->stream;
  const unsigned shared = config->sizes[6];
  auto &kernel = *static_cast<Function *>(function);
  std::string text = kernel.name;
  for (unsigned n : config->sizes)
    text += " " + std::to_string(n);
  for (unsigned i = 0; i < config->numAttributes; ++i)
    text += " attribute " + std::to_string(config->attributes[i].id) + "=" +
            std::to_string(config->attributes[i].value[0]);
  if (kernel.name == "show_map")
    text += " map " + std::string(static_cast<const char *>(parameters[0]));
  CHECKED("cuLaunchKernelEx", text + " " + on(stream));
  if (static_cast<int>(shared) > kernel.sharedLimit)
    return kInvalidValue;
  if (kernel.name != "scale")
    return 0;
  std::vector<uint64_t> words(3);
  for (int i = 0; i < 3; ++i)
    memcpy(&words[i], parameters[i], i ? 4 : 8);
  return enqueue(stream, [words] { runScale(words); });
}
/// A mock map is the text of its parameters.
MOCK Result cuTensorMapEncodeTiled(void *map, int type, uint32_t rank,
                                   void *base, const uint64_t *sizes,
                                   const uint64_t *strides, const uint32_t *box,
                                   const uint32_t *steps, int interleave,
                                   int swizzle, int promotion, int fill) {
  std::string text = std::to_string(type) + ":";
  bool valid = reinterpret_cast<uint64_t>(base) % 16 == 0;
  for (uint32_t i = 0; i < rank; ++i) {
    text += " " + std::to_string(sizes[i]) + "/" + std::to_string(box[i]);
    valid &= sizes[i] > 0 && box[i] > 0 && box[i] <= 256 && steps[i] == 1;
    if (i + 1 < rank) {
      text += "+" + std::to_string(strides[i]);
      valid &= strides[i] % 16 == 0 && strides[i] < uint64_t(1) << 40;
    }
  }
  for (int option : {interleave, swizzle, promotion, fill})
    text += " " + std::to_string(option);
  CHECKED("cuTensorMapEncodeTiled", text);
  if (!valid || text.size() >= 128)
    return kInvalidValue;
  memset(map, 0, 128);
  memcpy(map, text.data(), text.size());
  return 0;
}
