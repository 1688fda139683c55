// Places in the order of the elements, those of equal ones in their own order, for which NaN is greater than all others. All of a row
// are merged in runs that become twice as long with each pass; of the first few a list is kept, into which each element is inserted.
//
// RUN: diffattn-opt %s --diffattn-import-builtins | FileCheck %s
// DEFINE: %{run} = diffattn-run %s --no-cache --entry
// RUN: %{run}=rising --input=1x5xi32=5,3,9,3,1 | FileCheck %s --check-prefix=RISING
// RUN: %{run}=rising --input=2x4xi32=5,3,9,3,7,7,0,-2 | FileCheck %s --check-prefix=ROWS
// RUN: %{run}=rising --input=2x1xi32=5,3 | FileCheck %s --check-prefix=ONE
// RUN: %{run}=falling --input=1x6xbf16=1,nan,-inf,2,nan,1 | FileCheck %s --check-prefix=FALLING
// RUN: %{run}=least --input=2x5xi32=5,3,9,3,1,7,7,7,0,-2 | FileCheck %s --check-prefix=LEAST
// RUN: %{run}=greatest --input=1x6xf32=1,nan,-inf,2,nan,1 | FileCheck %s --check-prefix=GREATEST

// RISING:   1x5xi64, {{.+}}: [4, 1, 3, 0, 2]
// ROWS:     2x4xi64, {{.+}}: [1, 3, 0, 2, 3, 2, 0, 1]
// ONE:      2x1xi64, {{.+}}: [0, 0]
// FALLING:  1x6xi64, {{.+}}: [1, 4, 3, 0, 5, 2]
// LEAST:    2x3xi64, {{.+}}: [4, 1, 3, 4, 3, 0]
// GREATEST: 1x3xi64, {{.+}}: [1, 4, 3]

// CHECK-LABEL: func.func @rising(
// CHECK:         %[[KEYS:.+]] = tensor.empty(%{{.+}}) : tensor<2x?xi32>
// CHECK:         %[[PLACES:.+]] = tensor.empty(%{{.+}}) : tensor<2x?xi64>
// CHECK:         scf.for {{.+}} iter_args({{.+}} = %{{.+}}, {{.+}} = %[[KEYS]], {{.+}} = %[[PLACES]])
// CHECK:           math.ctlz
// CHECK:           scf.for
// CHECK:             arith.shli %c2
// CHECK:             scf.for
// CHECK:               scf.for
// CHECK:                 arith.cmpi slt
func.func private @all(tensor<?x?xi32>) -> tensor<?x?xi64> attributes {diffattn.builtin = "argsort"}
func.func @rising(%x: tensor<?x?xi32>) -> tensor<?x?xi64> {
  %y = call @all(%x) : (tensor<?x?xi32>) -> tensor<?x?xi64>
  return %y : tensor<?x?xi64>
}

// Elements of 16 bits are compared in f32.

// CHECK-LABEL: func.func @falling(
// CHECK:         tensor.empty(%{{.+}}) : tensor<2x?xf32>
// CHECK:         arith.extf %{{.+}} : bf16 to f32
// CHECK:         %[[LEFT:.+]] = tensor.extract
// CHECK:         %[[RIGHT:.+]] = tensor.extract
// CHECK:         arith.cmpf ult, %[[LEFT]], %[[RIGHT]]
// CHECK:         arith.cmpf oeq, %[[LEFT]], %[[LEFT]]
func.func private @all_falling(tensor<?x?xbf16>) -> tensor<?x?xi64>
  attributes {diffattn.builtin = "argsort", diffattn.options = {descending}}
func.func @falling(%x: tensor<?x?xbf16>) -> tensor<?x?xi64> {
  %y = call @all_falling(%x) : (tensor<?x?xbf16>) -> tensor<?x?xi64>
  return %y : tensor<?x?xi64>
}

// CHECK-LABEL: func.func @least(
// CHECK:         tensor.empty() : tensor<3xi32>
// CHECK:         tensor.empty() : tensor<3xi64>
// CHECK-NOT:     math.ctlz
// CHECK:         scf.for
// CHECK:           scf.for
// CHECK:             scf.if
// CHECK:               scf.for
func.func private @first(tensor<2x?xi32>) -> tensor<2x3xi64> attributes {diffattn.builtin = "argsort", diffattn.options = {first = 3}}
func.func @least(%x: tensor<2x?xi32>) -> tensor<2x3xi64> {
  %y = call @first(%x) : (tensor<2x?xi32>) -> tensor<2x3xi64>
  return %y : tensor<2x3xi64>
}

func.func private @first_falling(tensor<?x?xf32>) -> tensor<?x3xi64>
  attributes {diffattn.builtin = "argsort", diffattn.options = {first = 3, descending}}
func.func @greatest(%x: tensor<?x?xf32>) -> tensor<?x3xi64> {
  %y = call @first_falling(%x) : (tensor<?x?xf32>) -> tensor<?x3xi64>
  return %y : tensor<?x3xi64>
}
