//===- CapturedCallTest.cpp - calls that are captured, on a mock driver ---===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Which calls the driver gets, in which order, on which stream, and what it
// could refuse. test/python/gpu/test_graph_capture.py has what graphs compute.
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/CapturedCall.h"

#include "MockProgram.h"

#include "gtest/gtest.h"

#include <sstream>

using namespace diffattn_rt;

namespace {

template <typename Function>
Function lookUp(const char *name) {
  return ::lookUp<Function>(MOCK_CUDA, name);
}

/// Stands for compiled code, which makes z = 10 y[:2], multiplied on the way by
/// a 1x1 matrix of ones. Its workspace is more than a first block.
void compiled(void **pointers) {
  const int64_t y = addressOf(pointers, 2);
  diffattn_rt_device_alloc(1 << 20);
  void *more = diffattn_rt_device_alloc(4 << 20);
  void *z = diffattn_rt_device_alloc(8);
  diffattn_rt_device_copy(more, toPointer(y), 8);
  diffattn_rt_device_gemm(DIFFATTN_F32, DIFFATTN_F32, DIFFATTN_F32, 2, 1, 1,
                          more, 1, toPointer(y + 4), 1, 0, z, 1, 0, 1, 0, 0, 0);
  diffattn_rt_device_copy(z, toPointer(y), 8);
  scaleAndReturn(pointers, z);
}

class CapturedCallTest : public testing::Test {
protected:
  void SetUp() override {
    lookUp<void (*)()>("mock_cuda_reset")();
    diffattn_cuda_options options = {};
    options.driver_library = MOCK_CUDA;
    options.gemm_library = MOCK_CUBLASLT;
    diffattn_device *device = nullptr;
    ASSERT_EQ(diffattn_cuda_open(&options, &device), 0)
        << diffattn_cuda_open_error();
    DeviceCode code;
    code.images.push_back({"sm_80", DIFFATTN_IMAGE_PTX, 0, "ptx scale"});
    code.kernels.push_back({"scale", "0", "p44"});
    Failure failure = DeviceProgram::create(
        code, DeviceHandle(device, [](diffattn_device *d) { d->close(d); }),
        nullptr, program);
    ASSERT_FALSE(failure) << failure.getMessage();
    ValueType vector;
    vector.kind = ValueType::Tensor;
    vector.shape = {-1};
    function.name = "f";
    function.arguments = {vector, vector};
    function.arguments[0].inPlace = true;
    function.results = {vector, vector};
    ASSERT_FALSE(program->allocate(8, x));
    const float ones[2] = {1, 1};
    ASSERT_FALSE(program->write(x, ones, 8));
  }
  void TearDown() override {
    call.reset();
    ASSERT_FALSE(program->release(x));
    program.reset();
    for (const char *kind : {"memory", "pinned", "retained", "contexts"})
      EXPECT_EQ(live(kind), 0) << kind;
  }

  void create() {
    const std::vector<int64_t> two = {2}, three = {3};
    const ArrayView views[] = {
        {reinterpret_cast<void *>(x), DIFFATTN_F32, two, std::nullopt, true},
        {y, DIFFATTN_F32, three, std::nullopt, false}};
    Failure failure = CapturedCall::create(*program, function, compiled,
                                           ListRef<ArrayView>(views, 2), call);
    ASSERT_FALSE(failure) << failure.getMessage();
  }
  /// z of a run.
  std::vector<float> run() {
    Failure failure = call->run(0);
    EXPECT_FALSE(failure) << failure.getMessage();
    const auto &results = call->getResults();
    EXPECT_EQ(results[0].argument, 0);
    EXPECT_EQ(results[1].shape, std::vector<int64_t>{2});
    const auto *z = reinterpret_cast<const float *>(results[1].data);
    return {z, z + 2};
  }
  float readX() {
    float values[2];
    EXPECT_FALSE(program->read(values, x, 8));
    return values[0];
  }
  static long live(const char *kind) {
    return lookUp<long (*)(const char *)>("mock_cuda_live")(kind);
  }
  static void set(const char *name, long value) {
    lookUp<void (*)(const char *, long)>("mock_cuda_set")(name, value);
  }
  /// Runs `body` as another library would, in a context of its own.
  template <typename Body>
  static void elsewhere(const Body &body) {
    void *context = nullptr;
    lookUp<int (*)(void **, int)>("cuDevicePrimaryCtxRetain")(&context, 0);
    lookUp<int (*)(void *)>("cuCtxPushCurrent_v2")(context);
    body();
    lookUp<int (*)(void **)>("cuCtxPopCurrent_v2")(&context);
    lookUp<int (*)(int)>("cuDevicePrimaryCtxRelease_v2")(0);
  }
  /// The driver's calls since the last time, a line each.
  std::vector<std::string> takeLog() {
    const std::string log = lookUp<const char *(*)()>("mock_cuda_log")();
    std::istringstream lines(log.substr(seen));
    seen = log.size();
    std::vector<std::string> result;
    for (std::string line; std::getline(lines, line);)
      result.push_back(line);
    return result;
  }

  std::unique_ptr<DeviceProgram> program;
  FunctionSignature function;
  diffattn_address x = 0;
  float y[3] = {1, 2, 0};
  std::unique_ptr<CapturedCall> call;
  size_t seen = 0;
};

/// The work that a run gives a stream.
const std::vector<std::string> kWork = {
    "cuMemcpyHtoDAsync 12 on 1",
    "cuMemcpyDtoDAsync 8",
    "cuMemcpyDtoDAsync 8",
    "cuLaunchKernelEx scale 1 1 1 32 1 1 65536 on 1",
    "cuLaunchKernelEx scale 1 1 1 32 1 1 65536 on 1",
    "cuMemcpyDtoHAsync 4 on 1",
    "cuMemcpyDtoHAsync 8 on 1",
};

using Lines = std::vector<std::string>;

TEST_F(CapturedCallTest, IsCapturedOnceAndLaunchedAsOneGraph) {
  create();
  takeLog();
  EXPECT_EQ(run(), (std::vector<float>{10, 20}));
  EXPECT_EQ(call->getFallbackReason(), "");
  // All that takes memory comes before the capture, and between its ends is the
  // work and nothing else.
  const Lines first = takeLog();
  auto begin =
      std::find(first.begin(), first.end(), "cuStreamBeginCapture 1 on 1");
  ASSERT_NE(begin, first.end());
  Lines captured(begin + 1, first.end());
  Lines expected = kWork;
  expected.insert(expected.end(),
                  {"cuStreamEndCapture on 1", "cuGraphInstantiateWithFlags",
                   "cuGraphDestroy"});
  EXPECT_EQ(captured, expected);
  Lines before(first.begin(), begin), plain;
  for (const std::string &line : before)
    if (line.find("cuMemAlloc") && line.find("cuMemFree") &&
        line.find("cuMemHostAlloc") && line.find("cuFuncSetAttribute"))
      plain.push_back(line);
  expected = kWork;
  expected.push_back("cuStreamSynchronize on 1");
  EXPECT_EQ(plain, expected);
  EXPECT_EQ(readX(), 2) << "what was captured has run";

  takeLog();
  y[0] = 3;
  EXPECT_EQ(run(), (std::vector<float>{30, 20}));
  EXPECT_EQ(takeLog(),
            (Lines{"cuGraphLaunch on 1", "cuStreamSynchronize on 1"}));
  EXPECT_EQ(readX(), 4);

  takeLog();
  call.reset();
  const Lines last = takeLog();
  EXPECT_EQ(std::count(last.begin(), last.end(), "cuGraphExecDestroy"), 1);
  EXPECT_EQ(std::count(last.begin(), last.end(), "cuStreamSynchronize on 1"), 0)
      << "another thread may be capturing the stream";
}

TEST_F(CapturedCallTest, ATableOfAnotherVersionIsRefused) {
  diffattn_device other = program->getDevice();
  --other.version;
  std::unique_ptr<DeviceProgram> none;
  Failure failure = DeviceProgram::create(
      {}, DeviceHandle(&other, [](diffattn_device *) {}), nullptr, none);
  ASSERT_TRUE(failure);
  EXPECT_NE(failure.getMessage().find("expected a device table of version " +
                                      std::to_string(DIFFATTN_DEVICE_VERSION) +
                                      " with "),
            std::string::npos)
      << failure.getMessage();
}

TEST_F(CapturedCallTest, RunsOnTheStreamOfTheCaller) {
  create();
  void *native = nullptr;
  elsewhere([&] {
    lookUp<int (*)(void **, unsigned)>("cuStreamCreate")(&native, 0);
  });
  ASSERT_FALSE(program->setStream(native));
  takeLog();
  run();
  Lines first = takeLog();
  // Arguments may still be written there.
  EXPECT_EQ(first.front(), "cuStreamSynchronize on 2");
  EXPECT_EQ(
      std::count(first.begin(), first.end(), "cuStreamBeginCapture 1 on 1"), 1);
  run();
  EXPECT_EQ(takeLog(),
            (Lines{"cuGraphLaunch on 2", "cuStreamSynchronize on 2"}));
  ASSERT_FALSE(program->setStream(nullptr));
  elsewhere([&] { lookUp<int (*)(void *)>("cuStreamDestroy_v2")(native); });
}

TEST_F(CapturedCallTest, AssertionsAreReadAfterTheRun) {
  create();
  const int32_t second = 2;
  for (int i = 0; i < 2; ++i) {
    memcpy(&y[2], &second, 4);
    Failure failure = call->run(0);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure.getMessage(), "'f': expected b");
    y[2] = 0;
    EXPECT_EQ(run(), (std::vector<float>{10, 20}));
  }
  EXPECT_EQ(call->getFallbackReason(), "");
}

class UncapturedCalls : public CapturedCallTest,
                        public testing::WithParamInterface<const char *> {};

TEST_P(UncapturedCalls, LeaveRunsAsTheyWere) {
  create();
  set((std::string("fail ") + GetParam()).c_str(), 900);
  EXPECT_EQ(run(), (std::vector<float>{10, 20}));
  EXPECT_NE(
      call->getFallbackReason().find("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
      std::string::npos)
      << call->getFallbackReason();
  EXPECT_EQ(readX(), 2) << "what was captured has run";
  // It is not tried again: kernel by kernel, with the same results.
  set((std::string("fail ") + GetParam()).c_str(), 0);
  takeLog();
  y[1] = 4;
  EXPECT_EQ(run(), (std::vector<float>{10, 40}));
  Lines expected = kWork;
  expected.push_back("cuStreamSynchronize on 1");
  EXPECT_EQ(takeLog(), expected);
  EXPECT_EQ(readX(), 4);
}

INSTANTIATE_TEST_SUITE_P(OfTheDriver, UncapturedCalls,
                         testing::Values("cuStreamBeginCapture",
                                         "cuStreamEndCapture",
                                         "cuGraphInstantiateWithFlags"),
                         [](const auto &info) {
                           return std::string(info.param);
                         });

} // namespace
