// A failed assertion, also one inside of the body of a generic, ends the run with its message.
// RUN: diffattn-opt %s --diffattn-cpu-pipeline | not mlir-runner -e main --entry-point-result=void \
// RUN:     --shared-libs=%runtime,%mlir_lib_dir/libmlir_c_runner_utils.so 2>&1 | FileCheck %s

// CHECK: expected an index below 3
func.func @main() {
  %table = arith.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %at = arith.constant dense<[0, 1000000000]> : tensor<2xi64>
  %bound = arith.constant 3 : i64
  %e = tensor.empty() : tensor<2xf32>
  %g = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%at : tensor<2xi64>) outs(%e : tensor<2xf32>) {
  ^bb0(%i: i64, %o: f32):
    %ok = arith.cmpi ult, %i, %bound : i64
    cf.assert %ok, "expected an index below 3"
    %p = arith.index_cast %i : i64 to index
    %v = tensor.extract %table[%p] : tensor<3xf32>
    linalg.yield %v : f32
  } -> tensor<2xf32>
  %c0 = arith.constant 0 : index
  %x = tensor.extract %g[%c0] : tensor<2xf32>
  vector.print %x : f32
  return
}
