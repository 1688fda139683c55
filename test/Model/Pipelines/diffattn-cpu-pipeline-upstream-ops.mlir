// Ops that importers and people write and that have no lowering in a row of upstream passes: each runs, with its value.
// RUN: diffattn-opt %s --diffattn-cpu-pipeline \
// RUN: | mlir-runner -e main --entry-point-result=void \
// RUN:     --shared-libs=%runtime,%mlir_lib_dir/libmlir_runner_utils.so,%mlir_lib_dir/libmlir_c_runner_utils.so | FileCheck %s

func.func private @printMemrefF32(memref<*xf32>)
func.func private @printMemrefI64(memref<*xi64>)

func.func private @show(%t: tensor<?x?xf32>) {
  %b = bufferization.to_buffer %t : tensor<?x?xf32> to memref<?x?xf32>
  %u = memref.cast %b : memref<?x?xf32> to memref<*xf32>
  call @printMemrefF32(%u) : (memref<*xf32>) -> ()
  return
}

func.func @main() {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %zero = arith.constant 0.0 : f32
  %two = arith.constant 2.0 : f32
  %a = arith.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
  %dyn = tensor.cast %a : tensor<2x3xf32> to tensor<?x?xf32>

  // CHECK:      [0, 1, 2, 3, 0],
  // CHECK-NEXT: [0, 4, 5, 6, 0]
  %pad = tensor.pad %a low[0, 1] high[0, 1] {
  ^bb0(%i: index, %j: index):
    tensor.yield %zero : f32
  } : tensor<2x3xf32> to tensor<2x5xf32>
  %p = tensor.cast %pad : tensor<2x5xf32> to tensor<?x?xf32>
  call @show(%p) : (tensor<?x?xf32>) -> ()

  // CHECK:      [1, 2, 3, 1, 2, 3],
  // CHECK-NEXT: [4, 5, 6, 4, 5, 6]
  %cat = tensor.concat dim(1) %dyn, %dyn : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  call @show(%cat) : (tensor<?x?xf32>) -> ()

  // A gather of columns 2, 0, 2.
  // CHECK:      [3, 6],
  // CHECK-NEXT: [1, 4],
  // CHECK-NEXT: [3, 6]
  %at = arith.constant dense<[[2], [0], [2]]> : tensor<3x1xi64>
  %g = tensor.gather %a[%at] gather_dims([1]) : (tensor<2x3xf32>, tensor<3x1xi64>) -> tensor<3x2xf32>
  %gd = tensor.cast %g : tensor<3x2xf32> to tensor<?x?xf32>
  call @show(%gd) : (tensor<?x?xf32>) -> ()

  // CHECK:      [1, 2],
  // CHECK-NEXT: [3, 4],
  // CHECK-NEXT: [5, 6]
  %shape = arith.constant dense<[3, 2]> : tensor<2xi64>
  %r = tensor.reshape %dyn(%shape) : (tensor<?x?xf32>, tensor<2xi64>) -> tensor<?x?xf32>
  call @show(%r) : (tensor<?x?xf32>) -> ()

  // Packed by tiles of 2 columns, and back.
  // CHECK:      [1, 2, 3],
  // CHECK-NEXT: [4, 5, 6]
  %pe = tensor.empty() : tensor<2x2x2xf32>
  %packed = linalg.pack %a padding_value(%zero : f32) inner_dims_pos = [1] inner_tiles = [2] into %pe : tensor<2x3xf32> -> tensor<2x2x2xf32>
  %ue = tensor.empty() : tensor<2x3xf32>
  %unpacked = linalg.unpack %packed inner_dims_pos = [1] inner_tiles = [2] into %ue : tensor<2x2x2xf32> -> tensor<2x3xf32>
  %ud = tensor.cast %unpacked : tensor<2x3xf32> to tensor<?x?xf32>
  call @show(%ud) : (tensor<?x?xf32>) -> ()

  // Control flow and carried tensors: doubled until the first element passes 10.
  // CHECK:      [16, 32, 48],
  // CHECK-NEXT: [64, 80, 96]
  %w = scf.while (%t = %dyn) : (tensor<?x?xf32>) -> tensor<?x?xf32> {
    %x = tensor.extract %t[%c0, %c0] : tensor<?x?xf32>
    %ten = arith.constant 10.0 : f32
    %less = arith.cmpf olt, %x, %ten : f32
    scf.condition(%less) %t : tensor<?x?xf32>
  } do {
  ^bb0(%t: tensor<?x?xf32>):
    %s = arith.addf %t, %t : tensor<?x?xf32>
    scf.yield %s : tensor<?x?xf32>
  }
  call @show(%w) : (tensor<?x?xf32>) -> ()

  // Values computed from indices, floor division of negative integers, an error function and powers.
  // CHECK:      [-2, 1, 0],
  // CHECK-NEXT: [-1, 8, 0.8427
  %m3 = arith.constant -3 : i32
  %i2 = arith.constant 2 : i32
  %gen = tensor.generate %c3 {
  ^bb0(%i: index, %j: index):
    %n = arith.floordivsi %m3, %i2 : i32
    %n1 = arith.index_cast %i : index to i32
    %n2 = arith.addi %n, %n1 : i32
    %f = arith.sitofp %n2 : i32 to f32
    %jf0 = arith.index_cast %j : index to i32
    %jf = arith.sitofp %jf0 : i32 to f32
    %three = arith.constant 3 : i32
    %base = arith.addf %jf, %zero : f32
    %ff = arith.index_cast %i : index to i32
    %fi = arith.sitofp %ff : i32 to f32
    %sum = arith.addf %base, %fi : f32
    %cube = math.fpowi %sum, %three : f32, i32
    %erf = math.erf %fi : f32
    %first = arith.cmpi eq, %j, %c0 : index
    %second = arith.cmpi eq, %j, %c1 : index
    %y = arith.select %second, %cube, %erf : f32
    %v = arith.select %first, %f, %y : f32
    tensor.yield %v : f32
  } : tensor<2x?xf32>
  %gg = tensor.cast %gen : tensor<2x?xf32> to tensor<?x?xf32>
  call @show(%gg) : (tensor<?x?xf32>) -> ()

  // A convolution stays a loop nest.
  // CHECK: [6, 15]
  %image = tensor.expand_shape %a [[0], [1, 2]] output_shape [2, 1, 3] : tensor<2x3xf32> into tensor<2x1x3xf32>
  %kernel = arith.constant dense<1.0> : tensor<1x1x3xf32>
  %ce = tensor.empty() : tensor<2x1x1xf32>
  %cf = linalg.fill ins(%zero : f32) outs(%ce : tensor<2x1x1xf32>) -> tensor<2x1x1xf32>
  %conv = linalg.conv_1d_ncw_fcw ins(%image, %kernel : tensor<2x1x3xf32>, tensor<1x1x3xf32>) outs(%cf : tensor<2x1x1xf32>) -> tensor<2x1x1xf32>
  %cc = tensor.collapse_shape %conv [[0, 1, 2]] : tensor<2x1x1xf32> into tensor<2xf32>
  %cx = tensor.expand_shape %cc [[0, 1]] output_shape [1, 2] : tensor<2xf32> into tensor<1x2xf32>
  %cd = tensor.cast %cx : tensor<1x2xf32> to tensor<?x?xf32>
  call @show(%cd) : (tensor<?x?xf32>) -> ()

  // A product whose left operand is transposed is no library call, and one of integers is none either.
  // CHECK:      [17, 22, 27],
  // CHECK-NEXT: [22, 29, 36],
  // CHECK-NEXT: [27, 36, 45]
  %te = tensor.empty() : tensor<3x3xf32>
  %tf = linalg.fill ins(%zero : f32) outs(%te : tensor<3x3xf32>) -> tensor<3x3xf32>
  %tt = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (k, m)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]
    ins(%a, %a : tensor<2x3xf32>, tensor<2x3xf32>) outs(%tf : tensor<3x3xf32>) -> tensor<3x3xf32>
  %td = tensor.cast %tt : tensor<3x3xf32> to tensor<?x?xf32>
  call @show(%td) : (tensor<?x?xf32>) -> ()

  // CHECK: [7, 10],
  // CHECK: [15, 22]
  %i = arith.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>
  %i0 = arith.constant dense<0> : tensor<2x2xi64>
  %ii = linalg.matmul ins(%i, %i : tensor<2x2xi64>, tensor<2x2xi64>) outs(%i0 : tensor<2x2xi64>) -> tensor<2x2xi64>
  %ib = bufferization.to_buffer %ii : tensor<2x2xi64> to memref<2x2xi64>
  %iu = memref.cast %ib : memref<2x2xi64> to memref<*xi64>
  call @printMemrefI64(%iu) : (memref<*xi64>) -> ()
  return
}
