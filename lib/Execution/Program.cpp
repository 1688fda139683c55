//===- Program.cpp - compiled code, ready to run --------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Execution/Program.h"
#include "Codegen.h"
#include "SimulatedDevice.h"

#include "DiffAttn/Runtime/Runtime.h"
#include "DiffAttn/Target/CpuTarget.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ExecutionEngine/Orc/AbsoluteSymbols.h"
#include "llvm/ExecutionEngine/Orc/ExecutionUtils.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/TargetParser/Host.h"

#include <cstring>
#include <dlfcn.h>

using namespace mlir;
using namespace mlir::diffattn;
using llvm::Twine;
namespace orc = llvm::orc;

namespace {

using EntryPoint = void (*)(void **);

/// A strided memref's descriptor for any rank: two addresses, an offset, sizes,
/// strides.
struct Descriptor {
  llvm::SmallVector<int64_t, 16> words;

  explicit Descriptor(size_t rank) : words(3 + 2 * rank, 0) {}
  void *address() const { return reinterpret_cast<void *>(words[1]); }
  static int64_t bytes(size_t rank) { return 8 * (3 + 2 * int64_t(rank)); }
};

/// The arguments of one call in the form that compiled code takes.
struct Frame {
  std::vector<Descriptor> descriptors;
  std::vector<HostArray> copies; // of arguments that were not dense
  llvm::SmallVector<void *> pointers;
  std::unique_ptr<char, FreeMemory> results;
};

struct GuardedCall {
  EntryPoint entry;
  void **pointers;
};

} // namespace

struct Program::Impl {
  Signature signature;
  std::unique_ptr<orc::LLJIT> jit;
  llvm::StringMap<EntryPoint> entries;
  bool bound = false;
  std::vector<diffattn_weight> table;
  std::vector<HostArray> owned;
  std::unique_ptr<SimulatedDevice> device;

  llvm::Expected<EntryPoint> lookup(llvm::StringRef name);
  void releasePacked() {
    for (diffattn_weight &weight : table)
      diffattn_rt_weight_release(&weight);
  }
};

Program::Program(std::unique_ptr<Impl> impl) : impl(std::move(impl)) {}
Program::~Program() { impl->releasePacked(); }

const Signature &Program::getSignature() const { return impl->signature; }

bool Program::hasWeights() const {
  return impl->bound || impl->signature.weights.empty();
}

/// Folds LLVM's errors into ours: they are faults of the object or the system.
static llvm::Error linkError(llvm::Error error) {
  return makeError(ErrorClass::Compile,
                   "expected the compiled code to link, but got: " +
                       llvm::toString(std::move(error)));
}

/// The file that the runtime was loaded from: compiled code must use the very
/// instance that this library uses.
static std::string getRuntimePath() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void *>(&diffattn_rt_gemm), &info) &&
      info.dli_fname)
    return info.dli_fname;
  return "libDiffAttnRuntime.so";
}

llvm::Expected<std::unique_ptr<Program>> Program::load(CompiledModule module,
                                                       llvm::StringRef target) {
  llvm::Expected<ExecutionTarget> parsed = parseTarget(target);
  if (!parsed)
    return parsed.takeError();
  CpuTarget cpu = *getCpuTarget(parsed->isa);
  if (!hostSupports(cpu.isa))
    return makeError(ErrorClass::Usage,
                     "expected a CPU that runs " + parsed->isa +
                         " code, but this one lacks some of " +
                         llvm::join(cpu.getFeatures(), " ") +
                         " (code can still be emitted)");
  static const bool initialized = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    return true;
  }();
  (void)initialized;
  auto impl = std::make_unique<Impl>();
  impl->signature = std::move(module.signature);
  // Sized once: compiled code and packed weights keep addresses into it. One
  // slot more than none, so that it has an address.
  impl->table.resize(impl->signature.getNumWeightSlots() + 1);
  auto jit = orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(orc::JITTargetMachineBuilder(
                     llvm::Triple(llvm::sys::getProcessTriple())))
                 .create();
  if (!jit)
    return linkError(jit.takeError());
  impl->jit = std::move(*jit);
  orc::JITDylib &library = impl->jit->getMainJITDylib();
  char prefix = impl->jit->getDataLayout().getGlobalPrefix();
  for (const std::string &path : {getRuntimePath(), std::string("libm.so.6")}) {
    auto generator =
        orc::DynamicLibrarySearchGenerator::Load(path.c_str(), prefix);
    if (!generator)
      return linkError(generator.takeError());
    library.addGenerator(std::move(*generator));
  }
  orc::SymbolMap symbols;
  symbols[impl->jit->mangleAndIntern("diffattn_weights")] = {
      orc::ExecutorAddr::fromPtr(impl->table.data()),
      llvm::JITSymbolFlags::Exported};
  diffattn_named_function conversions[5];
  diffattn_rt_float_conversions(conversions);
  for (const diffattn_named_function &function : conversions)
    symbols[impl->jit->mangleAndIntern(function.name)] = {
        orc::ExecutorAddr::fromPtr(function.address),
        llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
  if (!module.kernels.empty()) {
    auto device = SimulatedDevice::create(module.kernels, parsed->chip);
    if (!device)
      return device.takeError();
    impl->device = std::move(*device);
    for (auto [name, address] : impl->device->getSymbols())
      symbols[impl->jit->mangleAndIntern(name)] = {
          orc::ExecutorAddr::fromPtr(address), llvm::JITSymbolFlags::Exported};
    auto context = std::make_unique<llvm::LLVMContext>();
    auto allocator =
        SimulatedDevice::makeAllocator(*context, impl->jit->getDataLayout());
    if (llvm::Error error = impl->jit->addIRModule(
            orc::ThreadSafeModule(std::move(allocator), std::move(context))))
      return linkError(std::move(error));
  }
  if (llvm::Error error = library.define(orc::absoluteSymbols(symbols)))
    return linkError(std::move(error));
  if (llvm::Error error = impl->jit->addObjectFile(
          llvm::MemoryBuffer::getMemBufferCopy(module.object, "diffattn")))
    return linkError(std::move(error));
  for (const FunctionSignature &function : impl->signature.functions) {
    auto symbol = impl->jit->lookup(getEntryPointName(function.name));
    if (!symbol)
      return linkError(symbol.takeError());
    impl->entries[function.name] = symbol->toPtr<EntryPoint>();
  }
  return std::unique_ptr<Program>(new Program(std::move(impl)));
}

llvm::Error Program::bindWeights(const WeightFiles &files,
                                 const Progress &progress) {
  std::vector<BoundWeight> slots;
  std::vector<HostArray> owned;
  if (llvm::Error error =
          bindWeightSlots(impl->signature, files, progress, slots, owned))
    return error;
  impl->releasePacked();
  for (auto [i, slot] : llvm::enumerate(slots))
    impl->table[i] = {const_cast<void *>(slot.data),
                      nullptr,
                      slot.rows,
                      slot.columns,
                      slot.dtype,
                      0};
  impl->owned = std::move(owned);
  impl->bound = true;
  return llvm::Error::success();
}

static llvm::Error argumentError(llvm::StringRef entry, size_t i,
                                 const Twine &message) {
  return makeError(ErrorClass::Input,
                   "argument " + Twine(i) + " of '" + entry + "': " + message);
}

static bool isDense(const ArrayView &array) {
  if (!array.strides)
    return true;
  int64_t expected = 1;
  for (size_t i = array.shape.size(); i-- > 0;) {
    if (array.shape[i] == 0)
      return true;
    if (array.shape[i] != 1 && (*array.strides)[i] != expected)
      return false;
    expected *= array.shape[i];
  }
  return true;
}

static void denseStrides(ArrayRef<int64_t> shape, int64_t *strides) {
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
}

static llvm::Error checkArgument(llvm::StringRef entry, size_t i,
                                 const ValueType &type,
                                 const ArrayView &array) {
  if (array.dtype != type.dtype || array.shape.size() != type.shape.size())
    return argumentError(entry, i,
                         "expected " + type.text + ", but got " +
                             describeType(array.shape, array.dtype));
  for (auto [axis, size] : llvm::enumerate(type.shape))
    if (size >= 0 && size != array.shape[axis])
      return argumentError(entry, i,
                           "expected " + type.text + ", but got " +
                               describeType(array.shape, array.dtype));
  if (type.kind == ValueType::Tensor && type.inPlace && !isDense(array))
    return argumentError(entry, i,
                         "expected a dense row-major array, because "
                         "it is updated in place, but got a strided "
                         "view");
  if (type.kind == ValueType::MemRef) {
    llvm::SmallVector<int64_t> strides(array.shape.size());
    if (array.strides)
      llvm::copy(*array.strides, strides.begin());
    else
      denseStrides(array.shape, strides.data());
    for (auto [axis, stride] : llvm::enumerate(type.strides))
      if (stride >= 0 && stride != strides[axis] && array.shape[axis] > 1)
        return argumentError(entry, i,
                             "expected stride " + Twine(stride) + " of axis " +
                                 Twine(axis) + ", but got " +
                                 Twine(strides[axis]));
  }
  return llvm::Error::success();
}

llvm::Error Program::checkArguments(llvm::StringRef entry,
                                    ArrayRef<ArrayView> args) const {
  auto found = impl->signature.get(entry);
  if (!found)
    return found.takeError();
  const FunctionSignature &function = **found;
  for (const auto *types : {&function.arguments, &function.results})
    for (const ValueType &type : *types)
      if (type.kind == ValueType::Unsupported)
        return makeError(ErrorClass::Usage,
                         "'" + entry +
                             "': expected arguments and results that "
                             "arrays can hold, but got " +
                             type.text);
  if (args.size() != function.arguments.size())
    return makeError(ErrorClass::Usage, "'" + entry + "': expected " +
                                            Twine(function.arguments.size()) +
                                            " arguments, but got " +
                                            Twine(args.size()));
  for (auto [i, array] : llvm::enumerate(args))
    if (llvm::Error error =
            checkArgument(entry, i, function.arguments[i], array))
      return error;
  if (!hasWeights())
    return makeError(ErrorClass::Weights,
                     "expected weight files, because the module declares "
                     "weights (the first is '" +
                         impl->signature.weights[0].name + "')");
  return llvm::Error::success();
}

/// A dense copy of a strided array, by runs of elements that lie together.
static llvm::Expected<HostArray> copyDense(const ArrayView &array) {
  auto copy = HostArray::create(array.dtype, array.shape);
  if (!copy || copy->getNumElements() == 0)
    return copy;
  int64_t bytes = getDTypeBytes(array.dtype);
  size_t rank = array.shape.size(), outer = rank;
  int64_t run = 1;
  while (outer > 0 && (array.shape[outer - 1] == 1 || !array.strides ||
                       (*array.strides)[outer - 1] == run))
    run *= array.shape[--outer];
  llvm::SmallVector<int64_t> index(outer, 0);
  for (int64_t i = 0, e = copy->getNumElements(); i < e; i += run) {
    int64_t at = 0;
    for (size_t axis = 0; axis < outer; ++axis)
      at += index[axis] * (*array.strides)[axis];
    memcpy(copy->data.get() + i * bytes,
           static_cast<const char *>(array.data) + at * bytes, run * bytes);
    for (size_t axis = outer; axis-- > 0;) {
      if (++index[axis] < array.shape[axis])
        break;
      index[axis] = 0;
    }
  }
  return copy;
}

static bool returnsByAddress(const FunctionSignature &function) {
  return function.results.size() > 1 ||
         (function.results.size() == 1 &&
          function.results[0].kind != ValueType::Scalar);
}

/// Where result `i` lies in the C interface's struct of results; for `i` the
/// number of results, the struct's size.
static int64_t resultOffset(const FunctionSignature &function, size_t i) {
  int64_t offset = 0;
  for (size_t r = 0; r < function.results.size(); ++r) {
    const ValueType &type = function.results[r];
    bool scalar = type.kind == ValueType::Scalar;
    int64_t bytes = scalar ? getDTypeBytes(type.dtype)
                           : Descriptor::bytes(type.shape.size());
    offset = llvm::alignTo(offset, scalar ? bytes : 8);
    if (r == i)
      return offset;
    offset += bytes;
  }
  return llvm::alignTo(offset, 8);
}

static llvm::Error fillFrame(const FunctionSignature &function,
                             ArrayRef<ArrayView> args, Frame &frame) {
  frame.descriptors.reserve(args.size());
  int64_t resultBytes = resultOffset(function, function.results.size());
  frame.results.reset(static_cast<char *>(std::calloc(resultBytes + 8, 1)));
  if (!frame.results)
    return makeError(ErrorClass::Run, "expected memory for results");
  if (returnsByAddress(function))
    frame.pointers.push_back(frame.results.get());
  for (auto [type, array] : llvm::zip_equal(function.arguments, args)) {
    if (type.kind == ValueType::Scalar) {
      frame.pointers.push_back(array.data);
      continue;
    }
    size_t rank = array.shape.size();
    void *data = array.data;
    ArrayRef<int64_t> strides;
    if (array.strides)
      strides = *array.strides;
    if (type.kind == ValueType::Tensor && !isDense(array)) {
      auto copy = copyDense(array);
      if (!copy)
        return copy.takeError();
      data = copy->data.get();
      frame.copies.push_back(std::move(*copy));
      strides = {};
    }
    Descriptor &descriptor = frame.descriptors.emplace_back(rank);
    descriptor.words[0] = descriptor.words[1] = reinterpret_cast<int64_t>(data);
    llvm::copy(array.shape, descriptor.words.begin() + 3);
    // An axis of one element may come with any stride; code for dense tensors
    // assumes the row-major one.
    if (strides.empty() || type.kind == ValueType::Tensor)
      denseStrides(array.shape, descriptor.words.data() + 3 + rank);
    else
      llvm::copy(strides, descriptor.words.begin() + 3 + rank);
    frame.pointers.push_back(descriptor.words.data());
  }
  if (!returnsByAddress(function))
    frame.pointers.push_back(frame.results.get());
  return llvm::Error::success();
}

/// Copies a result out of the workspace, or finds the argument that it is.
static llvm::Expected<CallResult> takeResult(const FunctionSignature &function,
                                             size_t i, ArrayRef<ArrayView> args,
                                             const Frame &frame) {
  const ValueType &type = function.results[i];
  const char *at = frame.results.get() +
                   (returnsByAddress(function) ? resultOffset(function, i) : 0);
  CallResult result;
  if (type.kind == ValueType::Scalar) {
    auto array = HostArray::create(type.dtype, {});
    if (!array)
      return array.takeError();
    memcpy(array->data.get(), at, getDTypeBytes(type.dtype));
    if (type.dtype == DIFFATTN_BOOL)
      array->data.get()[0] &= 1;
    result.array = std::move(*array);
    return result;
  }
  size_t rank = type.shape.size();
  Descriptor descriptor(rank);
  memcpy(descriptor.words.data(), at, Descriptor::bytes(rank));
  ArrayRef<int64_t> words(descriptor.words);
  ArrayRef<int64_t> shape = words.slice(3, rank);
  ArrayRef<int64_t> strides = words.slice(3 + rank, rank);
  char *data = static_cast<char *>(descriptor.address()) +
               words[2] * getDTypeBytes(type.dtype);
  for (auto [a, array] : llvm::enumerate(args))
    if (function.arguments[a].inPlace && array.data == data &&
        array.dtype == type.dtype && llvm::equal(array.shape, shape)) {
      result.argument = static_cast<int>(a);
      return result;
    }
  auto copy = copyDense({data, type.dtype, shape, strides});
  if (!copy)
    return copy.takeError();
  result.array = std::move(*copy);
  return result;
}

/// Tells a simulated GPU which memory the arguments and the weights are.
static void describeMemory(SimulatedDevice &device,
                           const FunctionSignature &function,
                           ArrayRef<ArrayView> args, const Frame &frame,
                           ArrayRef<diffattn_weight> weights) {
  device.forgetMemory();
  for (auto [i, array] : llvm::enumerate(args)) {
    int64_t low = 0, high = 0, step = 1;
    bool empty = false;
    for (size_t axis = array.shape.size(); axis-- > 0;) {
      int64_t stride = array.strides ? (*array.strides)[axis] : step;
      int64_t reach = (array.shape[axis] - 1) * stride;
      (reach < 0 ? low : high) += reach;
      empty |= array.shape[axis] == 0;
      step *= array.shape[axis];
    }
    if (function.arguments[i].kind == ValueType::Scalar || empty)
      continue;
    int64_t bytes = getDTypeBytes(array.dtype);
    device.addMemory(static_cast<char *>(array.data) + low * bytes,
                     (high - low + 1) * bytes, "argument " + std::to_string(i));
  }
  for (const HostArray &copy : frame.copies)
    device.addMemory(copy.data.get(), copy.getNumBytes(), "argument");
  for (auto [i, weight] : llvm::enumerate(weights))
    if (weight.data)
      device.addMemory(weight.data,
                       weight.rows * weight.cols * getDTypeBytes(weight.dtype),
                       "weight " + std::to_string(i));
}

llvm::Expected<std::vector<CallResult>> Program::call(llvm::StringRef entry,
                                                      ArrayRef<ArrayView> args,
                                                      int64_t threads) {
  if (llvm::Error error = checkArguments(entry, args))
    return error;
  const FunctionSignature &function = *impl->signature.find(entry);
  Frame frame;
  if (llvm::Error error = fillFrame(function, args, frame))
    return error;
  int64_t before = diffattn_rt_threads();
  if (threads > 0)
    diffattn_rt_set_threads(threads);
  int64_t mark = diffattn_rt_mark();
  if (impl->device)
    describeMemory(*impl->device, function, args, frame, impl->table);
  GuardedCall guarded{impl->entries[entry], frame.pointers.data()};
  int32_t failed = diffattn_rt_call(
      [](void *arg) {
        auto &call = *static_cast<GuardedCall *>(arg);
        call.entry(call.pointers);
      },
      &guarded);
  if (threads > 0)
    diffattn_rt_set_threads(before);
  if (failed)
    return makeError(ErrorClass::Run,
                     "'" + entry + "': " + diffattn_rt_error());
  std::vector<CallResult> results;
  llvm::Error error = llvm::Error::success();
  for (size_t i = 0; i < function.results.size(); ++i) {
    auto result = takeResult(function, i, args, frame);
    if (!result) {
      error = llvm::joinErrors(std::move(error), result.takeError());
      break;
    }
    results.push_back(std::move(*result));
  }
  diffattn_rt_release(mark);
  if (error)
    return error;
  return results;
}
