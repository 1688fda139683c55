// RUN: diffattn-run %s --emit=assembly --target=cpu:amx | FileCheck %s --check-prefixes=ASM
// RUN: diffattn-run %s --emit=loops --target=cpu:amx | FileCheck %s --check-prefix=LOOPS
// RUN: diffattn-run %s --emit=loops --target=cpu:amx-emulated | FileCheck %s --check-prefix=EMULATED
// RUN: diffattn-run %s --emit=assembly --target=cpu:amx-emulated | FileCheck %s --check-prefix=VECTORS

// Tiles are carried by the loops over the width, and four sums are multiplied with each tile of keys.
// LOOPS-LABEL: llvm.func private @diffattn_tile_scores_4_bf16_r64_16_amx(
// LOOPS-SAME:  target_features = #llvm.target_features<["+amx-bf16", "+amx-tile",
// LOOPS:       scf.for {{.*}} -> (!amx.tile<16x16xf32>, !amx.tile<16x16xf32>, !amx.tile<16x16xf32>, !amx.tile<16x16xf32>)
// LOOPS-COUNT-4: amx.tile_mulf
// LOOPS-NOT:   llvm.call @
// Exponentials are kept in pairs of 16 bits, and made by instructions of AVX-512 where the target has them.
// LOOPS-LABEL: llvm.func private @diffattn_tile_exp_4_bf16_scaled_r64_16_amx(
// LOOPS-COUNT-8: llvm.load {{.*}} -> vector<16xf32>
// LOOPS:       scf.for
// LOOPS:       llvm.call_intrinsic "llvm.x86.avx512.mask.reduce.ps.512"
// LOOPS:       llvm.call_intrinsic "llvm.x86.avx512.mask.scalef.ps.512"
// LOOPS-COUNT-4: llvm.store {{.*}} : vector<16xi32>, !llvm.ptr
// LOOPS-LABEL: llvm.func private @diffattn_tile_product_4_bf16_n128_16_amx(
// LOOPS-NOT:   llvm.call @
// LOOPS-COUNT-4: amx.tile_mulf
// EMULATED-NOT: {{amx.tile|avx512}}
// EMULATED:     llvm.call @diffattn_emulated_tdpbf16ps_16x16x32_16_avx2(
// VECTORS-NOT:  {{tmm|zmm}}

// Tiles are configured once in a function, never spilled, and released: what is stored are sums, not to the stack.
// ASM-LABEL: diffattn_tile_scores_4_bf16_r64_16_amx:
// ASM:       ldtilecfg
// ASM-NOT:   ldtilecfg
// ASM-COUNT-4: tdpbf16ps
// ASM-NOT:   {{tile(stored|loadd).*%rsp}}
// ASM:       tilerelease
// ASM-LABEL: diffattn_tile_product_4_bf16_n128_16_amx:
// ASM:       ldtilecfg
// ASM-NOT:   {{ldtilecfg|tile(stored|loadd).*%rsp}}
// ASM-COUNT-4: tdpbf16ps
// ASM-NOT:   {{ldtilecfg|tdpbf16ps|tile(stored|loadd).*%rsp}}
// ASM:       tilerelease
!q = tensor<1x2x256x64xbf16>
!v = tensor<1x2x256x128xbf16>
func.func @f(%q1: !q, %k1: !q, %q2: !q, %k2: !q, %v: !v, %l: tensor<f32>) -> !v {
  %o = tensor.empty() : !v
  %0 = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !q, !q, !q, !v) lambda(%l : tensor<f32>)
      outs(%o : !v) {scale = 0.125 : f32, is_causal} -> !v
  return %0 : !v
}
