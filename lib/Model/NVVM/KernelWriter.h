//===- KernelWriter.h - writes one kernel and its launch ------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_NVVM_KERNELWRITER_H
#define DIFFATTN_LIB_MODEL_NVVM_KERNELWRITER_H

#include "DiffAttn/Codegen/NVVM/GpuBuilder.h"
#include "HostMemRef.h"
#include "Phase.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "llvm/ADT/StringMap.h"

namespace mlir::diffattn::linalggpu {

/// The kernels of a module. Equal ones are made once.
class KernelModule {
public:
  explicit KernelModule(gpu::GPUModuleOp module) : module(module) {}
  gpu::GPUModuleOp getModule() { return module; }
  /// An empty kernel with blocks of `threads`.
  LLVM::LLVMFuncOp create(Location loc, int64_t threads);
  /// Gives `kernel`, written to its end, the type of its block's arguments and
  /// a name by its form, or erases it and returns an equal one.
  LLVM::LLVMFuncOp intern(LLVM::LLVMFuncOp kernel, StringRef form);
  /// Erases the kernels that no launch in `host` names: those that are part of
  /// another one.
  void eraseUnused(ModuleOp host);
  /// The constant of `get` in the memory of the device.
  LLVM::GlobalOp getConstant(memref::GetGlobalOp get);
  /// Static shared memory of `count` elements.
  LLVM::GlobalOp getShared(Type type, int64_t count);

private:
  gpu::GPUModuleOp module;
  llvm::StringMap<LLVM::LLVMFuncOp> kernels;
  llvm::StringMap<int64_t> counts;
};

/// A memref as a kernel sees it: strides in elements.
struct View {
  Value pointer;
  SmallVector<Value> strides;
  Type element;
};

struct Launch {
  LLVM::LLVMFuncOp kernel;
  SmallVector<Value> arguments;
  Value blocks;
  int64_t threads;
  void emit(ImplicitLocOpBuilder &host) const;
};

/// Builds one kernel. A value of the host becomes an argument at its first use.
/// Numbers of loops and offsets are of type index; structured control flow and
/// `arith` ops are lowered later with all kernels.
class KernelWriter {
public:
  /// Host values are made by `host`; loops in `enclosing` become the kernel's.
  KernelWriter(KernelModule &kernels, ImplicitLocOpBuilder &host,
               ArrayRef<scf::ForOp> enclosing, int64_t threads);

  gpucode::GpuBuilder &getBuilder() { return b; }

  // Values.
  Value index(int64_t value);
  Value add(Value x, Value y);
  Value mul(Value x, Value y);
  /// A size of the host as an index of the kernel.
  Value size(OpFoldResult value);
  /// Thread of the block, and block, as an index.
  Value thread();
  Value block();
  Value blocks();
  /// A scalar of the host's code: an argument, or computed here if it depends
  /// on elements or on the counter of an enclosing loop.
  Value scalar(Value value);
  /// Computes now, ahead of their uses, the scalars and the views of `phase`
  /// that depend on no counter that is not set yet.
  void prepare(const Phase &phase);
  void setCounter(scf::ForOp loop, Value value);
  /// Sets the element of `memref` that another phase of this kernel computed
  /// for the present row.
  void setRegister(Value memref, Value value) { registers[memref] = value; }
  Value getRegister(Value memref) { return registers.lookup(memref); }
  /// Says that `memref` is never in memory, only in a register.
  void keepInRegisters(Value memref) { kept.insert(memref); }

  // Memory.
  View view(Value memref);
  Value offset(const View &view, ValueRange indices);
  Value load(const View &view, ValueRange indices);
  void store(Value value, const View &view, ValueRange indices);
  SmallVector<Value> loadVector(const View &view, ValueRange indices,
                                int64_t width);
  void storeVector(ArrayRef<Value> values, const View &view,
                   ValueRange indices);
  SmallVector<Value> evaluate(AffineMap map, ValueRange loops);

  // Control flow.
  SmallVector<Value>
  loop(Value lower, Value upper, Value step, ValueRange initial,
       function_ref<SmallVector<Value>(Value, ValueRange)> body);
  void branch(Value condition, function_ref<void()> then);
  /// The result of `then` if `condition` holds, else `otherwise`.
  Value choose(Value condition, function_ref<Value()> then, Value otherwise);
  /// Runs `body` unless the word at `status`, if there is one, is set.
  void unlessFailed(Value status, function_ref<void()> body);

  /// The yielded values of `phase` for `arguments`. The chains of `combiners`
  /// are computed in their types.
  SmallVector<Value> computeBody(const Phase &phase, ValueRange loops,
                                 ArrayRef<Value> arguments,
                                 ArrayRef<Combiner> combiners = {});
  /// `op`, one of a combiner's chain, on other operands.
  Value combine(Operation *op, Value x, Value y);
  /// Floats as another type of float, rounded once; all else as it is.
  Value convertTo(Type type, Value value);
  /// Splits `linear` into one number for each size; the last one runs fastest.
  SmallVector<Value> delinearize(Value linear, ArrayRef<Value> sizes);

  /// Ends the kernel.
  Launch finish(StringRef form, Value blocks);

private:
  Value parameter(Value value);
  Value pointerParameter(Value memref);
  bool isHostMemRef(Value memref);
  View derivedView(Value memref);
  void replaceNested(Operation *op, ValueRange loops, unsigned first);
  /// Value that `load`, in a body, has at `indices`: a register if another
  /// phase of this kernel computed it, since it is not in memory for all
  /// threads yet.
  Value loadInBody(memref::LoadOp load, ValueRange indices);

  KernelModule &kernels;
  ImplicitLocOpBuilder &host;
  SmallVector<scf::ForOp> enclosing;
  int64_t threads;
  LLVM::LLVMFuncOp kernel;
  gpucode::GpuBuilder b;
  SmallVector<Value> arguments;
  DenseMap<Value, Value> parameters, pointers, scalars, registers;
  DenseMap<Value, View> views;
  DenseSet<Value> kept;
};

/// Why no kernel can compute `phase`; empty if one can.
std::string findUnsupported(const Phase &phase);

} // namespace mlir::diffattn::linalggpu

#endif // DIFFATTN_LIB_MODEL_NVVM_KERNELWRITER_H
