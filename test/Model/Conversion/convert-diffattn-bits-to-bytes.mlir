// RUN: diffattn-opt %s --convert-diffattn-bits-to-bytes | FileCheck %s

// What a caller passes as true is any byte but 0.
// CHECK-LABEL: llvm.func @both
// CHECK: %[[BYTE:.*]] = llvm.load %{{.*}} : !llvm.ptr -> i8
// CHECK: %[[ZERO:.*]] = llvm.mlir.constant(0 : i8) : i8
// CHECK: %[[BIT:.*]] = llvm.icmp "ne" %[[BYTE]], %[[ZERO]] : i8
// CHECK: %[[AND:.*]] = llvm.and %[[BIT]], %{{.*}} : i1
// CHECK: %[[WIDE:.*]] = llvm.zext %[[AND]] : i1 to i8
// CHECK: llvm.store %[[WIDE]], %{{.*}} : i8, !llvm.ptr
// CHECK: llvm.load %{{.*}} : !llvm.ptr -> f32
// CHECK: llvm.store %{{.*}} : vector<8xi1>, !llvm.ptr
llvm.func @both(%at: !llvm.ptr, %other: i1, %lanes: vector<8xi1>) -> f32 {
  %bit = llvm.load %at : !llvm.ptr -> i1
  %and = llvm.and %bit, %other : i1
  llvm.store %and, %at : i1, !llvm.ptr
  %number = llvm.load %at : !llvm.ptr -> f32
  llvm.store %lanes, %at : vector<8xi1>, !llvm.ptr
  llvm.return %number : f32
}
