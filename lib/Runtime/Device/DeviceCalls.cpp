//===- DeviceCalls.cpp - Calls of compiled code to a device ---------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Support/BlockStack.h"

#include "DiffAttn/Runtime/ABI/DeviceCalls.h"

#include <cstdio>
#include <cstring>
#include <vector>

using namespace diffattn_rt;

namespace {

constexpr int64_t kAlign = 256;

/// Ends the call with the device's message. `status` 0 is none.
void require(diffattn_device *device, int32_t status) {
  if (status)
    diffattn_rt_fail(device->last_error(device));
}

struct DeviceMemory {
  diffattn_device *device;
  diffattn_context_counters *counters;

  char *map(int64_t bytes) {
    diffattn_address memory = 0;
    require(device, device->allocate(device, bytes, "the workspace", &memory));
    ++counters->allocations;
    return reinterpret_cast<char *>(memory);
  }
  void unmap(char *base, int64_t) {
    device->release(device, reinterpret_cast<diffattn_address>(base));
  }
};

} // namespace

struct diffattn_context {
  diffattn_device *device;
  diffattn_module *module;
  diffattn_stream *stream;
  diffattn_context_counters counters = {};
  BlockStack<DeviceMemory> workspace = {kAlign,
                                        DeviceMemory{device, &counters}};
  /// Words of deferred checks, and the messages of each check.
  int32_t *words = nullptr;
  int32_t numWords = 0;
  std::vector<const char *> deferred = {};
};

static thread_local diffattn_context *current = nullptr;

static diffattn_context &getCurrent() {
  if (!current)
    diffattn_rt_fail("expected code with GPU kernels to be called by "
                     "diffattn_rt_call_on");
  return *current;
}

static diffattn_address addressOf(const void *pointer) {
  return reinterpret_cast<diffattn_address>(pointer);
}

diffattn_context *diffattn_context_create(diffattn_device *device,
                                          diffattn_module *module,
                                          diffattn_stream *stream) {
  return new diffattn_context{device, module, stream};
}

void diffattn_context_destroy(diffattn_context *context) { delete context; }

void diffattn_context_set_stream(diffattn_context *context,
                                 diffattn_stream *stream) {
  context->stream = stream;
}

void diffattn_context_count(const diffattn_context *context,
                            diffattn_context_counters *counters) {
  *counters = context->counters;
}

int64_t diffattn_context_mark(diffattn_context *context) {
  return context->workspace.mark();
}

void diffattn_context_release(diffattn_context *context, int64_t mark) {
  context->workspace.release(mark);
}

int32_t diffattn_context_settle(diffattn_context *context) {
  return diffattn_rt_call(
      [](void *arg) {
        static_cast<diffattn_context *>(arg)->workspace.settle();
      },
      context);
}

void diffattn_context_defer_checks(diffattn_context *context, int32_t *words,
                                   int32_t count) {
  context->words = words;
  context->numWords = count;
  context->deferred.clear();
  context->deferred.reserve(count);
}

/// The text of a status word that is not 0.
static const char *messageOf(int32_t code, const char *messages) {
  while (--code > 0)
    messages += strlen(messages) + 1;
  return messages;
}

const char *diffattn_context_deferred(const diffattn_context *context) {
  for (size_t i = 0; i < context->deferred.size(); ++i)
    if (context->words[i])
      return messageOf(context->words[i], context->deferred[i]);
  return nullptr;
}

int32_t diffattn_rt_call_on(diffattn_context *context, void (*fn)(void *arg),
                            void *arg) {
  diffattn_context *before = current;
  const int64_t mark = context->workspace.mark();
  current = context;
  const int32_t failed = diffattn_rt_call(fn, arg);
  current = before;
  if (failed)
    context->workspace.release(mark);
  return failed;
}

void diffattn_rt_device_launch(int32_t kernel,
                               const diffattn_launch_shape *shape,
                               const uint64_t *arguments) {
  diffattn_context &c = getCurrent();
  ++c.counters.launches;
  require(c.device, c.device->launch(c.device, c.module, kernel, shape,
                                     c.stream, arguments));
}

void diffattn_rt_device_tensor_map(void *map, int32_t operand, int32_t dtype,
                                   int32_t boxRows, const void *base,
                                   int64_t columns, int64_t rows, int64_t heads,
                                   int64_t batches, int64_t rowStride,
                                   int64_t headStride, int64_t batchStride) {
  constexpr int64_t elementBytes = 2, boxColumns = 64, alignment = 16;
  const int64_t strides[3] = {rowStride, headStride, batchStride};
  diffattn_tensor tensor = {};
  tensor.dtype = dtype;
  tensor.box_columns = boxColumns;
  tensor.box_rows = boxRows;
  tensor.base = addressOf(base);
  const int64_t sizes[4] = {columns, rows, heads, batches};
  memcpy(tensor.sizes, sizes, sizeof sizes);
  // Any legal stride does for an axis of one element.
  for (int i = 0; i < 3; ++i)
    tensor.strides[i] =
        sizes[i + 1] == 1 ? alignment : elementBytes * strides[i];
  diffattn_context &c = getCurrent();
  if (!c.device->tensor_map(c.device, &tensor, map))
    return;
  static const char *const names[] = {"q1", "k1", "q2", "k2", "v", "o", "dx"};
  char text[512];
  snprintf(text, sizeof text, "the tensor map of %s: %s", names[operand],
           c.device->last_error(c.device));
  diffattn_rt_fail(text);
}

void *diffattn_rt_device_alloc(int64_t bytes) {
  diffattn_context &c = getCurrent();
  void *memory = c.workspace.alloc(bytes);
  require(c.device, c.device->name_range(c.device, addressOf(memory), bytes,
                                         "workspace"));
  return memory;
}

int64_t diffattn_rt_device_mark(void) { return getCurrent().workspace.mark(); }

void diffattn_rt_device_release(int64_t mark) {
  getCurrent().workspace.release(mark);
}

void diffattn_rt_device_copy(void *to, const void *from, int64_t bytes) {
  diffattn_context &c = getCurrent();
  c.counters.copied_bytes += bytes;
  require(c.device, c.device->copy(c.device, c.stream, addressOf(to),
                                   addressOf(from), bytes));
}

void diffattn_rt_device_fill(void *memory, int32_t value, int64_t bytes) {
  diffattn_context &c = getCurrent();
  require(c.device,
          c.device->fill(c.device, c.stream, addressOf(memory), value, bytes));
}

void diffattn_rt_device_check(const void *status, const char *messages) {
  diffattn_context &c = getCurrent();
  if (c.words) {
    const auto next = static_cast<int32_t>(c.deferred.size());
    if (next == c.numWords)
      diffattn_rt_fail(
          "expected fewer functions with assertions in a call that "
          "is captured");
    require(c.device, c.device->copy_out(c.device, c.stream, c.words + next,
                                         addressOf(status), sizeof *c.words));
    c.deferred.push_back(messages);
    return;
  }
  int32_t code = 0;
  require(c.device, c.device->copy_out(c.device, c.stream, &code,
                                       addressOf(status), sizeof code));
  require(c.device, c.device->stream_wait(c.device, c.stream));
  if (code)
    diffattn_rt_fail(messageOf(code, messages));
}

void diffattn_rt_device_gemm(int32_t dtA, int32_t dtB, int32_t dtC, int64_t M,
                             int64_t N, int64_t K, const void *A, int64_t lda,
                             const void *B, int64_t ldb, int32_t transB,
                             void *C, int64_t ldc, float beta, int64_t batch,
                             int64_t strideA, int64_t strideB,
                             int64_t strideC) {
  counters.gemmCalls.fetch_add(1, std::memory_order_relaxed);
  diffattn_context &c = getCurrent();
  diffattn_product product = {};
  product.dtype_a = dtA;
  product.dtype_b = dtB;
  product.dtype_c = dtC;
  product.transpose_b = transB;
  product.m = M;
  product.n = N;
  product.k = K;
  product.a = addressOf(A);
  product.b = addressOf(B);
  product.c = addressOf(C);
  product.lda = lda;
  product.ldb = ldb;
  product.ldc = ldc;
  product.batch = batch;
  product.stride_a = strideA;
  product.stride_b = strideB;
  product.stride_c = strideC;
  product.beta = beta;
  require(c.device, c.device->gemm(c.device, c.stream, &product));
}
