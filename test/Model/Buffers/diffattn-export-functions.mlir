// RUN: diffattn-opt %s --diffattn-export-functions | FileCheck %s

// CHECK: func.func @forward() attributes {llvm.emit_c_interface}
// CHECK: func.func private @layer() attributes {llvm.linkage = #llvm.linkage<internal>}
// CHECK: func.func private @printMemrefF32(memref<*xf32>){{$}}
func.func @forward() {
  return
}
func.func private @layer() {
  return
}
func.func private @printMemrefF32(memref<*xf32>)
