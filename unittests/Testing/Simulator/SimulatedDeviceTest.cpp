//===- SimulatedDeviceTest.cpp - the runtime's table over the simulator ---===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Runtime/Program/DeviceProgram.h"
#include "DiffAttn/Testing/Simulator/Device.h"

#include "llvm/AsmParser/Parser.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/SourceMgr.h"
#include "gtest/gtest.h"

#include <cmath>
#include <cstring>
#include <thread>

using namespace mlir::diffattn;
using namespace diffattn_rt;

namespace {

/// x[i] *= factor for i < n, a block of 32 threads for each 32 elements.
constexpr const char *kScaleIR = R"(
target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
define ptx_kernel void @scale(ptr addrspace(1) %x, i32 %n, float %factor) {
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %first = mul i32 %block, 32
  %i = add i32 %first, %thread
  %inside = icmp slt i32 %i, %n
  br i1 %inside, label %work, label %done
work:
  %at = getelementptr float, ptr addrspace(1) %x, i32 %i
  %old = load float, ptr addrspace(1) %at, align 4
  %new = fmul float %old, %factor
  store float %new, ptr addrspace(1) %at, align 4
  br label %done
done:
  ret void
}
)";

std::string bitcodeOf(const char *text) {
  llvm::LLVMContext context;
  llvm::SMDiagnostic diagnostic;
  auto module = llvm::parseAssemblyString(text, diagnostic, context);
  EXPECT_TRUE(module) << diagnostic.getMessage().str();
  std::string bytes;
  llvm::raw_string_ostream os(bytes);
  llvm::WriteBitcodeToFile(*module, os);
  return bytes;
}

#define EXPECT_SAYS(text, part)                                                \
  EXPECT_NE((text).find(part), std::string::npos)                              \
      << "expected \"" << (part) << "\" in: " << (text)

class SimulatedDeviceTest : public testing::Test {
protected:
  void SetUp() override { open(false); }
  void open(bool hostAccess) {
    std::string message;
    device = sim::createDevice("sm_80", hostAccess, message);
    ASSERT_TRUE(device) << message;
    handle = DeviceHandle(device, [](diffattn_device *d) { d->close(d); });
  }
  void ok(int32_t status) {
    ASSERT_EQ(status, DIFFATTN_DEVICE_OK) << device->last_error(device);
  }
  std::string error() { return device->last_error(device); }

  diffattn_address upload(const std::vector<float> &values) {
    diffattn_address memory = 0;
    ok(device->allocate(device, values.size() * 4, "values", &memory));
    ok(device->copy_in(device, nullptr, memory, values.data(),
                       values.size() * 4));
    return memory;
  }
  std::vector<float> download(diffattn_address memory, size_t count) {
    std::vector<float> values(count);
    ok(device->copy_out(device, nullptr, values.data(), memory, count * 4));
    ok(device->stream_wait(device, nullptr));
    return values;
  }

  int32_t tryLoad(const diffattn_kernel &kernel, const char *chip = "sm_80") {
    const std::string bitcode = bitcodeOf(kScaleIR);
    diffattn_image image = {chip, DIFFATTN_IMAGE_BITCODE, 0, bitcode.data(),
                            static_cast<int64_t>(bitcode.size())};
    return device->module_load(device, &image, 1, &kernel, 1, &module);
  }
  void load() { ok(tryLoad({"scale", "", "p44", 0})); }
  int32_t tryScale(diffattn_address x, int32_t count, float factor,
                   diffattn_stream *stream = nullptr, uint32_t blocks = 1) {
    uint64_t words[3] = {x, 0, 0};
    memcpy(&words[1], &count, 4);
    memcpy(&words[2], &factor, 4);
    diffattn_launch_shape shape = {{blocks, 1, 1}, {32, 1, 1}, 0};
    return device->launch(device, module, 0, &shape, stream, words);
  }
  void TearDown() override {
    if (module)
      ok(device->module_destroy(device, module));
  }

  DeviceHandle handle;
  diffattn_device *device = nullptr;
  diffattn_module *module = nullptr;
};

using SimulatedDeviceDeathTest = SimulatedDeviceTest;

TEST_F(SimulatedDeviceTest, SaysThatItIsSimulated) {
  diffattn_device_properties facts;
  ok(device->properties(device, &facts));
  EXPECT_STREQ(facts.chip, "sm_80");
  EXPECT_EQ(facts.simulated, 1);
  EXPECT_EQ(facts.shared_bytes, 163 << 10);
  EXPECT_EQ(device->version, DIFFATTN_DEVICE_VERSION);
}

TEST_F(SimulatedDeviceTest, MemoryIsNotZeroAndIsItsOwn) {
  diffattn_address memory = 0;
  ok(device->allocate(device, 16, "a", &memory));
  for (float value : download(memory, 4))
    EXPECT_TRUE(std::isnan(value));
  ok(device->release(device, memory));
  EXPECT_EQ(device->release(device, memory), DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(), "expected memory of the device to release");
}

TEST_F(SimulatedDeviceDeathTest, TheHostMustNotTouchIt) {
  diffattn_address memory = upload({1, 2});
  EXPECT_DEATH(*reinterpret_cast<volatile float *>(memory) = 3, "");
  EXPECT_DEATH((void)*reinterpret_cast<volatile float *>(memory), "");
  // Programs whose host code computes too.
  open(/*hostAccess=*/true);
  memory = upload({1, 2});
  *reinterpret_cast<float *>(memory) = 3;
  EXPECT_EQ(download(memory, 2), (std::vector<float>{3, 2}));
}

TEST_F(SimulatedDeviceTest, CopiesStayInside) {
  diffattn_address a = upload({1, 2, 3, 4}), b = upload({0, 0, 0, 0});
  ok(device->copy(device, nullptr, b + 4, a, 8));
  ok(device->fill(device, nullptr, b + 12, 0x40, 4));
  EXPECT_EQ(download(b, 3), (std::vector<float>{0, 1, 2}));
  EXPECT_EQ(device->copy(device, nullptr, b + 4, a, 16),
            DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(), "expected memory of the device to copy to, but got 16 "
                       "bytes at 0x");
  EXPECT_EQ(device->copy(device, nullptr, b, a - 4, 8),
            DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(), "to copy from");
  float here = 0;
  EXPECT_EQ(device->copy_in(device, nullptr,
                            reinterpret_cast<diffattn_address>(&here), &here,
                            4),
            DIFFATTN_DEVICE_INVALID);
  ok(device->copy(device, nullptr, 0, 0, 0));
}

TEST_F(SimulatedDeviceTest, LaunchesKernels) {
  load();
  diffattn_address x = upload(std::vector<float>(40, 2));
  ok(tryScale(x, 40, 3, nullptr, 2));
  EXPECT_EQ(download(x, 40), std::vector<float>(40, 6));
  ok(tryScale(x, 40, 3, nullptr, 0));
  EXPECT_EQ(download(x, 1)[0], 6);
  uint64_t words[3] = {};
  diffattn_launch_shape shape = {{1, 1, 1}, {32, 1, 1}, 0};
  EXPECT_EQ(device->launch(device, module, 1, &shape, nullptr, words),
            DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(), "expected a kernel from 0 to 0, but got 1");
  shape.shared_bytes = 1 << 20;
  EXPECT_EQ(device->launch(device, module, 0, &shape, nullptr, words),
            DIFFATTN_DEVICE_INVALID);
}

TEST_F(SimulatedDeviceTest, FindsAccessesBeyondABuffer) {
  load();
  diffattn_address x = upload(std::vector<float>(32, 1));
  EXPECT_EQ(tryScale(x, 33, 1, nullptr, 2), DIFFATTN_DEVICE_FAULT);
  EXPECT_SAYS(error(), "of buffer values, which has 128 bytes");
  // A part of an allocation is a buffer of its own once it is named so.
  ok(device->name_range(device, x, 16, "part"));
  EXPECT_EQ(tryScale(x, 5, 1), DIFFATTN_DEVICE_FAULT);
  EXPECT_SAYS(error(), "of buffer part, which has 16 bytes");
  ok(tryScale(x + 16, 5, 1));
  EXPECT_EQ(device->name_range(device, x + 64, 100, "more"),
            DIFFATTN_DEVICE_INVALID);
  // An address of the host is none of the device.
  float here[32] = {};
  EXPECT_EQ(tryScale(reinterpret_cast<diffattn_address>(here), 1, 1),
            DIFFATTN_DEVICE_FAULT);
  EXPECT_SAYS(error(), "lies in no buffer");
}

TEST_F(SimulatedDeviceTest, ImagesMustFit) {
  EXPECT_EQ(tryLoad({"scale", "", "p48", 0}), DIFFATTN_DEVICE_IMAGE);
  EXPECT_SAYS(error(), "kernel scale: expected parameters p48, but the image "
                       "has p44");
  EXPECT_EQ(tryLoad({"other", "", "", 0}), DIFFATTN_DEVICE_IMAGE);
  EXPECT_SAYS(error(), "expected kernel other in its module");
  EXPECT_EQ(tryLoad({"scale", "", "p44", 0}, "sm_90"), DIFFATTN_DEVICE_IMAGE);
  EXPECT_SAYS(error(), "expected kernels as bitcode of sm_80, but got others");
  diffattn_image image = {"sm_80", DIFFATTN_IMAGE_BITCODE, 0, "nonsense", 8};
  EXPECT_EQ(device->module_load(device, &image, 1, nullptr, 0, &module),
            DIFFATTN_DEVICE_IMAGE);
}

TEST_F(SimulatedDeviceTest, GraphsAreWrittenDownAndLaunched) {
  load();
  diffattn_address x = upload({1, 1}), y = upload({0, 0});
  diffattn_stream *stream = nullptr;
  diffattn_graph *graph = nullptr;
  diffattn_event *start = nullptr, *end = nullptr;
  ok(device->stream_create(device, &stream));
  ok(device->event_create(device, &start));
  ok(device->event_create(device, &end));
  EXPECT_EQ(device->capture_begin(device, nullptr), DIFFATTN_DEVICE_INVALID);
  ok(device->event_record(device, start, stream));
  ok(device->capture_begin(device, stream));
  ok(tryScale(x, 2, 10, stream));
  ok(device->copy(device, stream, y, x, 8));
  diffattn_address more = 0;
  EXPECT_EQ(device->allocate(device, 8, "more", &more),
            DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(), "expected no allocation while a stream is captured");
  EXPECT_EQ(device->stream_wait(device, stream), DIFFATTN_DEVICE_INVALID);
  // Copies of memory of the host that may move are refused too.
  float here = 0;
  EXPECT_EQ(device->copy_out(device, stream, &here, x, 4),
            DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(), "expected memory of the host that the device gave");
  void *pinned = nullptr;
  ok(device->host_allocate(device, 8, &pinned));
  EXPECT_EQ(device->copy_out(device, stream, pinned, x, 12),
            DIFFATTN_DEVICE_INVALID);
  ok(device->copy_out(device, stream, pinned, x, 8));
  // Another thread goes on as it likes, and is no part of the graph.
  std::thread([&] {
    ok(device->allocate(device, 1024, "another's", &more));
    ok(device->name_range(device, more, 16, "a part"));
  }).join();
  ok(device->capture_end(device, stream, &graph));
  EXPECT_EQ(download(y, 2), (std::vector<float>{0, 0}));
  ok(device->name_range(device, more, 1024, "all"));
  ok(device->graph_launch(device, graph, stream));
  ok(device->graph_launch(device, graph, stream));
  EXPECT_EQ(download(y, 2), (std::vector<float>{100, 100}));
  EXPECT_EQ(static_cast<float *>(pinned)[1], 100);
  ok(device->host_release(device, pinned));
  EXPECT_EQ(device->host_release(device, pinned), DIFFATTN_DEVICE_INVALID);
  float launches = 0;
  EXPECT_EQ(device->event_elapsed(device, start, end, &launches),
            DIFFATTN_DEVICE_FAULT);
  ok(device->event_record(device, end, stream));
  ok(device->event_elapsed(device, start, end, &launches));
  EXPECT_EQ(launches, 2);
  ok(tryScale(more, 32, 1));
  ok(device->graph_destroy(device, graph));
  ok(device->event_destroy(device, start));
  ok(device->event_destroy(device, end));
  ok(device->stream_destroy(device, stream));
}

TEST_F(SimulatedDeviceTest, Multiplies) {
  diffattn_address a = upload({1, 2, 3, 4}), b = upload({1, 0, 0, 2}),
                   c = upload({1, 1, 1, 1});
  diffattn_product product = {};
  product.m = product.n = product.k = 2;
  product.a = a;
  product.b = b;
  product.c = c;
  product.lda = product.ldb = product.ldc = 2;
  product.batch = 1;
  product.beta = 1;
  ok(device->gemm(device, nullptr, &product));
  EXPECT_EQ(download(c, 4), (std::vector<float>{2, 5, 4, 9}));
  product.m = 3;
  EXPECT_EQ(device->gemm(device, nullptr, &product), DIFFATTN_DEVICE_INVALID);
  EXPECT_SAYS(error(), "for C of a product, but got 24 bytes");
  product.m = 2;
  product.dtype_b = DIFFATTN_BF16;
  EXPECT_EQ(device->gemm(device, nullptr, &product),
            DIFFATTN_DEVICE_UNSUPPORTED);
}

/// Arguments and results of `runStep`, which acts as compiled code does.
struct Step {
  diffattn_address x;
  int32_t count;
  void *first = nullptr, *second = nullptr;
};

void runStep(void *argument) {
  auto &step = *static_cast<Step *>(argument);
  const int64_t mark = diffattn_rt_device_mark();
  step.first = diffattn_rt_device_alloc(100);
  step.second = diffattn_rt_device_alloc(8);
  diffattn_rt_device_copy(step.second, reinterpret_cast<void *>(step.x), 8);
  uint64_t words[3] = {reinterpret_cast<uint64_t>(step.second), 0, 0};
  const float factor = 4;
  memcpy(&words[1], &step.count, 4);
  memcpy(&words[2], &factor, 4);
  const diffattn_launch_shape shape = {{1, 1, 1}, {32, 1, 1}, 0};
  diffattn_rt_device_launch(0, &shape, words);
  diffattn_rt_device_copy(reinterpret_cast<void *>(step.x), step.second, 8);
  diffattn_rt_device_release(mark);
}

TEST_F(SimulatedDeviceTest, CompiledCodeActsOnItsContext) {
  load();
  diffattn_context *context = diffattn_context_create(device, module, nullptr);
  Step step{upload({1, 2}), 2};
  ASSERT_EQ(diffattn_rt_call_on(context, runStep, &step), 0)
      << diffattn_rt_error();
  EXPECT_EQ(download(step.x, 2), (std::vector<float>{4, 8}));
  EXPECT_EQ(reinterpret_cast<uint64_t>(step.first) % 256, 0u);
  EXPECT_EQ(static_cast<char *>(step.second) - static_cast<char *>(step.first),
            256);
  // Neighbours in the workspace are buffers of their own.
  step.count = 3;
  EXPECT_EQ(diffattn_rt_call_on(context, runStep, &step), 1);
  EXPECT_SAYS(std::string(diffattn_rt_error()),
              "of buffer workspace, which has 8 bytes");
  EXPECT_EQ(diffattn_context_mark(context), 0) << "not released by a failure";
  const void *before = step.first;
  step.count = 2;
  ASSERT_EQ(diffattn_rt_call_on(context, runStep, &step), 0);
  EXPECT_EQ(step.first, before) << "memory was taken again";
  diffattn_context_destroy(context);
  // Without a context, an error and no crash.
  EXPECT_EQ(diffattn_rt_call(runStep, &step), 1);
  EXPECT_SAYS(std::string(diffattn_rt_error()), "diffattn_rt_call_on");
}

TEST_F(SimulatedDeviceTest, AssertionsAboutTheDevice) {
  diffattn_context *context = diffattn_context_create(device, nullptr, nullptr);
  diffattn_address status = 0;
  ok(device->allocate(device, 4, "status", &status));
  auto check = [](void *at) {
    diffattn_rt_device_check(at, "expected a\0expected b\0");
  };
  auto callWithStatus = [&](int32_t code) {
    ok(device->copy_in(device, nullptr, status, &code, 4));
    return diffattn_rt_call_on(context, check,
                               reinterpret_cast<void *>(status));
  };
  EXPECT_EQ(callWithStatus(0), 0);
  EXPECT_EQ(callWithStatus(1), 1);
  EXPECT_STREQ(diffattn_rt_error(), "expected a");
  EXPECT_EQ(callWithStatus(2), 1);
  EXPECT_STREQ(diffattn_rt_error(), "expected b");
  diffattn_context_destroy(context);
}

/// A call whose code fills what it sees of its argument: `rows` rows of two
/// numbers, `apart` numbers apart.
std::vector<float> fillRows(DeviceHandle device, int64_t rows, int64_t apart) {
  std::unique_ptr<DeviceProgram> program;
  EXPECT_FALSE(DeviceProgram::create({}, device, nullptr, program));
  FunctionSignature function;
  ValueType type;
  type.kind = ValueType::MemRef;
  type.shape = {-1, 2};
  type.strides = {-1, 1};
  function.arguments = {type};
  std::vector<float> memory(rows * apart, 7);
  const int64_t address = reinterpret_cast<int64_t>(memory.data());
  std::vector<std::vector<int64_t>> descriptors = {
      {address, address, 0, rows, 2, apart, 1}};
  const std::vector<int64_t> shape = {rows, 2}, strides = {apart, 1};
  const ArrayView view = {memory.data(), 0, shape, SizeList(strides)};
  EXPECT_FALSE(program->enter(function, {view}, descriptors));
  EXPECT_TRUE(rows == 0 || descriptors[0][1] != address);
  // All of the device's memory, between the rows too.
  EXPECT_EQ(device->fill(device.get(), nullptr, descriptors[0][1], 0,
                         ((rows - 1) * apart + 2) * 4),
            DIFFATTN_DEVICE_OK);
  EXPECT_FALSE(program->leave());
  return memory;
}

TEST_F(SimulatedDeviceTest, CopiesBackTheRowsOfAView) {
  // Few numbers far apart: they alone.
  std::vector<float> memory = fillRows(handle, 3, 100);
  for (size_t i = 0; i < memory.size(); ++i)
    EXPECT_EQ(memory[i], i % 100 < 2 ? 0 : 7) << i;
  // Most of what it spans: all of it.
  memory = fillRows(handle, 3, 3);
  EXPECT_EQ(memory, (std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, 7}));
  EXPECT_EQ(fillRows(handle, 0, 3), std::vector<float>());
}

TEST_F(SimulatedDeviceTest, WorksOnTheStreamThatItIsGiven) {
  // Calls of the device's table are logged, then handed on to the simulator.
  static std::string log;
  static diffattn_device original;
  log.clear();
  original = *device;
  device->stream_wrap = [](diffattn_device *d, void *native,
                           diffattn_stream **out) {
    log += "wrap " + std::to_string(reinterpret_cast<intptr_t>(native)) + "\n";
    return original.stream_wrap(d, native, out);
  };
  device->stream_wait = [](diffattn_device *d, diffattn_stream *stream) {
    log += "wait\n";
    return original.stream_wait(d, stream);
  };
  device->stream_destroy = [](diffattn_device *d, diffattn_stream *stream) {
    log += "destroy\n";
    return original.stream_destroy(d, stream);
  };
  static diffattn_stream *filled, *copied;
  device->fill = [](diffattn_device *d, diffattn_stream *stream,
                    diffattn_address to, int32_t value, int64_t bytes) {
    filled = stream;
    return original.fill(d, stream, to, value, bytes);
  };
  device->copy = [](diffattn_device *d, diffattn_stream *stream,
                    diffattn_address to, diffattn_address from, int64_t bytes) {
    copied = stream;
    return original.copy(d, stream, to, from, bytes);
  };
  auto streamOf = [&](DeviceProgram &program) {
    diffattn_address memory = 0;
    EXPECT_FALSE(program.allocate(4, memory));
    EXPECT_FALSE(program.fill(memory, 0, 4));
    // Compiled code works on the same one.
    EXPECT_EQ(program.call([](void *at) { diffattn_rt_device_copy(at, at, 4); },
                           reinterpret_cast<void *>(memory)),
              0);
    EXPECT_EQ(copied, filled);
    EXPECT_FALSE(program.release(memory));
    return filled;
  };
  std::unique_ptr<DeviceProgram> program;
  ASSERT_FALSE(DeviceProgram::create({}, handle, nullptr, program));
  diffattn_stream *own = streamOf(*program);
  EXPECT_FALSE(program->setStream(nullptr)); // as it is
  EXPECT_FALSE(program->setStream(reinterpret_cast<void *>(7)));
  EXPECT_FALSE(program->setStream(reinterpret_cast<void *>(7)));
  EXPECT_EQ(log, "wait\nwrap 7\n");
  EXPECT_NE(streamOf(*program), own);
  EXPECT_FALSE(program->setStream(reinterpret_cast<void *>(9)));
  EXPECT_EQ(log, "wait\nwrap 7\nwait\nwrap 9\ndestroy\n");
  EXPECT_FALSE(program->setStream(nullptr));
  EXPECT_EQ(streamOf(*program), own);
  log.clear();
  // A call all of whose arrays lie on the device leaves its work to the stream.
  FunctionSignature function;
  ValueType type;
  type.kind = ValueType::MemRef;
  type.shape = {1};
  function.arguments = {type};
  const std::vector<int64_t> shape = {1};
  diffattn_address memory = 0;
  ASSERT_FALSE(program->allocate(4, memory));
  ArrayView view = {reinterpret_cast<void *>(memory), 0, shape, {}};
  view.onDevice = true;
  const auto address = static_cast<int64_t>(memory);
  std::vector<std::vector<int64_t>> descriptors = {{address, address, 0, 1, 1}};
  EXPECT_FALSE(program->enter(function, {view}, descriptors));
  EXPECT_EQ(descriptors[0][1], address);
  EXPECT_FALSE(program->leave());
  EXPECT_EQ(log, "");
  EXPECT_FALSE(program->release(memory));
  EXPECT_FALSE(program->setStream(reinterpret_cast<void *>(7)));
  log.clear();
  program.reset();
  EXPECT_EQ(log, "wait\ndestroy\ndestroy\n");
}

} // namespace
