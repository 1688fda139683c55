// RUN: diffattn-run %s --no-cache --quiet --check=unfused | FileCheck %s
// RUN: not diffattn-run %s --no-cache --quiet --check=unfused --rtol=0 --atol=0 | FileCheck %s --check-prefix=DIFFERENT
// RUN: echo 'func.func @nothing(%x: memref<4xf32>) { return }' | diffattn-run - --no-cache --check=unfused 2>&1 | FileCheck %s --check-prefix=NOTHING

// What a function writes into its arguments is compared, and what is computed from bf16 may differ by its roundings, also as f32.
// CHECK: argument 2 and the reference: matches, largest difference {{.*}} (rtol 0.01, atol 0.01)
// DIFFERENT: argument 2 and the reference: {{[0-9]+}} of 640 elements differ
// NOTHING: warning: nothing was compared: the function has no results, and no argument was changed

!q = memref<1x2x20x16xbf16>
!o = memref<1x2x20x16xf32>
func.func @f(%q: !q, %l: memref<f32>, %o: !o) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !o) {scale = 0.5 : f32}
  return
}
