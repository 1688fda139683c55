//===- PtxAsm.h - the inline assembly of GPU kernels ------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The one table of inline assembly, for those who emit kernels and for the
// simulator, which refuses every assembly that is not made here. One text is
// one PTX instruction; what has an intrinsic in LLVM 22 is none of it:
//
//   PTX (8.0, sm_90a)                  intrinsic below llvm.nvvm.
//   mbarrier.init, .inval              mbarrier.{init,inval}.shared
//   mbarrier.arrive                    mbarrier.arrive.scope.cta.space.cta
//   mbarrier.arrive.expect_tx mbarrier.arrive.expect.tx.scope.cta.space.cta
//   mbarrier.arrive at another block   mapa.shared.cluster, then
//                                      mbarrier.arrive.scope.cluster.space.cluster
//   mbarrier.try_wait.parity -> i1 mbarrier.try.wait.parity.scope.cta.space.cta
//     after arrivals of other blocks
//     mbarrier.try.wait.parity.scope.cluster.space.cta
//   fence.mbarrier_init                fence.mbarrier_init.release.cluster
//   cp.async.bulk.tensor, a load       cp.async.bulk.tensor.g2s.tile.{1..5}d
//   cp.async.bulk.tensor, a store      cp.async.bulk.tensor.s2g.tile.{1..5}d
//   cp.async.bulk.prefetch.tensor cp.async.bulk.tensor.prefetch.tile.{1..5}d
//   cp.async.bulk, a load              cp.async.bulk.global.to.shared.cluster
//   cp.async.bulk.commit_group         cp.async.bulk.commit.group
//   cp.async.bulk.wait_group[.read]    cp.async.bulk.wait.group[.read]
//   prefetch.tensormap                 prefetch.tensormap.p0
//   fence.proxy.async.shared::cta      fence.proxy.async.shared_cta
//   wgmma.fence, .commit_group         wgmma.{fence,commit_group}.sync.aligned
//   setmaxnreg                         setmaxnreg.{inc,dec}.sync.aligned.u32
//   stmatrix x4             stmatrix.sync.aligned.m8n8.x4[.trans].b16.p3
//   bar.sync, bar.arrive               barrier.cta.{sync,arrive}.aligned.count
//   barrier.cluster                    barrier.cluster.{arrive,wait}.aligned
//   elect.sync                         elect.sync
//   %cluster_ctarank, _nctarank        read.ptx.sreg.cluster.{ctarank,nctarank}
//   griddepcontrol.launch_dependents   griddepcontrol.launch.dependents
//
// A load's destination is `ptr addrspace(7)`, an addrspacecast of the pointer
// to shared memory. A map is a parameter `ptr byval([128 x i8]) align 128` with
// the attribute "nvvm.grid_constant": without it the back end copies the map to
// local memory, where the copy engine does not find it. A wait is a loop around
// try_wait. All of it is assembled in
// test/Target/hopper-instructions.mlir.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_TARGET_PTXASM_H
#define DIFFATTN_TARGET_PTXASM_H

#include "llvm/ADT/StringRef.h"

#include <optional>
#include <string>

namespace mlir::diffattn {

/// D = A·B + D (or A·B) by the 128 threads of a warpgroup: D is 64 x n, f32.
///
/// Arguments of the call, in order: the n/2 accumulators (f32), A (four i32
/// from registers, or one i64 that describes shared memory), the i64 that
/// describes B, and an i32: 0 forgets D, anything else adds to it. The result
/// is a struct of n/2 f32. The call has side effects: an accumulator is
/// complete only after the WgmmaWait that it goes through.
struct Wgmma {
  /// Columns of B and D: a multiple of 8 from 8 to 256. k is 16.
  unsigned n = 64;
  /// Elements of A and B: bf16, else f16.
  bool bfloat = true;
  bool aInRegisters = false;
  /// B lies with n contiguous, as V does, and not with k contiguous.
  bool transposeB = false;
};

/// Waits until at most `pending` committed groups run. Every register that a
/// finished group wrote or read has to go through it, so that nothing reads it
/// earlier.
///
/// Arguments: `floats` f32, then `integers` i32; the result is the same values,
/// a struct of them unless it is just one, void for none. It has side effects.
struct WgmmaWait {
  /// 0 to 7.
  unsigned pending = 0;
  unsigned floats = 0, integers = 0;
};

/// No instruction: holds the computation of its arguments before this place and
/// every use of its results after it. Accumulators and registers of A that were
/// computed belong through one before the wgmma.fence, past which LLVM may move
/// arithmetic. Types as of WgmmaWait; at least one.
struct RegisterTie {
  unsigned floats = 0, integers = 0;
};

/// No instruction: marks for the simulator whether an index that was read from
/// the table `table` (small letters, digits and underscores) is out of range.
/// ptxas drops the computation of the condition.
///
/// Arguments: i1, whether it lies outside, and the index, i64. No result.
struct IndexCheck {
  std::string table;
};

/// griddepcontrol.wait: waits until all earlier launches have ended and their
/// writes are visible. LLVM's intrinsic is declared to touch no memory; here
/// every pointer that is read or written through has to go through the wait.
///
/// Arguments: `pointers` pointers; the result is the same, a struct of them
/// unless it is just one.
struct GridWait {
  unsigned pointers = 1;
};

/// An inline assembly without its arguments. The dialect is AT&T, and each has
/// side effects.
struct AsmText {
  std::string text, constraints;
};

AsmText getPtxAsm(const Wgmma &wgmma);
AsmText getPtxAsm(const WgmmaWait &wait);
AsmText getPtxAsm(const RegisterTie &tie);
AsmText getPtxAsm(const IndexCheck &check);
AsmText getPtxAsm(const GridWait &wait);

/// A parsed inline assembly of the table; exactly one member is set.
struct PtxAsm {
  std::optional<Wgmma> wgmma;
  std::optional<WgmmaWait> wait;
  std::optional<RegisterTie> tie;
  std::optional<IndexCheck> check;
  std::optional<GridWait> gridWait;
};

/// Parses exactly the texts of getPtxAsm: nothing for any other text, and for a
/// text with other constraints.
std::optional<PtxAsm> parsePtxAsm(llvm::StringRef text,
                                  llvm::StringRef constraints);

} // namespace mlir::diffattn

#endif // DIFFATTN_TARGET_PTXASM_H
