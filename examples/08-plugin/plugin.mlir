// Two maps over two keys, sharp enough to be told by hand: the first looks at one key, the second at the other. Printed by main.
!t = tensor<1x1x2x2xf32>
func.func private @printMemrefF32(memref<*xf32>)
func.func @main() {
  %q1 = arith.constant dense<[[[[200.0, 0.0], [0.0, 200.0]]]]> : !t
  %q2 = arith.constant dense<[[[[0.0, 200.0], [200.0, 0.0]]]]> : !t
  %k = arith.constant dense<[[[[1.0, 0.0], [0.0, 1.0]]]]> : !t
  %v = arith.constant dense<[[[[2.0, 4.0], [6.0, 8.0]]]]> : !t
  %lambda = arith.constant dense<0.25> : tensor<f32>
  %init = tensor.empty() : !t
  %o = diffattn.attention ins(%q1, %k, %q2, %k, %v : !t, !t, !t, !t, !t) lambda(%lambda : tensor<f32>) outs(%init : !t) {scale = 1.0 : f32} -> !t
  %b = bufferization.to_buffer %o : !t to memref<1x1x2x2xf32>
  %u = memref.cast %b : memref<1x1x2x2xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  return
}
