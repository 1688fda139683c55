//===- CudaDeviceTest.cpp - the table over the CUDA driver ----------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tests on mock libraries: they show which calls are made, in which order and
// with which arguments, and that errors are reported. They show nothing of a
// GPU.
//
//===----------------------------------------------------------------------===//

#include "DiffAttn/Runtime/ABI/Device.h"

#include "gtest/gtest.h"

#include <cmath>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <vector>

namespace {

bool contains(const std::string &text, const std::string &part) {
  return text.find(part) != std::string::npos;
}
#define EXPECT_SAYS(text, part)                                                \
  EXPECT_TRUE(contains(text, part))                                            \
      << "expected \"" << (part) << "\" in: " << (text)

template <typename Function>
Function lookUp(const char *library, const char *name) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function>(dlsym(handle, name));
}

class CudaDevice : public testing::Test {
protected:
  void SetUp() override {
    lookUp<void (*)()>(MOCK_CUDA, "mock_cuda_reset")();
    lookUp<void (*)(int)>(MOCK_CUBLASLT, "mock_lt_reset")(0);
  }
  void TearDown() override {
    if (!device)
      return;
    device->close(device);
    EXPECT_EQ(live("memory"), 0);
    EXPECT_EQ(live("retained"), 0);
    EXPECT_EQ(live("contexts"), 0);
  }

  static void set(const char *name, long value) {
    lookUp<void (*)(const char *, long)>(MOCK_CUDA, "mock_cuda_set")(name,
                                                                     value);
  }
  static long live(const char *kind) {
    return lookUp<long (*)(const char *)>(MOCK_CUDA, "mock_cuda_live")(kind);
  }
  static std::string log() {
    return lookUp<const char *(*)()>(MOCK_CUDA, "mock_cuda_log")();
  }
  static std::string productLog() {
    return lookUp<const char *(*)()>(MOCK_CUBLASLT, "mock_lt_log")();
  }

  int32_t tryOpen(const char *driver = MOCK_CUDA, int32_t ordinal = 0,
                  const char *gemm = MOCK_CUBLASLT) {
    diffattn_cuda_options options = {};
    options.ordinal = ordinal;
    options.driver_library = driver;
    options.gemm_library = gemm;
    return diffattn_cuda_open(&options, &device);
  }
  void open(const char *gemm = MOCK_CUBLASLT) {
    ASSERT_EQ(tryOpen(MOCK_CUDA, 0, gemm), DIFFATTN_DEVICE_OK)
        << diffattn_cuda_open_error();
  }
  void ok(int32_t status) {
    ASSERT_EQ(status, DIFFATTN_DEVICE_OK) << device->last_error(device);
  }
  std::string error() { return device->last_error(device); }

  template <typename T>
  diffattn_address upload(const std::vector<T> &values) {
    diffattn_address memory = 0;
    ok(device->allocate(device, values.size() * sizeof(T), "values", &memory));
    ok(device->copy_in(device, nullptr, memory, values.data(),
                       values.size() * sizeof(T)));
    return memory;
  }
  template <typename T>
  std::vector<T> download(diffattn_address memory, size_t count) {
    std::vector<T> values(count);
    ok(device->copy_out(device, nullptr, values.data(), memory,
                        count * sizeof(T)));
    ok(device->stream_wait(device, nullptr));
    return values;
  }

  static constexpr diffattn_kernel kScale = {"scale", "0", "p44", 0};
  static diffattn_image image(const char *chip, int32_t format,
                              const char *text, int32_t driver = 0) {
    return {chip, format, driver, text, static_cast<int64_t>(strlen(text))};
  }
  diffattn_module *load(std::vector<diffattn_image> images) {
    diffattn_module *module = nullptr;
    ok(device->module_load(device, images.data(), images.size(), &kScale, 1,
                           &module));
    return module;
  }
  std::string refusal(std::vector<diffattn_image> images) {
    diffattn_module *module = nullptr;
    EXPECT_EQ(device->module_load(device, images.data(), images.size(), &kScale,
                                  1, &module),
              DIFFATTN_DEVICE_IMAGE);
    return error();
  }
  void scale(diffattn_module *module, diffattn_address x, int32_t count,
             float factor, diffattn_stream *stream, uint32_t blocks = 2,
             uint32_t shared = 0) {
    uint64_t words[3] = {x, 0, 0};
    memcpy(&words[1], &count, 4);
    memcpy(&words[2], &factor, 4);
    diffattn_launch_shape shape = {{blocks, 1, 1}, {64, 1, 1}, shared};
    ok(device->launch(device, module, 0, &shape, stream, words));
  }

  /// C = A·B of one type, rows without gaps.
  static diffattn_product byRows(int32_t dtype, int64_t m, int64_t n, int64_t k,
                                 diffattn_address a, diffattn_address b,
                                 diffattn_address c) {
    diffattn_product product = {};
    product.dtype_a = product.dtype_b = product.dtype_c = dtype;
    product.m = m, product.n = n, product.k = k;
    product.a = a, product.b = b, product.c = c;
    product.lda = k, product.ldb = product.ldc = n;
    product.batch = 1;
    return product;
  }

  diffattn_device *device = nullptr;
};

TEST_F(CudaDevice, SaysWhatItIs) {
  open();
  EXPECT_EQ(device->version, DIFFATTN_DEVICE_VERSION);
  EXPECT_EQ(device->struct_bytes, int32_t(sizeof(diffattn_device)));
  diffattn_device_properties facts;
  ok(device->properties(device, &facts));
  EXPECT_STREQ(facts.name, "Mock GPU");
  EXPECT_STREQ(facts.chip, "sm_90");
  EXPECT_EQ(facts.multiprocessors, 132);
  EXPECT_EQ(facts.driver, 13000);
  EXPECT_EQ(facts.memory_bytes, int64_t(80) << 30);
  EXPECT_EQ(facts.shared_bytes, 227 << 10);
  EXPECT_EQ(facts.simulated, 0);
}

TEST_F(CudaDevice, NoLibraryNamesEveryPath) {
  EXPECT_EQ(tryOpen("/no/such/libcuda.so.1"), DIFFATTN_DEVICE_MISSING);
  std::string text = diffattn_cuda_open_error();
  EXPECT_SAYS(text, "expected the CUDA driver's library");
  EXPECT_SAYS(text, "/no/such/libcuda.so.1: ");
  EXPECT_EQ(device, nullptr);
}

TEST_F(CudaDevice, ALibraryThatLacksAFunction) {
  EXPECT_EQ(tryOpen(MOCK_OLD_CUDA), DIFFATTN_DEVICE_MISSING);
  EXPECT_SAYS(std::string(diffattn_cuda_open_error()), "lacks cuGraphLaunch");
}

TEST_F(CudaDevice, AnOldDriver) {
  set("version", 11080);
  EXPECT_EQ(tryOpen(), DIFFATTN_DEVICE_MISSING);
  EXPECT_SAYS(std::string(diffattn_cuda_open_error()),
              "expected a driver of CUDA 12.0 or newer, but ");
  EXPECT_SAYS(std::string(diffattn_cuda_open_error()), "is of CUDA 11.8");
}

TEST_F(CudaDevice, NoDevice) {
  set("fail cuInit", 100);
  EXPECT_EQ(tryOpen(), DIFFATTN_DEVICE_MISSING);
  EXPECT_SAYS(std::string(diffattn_cuda_open_error()),
              "expected an NVIDIA GPU, but the driver");
  EXPECT_SAYS(std::string(diffattn_cuda_open_error()), "CUDA_ERROR_NO_DEVICE");
  set("fail cuInit", 0);
  set("devices", 0);
  EXPECT_EQ(tryOpen(), DIFFATTN_DEVICE_MISSING);
  EXPECT_SAYS(std::string(diffattn_cuda_open_error()), "finds none");
  set("devices", 2);
  EXPECT_EQ(tryOpen(MOCK_CUDA, 2), DIFFATTN_DEVICE_MISSING);
  EXPECT_SAYS(std::string(diffattn_cuda_open_error()),
              "expected a device from 0 to 1, but got 2");
}

TEST_F(CudaDevice, ADriverThatDoesNotStart) {
  set("fail cuInit", 999);
  EXPECT_EQ(tryOpen(), DIFFATTN_DEVICE_MISSING);
  EXPECT_SAYS(std::string(diffattn_cuda_open_error()), "CUDA error 999");
}

TEST_F(CudaDevice, RetainsThePrimaryContextAndLeavesItAsItWas) {
  open();
  EXPECT_EQ(live("retained"), 1);
  diffattn_address memory = upload<float>({1, 2, 3});
  EXPECT_EQ(live("contexts"), 0);
  ok(device->release(device, memory));
}

TEST_F(CudaDevice, CopiesAndFills) {
  open();
  diffattn_address a = upload<int32_t>({1, 2, 3, 4}), b = 0;
  ok(device->allocate(device, 16, "b", &b));
  ok(device->fill(device, nullptr, b, 0, 16));
  ok(device->copy(device, nullptr, b + 4, a, 8));
  EXPECT_EQ(download<int32_t>(b, 4), (std::vector<int32_t>{0, 1, 2, 0}));
  ok(device->release(device, a));
  ok(device->release(device, b));
  ok(device->release(device, 0));
}

TEST_F(CudaDevice, MemoryRunsOut) {
  open();
  diffattn_address memory = 0;
  EXPECT_EQ(device->allocate(device, int64_t(1) << 40, "a cache", &memory),
            DIFFATTN_DEVICE_MEMORY);
  EXPECT_SAYS(error(), "expected 1099511627776 bytes of memory on Mock GPU for "
                       "a cache, but the driver says: "
                       "CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  EXPECT_EQ(device->allocate(device, -1, "a cache", &memory),
            DIFFATTN_DEVICE_INVALID);
}

TEST_F(CudaDevice, LaunchesWithPackedArguments) {
  open();
  diffattn_module *module =
      load({image("sm_90", DIFFATTN_IMAGE_CUBIN, "cubin scale")});
  diffattn_address x = upload<float>({1, 2, 3, 4});
  scale(module, x, 3, 2.5f, nullptr);
  EXPECT_EQ(download<float>(x, 4), (std::vector<float>{2.5, 5, 7.5, 4}));
  EXPECT_SAYS(log(), "cuLaunchKernelEx scale 2 1 1 64 1 1 0 on 0\n");
  // The limit of dynamic shared memory is raised once.
  scale(module, x, 3, 1, nullptr, 2, 100 << 10);
  scale(module, x, 3, 1, nullptr, 2, 90 << 10);
  std::string calls = log();
  size_t first = calls.find("cuFuncSetAttribute 8 102400");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(calls.find("cuFuncSetAttribute", first + 1), std::string::npos);
  // No blocks, no launch.
  scale(module, x, 3, 100, nullptr, 0);
  EXPECT_EQ(download<float>(x, 1)[0], 2.5f);
  uint64_t words[3] = {};
  diffattn_launch_shape shape = {{1, 1, 1}, {64, 1, 1}, 300 << 10};
  EXPECT_EQ(device->launch(device, module, 0, &shape, nullptr, words),
            DIFFATTN_DEVICE_FAULT);
  EXPECT_SAYS(error(), "expected kernel scale to launch with 1x1x1 blocks of "
                       "64x1x1 threads and 307200 of 232448 bytes");
  EXPECT_EQ(device->launch(device, module, 1, &shape, nullptr, words),
            DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(), "expected a kernel from 0 to 0, but got 1");
  ok(device->module_destroy(device, module));
  ok(device->release(device, x));
}

TEST_F(CudaDevice, TakesTheImageThatFitsBest) {
  set("capability", 89);
  open();
  const std::vector<diffattn_image> images = {
      image("sm_80", DIFFATTN_IMAGE_PTX, "ptx80 scale", 12000),
      image("sm_80", DIFFATTN_IMAGE_CUBIN, "cubin80 scale", 13000),
      image("sm_86", DIFFATTN_IMAGE_CUBIN, "cubin86 scale", 13000),
      image("sm_90", DIFFATTN_IMAGE_CUBIN, "cubin90 scale", 13000),
      image("sm_80", DIFFATTN_IMAGE_BITCODE, "bitcode scale")};
  ok(device->module_destroy(device, load(images)));
  EXPECT_SAYS(log(), "cuModuleLoadDataEx cubin86 scale");
  // If the driver refuses an image, the next best is loaded.
  ok(device->module_destroy(
      device, load({images[0], images[1],
                    image("sm_86", DIFFATTN_IMAGE_CUBIN, "foreign", 13000)})));
  EXPECT_SAYS(log(), "cuModuleLoadDataEx cubin80 scale");
}

TEST_F(CudaDevice, AnOlderDriverTakesPtx) {
  set("version", 12040);
  open();
  ok(device->module_destroy(
      device, load({image("sm_90", DIFFATTN_IMAGE_CUBIN, "cubin scale", 13000),
                    image("sm_80", DIFFATTN_IMAGE_PTX, "ptx scale", 12000)})));
  EXPECT_SAYS(log(), "cuModuleLoadDataEx ptx scale");
  EXPECT_FALSE(contains(log(), "cuModuleLoadDataEx cubin"));
}

TEST_F(CudaDevice, KernelsThatWaitThemselvesStartEarly) {
  for (const long driver : {12030, 12020}) {
    set("version", driver);
    open();
    const diffattn_kernel waits = {"scale", "0", "p44", 1};
    diffattn_image of = image("sm_90", DIFFATTN_IMAGE_CUBIN, "cubin scale");
    diffattn_module *module = nullptr;
    ok(device->module_load(device, &of, 1, &waits, 1, &module));
    diffattn_address x = upload<float>({1, 2});
    scale(module, x, 2, 3, nullptr);
    EXPECT_EQ(download<float>(x, 2), (std::vector<float>{3, 6}));
    // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, where graphs can
    // have it.
    EXPECT_SAYS(log(), std::string("cuLaunchKernelEx scale 2 1 1 64 1 1 0") +
                           (driver == 12030 ? " attribute 6=1" : "") +
                           " on 0\n");
    ok(device->module_destroy(device, module));
    ok(device->release(device, x));
    device->close(device);
    device = nullptr;
    SetUp();
  }
}

/// Among images for a chip, the one with its own features is loaded.
TEST_F(CudaDevice, CodeForOneChipAloneComesFirst) {
  open();
  ok(device->module_destroy(
      device,
      load({image("sm_90", DIFFATTN_IMAGE_CUBIN, "cubin scale"),
            image("sm_90a", DIFFATTN_IMAGE_CUBIN, "cubin of Hopper: scale"),
            image("sm_80", DIFFATTN_IMAGE_PTX, "ptx scale")})));
  EXPECT_SAYS(log(), "cuModuleLoadDataEx cubin of Hopper");
}

TEST_F(CudaDevice, TensorMaps) {
  open();
  diffattn_tensor tensor = {};
  tensor.dtype = DIFFATTN_BF16;
  tensor.box_columns = 64;
  tensor.box_rows = 128;
  tensor.base = upload<uint16_t>(std::vector<uint16_t>(2 * 3 * 5 * 64));
  const int64_t sizes[] = {64, 5, 3, 2}, strides[] = {128, 640, 1920};
  std::copy(std::begin(sizes), std::end(sizes), tensor.sizes);
  std::copy(std::begin(strides), std::end(strides), tensor.strides);
  alignas(64) char map[DIFFATTN_TENSOR_MAP_BYTES];
  ok(device->tensor_map(device, &tensor, map));
  const std::string expected = "9: 64/64+128 5/128+640 3/1+1920 2/1 0 3 2 0";
  EXPECT_EQ(std::string(map), expected);

  // A kernel gets the map itself, not its address.
  const diffattn_kernel shows = {"show_map", "0", "m", 0};
  diffattn_image of = image("sm_90a", DIFFATTN_IMAGE_PTX, "ptx show_map");
  diffattn_module *module = nullptr;
  ok(device->module_load(device, &of, 1, &shows, 1, &module));
  const diffattn_launch_shape shape = {{1, 1, 1}, {384, 1, 1}, 0};
  const uint64_t argument = reinterpret_cast<uint64_t>(map);
  ok(device->launch(device, module, 0, &shape, nullptr, &argument));
  EXPECT_SAYS(log(), "map " + expected);
  ok(device->module_destroy(device, module));

  tensor.strides[1] = 642;
  EXPECT_EQ(device->tensor_map(device, &tensor, map), DIFFATTN_DEVICE_FAULT);
  EXPECT_SAYS(error(),
              "expected a tensor map of 2 x 3 x 5 x 64 elements, strides of "
              "1920, 642, 128 bytes and boxes of 128 x 64, but the driver "
              "says: CUDA_ERROR_INVALID_VALUE");
  tensor.dtype = DIFFATTN_F32;
  EXPECT_EQ(device->tensor_map(device, &tensor, map), DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(),
              "expected a tensor of f16 or bf16, but got element type");
  ok(device->release(device, tensor.base));
}

TEST_F(CudaDevice, NoImageFits) {
  set("version", 12040);
  open();
  std::string text =
      refusal({image("sm_90", DIFFATTN_IMAGE_CUBIN, "cubin scale", 13000),
               image("sm_80", DIFFATTN_IMAGE_CUBIN, "cubin scale"),
               image("sm_100", DIFFATTN_IMAGE_PTX, "ptx scale"),
               image("sm_90a", DIFFATTN_IMAGE_PTX, "bad scale"),
               image("mi300", DIFFATTN_IMAGE_PTX, "ptx scale"),
               image("sm_80", DIFFATTN_IMAGE_BITCODE, "bitcode scale")});
  EXPECT_SAYS(text, "expected kernels that run on Mock GPU (sm_90), but got:");
  EXPECT_SAYS(text, "cubin of sm_90: wants a driver of CUDA 13.0");
  EXPECT_SAYS(text, "cubin of sm_80: is machine code of another family");
  EXPECT_SAYS(text, "PTX of sm_100: is for another chip");
  EXPECT_SAYS(text, "PTX of sm_90a: CUDA_ERROR_INVALID_IMAGE\nline 1: what is "
                    "bad");
  EXPECT_SAYS(text, "PTX of mi300: has no chip of the form sm_80");
  EXPECT_SAYS(text, "bitcode of sm_80: is for the simulator");
  EXPECT_SAYS(refusal({}), "but got: none");
  diffattn_module *module = nullptr;
  diffattn_image other = image("sm_80", DIFFATTN_IMAGE_PTX, "ptx of others");
  EXPECT_EQ(device->module_load(device, &other, 1, &kScale, 1, &module),
            DIFFATTN_DEVICE_FAULT);
  EXPECT_SAYS(error(), "expected kernel scale in its module, but the driver "
                       "says: CUDA_ERROR_NOT_FOUND");
}

TEST_F(CudaDevice, StreamsEventsAndGraphs) {
  open();
  diffattn_module *module =
      load({image("sm_80", DIFFATTN_IMAGE_PTX, "ptx scale")});
  diffattn_address x = upload<float>({1, 1});
  diffattn_stream *stream = nullptr, *foreign = nullptr;
  ok(device->stream_create(device, &stream));
  // Not ordered with the default stream behind our back.
  EXPECT_SAYS(log(), "cuStreamCreate 1");

  diffattn_event *start = nullptr, *end = nullptr;
  ok(device->event_create(device, &start));
  ok(device->event_create(device, &end));
  float milliseconds = 0;
  EXPECT_EQ(device->event_elapsed(device, start, end, &milliseconds),
            DIFFATTN_DEVICE_FAULT);
  ok(device->event_record(device, start, stream));
  scale(module, x, 2, 3, stream);
  ok(device->event_record(device, end, stream));
  ok(device->event_wait(device, end));
  ok(device->event_elapsed(device, start, end, &milliseconds));
  EXPECT_EQ(milliseconds, 2.5f);
  ok(device->stream_wait_event(device, stream, end));

  diffattn_graph *graph = nullptr;
  EXPECT_EQ(device->capture_begin(device, nullptr), DIFFATTN_DEVICE_INVALID);
  ok(device->capture_begin(device, stream));
  scale(module, x, 2, 10, stream);
  ok(device->capture_end(device, stream, &graph));
  EXPECT_EQ(download<float>(x, 1)[0], 3) << "a captured kernel has run";
  ok(device->graph_launch(device, graph, stream));
  ok(device->graph_launch(device, graph, stream));
  ok(device->stream_wait(device, stream));
  EXPECT_EQ(download<float>(x, 1)[0], 300);
  ok(device->graph_destroy(device, graph));

  // Another's stream is used and left alone.
  void *native = nullptr;
  lookUp<int (*)(void **, unsigned)>(MOCK_CUDA, "cuStreamCreate")(&native, 0);
  ok(device->stream_wrap(device, native, &foreign));
  scale(module, x, 2, 0.5f, foreign);
  ok(device->stream_destroy(device, foreign));
  EXPECT_FALSE(contains(log(), "cuStreamDestroy"));
  ok(device->stream_destroy(device, stream));
  EXPECT_SAYS(log(), "cuStreamDestroy");
  EXPECT_EQ(download<float>(x, 1)[0], 150);
  ok(device->event_destroy(device, start));
  ok(device->event_destroy(device, end));
  ok(device->module_destroy(device, module));
  ok(device->release(device, x));
}

uint16_t bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);
}

/// The sums of A·op(B) by rows, of values that bf16 holds.
std::vector<float> multiply(const std::vector<float> &a,
                            const std::vector<float> &b, int64_t m, int64_t n,
                            int64_t k, int64_t lda, int64_t ldb, bool trans) {
  std::vector<float> c;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += a[i * lda + l] * (trans ? b[j * ldb + l] : b[l * ldb + j]);
      c.push_back(sum);
    }
  return c;
}

std::vector<float> small(size_t count, int seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 7 + seed) % 5) - 2;
  return values;
}

TEST_F(CudaDevice, ProductsByRows) {
  open();
  const int64_t m = 3, n = 4, k = 5, lda = 6;
  const std::vector<float> a = small(m * lda, 1);
  diffattn_address A = upload(a), C = 0;
  ok(device->allocate(device, m * n * 4, "c", &C));
  for (bool trans : {false, true}) {
    const int64_t ldb = trans ? k + 2 : n + 1;
    const std::vector<float> b = small((trans ? n : k) * ldb, 3);
    diffattn_address B = upload(b);
    diffattn_product product = byRows(DIFFATTN_F32, m, n, k, A, B, C);
    product.transpose_b = trans;
    product.lda = lda;
    product.ldb = ldb;
    ok(device->gemm(device, nullptr, &product));
    std::vector<float> expected = multiply(a, b, m, n, k, lda, ldb, trans);
    EXPECT_EQ(download<float>(C, m * n), expected);
    product.beta = 1;
    ok(device->gemm(device, nullptr, &product));
    for (float &value : expected)
      value *= 2;
    EXPECT_EQ(download<float>(C, m * n), expected);
    ok(device->release(device, B));
  }
  // f32 is f32: compute type 68 and no reduction outside of it.
  EXPECT_SAYS(productLog(), "compute=68 scale=0 transA=0 transB=0 "
                            "workspace=33554432 reduction=2\n");
  EXPECT_SAYS(productLog(), "compute=68 scale=0 transA=1 transB=0");
  diffattn_device_properties facts;
  ok(device->properties(device, &facts));
  EXPECT_SAYS(std::string(facts.gemm_library), "130000");
  ok(device->release(device, A));
  ok(device->release(device, C));
}

TEST_F(CudaDevice, BatchesOf16BitNumbers) {
  open();
  const int64_t m = 2, n = 3, k = 4, batch = 3;
  const std::vector<float> a = small(batch * m * k, 2), b = small(k * n, 4);
  std::vector<uint16_t> a16, b16;
  for (float value : a)
    a16.push_back(bfloat(value));
  for (float value : b)
    b16.push_back(bfloat(value));
  diffattn_address A = upload(a16), B = upload(b16), C = 0;
  ok(device->allocate(device, batch * m * n * 4, "c", &C));
  // One B for all, and C in f32.
  diffattn_product product = byRows(DIFFATTN_BF16, m, n, k, A, B, C);
  product.dtype_c = DIFFATTN_F32;
  product.batch = batch;
  product.stride_a = m * k;
  product.stride_c = m * n;
  ok(device->gemm(device, nullptr, &product));
  EXPECT_EQ(download<float>(C, batch * m * n),
            multiply(a, b, batch * m, n, k, k, n, false));
  // A shape asks for an algorithm once, and again for another alignment.
  ok(device->gemm(device, nullptr, &product));
  auto count = lookUp<int (*)()>(MOCK_CUBLASLT, "mock_lt_heuristics");
  EXPECT_EQ(count(), 1);
  product.a += 4;
  product.batch = 1;
  ok(device->gemm(device, nullptr, &product));
  EXPECT_EQ(count(), 2);
  // A 16-bit C is rounded once, at the end.
  product = byRows(DIFFATTN_BF16, m, n, k, A, B, C);
  ok(device->gemm(device, nullptr, &product));
  std::vector<float> sums = multiply(a, b, m, n, k, k, n, false);
  std::vector<uint16_t> got = download<uint16_t>(C, m * n);
  for (int64_t i = 0; i < m * n; ++i)
    EXPECT_EQ(got[i], bfloat(sums[i]));
  for (diffattn_address memory : {A, B, C})
    ok(device->release(device, memory));
}

TEST_F(CudaDevice, EmptyProducts) {
  open(/*gemm=*/"/no/such/library.so");
  diffattn_address C = upload<float>({7, 7, 7, 7, 7, 7});
  diffattn_product product = byRows(DIFFATTN_F32, 2, 2, 0, 0, 0, C);
  product.lda = 1;
  product.ldc = 3;
  product.beta = 1;
  ok(device->gemm(device, nullptr, &product));
  EXPECT_EQ(download<float>(C, 6), (std::vector<float>{7, 7, 7, 7, 7, 7}));
  product.beta = 0;
  ok(device->gemm(device, nullptr, &product));
  EXPECT_EQ(download<float>(C, 6), (std::vector<float>{0, 0, 7, 0, 0, 7}));
  product.m = 0;
  ok(device->gemm(device, nullptr, &product));
  ok(device->release(device, C));
}

TEST_F(CudaDevice, ProductsThatCannotBe) {
  open();
  diffattn_address memory = upload<float>(std::vector<float>(16, 1));
  diffattn_product product =
      byRows(DIFFATTN_F32, 2, 2, 2, memory, memory, memory);
  product.dtype_b = DIFFATTN_BF16;
  EXPECT_EQ(device->gemm(device, nullptr, &product),
            DIFFATTN_DEVICE_UNSUPPORTED);
  EXPECT_SAYS(error(), "but got A f32, B bf16 and C f32");
  product.dtype_b = DIFFATTN_F32;
  // Graphs own no memory: the workspace must be there before.
  diffattn_stream *stream = nullptr;
  diffattn_graph *graph = nullptr;
  ok(device->stream_create(device, &stream));
  ok(device->capture_begin(device, stream));
  EXPECT_EQ(device->gemm(device, stream, &product), DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(), "expected a product on the stream before");
  ok(device->capture_end(device, stream, &graph));
  ok(device->graph_destroy(device, graph));
  ok(device->stream_destroy(device, stream));
  lookUp<void (*)(int)>(MOCK_CUBLASLT, "mock_lt_reset")(1);
  EXPECT_EQ(device->gemm(device, nullptr, &product), DIFFATTN_DEVICE_FAULT);
  EXPECT_SAYS(error(), "and offers no algorithm");
  ok(device->release(device, memory));
}

TEST_F(CudaDevice, NoProductLibraryNamesThePath) {
  open(/*gemm=*/"/no/such/libcublasLt.so.13");
  diffattn_address memory = upload<float>(std::vector<float>(4, 1));
  diffattn_product product =
      byRows(DIFFATTN_F32, 1, 1, 1, memory, memory, memory);
  EXPECT_EQ(device->gemm(device, nullptr, &product),
            DIFFATTN_DEVICE_UNSUPPORTED);
  EXPECT_SAYS(error(), "expected cuBLASLt for matrix products");
  EXPECT_SAYS(error(), "\n  /no/such/libcublasLt.so.13: ");
  ok(device->release(device, memory));
}

} // namespace
