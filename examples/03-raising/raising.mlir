// (softmax(Q1·K1ᵀ) − 0.5·softmax(Q2·K2ᵀ))·V as a tensor graph has it: products, softmaxes, a difference. 4 heads, 20 tokens.
!q = tensor<4x20x16xf32>
!kt = tensor<4x16x20xf32>
!v = tensor<4x20x32xf32>
!s = tensor<4x20x20xf32>
func.func @main(%q1: !q, %k1: !kt, %q2: !q, %k2: !kt, %v: !v) -> !v {
  %zero = arith.constant 0.0 : f32
  %half = arith.constant 0.5 : f32
  %e = tensor.empty() : !s
  %z = linalg.fill ins(%zero : f32) outs(%e : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k1 : !q, !kt) outs(%z : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k2 : !q, !kt) outs(%z : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%e : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%e : !s) -> !s
  %d = linalg.generic {indexing_maps = [affine_map<(b, i, j) -> (b, i, j)>, affine_map<(b, i, j) -> (b, i, j)>, affine_map<(b, i, j) -> (b, i, j)>],
                       iterator_types = ["parallel", "parallel", "parallel"]} ins(%a1, %a2 : !s, !s) outs(%e : !s) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %noise = arith.mulf %half, %y : f32
    %clean = arith.subf %x, %noise : f32
    linalg.yield %clean : f32
  } -> !s
  %eo = tensor.empty() : !v
  %zo = linalg.fill ins(%zero : f32) outs(%eo : !v) -> !v
  %o = linalg.batch_matmul ins(%d, %v : !s, !v) outs(%zo : !v) -> !v
  return %o : !v
}
