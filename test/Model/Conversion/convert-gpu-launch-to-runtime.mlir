// RUN: diffattn-opt %s --convert-gpu-launch-to-runtime --split-input-file --verify-diagnostics | FileCheck %s

// CHECK: diffattn.kernels = [{name = "other", parameters = ""}, {name = "k", parameters = "p4428"}]
module attributes {gpu.container_module} {
  // CHECK: gpu.module @kernels
  gpu.module @kernels {
    llvm.func @helper(%p: !llvm.ptr<1>) {
      llvm.return
    }
    llvm.func @other() attributes {gpu.kernel, nvvm.kernel} {
      llvm.return
    }
    llvm.func @k(%p: !llvm.ptr<1>, %n: i32, %x: f32, %h: bf16, %s: i64) attributes {gpu.kernel, nvvm.kernel} {
      llvm.return
    }
  }
  // CHECK-LABEL: func.func @launch
  // CHECK-SAME: %[[P:.*]]: !llvm.ptr<1>, %[[N:.*]]: i32, %[[X:.*]]: f32
  func.func @launch(%p: !llvm.ptr<1>, %n: i32, %x: f32, %h: bf16, %s: i64, %blocks: index, %size: index) {
    %c1 = arith.constant 1 : index
    %c64 = arith.constant 64 : index
    %bytes = arith.constant 1024 : i32
    // CHECK-DAG: %[[SHAPE:.*]] = llvm.alloca %{{.*}} x i32
    // CHECK-DAG: %[[WORDS:.*]] = llvm.alloca %{{.*}} x i64
    // CHECK-DAG: llvm.ptrtoint %[[P]]
    // CHECK-DAG: arith.extui %[[N]] : i32 to i64
    // CHECK-DAG: arith.bitcast %[[X]] : f32 to i32
    // CHECK: %[[ID:.*]] = llvm.mlir.constant(1 : i32)
    // CHECK: llvm.call @diffattn_rt_device_launch(%[[ID]], %[[SHAPE]], %[[WORDS]])
    // CHECK: memref.alloc(%{{.*}}) : memref<?xf32>
    // CHECK-NOT: gpu.
    gpu.launch_func @kernels::@k blocks in (%blocks, %c1, %c1) threads in (%c64, %c1, %c1)
      dynamic_shared_memory_size %bytes args(%p : !llvm.ptr<1>, %n : i32, %x : f32, %h : bf16, %s : i64)
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

// -----

// CHECK-LABEL: func.func @fill
func.func @fill(%value: i8) {
  // CHECK: %[[M:.*]] = memref.alloc() : memref<4xi8>
  %m = gpu.alloc () : memref<4xi8>
  // CHECK: %[[WORD:.*]] = arith.extui %{{.*}} : i8 to i32
  // CHECK: llvm.call @diffattn_rt_device_fill(%{{.*}}, %[[WORD]], %{{.*}}) : (!llvm.ptr, i32, i64) -> ()
  // CHECK-NOT: gpu.
  gpu.memset %m, %value : memref<4xi8>, i8
  gpu.dealloc %m : memref<4xi8>
  return
}

// -----

func.func @fill_words(%m: memref<4xi32>, %value: i32) {
  // expected-error @below {{expected bytes without strides, and no token, but got 'memref<4xi32>'}}
  gpu.memset %m, %value : memref<4xi32>, i32
  return
}

// -----

// Copies are the device's where the host leaves buffers alone.
// CHECK-LABEL: func.func @copies
func.func @copies(%a: memref<?x8xbf16>, %b: memref<?x8xbf16>) {
  // CHECK: llvm.call @diffattn_rt_device_copy
  memref.copy %a, %b : memref<?x8xbf16> to memref<?x8xbf16>
  return
}

// -----

// CHECK-LABEL: func.func @host
func.func @host(%a: memref<8xf32>, %b: memref<8xf32>, %i: index) -> f32 {
  // CHECK: memref.copy
  memref.copy %a, %b : memref<8xf32> to memref<8xf32>
  %x = memref.load %b[%i] : memref<8xf32>
  return %x : f32
}

// -----

module attributes {gpu.container_module} {
  gpu.module @kernels {
    // expected-error @below {{expected parameters that are pointers or numbers of 8 to 64 bits}}
    llvm.func @k(%x: vector<4xf32>) attributes {gpu.kernel, nvvm.kernel} {
      llvm.return
    }
  }
}
