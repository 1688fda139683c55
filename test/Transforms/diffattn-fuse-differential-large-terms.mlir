// RUN: diffattn-opt %s --pass-pipeline="builtin.module(func.func(diffattn-fuse-differential))" | FileCheck %s

// A bias whose elements are products or sums of 2^26 others, each read at a place of its own, as convolutions behind one another read: looking for
// large numbers and for masks in it ends, and the bias is left as it is.

#even = affine_map<(i) -> (2 * i)>
#odd = affine_map<(i) -> (2 * i + 1)>
#id = affine_map<(i) -> (i)>
#pair = affine_map<(h, i, j) -> (h, i, j)>
#key = affine_map<(h, i, j) -> (j)>
!q = tensor<6x20x16xf32>
!kt = tensor<6x16x20xf32>
!v = tensor<6x20x32xf32>
!s = tensor<6x20x20xf32>

// CHECK-LABEL: func.func @products_of_products(
// CHECK:         diffattn.attention ins(
// CHECK-SAME:      bias(
// CHECK-NOT:     diffattn.attention
func.func @products_of_products(%q: !q, %k: !q, %v: !v, %x26: tensor<1342177280xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %e25 = tensor.empty() : tensor<671088640xf32>
  %x25 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x26, %x26 : tensor<1342177280xf32>, tensor<1342177280xf32>) outs(%e25 : tensor<671088640xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<671088640xf32>
  %e24 = tensor.empty() : tensor<335544320xf32>
  %x24 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x25, %x25 : tensor<671088640xf32>, tensor<671088640xf32>) outs(%e24 : tensor<335544320xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<335544320xf32>
  %e23 = tensor.empty() : tensor<167772160xf32>
  %x23 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x24, %x24 : tensor<335544320xf32>, tensor<335544320xf32>) outs(%e23 : tensor<167772160xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<167772160xf32>
  %e22 = tensor.empty() : tensor<83886080xf32>
  %x22 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x23, %x23 : tensor<167772160xf32>, tensor<167772160xf32>) outs(%e22 : tensor<83886080xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<83886080xf32>
  %e21 = tensor.empty() : tensor<41943040xf32>
  %x21 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x22, %x22 : tensor<83886080xf32>, tensor<83886080xf32>) outs(%e21 : tensor<41943040xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<41943040xf32>
  %e20 = tensor.empty() : tensor<20971520xf32>
  %x20 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x21, %x21 : tensor<41943040xf32>, tensor<41943040xf32>) outs(%e20 : tensor<20971520xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<20971520xf32>
  %e19 = tensor.empty() : tensor<10485760xf32>
  %x19 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x20, %x20 : tensor<20971520xf32>, tensor<20971520xf32>) outs(%e19 : tensor<10485760xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<10485760xf32>
  %e18 = tensor.empty() : tensor<5242880xf32>
  %x18 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x19, %x19 : tensor<10485760xf32>, tensor<10485760xf32>) outs(%e18 : tensor<5242880xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<5242880xf32>
  %e17 = tensor.empty() : tensor<2621440xf32>
  %x17 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x18, %x18 : tensor<5242880xf32>, tensor<5242880xf32>) outs(%e17 : tensor<2621440xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<2621440xf32>
  %e16 = tensor.empty() : tensor<1310720xf32>
  %x16 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x17, %x17 : tensor<2621440xf32>, tensor<2621440xf32>) outs(%e16 : tensor<1310720xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<1310720xf32>
  %e15 = tensor.empty() : tensor<655360xf32>
  %x15 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x16, %x16 : tensor<1310720xf32>, tensor<1310720xf32>) outs(%e15 : tensor<655360xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<655360xf32>
  %e14 = tensor.empty() : tensor<327680xf32>
  %x14 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x15, %x15 : tensor<655360xf32>, tensor<655360xf32>) outs(%e14 : tensor<327680xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<327680xf32>
  %e13 = tensor.empty() : tensor<163840xf32>
  %x13 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x14, %x14 : tensor<327680xf32>, tensor<327680xf32>) outs(%e13 : tensor<163840xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<163840xf32>
  %e12 = tensor.empty() : tensor<81920xf32>
  %x12 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x13, %x13 : tensor<163840xf32>, tensor<163840xf32>) outs(%e12 : tensor<81920xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<81920xf32>
  %e11 = tensor.empty() : tensor<40960xf32>
  %x11 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x12, %x12 : tensor<81920xf32>, tensor<81920xf32>) outs(%e11 : tensor<40960xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<40960xf32>
  %e10 = tensor.empty() : tensor<20480xf32>
  %x10 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x11, %x11 : tensor<40960xf32>, tensor<40960xf32>) outs(%e10 : tensor<20480xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<20480xf32>
  %e9 = tensor.empty() : tensor<10240xf32>
  %x9 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x10, %x10 : tensor<20480xf32>, tensor<20480xf32>) outs(%e9 : tensor<10240xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<10240xf32>
  %e8 = tensor.empty() : tensor<5120xf32>
  %x8 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x9, %x9 : tensor<10240xf32>, tensor<10240xf32>) outs(%e8 : tensor<5120xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<5120xf32>
  %e7 = tensor.empty() : tensor<2560xf32>
  %x7 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x8, %x8 : tensor<5120xf32>, tensor<5120xf32>) outs(%e7 : tensor<2560xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<2560xf32>
  %e6 = tensor.empty() : tensor<1280xf32>
  %x6 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x7, %x7 : tensor<2560xf32>, tensor<2560xf32>) outs(%e6 : tensor<1280xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<1280xf32>
  %e5 = tensor.empty() : tensor<640xf32>
  %x5 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x6, %x6 : tensor<1280xf32>, tensor<1280xf32>) outs(%e5 : tensor<640xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<640xf32>
  %e4 = tensor.empty() : tensor<320xf32>
  %x4 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x5, %x5 : tensor<640xf32>, tensor<640xf32>) outs(%e4 : tensor<320xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<320xf32>
  %e3 = tensor.empty() : tensor<160xf32>
  %x3 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x4, %x4 : tensor<320xf32>, tensor<320xf32>) outs(%e3 : tensor<160xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<160xf32>
  %e2 = tensor.empty() : tensor<80xf32>
  %x2 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x3, %x3 : tensor<160xf32>, tensor<160xf32>) outs(%e2 : tensor<80xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<80xf32>
  %e1 = tensor.empty() : tensor<40xf32>
  %x1 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x2, %x2 : tensor<80xf32>, tensor<80xf32>) outs(%e1 : tensor<40xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<40xf32>
  %e0 = tensor.empty() : tensor<20xf32>
  %x0 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x1, %x1 : tensor<40xf32>, tensor<40xf32>) outs(%e0 : tensor<20xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<20xf32>
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %et = tensor.empty() : !kt
  %kt = linalg.transpose ins(%k : !q) outs(%et : !kt) permutation = [0, 2, 1]
  %s = linalg.batch_matmul ins(%q, %kt : !q, !kt) outs(%zs : !s) -> !s
  %c = linalg.generic {indexing_maps = [#pair, #key, #pair], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%s, %x0 : !s, tensor<20xf32>) outs(%es : !s) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %sum = arith.addf %a, %b : f32
    linalg.yield %sum : f32
  } -> !s
  %p = linalg.softmax dimension(2) ins(%c : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%p, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}

// CHECK-LABEL: func.func @sums_of_sums(
// CHECK:         diffattn.attention ins(
// CHECK-SAME:      bias(
// CHECK-NOT:     diffattn.attention
func.func @sums_of_sums(%q: !q, %k: !q, %v: !v, %x26: tensor<1342177280xf32>) -> !v {
  %zero = arith.constant 0.0 : f32
  %e25 = tensor.empty() : tensor<671088640xf32>
  %x25 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x26, %x26 : tensor<1342177280xf32>, tensor<1342177280xf32>) outs(%e25 : tensor<671088640xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<671088640xf32>
  %e24 = tensor.empty() : tensor<335544320xf32>
  %x24 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x25, %x25 : tensor<671088640xf32>, tensor<671088640xf32>) outs(%e24 : tensor<335544320xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<335544320xf32>
  %e23 = tensor.empty() : tensor<167772160xf32>
  %x23 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x24, %x24 : tensor<335544320xf32>, tensor<335544320xf32>) outs(%e23 : tensor<167772160xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<167772160xf32>
  %e22 = tensor.empty() : tensor<83886080xf32>
  %x22 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x23, %x23 : tensor<167772160xf32>, tensor<167772160xf32>) outs(%e22 : tensor<83886080xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<83886080xf32>
  %e21 = tensor.empty() : tensor<41943040xf32>
  %x21 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x22, %x22 : tensor<83886080xf32>, tensor<83886080xf32>) outs(%e21 : tensor<41943040xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<41943040xf32>
  %e20 = tensor.empty() : tensor<20971520xf32>
  %x20 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x21, %x21 : tensor<41943040xf32>, tensor<41943040xf32>) outs(%e20 : tensor<20971520xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<20971520xf32>
  %e19 = tensor.empty() : tensor<10485760xf32>
  %x19 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x20, %x20 : tensor<20971520xf32>, tensor<20971520xf32>) outs(%e19 : tensor<10485760xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<10485760xf32>
  %e18 = tensor.empty() : tensor<5242880xf32>
  %x18 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x19, %x19 : tensor<10485760xf32>, tensor<10485760xf32>) outs(%e18 : tensor<5242880xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<5242880xf32>
  %e17 = tensor.empty() : tensor<2621440xf32>
  %x17 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x18, %x18 : tensor<5242880xf32>, tensor<5242880xf32>) outs(%e17 : tensor<2621440xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<2621440xf32>
  %e16 = tensor.empty() : tensor<1310720xf32>
  %x16 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x17, %x17 : tensor<2621440xf32>, tensor<2621440xf32>) outs(%e16 : tensor<1310720xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<1310720xf32>
  %e15 = tensor.empty() : tensor<655360xf32>
  %x15 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x16, %x16 : tensor<1310720xf32>, tensor<1310720xf32>) outs(%e15 : tensor<655360xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<655360xf32>
  %e14 = tensor.empty() : tensor<327680xf32>
  %x14 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x15, %x15 : tensor<655360xf32>, tensor<655360xf32>) outs(%e14 : tensor<327680xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<327680xf32>
  %e13 = tensor.empty() : tensor<163840xf32>
  %x13 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x14, %x14 : tensor<327680xf32>, tensor<327680xf32>) outs(%e13 : tensor<163840xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<163840xf32>
  %e12 = tensor.empty() : tensor<81920xf32>
  %x12 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x13, %x13 : tensor<163840xf32>, tensor<163840xf32>) outs(%e12 : tensor<81920xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<81920xf32>
  %e11 = tensor.empty() : tensor<40960xf32>
  %x11 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x12, %x12 : tensor<81920xf32>, tensor<81920xf32>) outs(%e11 : tensor<40960xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<40960xf32>
  %e10 = tensor.empty() : tensor<20480xf32>
  %x10 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x11, %x11 : tensor<40960xf32>, tensor<40960xf32>) outs(%e10 : tensor<20480xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<20480xf32>
  %e9 = tensor.empty() : tensor<10240xf32>
  %x9 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x10, %x10 : tensor<20480xf32>, tensor<20480xf32>) outs(%e9 : tensor<10240xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<10240xf32>
  %e8 = tensor.empty() : tensor<5120xf32>
  %x8 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x9, %x9 : tensor<10240xf32>, tensor<10240xf32>) outs(%e8 : tensor<5120xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<5120xf32>
  %e7 = tensor.empty() : tensor<2560xf32>
  %x7 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x8, %x8 : tensor<5120xf32>, tensor<5120xf32>) outs(%e7 : tensor<2560xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<2560xf32>
  %e6 = tensor.empty() : tensor<1280xf32>
  %x6 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x7, %x7 : tensor<2560xf32>, tensor<2560xf32>) outs(%e6 : tensor<1280xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<1280xf32>
  %e5 = tensor.empty() : tensor<640xf32>
  %x5 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x6, %x6 : tensor<1280xf32>, tensor<1280xf32>) outs(%e5 : tensor<640xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<640xf32>
  %e4 = tensor.empty() : tensor<320xf32>
  %x4 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x5, %x5 : tensor<640xf32>, tensor<640xf32>) outs(%e4 : tensor<320xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<320xf32>
  %e3 = tensor.empty() : tensor<160xf32>
  %x3 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x4, %x4 : tensor<320xf32>, tensor<320xf32>) outs(%e3 : tensor<160xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<160xf32>
  %e2 = tensor.empty() : tensor<80xf32>
  %x2 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x3, %x3 : tensor<160xf32>, tensor<160xf32>) outs(%e2 : tensor<80xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<80xf32>
  %e1 = tensor.empty() : tensor<40xf32>
  %x1 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x2, %x2 : tensor<80xf32>, tensor<80xf32>) outs(%e1 : tensor<40xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<40xf32>
  %e0 = tensor.empty() : tensor<20xf32>
  %x0 = linalg.generic {indexing_maps = [#even, #odd, #id], iterator_types = ["parallel"]}
      ins(%x1, %x1 : tensor<40xf32>, tensor<40xf32>) outs(%e0 : tensor<20xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.addf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<20xf32>
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %et = tensor.empty() : !kt
  %kt = linalg.transpose ins(%k : !q) outs(%et : !kt) permutation = [0, 2, 1]
  %s = linalg.batch_matmul ins(%q, %kt : !q, !kt) outs(%zs : !s) -> !s
  %c = linalg.generic {indexing_maps = [#pair, #key, #pair], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%s, %x0 : !s, tensor<20xf32>) outs(%es : !s) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %sum = arith.addf %a, %b : f32
    linalg.yield %sum : f32
  } -> !s
  %p = linalg.softmax dimension(2) ins(%c : !s) outs(%es : !s) -> !s
  %ev = tensor.empty() : !v
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !v) -> !v
  %o = linalg.batch_matmul ins(%p, %v : !s, !v) outs(%zv : !v) -> !v
  return %o : !v
}
