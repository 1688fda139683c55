//===- HopperBuilder.cpp - instructions of sm_90a -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Codegen/NVVM/HopperBuilder.h"

#include "DiffAttn/Schedule/GpuSharedLayout.h"

using namespace mlir;
using namespace mlir::diffattn;
using namespace mlir::diffattn::gpucode;

/// The address space of the shared memory of a cluster.
static constexpr unsigned kClusterSpace = 7;

void HopperBuilder::call(StringRef name, ValueRange arguments) {
  LLVM::CallIntrinsicOp::create(b, b.getStringAttr(("llvm.nvvm." + name).str()),
                                arguments);
}

void HopperBuilder::initBarrier(Value barrier, int64_t arrivals) {
  call("mbarrier.init.shared", {barrier, b.i32(arrivals)});
}
void HopperBuilder::publishBarriers() {
  call("fence.mbarrier_init.release.cluster", {});
}
void HopperBuilder::arrive(Value barrier) {
  b.intrinsic(b.getI64Type(), "llvm.nvvm.mbarrier.arrive.scope.cta.space.cta",
              {barrier, b.i32(1)});
}
void HopperBuilder::arriveExpecting(Value barrier, int64_t bytes) {
  b.intrinsic(b.getI64Type(),
              "llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta",
              {barrier, b.i32(bytes)});
}
void HopperBuilder::arriveAtBlock(Value barrier, Value rank) {
  Value there =
      b.intrinsic(LLVM::LLVMPointerType::get(b.getContext(), kClusterSpace),
                  "llvm.nvvm.mapa.shared.cluster", {barrier, rank});
  call("mbarrier.arrive.scope.cluster.space.cluster", {there, b.i32(1)});
}
void HopperBuilder::wait(Value barrier, Value parity, bool clusterwide) {
  StringRef name =
      clusterwide ? "llvm.nvvm.mbarrier.try.wait.parity.scope.cluster.space.cta"
                  : "llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta";
  b.loopUntil({}, [&](ValueRange) -> GpuBuilder::Values {
    return {b.intrinsic(b.getI1Type(), name, {barrier, parity})};
  });
}

void HopperBuilder::arriveAtCluster() {
  call("barrier.cluster.arrive.aligned", {});
}
void HopperBuilder::waitForCluster() {
  call("barrier.cluster.wait.aligned", {});
}

void HopperBuilder::arriveAtBarrier(Value id, int64_t threads) {
  call("barrier.cta.arrive.aligned.count", {id, b.i32(threads)});
}

void HopperBuilder::copyBox(Value target, Value map, std::array<Value, 4> at,
                            Value barrier, int64_t blocks) {
  // The address of this block's memory within a cluster.
  Value inCluster = LLVM::AddrSpaceCastOp::create(
      b, LLVM::LLVMPointerType::get(b.getContext(), kClusterSpace), target);
  const bool toOthers = blocks > 1;
  const int64_t mask = toOthers ? (int64_t(1) << blocks) - 1 : 0;
  Value toBlocks =
      LLVM::ConstantOp::create(b, b.getI16Type(), b.getI16IntegerAttr(mask));
  call("cp.async.bulk.tensor.g2s.tile.4d",
       {inCluster, barrier, map, at[0], at[1], at[2], at[3], toBlocks, b.i64(0),
        b.i1(toOthers), b.i1(false), b.i32(0)});
}
void HopperBuilder::prefetchBox(Value map, std::array<Value, 4> at) {
  call("cp.async.bulk.tensor.prefetch.tile.4d",
       {map, at[0], at[1], at[2], at[3], b.i64(0), b.i1(false)});
}
void HopperBuilder::storeMatrices(Value row, const Fragment &words) {
  call("stmatrix.sync.aligned.m8n8.x4.b16.p3",
       {row, words[0], words[1], words[2], words[3]});
}
void HopperBuilder::storeBox(Value map, std::array<Value, 4> at, Value source) {
  call("cp.async.bulk.tensor.s2g.tile.4d",
       {source, map, at[0], at[1], at[2], at[3], b.i64(0), b.i1(false)});
}
void HopperBuilder::commitStores() { call("cp.async.bulk.commit.group", {}); }
void HopperBuilder::waitForStoresToRead() {
  call("cp.async.bulk.wait.group.read", {b.i32(0)});
}
void HopperBuilder::publishToCopies() {
  call("fence.proxy.async.shared_cta", {});
}

void HopperBuilder::setRegisters(int64_t count, bool more) {
  call(more ? "setmaxnreg.inc.sync.aligned.u32"
            : "setmaxnreg.dec.sync.aligned.u32",
       {b.i32(count)});
}

void HopperBuilder::startEarly() {
  Block &entry = b.getKernel().getBody().front();
  SmallVector<Value> pointers;
  for (Value argument : entry.getArguments()) {
    auto type = dyn_cast<LLVM::LLVMPointerType>(argument.getType());
    // The others are tensor maps, which came with the launch.
    if (type && type.getAddressSpace() == 1)
      pointers.push_back(argument);
  }
  // It has no memory to share with another kernel.
  if (pointers.empty())
    return;
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(&entry);
  // Ahead of the wait, where it hides the most: the next kernel waits for the
  // end of this one all the same. Every block waits, also one without work:
  // kernels further on are ordered behind those ahead through this one alone.
  call("griddepcontrol.launch.dependents", {});
  const auto count = static_cast<unsigned>(pointers.size());
  SmallVector<Value> behind =
      assemble(getPtxAsm(GridWait{count}), pointers, {});
  Operation *wait = behind.front().getDefiningOp();
  if (auto extract = dyn_cast<LLVM::ExtractValueOp>(wait))
    wait = extract.getContainer().getDefiningOp();
  for (auto [pointer, value] : llvm::zip_equal(pointers, behind))
    pointer.replaceAllUsesExcept(value, wait);
}

void HopperBuilder::fence() { call("wgmma.fence.sync.aligned", {}); }
void HopperBuilder::commit() { call("wgmma.commit_group.sync.aligned", {}); }

SmallVector<Value> HopperBuilder::assemble(const AsmText &text, ValueRange tied,
                                           ValueRange others) {
  SmallVector<Value> operands(tied);
  llvm::append_range(operands, others);
  SmallVector<Type> types(tied.getTypes());
  const bool isOne = types.size() == 1;
  Type result = isOne ? types.front()
                      : LLVM::LLVMStructType::getLiteral(b.getContext(), types);
  auto assembly = LLVM::InlineAsmOp::create(
      b, result, operands, text.text, text.constraints,
      /*has_side_effects=*/true, /*is_align_stack=*/false,
      LLVM::TailCallKind::None,
      LLVM::AsmDialectAttr::get(b.getContext(), LLVM::AsmDialect::AD_ATT),
      /*operand_attrs=*/ArrayAttr());
  if (isOne)
    return {assembly.getRes()};
  SmallVector<Value> values;
  for (size_t i = 0; i < types.size(); ++i)
    values.push_back(LLVM::ExtractValueOp::create(b, assembly.getRes(), i));
  return values;
}

void HopperBuilder::multiplyBy(Sums &sums, Wgmma wgmma, ValueRange a, Value by,
                               Type type, bool add) {
  wgmma.n = 8 * sums.size();
  wgmma.bfloat = type.isBF16();
  SmallVector<Value> tied, others(a);
  for (const Fragment &fragment : sums)
    tied.append(fragment.begin(), fragment.end());
  others.push_back(by);
  others.push_back(b.i32(add));
  SmallVector<Value> results = assemble(getPtxAsm(wgmma), tied, others);
  for (auto [i, result] : llvm::enumerate(results))
    sums[i / 4][i % 4] = result;
}

void HopperBuilder::multiply(Sums &sums, Value a, Value by, Type type,
                             bool add) {
  multiplyBy(sums, Wgmma(), a, by, type, add);
}

void HopperBuilder::multiply(Sums &sums, const Fragment &a, Value by,
                             Type type) {
  Wgmma wgmma;
  wgmma.aInRegisters = wgmma.transposeB = true;
  multiplyBy(sums, wgmma, ValueRange(ArrayRef<Value>(a)), by, type,
             /*add=*/true);
}

template <typename Through>
void HopperBuilder::passThrough(Through through, ArrayRef<Sums *> sums,
                                MutableArrayRef<Fragment> operands) {
  SmallVector<Value> tied;
  for (Sums *all : sums)
    for (Fragment &fragment : *all)
      tied.append(fragment.begin(), fragment.end());
  through.floats = tied.size();
  through.integers = 4 * operands.size();
  for (Fragment &fragment : operands)
    tied.append(fragment.begin(), fragment.end());
  SmallVector<Value> results = assemble(getPtxAsm(through), tied, {});
  const auto *next = results.begin();
  for (Sums *all : sums)
    for (Fragment &fragment : *all)
      for (Value &value : fragment)
        value = *next++;
  for (Fragment &fragment : operands)
    for (Value &value : fragment)
      value = *next++;
}

void HopperBuilder::wait(ArrayRef<Sums *> sums,
                         MutableArrayRef<Fragment> operands, int64_t pending) {
  WgmmaWait wait;
  wait.pending = pending;
  passThrough(wait, sums, operands);
}
void HopperBuilder::tie(ArrayRef<Sums *> sums,
                        MutableArrayRef<Fragment> operands) {
  passThrough(RegisterTie(), sums, operands);
}

Value HopperBuilder::renew(Value number) {
  RegisterTie tie;
  tie.integers = 1;
  return assemble(getPtxAsm(tie), number, {}).front();
}

// PTX ISA, "Matrix Descriptor Format": addresses and strides without their last
// four bits; the 128-byte swizzle is 1 in the last two bits.
Value HopperBuilder::describe(Value pointer, int64_t panelBytes) {
  constexpr int64_t mask = (int64_t(1) << 14) - 1;
  const int64_t unitBytes = 8 * kGpuPanelPitch;
  const auto fixed =
      static_cast<int64_t>(uint64_t(1) << 62 | uint64_t(unitBytes >> 4) << 32 |
                           uint64_t(panelBytes >> 4 & mask) << 16);
  Value address = LLVM::PtrToIntOp::create(b, b.getI64Type(), pointer);
  Value start = LLVM::AndOp::create(
      b, LLVM::LShrOp::create(b, address, b.i64(4)), b.i64(mask));
  return b.orI(start, b.i64(fixed));
}

Value HopperBuilder::advance(Value description, int64_t bytes) {
  return b.add(description, bytes >> 4);
}

Value HopperBuilder::renewDescription(Value description) {
  // Ties are of 32 bits; the upper ones of all descriptions are the same.
  Value low = renew(LLVM::TruncOp::create(b, b.i32Type(), description));
  Value high =
      LLVM::AndOp::create(b, description, b.i64(~((int64_t(1) << 32) - 1)));
  return b.orI(LLVM::ZExtOp::create(b, b.getI64Type(), low), high);
}

HopperBuilder::Sums HopperBuilder::undefined(int64_t fragments) {
  Value none = LLVM::UndefOp::create(b, b.f32());
  return Sums(fragments, Fragment{none, none, none, none});
}
