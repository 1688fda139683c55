// An op that no pass of the pipeline lowers: the runner says so, leaves a reproducer, and the command that it prints shows
// the same failure.
// RUN: rm -rf %t && mkdir -p %t
// RUN: not diffattn-run %s --no-cache --reproducer=%t/r.mlir 2>&1 | FileCheck %s
// RUN: not diffattn-opt --run-reproducer %t/r.mlir 2>&1 | FileCheck %s --check-prefix=AGAIN
// RUN: not diffattn-run %s --no-cache --reproducer=%t/nowhere/r.mlir 2>&1 | FileCheck %s --check-prefix=NOWHERE
// RUN: not %build/bin/diffattn-run %s --no-cache "--reproducer=%t/it's r.mlir" 2>&1 | FileCheck %s --check-prefix=PATH

// CHECK: error (compile): {{.*}}run-reproducer.mlir: expected a module that the pipeline can lower (reproduce with: diffattn-opt --run-reproducer {{.*}}r.mlir)
// CHECK: run-reproducer.mlir:[[@LINE+6]]:
// NOWHERE: error (compile): {{.*}}expected a module that the pipeline can lower (no reproducer: {{.*}}nowhere/r.mlir cannot be written)
// NOWHERE-NOT: to create
// PATH: (reproduce with: {{.*}}/bin/diffattn-opt --run-reproducer '{{.*}}/it'\''s r.mlir')
// AGAIN: error:
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = tosa.tanh %x : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
