//===- KernelBuilder.h - short names for building kernels -------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_CODEGEN_CPU_KERNELBUILDER_H
#define DIFFATTN_CODEGEN_CPU_KERNELBUILDER_H

#include "DiffAttn/RuntimeCalls/RuntimeFunctions.h"
#include "DiffAttn/Target/CpuTarget.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mlir::diffattn {

/// A builder of kernels on raw pointers: i64 arithmetic, vectors of `lanes`
/// f32, loads and stores of any alignment, loops as scf. Everything it makes
/// converts to LLVM without type conversion.
class KernelBuilder : public ImplicitLocOpBuilder {
public:
  KernelBuilder(Location loc, const CpuTarget &target, int64_t lanes);

  const CpuTarget target;
  const int64_t lanes;
  Type i1, i8, i32, i64, f32, bf16, pointer;
  /// `lanes` x f32, i32, i1.
  VectorType vector, integers, mask;

  Value boolean(bool value);

  // Integers of 64 bits; they fold when constant.
  Value index(int64_t value);
  /// The number that `value` always has, if it is a constant.
  static std::optional<int64_t> known(Value value);
  Value add(Value a, Value b);
  Value add(Value a, int64_t b) { return add(a, index(b)); }
  Value sub(Value a, Value b);
  Value mul(Value a, Value b);
  Value mul(Value a, int64_t b) { return mul(a, index(b)); }
  Value div(Value a, Value b);
  Value div(Value a, int64_t b) { return div(a, index(b)); }
  Value rem(Value a, Value b);
  Value rem(Value a, int64_t b) { return rem(a, index(b)); }
  Value min(Value a, Value b);
  Value max(Value a, Value b);
  Value ceilDiv(Value a, int64_t b) { return div(add(a, b - 1), b); }
  Value roundUp(Value a, int64_t b) { return mul(ceilDiv(a, b), b); }
  Value less(Value a, Value b);
  Value equal(Value a, Value b);
  Value both(Value a, Value b);
  Value select(Value condition, Value a, Value b);
  /// i64 to i32, for lanes.
  Value narrow(Value a);

  // Floats: f32 or vectors of f32.
  Value splat(float value);
  Value splat(Value scalar);
  Value zero() { return splat(0.0f); }
  Value addf(Value a, Value b);
  Value subf(Value a, Value b);
  Value mulf(Value a, Value b);
  Value divf(Value a, Value b);
  Value fma(Value a, Value b, Value c);
  Value lane(Value vector, int64_t i);
  /// The sum of all lanes.
  Value sum(Value vector);

  // Memory. Indices count elements of `element`; loads and stores need no
  // alignment.
  Value at(Value base, Type element, Value index);
  Value load(Type type, Value base, Type element, Value index);
  Value load(Type type, Value base, Value index) {
    return load(type, base, f32, index);
  }
  void store(Value value, Value base, Type element, Value index);
  /// Prefetches the line of byte `index` of `base`, which need not be valid,
  /// into the first level of caches or only into the second.
  void prefetch(Value base, Value index, int level = 1);
  void store(Value value, Value base, Value index) {
    store(value, base, f32, index);
  }

  /// Adds a vector of f32 to the one at `index`.
  void addTo(Value base, Value index, Value vector) {
    store(addf(load(this->vector, base, index), vector), base, index);
  }

  /// Keeps the compiler from moving accesses over this point; no instruction.
  void keepOrder();

  /// `lanes` elements (or with `scalar` one) of type `element` at `index`, as
  /// f32; with `mask`, only those lanes, 0 elsewhere.
  Value loadWide(Value base, Type element, Value index, Value mask = {});
  /// The 2 * `lanes` numbers of bf16 from `index` on as two vectors of f32:
  /// those at even places, then those at odd ones. No number changes its lane,
  /// so beside the load it takes two instructions, where two of `loadWide` take
  /// four.
  std::array<Value, 2> loadWidePairs(Value base, Value index);
  Value loadMasked(VectorType type, Value base, Value index, Value mask);
  Value loadWideScalar(Value base, Type element, Value index);
  /// `lanes` elements that lie `stride` apart, of which `count` are read (the
  /// others give 0).
  Value loadStrided(Value base, Type element, Value index, Value stride,
                    Value count);
  /// Whether each of `lanes` bytes that lie `stride` apart is not 0; the same.
  Value loadFlags(Value base, Value index, Value stride, Value count);
  /// f32, or vectors of it, rounded once to `element`.
  Value round(Value value, Type element);
  /// Rounds f32 once to `element` and stores.
  void storeNarrow(Value value, Value base, Type element, Value index,
                   Value mask = {});
  /// Lanes below `count` (i64), of `lanes`.
  Value firstLanes(Value count, int64_t lanes);
  Value firstLanes(Value count) { return firstLanes(count, lanes); }

  // Control.
  using LoopBody = function_ref<SmallVector<Value>(Value, ValueRange)>;
  SmallVector<Value> loop(Value lower, Value upper, int64_t step,
                          ValueRange inits, LoopBody body);
  void loop(Value lower, Value upper, int64_t step,
            function_ref<void(Value)> body);
  void loop(Value upper, function_ref<void(Value)> body) {
    loop(index(0), upper, 1, body);
  }
  SmallVector<Value> choose(Value condition, TypeRange types,
                            function_ref<SmallVector<Value>()> then,
                            function_ref<SmallVector<Value>()> otherwise);
  void ifThen(Value condition, function_ref<void()> then);
  void ifElse(Value condition, function_ref<void()> then,
              function_ref<void()> otherwise);

  /// The private function `name` of `module`, or a new one with arguments
  /// `arguments` whose body `body` makes. It carries the target's features, and
  /// is not inlined: registers are allocated for one phase at a time.
  LLVM::LLVMFuncOp getOrEmitFunction(ModuleOp module, StringRef name,
                                     TypeRange arguments,
                                     function_ref<void(ValueRange)> body);
  /// Calls a new private function `name` of `module`, whose body `body` emits.
  /// Values of the caller that it uses become arguments, and constants are made
  /// again. LLVM's time for a function grows with the square of the size of its
  /// nests of loops.
  void outline(ModuleOp module, StringRef name, function_ref<void()> body);
  /// The declaration of a function of the runtime.
  LLVM::LLVMFuncOp getRuntimeFunction(ModuleOp module,
                                      RuntimeFunction function);
  /// `name` with the vector width and the ISA, by which kernels are shared in a
  /// module.
  std::string kernelName(const Twine &name) const;

private:
  Value widen(Value value, Type element);
  /// A new private function at the end of `module`, in which ops are put next.
  LLVM::LLVMFuncOp beginFunction(ModuleOp module, StringRef name,
                                 TypeRange arguments);
};

} // namespace mlir::diffattn

#endif // DIFFATTN_CODEGEN_CPU_KERNELBUILDER_H
