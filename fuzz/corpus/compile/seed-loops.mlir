func.func @scale(%x: memref<8x?xf32, strided<[?, 1], offset: ?>>, %s: f32, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    %a = memref.load %x[%c0, %i] : memref<8x?xf32, strided<[?, 1], offset: ?>>
    %b = arith.mulf %a, %s : f32
    %y = math.exp %b : f32
    memref.store %y, %x[%c0, %i] : memref<8x?xf32, strided<[?, 1], offset: ?>>
  }
  return
}
