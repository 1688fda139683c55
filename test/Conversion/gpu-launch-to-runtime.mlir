// RUN: diffattn-opt %s --convert-gpu-launch-to-runtime --split-input-file --verify-diagnostics | FileCheck %s

// CHECK-DAG: llvm.mlir.global external @diffattn_gpu_device() {{.*}}: i8
// CHECK-DAG: llvm.mlir.global private constant @diffattn_kernel_name_k("k\00")
module attributes {gpu.container_module} {
  // CHECK: gpu.module @kernels
  gpu.module @kernels {
    llvm.func @k(%p: !llvm.ptr<1>, %n: i32, %x: f32) attributes {gpu.kernel, nvvm.kernel} {
      llvm.return
    }
  }
  // CHECK-LABEL: func.func @launch
  // CHECK-SAME: %[[P:.*]]: !llvm.ptr<1>, %[[N:.*]]: i32, %[[X:.*]]: f32
  func.func @launch(%p: !llvm.ptr<1>, %n: i32, %x: f32, %blocks: index, %size: index) {
    %c1 = arith.constant 1 : index
    %c64 = arith.constant 64 : index
    %bytes = arith.constant 1024 : i32
    // CHECK-DAG: %[[SHAPE:.*]] = llvm.alloca %{{.*}} x i32
    // CHECK-DAG: %[[WORDS:.*]] = llvm.alloca %{{.*}} x i64
    // CHECK-DAG: llvm.ptrtoint %[[P]]
    // CHECK-DAG: arith.extui %[[N]] : i32 to i64
    // CHECK-DAG: arith.bitcast %[[X]] : f32 to i32
    // CHECK: llvm.call @diffattn_gpu_launch(%{{.*}}, %{{.*}}, %[[SHAPE]], %[[WORDS]])
    // CHECK: memref.alloc(%{{.*}}) : memref<?xf32>
    // CHECK-NOT: gpu.
    gpu.launch_func @kernels::@k blocks in (%blocks, %c1, %c1) threads in (%c64, %c1, %c1)
      dynamic_shared_memory_size %bytes args(%p : !llvm.ptr<1>, %n : i32, %x : f32)
    %m = gpu.alloc (%size) : memref<?xf32>
    gpu.dealloc %m : memref<?xf32>
    return
  }
}

// -----

module attributes {gpu.container_module} {
  gpu.module @kernels {
    llvm.func @k() attributes {gpu.kernel, nvvm.kernel} {
      llvm.return
    }
  }
  func.func @token(%c: index) {
    // expected-error @below {{expected a launch without token, stream and cluster}}
    %t = gpu.launch_func async @kernels::@k blocks in (%c, %c, %c) threads in (%c, %c, %c)
    return
  }
}

// -----

func.func @alloc(%size: index) {
  // expected-error @below {{expected an allocation without token and symbols}}
  %m, %t = gpu.alloc async (%size) : memref<?xf32>
  return
}
