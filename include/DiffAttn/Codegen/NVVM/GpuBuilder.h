//===- GpuBuilder.h - builds the code of one GPU kernel ------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_NVVM_GPUBUILDER_H
#define DIFFATTN_CODEGEN_NVVM_GPUBUILDER_H

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "llvm/ADT/DenseMap.h"

#include <array>
#include <functional>

namespace mlir::diffattn::gpucode {

/// Four 32-bit registers: a fragment of a matrix instruction.
using Fragment = std::array<Value, 4>;

/// Short names for the instructions of a kernel. Everything becomes ops of the
/// `llvm` and `nvvm` dialects at once, so a kernel needs no further lowering,
/// and every op is an instruction or an intrinsic: no call of a library.
/// Each constant is made once, at the start of the kernel.
class GpuBuilder : public ImplicitLocOpBuilder {
public:
  /// Builds into the (empty) `kernel`.
  GpuBuilder(Location loc, LLVM::LLVMFuncOp kernel);

  Type f32() { return getF32Type(); }
  Type i32Type() { return getI32Type(); }

  // Constants.
  Value i1(bool value);
  Value i32(int64_t value);
  Value i64(int64_t value);
  Value f32(double value);
  Value minusInfinity();

  // Integers. Additions and multiplications may wrap (no nsw or nuw flags).
  Value add(Value a, Value b);
  Value add(Value a, int64_t b);
  Value sub(Value a, Value b);
  Value mul(Value a, Value b);
  Value mul(Value a, int64_t b);
  Value divU(Value a, Value b);
  Value divU(Value a, int64_t b);
  Value remU(Value a, int64_t b);
  Value andI(Value a, Value b);
  Value andI(Value a, int64_t b);
  Value orI(Value a, Value b);
  Value xorI(Value a, Value b);
  Value xorI(Value a, int64_t b);
  Value shiftLeft(Value a, int64_t bits);
  Value shiftRightU(Value a, int64_t bits);
  Value minS(Value a, Value b);
  Value maxS(Value a, Value b);
  Value toI64(Value a);
  Value toI32(Value a);
  Value compare(LLVM::ICmpPredicate predicate, Value a, Value b);
  Value select(Value condition, Value a, Value b);

  // f32. No fast-math flag anywhere: operations keep their order.
  Value addF(Value a, Value b);
  Value subF(Value a, Value b);
  Value mulF(Value a, Value b);
  Value fma(Value a, Value b, Value c);
  /// The larger one; the other one if one is NaN.
  Value maxF(Value a, Value b);
  Value compareF(LLVM::FCmpPredicate predicate, Value a, Value b);
  /// Approximations by one instruction: 2^x, log2(x), 1/x, 1/sqrt(x), sqrt(x).
  Value exp2(Value x);
  Value log2(Value x);
  Value reciprocal(Value x);
  Value reciprocalSqrt(Value x);
  Value sqrt(Value x);

  // Memory. Offsets from global pointers are in elements of `type`.
  Value element(Type type, Value pointer, Value index);
  Value bytes(Value pointer, Value offset);
  Value bytes(Value pointer, int64_t offset);
  Value load(Type type, Value pointer, int64_t align = 0);
  /// A load from memory that the kernel does not write.
  Value loadConstant(Type type, Value pointer, int64_t align = 0);
  void store(Value value, Value pointer, int64_t align = 0);
  /// The type of `type` in memory: an i1 takes a byte.
  static Type inMemory(Type type);
  /// Loads a float or an i1 as f32 or i1.
  Value loadAsF32(Type type, Value pointer);
  /// Loads two adjacent elements at once, as `loadAsF32` does one. `pointer` is
  /// aligned to the size of both.
  std::array<Value, 2> loadPairAsF32(Type type, Value pointer);
  /// A float or a byte in memory as f32 or i1.
  Value widen(Value loaded);
  /// f32 rounded to `type`, and to a register with two such numbers.
  Value round(Type type, Value x);
  Value packPair(Type type, Value low, Value high);
  /// Values of one type as a vector, and back.
  Value pack(ArrayRef<Value> values);
  SmallVector<Value> unpack(Value vector);

  /// Marks for the simulator that `entry`, an i64 of `table`, is out of range
  /// where `isOutside` is true. Emits no instruction.
  void checkIndex(StringRef table, Value isOutside, Value entry);

  // Threads.
  Value threadId();
  /// The thread's number in its warp.
  Value laneId();
  Value blockId(int axis);
  Value gridSize(int axis);
  void barrier();
  void namedBarrier(Value id, int64_t threads);
  /// Synchronizes the threads of the warp, and their memory.
  void warpBarrier();
  Value shuffleXor(Value x, int64_t lanes);
  Value shuffle(Value x, Value lane);
  Value voteAny(Value condition);
  /// The least and the greatest signed integer, i32 or i64, of a warp.
  Value warpMinS(Value x) { return warpExtremum(x, /*max=*/false); }
  Value warpMaxS(Value x) { return warpExtremum(x, /*max=*/true); }

  // Control flow.
  using Values = SmallVector<Value>;
  /// Runs `then` if `condition`, and yields its results, else `otherwise`.
  Values branch(Value condition, function_ref<Values()> then,
                ValueRange otherwise);
  void branch(Value condition, function_ref<void()> then);
  /// Yields the results of `then` or `otherwise`, which have the same types.
  Values choose(Value condition, function_ref<Values()> then,
                function_ref<Values()> otherwise);
  /// for (i = lower; i < upper; i += step). ptxas unrolls loops of a constant
  /// number of turns, unless `mayUnroll` is false.
  Values loop(Value lower, Value upper, int64_t step, ValueRange initial,
              function_ref<Values(Value, ValueRange)> body,
              bool mayUnroll = true);
  /// for (i = upper - 1; i >= lower; --i).
  Values loopDown(Value lower, Value upper, ValueRange initial,
                  function_ref<Values(Value, ValueRange)> body,
                  bool mayUnroll = true);
  /// Runs `body` with `initial` and then with its own results, while
  /// `condition` of these holds; yields the last ones.
  Values loopWhile(ValueRange initial,
                   function_ref<Value(ValueRange)> condition,
                   function_ref<Values(ValueRange)> body,
                   bool mayUnroll = true);
  /// Runs `body` until its first result holds; yields its last arguments. Its
  /// other results are its next arguments.
  Values loopUntil(ValueRange initial, function_ref<Values(ValueRange)> body);
  void finish();

  /// The result, of that type, of an intrinsic that has no name here.
  Value intrinsic(Type type, StringRef name, ValueRange arguments);

  LLVM::LLVMFuncOp getKernel() { return kernel; }

private:
  Block *createBlockFor(ValueRange arguments);
  Value constant(Type type, TypedAttr value);
  /// An i64 as its lower and upper word, and back.
  SmallVector<Value> splitWords(Value wide);
  Value joinWords(Value lower, Value upper);
  Value warpExtremum(Value x, bool max);

  LLVM::LLVMFuncOp kernel;
  Block *entry;
  DenseMap<std::pair<Type, Attribute>, Value> constants;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_CODEGEN_NVVM_GPUBUILDER_H
