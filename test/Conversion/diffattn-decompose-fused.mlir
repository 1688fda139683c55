// Upstream's fusion may follow: no element-wise op reads its destination, which that keeps and a consumer with more loops updates
// again for each of them.
// DEFINE: %{call} = --input=random:2x4x5x16xf32 --input=random:2x4x9x16xf32 --input=random:2x2x5x16xf32 --input=random:2x2x9x16xf32 --input=random:2x4x9x8xf32 --no-cache --quiet
// RUN: diffattn-run %s %{call} --output=%t.npy
// RUN: diffattn-opt %s --diffattn-decompose=all --linalg-fuse-elementwise-ops -o %t.mlir
// RUN: diffattn-run %t.mlir %{call} --expected=%t.npy
!q = tensor<2x4x5x16xf32>
!n = tensor<2x2x5x16xf32>
!k1 = tensor<2x4x9x16xf32>
!k2 = tensor<2x2x9x16xf32>
!v = tensor<2x4x9x8xf32>
!o = tensor<2x4x5x8xf32>
func.func @main(%q1: !q, %k1: !k1, %q2: !n, %k2: !k2, %v: !v) -> !o {
  %l = arith.constant dense<0.25> : tensor<f32>
  %init = tensor.empty() : !o
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : !q, !k1, !n, !k2, !v) lambda(%l : tensor<f32>)
         outs(%init : !o) {scale = 0.25 : f32, norm = #diffattn.norm<rms>} -> !o
  return %o : !o
}
