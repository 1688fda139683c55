// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-linalg-to-gpu{chip=sm_90})" -o %t.mlir
// RUN: FileCheck %s --input-file=%t.mlir
// RUN: diffattn-opt %t.mlir --pass-pipeline="builtin.module(convert-gpu-launch-to-runtime)" | FileCheck %s --check-prefix=LIST
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(convert-linalg-to-gpu{chip=sm_80})" -o %t.80.mlir
// RUN: FileCheck %s --check-prefix=PLAIN --input-file=%t.80.mlir
// RUN: diffattn-opt %t.80.mlir --pass-pipeline="builtin.module(convert-gpu-launch-to-runtime)" | FileCheck %s --check-prefix=PLAIN

// From sm_90 on a kernel may start while those ahead run: it lets the next one do so, waits, and only then reaches memory, through what
// the wait gave. A block without work waits too.
// CHECK-LABEL: llvm.func @diffattn_elementwise_0(
// CHECK-SAME:    %[[IN:.+]]: !llvm.ptr<1>, %[[OUT:[^:]+]]: !llvm.ptr<1>
// CHECK-NOT:   {{llvm.(load|store|cond_br) |nvvm.read}}
// CHECK:       llvm.call_intrinsic "llvm.nvvm.griddepcontrol.launch.dependents"
// CHECK-NEXT:  %[[BEHIND:.+]] = llvm.inline_asm has_side_effects asm_dialect = att "griddepcontrol.wait;", "=l,=l,0,1,~{memory}" %[[IN]], %[[OUT]] :
// CHECK-NEXT:  llvm.extractvalue %[[BEHIND]][0]
// CHECK-NEXT:  llvm.extractvalue %[[BEHIND]][1]
// CHECK-NOT:   %[[IN]]{{[^0-9]}}
// CHECK-NOT:   %[[OUT]]{{[^0-9]}}
// CHECK:       llvm.return
// CHECK-LABEL: llvm.func @diffattn_row_reduction_0(
// CHECK-NOT:   {{llvm.(load|store|cond_br) |nvvm.read}}
// CHECK:       llvm.call_intrinsic "llvm.nvvm.griddepcontrol.launch.dependents"
// CHECK-NEXT:  llvm.inline_asm {{.*}}griddepcontrol.wait;
// One pointer needs no struct.
// CHECK-LABEL: llvm.func @diffattn_elementwise_2(%arg0: !llvm.ptr<1>)
// CHECK-NOT:   {{llvm.(load|store|cond_br) |nvvm.read}}
// CHECK:       llvm.call_intrinsic "llvm.nvvm.griddepcontrol.launch.dependents"
// CHECK-NEXT:  llvm.inline_asm {{.*}}griddepcontrol.wait;", "=l,0,~{memory}" %arg0 : (!llvm.ptr<1>) -> !llvm.ptr<1>
// CHECK-NOT:   %arg0{{[^0-9]}}
// CHECK:       llvm.return
// LIST:        name = "diffattn_elementwise_0", parameters = "{{[p48]+}}", starts_early
// LIST-SAME:   name = "diffattn_elementwise_1", parameters = "pp", starts_early
// LIST-SAME:   name = "diffattn_row_reduction_0", parameters = "{{[p48]+}}", starts_early
// LIST-SAME:   name = "diffattn_elementwise_2", parameters = "{{[p48]+}}", starts_early
// PLAIN-NOT:   griddepcontrol
// PLAIN-NOT:   starts_early
// PLAIN:       diffattn_row_reduction_0
// PLAIN-NOT:   griddepcontrol
// PLAIN-NOT:   starts_early
func.func @f(%x: memref<?x256xf32>, %y: memref<?x256xf32>, %s: memref<?xf32>) {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : memref<?x256xf32>) outs(%y : memref<?x256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %c = math.absf %a : f32
    linalg.yield %c : f32
  }
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%y : memref<?x256xf32>) outs(%s : memref<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %c = arith.addf %o, %a : f32
    linalg.yield %c : f32
  }
  return
}
func.func @one(%x: memref<256xf32>) {
  %one = arith.constant 1.0 : f32
  linalg.fill ins(%one : f32) outs(%x : memref<256xf32>)
  return
}
