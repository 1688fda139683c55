//===- DeviceFailureTest.cpp - each call of the driver fails once ---------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program on a mock driver is opened, called with arrays of the host and of
// the device, on its own stream and on another, captured, and closed, again and
// again. Each time another call of the driver, or of the library of products,
// reports that memory has run out: the first, the second, until there are no
// more. Each run must give the right numbers or an error with the driver's
// text, and leave nothing behind; an open program must then compute as before.
//
//===----------------------------------------------------------------------===//
#include "MockProgram.h"

#include "gtest/gtest.h"

#include <iostream>

using namespace diffattn_rt;

namespace {

long live(const char *kind) {
  return lookUp<long (*)(const char *)>(MOCK_CUDA, "mock_cuda_live")(kind);
}
long countCalls() { return lookUp<long (*)()>(MOCK_CUDA, "mock_cuda_calls")(); }
/// Fails the driver's call `number` from now on; 0: none.
void failDriver(long number) {
  lookUp<void (*)(const char *, long)>(MOCK_CUDA, "mock_cuda_set")(
      "fail call", number ? countCalls() + number : 0);
}
/// As `failDriver`, for the library of products.
void failProducts(long number) {
  lookUp<void (*)(long)>(MOCK_CUBLASLT, "mock_lt_fail")(number);
}
long countProductCalls() {
  return lookUp<long (*)()>(MOCK_CUBLASLT, "mock_lt_calls")();
}

/// The weight and the constant of the program.
diffattn_weight slots[2];

/// Stands for compiled code, which makes z = 10 y[:2]. The mock computes
/// products at once, captured or not, so nothing depends on theirs.
void compiled(void **pointers) {
  void *y = toPointer(addressOf(pointers, 2));
  diffattn_rt_device_alloc(1 << 20);
  void *more = diffattn_rt_device_alloc(4 << 20);
  void *z = diffattn_rt_device_alloc(8);
  diffattn_rt_device_copy(more, slots[1].data, 4);
  diffattn_rt_device_fill(z, 0, 8);
  diffattn_rt_device_gemm(DIFFATTN_F32, DIFFATTN_F32, DIFFATTN_F32, 2, 1, 1, y,
                          1, slots[0].data, 1, 0, more, 1, 0, 1, 0, 0, 0);
  diffattn_rt_device_copy(z, y, 8);
  scaleAndReturn(pointers, z);
}

/// A program of the one function above.
class Scaling final : public Program {
public:
  Scaling() {
    ValueType vector;
    vector.shape = {-1};
    FunctionSignature function;
    function.name = "f";
    function.arguments = {vector, vector};
    function.arguments[0].inPlace = true;
    function.results = {vector, vector};
    signature.functions = {function};
    WeightDeclaration weight;
    weight.name = "w";
    weight.dtype = DIFFATTN_F32;
    weight.shape = {1, 1};
    signature.weights = {weight};
  }

  Failure open() {
    diffattn_cuda_options options = {};
    options.driver_library = MOCK_CUDA;
    options.gemm_library = MOCK_CUBLASLT;
    diffattn_device *opened = nullptr;
    if (diffattn_cuda_open(&options, &opened))
      return {ErrorClass::Run, diffattn_cuda_open_error()};
    DeviceHandle handle(opened, [](diffattn_device *d) { d->close(d); });
    DeviceCode code;
    code.images.push_back({"sm_80", DIFFATTN_IMAGE_PTX, 0, "ptx scale"});
    code.kernels.push_back({"scale", "0", "p44"});
    code.constants = {"four"};
    static float three = 3;
    slots[0] = {};
    slots[0].data = &three;
    slots[0].rows = slots[0].cols = 1;
    slots[0].dtype = DIFFATTN_F32;
    if (Failure failure =
            DeviceProgram::create(code, handle, slots + 1, device))
      return failure;
    return device->loadWeights(signature, slots, nullptr);
  }

  const Signature &getSignature() const override { return signature; }
  DeviceProgram *getDevice() const override { return device.get(); }

protected:
  Failure checkReady() const override { return {}; }
  EntryPoint getEntryPoint(const FunctionSignature &) const override {
    return compiled;
  }
  std::pair<std::string, std::string> describeNoDevice() const override {
    return {"a program on a device", "one without"};
  }

private:
  Signature signature;
  std::unique_ptr<DeviceProgram> device;
};

/// Memory of a program's device, which goes back whatever happens.
class Memory {
public:
  explicit Memory(DeviceProgram &device) : device(device) {}
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  ~Memory() { (void)device.release(address); }

  DeviceProgram &device;
  diffattn_address address = 0;
};

/// Calls with arrays of the host.
Failure callPlainly(Program &program, std::vector<float> &numbers) {
  float x[2] = {1, 1}, y[3] = {1, 2, 0};
  const std::vector<int64_t> two = {2}, three = {3};
  const ArrayView views[] = {{x, DIFFATTN_F32, two, std::nullopt, false},
                             {y, DIFFATTN_F32, three, std::nullopt, false}};
  for (int i = 0; i < 2; ++i) {
    std::vector<CallResult> results;
    if (Failure failure =
            program.call("f", ListRef<ArrayView>(views, 2), 1, results))
      return failure;
    const auto *z =
        reinterpret_cast<const float *>(results[1].array.data.get());
    numbers.insert(numbers.end(), {x[0], x[1], z[0], z[1]});
  }
  return {};
}

/// Runs of a captured call, with an array on the device.
Failure callCaptured(Program &program, std::vector<float> &numbers) {
  DeviceProgram &device = *program.getDevice();
  Memory x(device), other(device);
  const float ones[2] = {1, 1};
  float y[3] = {1, 2, 0}, back[2];
  if (Failure failure = device.allocate(8, x.address))
    return failure;
  if (Failure failure = device.allocate(8, other.address))
    return failure;
  if (Failure failure = device.fill(x.address, 0, 8))
    return failure;
  if (Failure failure = device.write(other.address, ones, 8))
    return failure;
  if (Failure failure = device.copyRows(x.address, 4, other.address, 4, 4, 2))
    return failure;
  const std::vector<int64_t> two = {2}, three = {3};
  const ArrayView views[] = {{reinterpret_cast<void *>(x.address), DIFFATTN_F32,
                              two, std::nullopt, true},
                             {y, DIFFATTN_F32, three, std::nullopt, false}};
  std::unique_ptr<CapturedCall> call;
  if (Failure failure =
          program.capture("f", ListRef<ArrayView>(views, 2), call))
    return failure;
  for (int i = 0; i < 3; ++i) {
    if (Failure failure = call->run(1))
      return failure;
    const auto *z = reinterpret_cast<const float *>(call->getResults()[1].data);
    numbers.insert(numbers.end(), {z[0], z[1]});
  }
  if (Failure failure = device.read(back, x.address, 8))
    return failure;
  numbers.insert(numbers.end(), {back[0], back[1]});
  return {};
}

/// All of these, on the program's own stream and on the caller's.
Failure useAll(Program &program, void *stream, std::vector<float> &numbers) {
  for (void *native : {static_cast<void *>(nullptr), stream}) {
    if (Failure failure = program.getDevice()->setStream(native))
      return failure;
    if (Failure failure = callPlainly(program, numbers))
      return failure;
    if (Failure failure = callCaptured(program, numbers))
      return failure;
  }
  return program.getDevice()->setStream(nullptr);
}

const std::vector<float> kOnce = {2,  2,  10, 20, 4,  4,  10, 20,
                                  10, 20, 10, 20, 10, 20, 8,  8};

class DeviceFailures : public testing::Test {
protected:
  void SetUp() override {
    lookUp<void (*)()>(MOCK_CUDA, "mock_cuda_reset")();
    lookUp<void (*)(int)>(MOCK_CUBLASLT, "mock_lt_reset")(0);
    failProducts(0);
    expected = kOnce;
    expected.insert(expected.end(), kOnce.begin(), kOnce.end());
    // The caller's stream, in a context of its own.
    lookUp<int (*)(void **, int)>(MOCK_CUDA,
                                  "cuDevicePrimaryCtxRetain")(&context, 0);
    lookUp<int (*)(void *)>(MOCK_CUDA, "cuCtxPushCurrent_v2")(context);
    lookUp<int (*)(void **, unsigned)>(MOCK_CUDA, "cuStreamCreate")(&stream, 0);
    lookUp<int (*)(void **)>(MOCK_CUDA, "cuCtxPopCurrent_v2")(&context);
  }

  void expectNothingLeft() {
    for (const char *kind :
         {"memory", "pinned", "contexts", "modules", "graphs", "events"})
      EXPECT_EQ(live(kind), 0) << kind;
    // The stream and the context of the test.
    EXPECT_EQ(live("streams"), 1);
    EXPECT_EQ(live("retained"), 1);
    EXPECT_EQ(lookUp<long (*)()>(MOCK_CUBLASLT, "mock_lt_live")(), 0);
  }

  /// Runs `use` with each call failing once, by `fail`, and counts them by
  /// `count`. `check` comes after each run.
  template <typename Use, typename Check>
  void failEach(void (*fail)(long), long (*count)(), const Use &use,
                const Check &check) {
    long failed = 0, errors = 0;
    for (bool reached = true; reached; failed += reached) {
      ASSERT_LT(failed, 2000);
      const long number = failed + 1;
      SCOPED_TRACE("call " + std::to_string(number));
      std::vector<float> numbers;
      fail(number);
      const long before = fail == failDriver ? count() : 0;
      Failure failure = use(numbers);
      reached = count() - before >= number;
      fail(0);
      if (failure) {
        ++errors;
        const std::string &text = failure.getMessage();
        EXPECT_NE(text.find("expected "), std::string::npos) << text;
        EXPECT_TRUE(text.find("CUDA_ERROR_OUT_OF_MEMORY") != text.npos ||
                    text.find("CUBLAS_STATUS_NOT_SUPPORTED") != text.npos)
            << text;
      } else {
        EXPECT_EQ(numbers, expected);
      }
      check();
    }
    EXPECT_GT(failed, 10);
    EXPECT_GT(errors, failed / 4);
    std::cout << "[ COUNT    ] " << failed << " calls failed, of which "
              << errors << " were errors\n";
  }

  /// Opens, uses and closes a program.
  Failure useOnce(std::vector<float> &numbers) {
    Scaling program;
    if (Failure failure = program.open())
      return failure;
    return useAll(program, stream, numbers);
  }

  std::vector<float> expected;
  void *context = nullptr, *stream = nullptr;
};

TEST_F(DeviceFailures, OpenUseAndClose) {
  failEach(
      failDriver, countCalls,
      [&](std::vector<float> &numbers) { return useOnce(numbers); },
      [&] { expectNothingLeft(); });
}

TEST_F(DeviceFailures, Products) {
  failEach(
      failProducts, countProductCalls,
      [&](std::vector<float> &numbers) { return useOnce(numbers); },
      [&] { expectNothingLeft(); });
}

/// One program for all: what an error leaves behind would be seen.
TEST_F(DeviceFailures, AProgramGoesOn) {
  Scaling program;
  Failure opening = program.open();
  ASSERT_FALSE(opening) << opening.getMessage();
  auto use = [&](std::vector<float> &numbers) {
    return useAll(program, stream, numbers);
  };
  failEach(failDriver, countCalls, use, [&] {
    std::vector<float> numbers;
    Failure failure = use(numbers);
    EXPECT_FALSE(failure) << failure.getMessage();
    EXPECT_EQ(numbers, expected);
  });
}

} // namespace
