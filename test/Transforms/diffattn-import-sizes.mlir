// RUN: diffattn-opt %s --diffattn-import-sizes | FileCheck %s

// Places of one name are compared with the first one; those with a name of their own, and those without one, with none.

// CHECK-LABEL: func.func @main(
// CHECK-SAME:      %[[X:[^:]+]]: tensor<?x4x?xf32>, %[[Y:[^:]+]]: tensor<?x?xf32>, %[[N:[^:]+]]: i64)
// CHECK:         %[[XB:.+]] = tensor.dim %[[X]], %c0
// CHECK:         %[[YB:.+]] = tensor.dim %[[Y]], %c1
// CHECK:         %[[SAME:.+]] = arith.cmpi eq, %[[XB]], %[[YB]] : index
// CHECK:         cf.assert %[[SAME]], "expected size {0} on axis 1 of input 1 of the graph, as on axis 0 of input 0 of the graph, but got {1}"
// CHECK:         %[[AGAIN:.+]] = tensor.dim %[[X]], %c0
// CHECK:         %[[SIZE:.+]] = arith.index_cast %[[N]] : i64 to index
// CHECK:         %[[COUNT:.+]] = arith.cmpi eq, %[[AGAIN]], %[[SIZE]] : index
// CHECK:         cf.assert %[[COUNT]], "expected size {0} on input 2 of the graph, as on axis 0 of input 0 of the graph, but got {1}"
// CHECK-NOT:     cf.assert
// CHECK:         return
func.func @main(%x: tensor<?x4x?xf32> {diffattn.size = ["b", 4, "own"]}, %y: tensor<?x?xf32> {diffattn.size = [unit, "b"]},
    %n: i64 {diffattn.size = "b"}) {
  return
}

// A known size is written out.

// CHECK-LABEL: func.func @numbers(
// CHECK:         cf.assert %{{.+}}, "expected size 4 on axis 0 of input 0 of the graph, but got {0}"
// CHECK:         cf.assert %{{.+}}, "expected size 6 on axis 1 of input 0 of the graph, but got {0}"
// CHECK-NOT:     cf.assert
func.func @numbers(%x: tensor<?x?x8xf32> {diffattn.size = [4, "a", 8]}, %y: tensor<6xf32> {diffattn.size = ["a"]}) {
  return
}

// CHECK: func.func private @declared(tensor<?xf32>)
func.func private @declared(tensor<?xf32>)
