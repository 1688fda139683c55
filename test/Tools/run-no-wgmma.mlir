// RUN: diffattn-run %s --no-cache --target=cuda:sm_90a --emit=ptx -o %t.ptx 2>&1 | FileCheck %s --check-prefix=NATIVE --implicit-check-not=remark
// RUN: FileCheck %s --check-prefix=PTX --input-file=%t.ptx
// RUN: diffattn-run %s --no-cache --target=cuda:sm_90 --emit=ptx -o %t.ptx 2>&1 | FileCheck %s --check-prefix=PLAIN --implicit-check-not=remark
// RUN: diffattn-run %s --no-cache --target=cuda:sm_80 --emit=ptx -o %t.ptx 2>&1 | FileCheck %s --check-prefix=OTHER --allow-empty --implicit-check-not=remark

// NATIVE: run-no-wgmma.mlir:[[#@LINE+13]]:8: remark: attention does not use wgmma: expected q1, k1, q2, k2 and v of f16 or bf16, but got f32 [diffattn-gpu]
// PLAIN:  run-no-wgmma.mlir:[[#@LINE+12]]:8: remark: attention does not use wgmma: expected chip sm_90a, which has wgmma, but got sm_90; expected q1, k1, q2, k2 and v of f16 or bf16, but got f32 [diffattn-gpu]
// PLAIN:  run-no-wgmma.mlir:[[#@LINE+17]]:8: remark: attention does not use wgmma: expected chip sm_90a, which has wgmma, but got sm_90 [diffattn-gpu]
// OTHER-NOT: wgmma

// PTX-DAG: .entry diffattn_forward_64x64_f32
// PTX-DAG: .entry diffattn_forward_64x64_bf16_wgmma

!f = tensor<1x2x20x64xf32>
!h = tensor<1x2x20x64xbf16>

func.func @f32(%q: !f, %k: !f, %v: !f, %l: tensor<f32>) -> !f {
  %init = tensor.empty() : !f
  %o = diffattn.attention ins(%q, %k, %q, %k, %v : !f, !f, !f, !f, !f) lambda(%l : tensor<f32>) outs(%init : !f) {scale = 0.125 : f32} -> !f
  return %o : !f
}

func.func @bf16(%q: !h, %k: !h, %v: !h, %l: tensor<f32>) -> !h {
  %init = tensor.empty() : !h
  %o = diffattn.attention ins(%q, %k, %q, %k, %v : !h, !h, !h, !h, !h) lambda(%l : tensor<f32>) outs(%init : !h) {scale = 0.125 : f32} -> !h
  return %o : !h
}
