// A kernel of one module is none of another one's under the same pass manager, in one thread and in several.
// RUN: rm -rf %t && split-file %s %t
// RUN: diffattn-opt %t/apart.mlir --mlir-disable-threading --pass-pipeline="builtin.module(builtin.module(convert-gpu-launch-to-runtime))" --verify-diagnostics
// RUN: diffattn-opt %t/apart.mlir --pass-pipeline="builtin.module(builtin.module(convert-gpu-launch-to-runtime))" --verify-diagnostics
// Nor does a pass over the module around another one change its launches.
// RUN: diffattn-opt %t/within.mlir --convert-gpu-launch-to-runtime | FileCheck %s

//--- apart.mlir
module @first attributes {gpu.container_module} {
  gpu.module @kernels {
    llvm.func @other() attributes {gpu.kernel, nvvm.kernel} {
      llvm.return
    }
    llvm.func @k() attributes {gpu.kernel, nvvm.kernel} {
      llvm.return
    }
  }
  func.func @launch(%n: index) {
    gpu.launch_func @kernels::@k blocks in (%n, %n, %n) threads in (%n, %n, %n)
    return
  }
}

module @second attributes {gpu.container_module} {
  gpu.module @kernels {
    gpu.func @k() kernel {
      gpu.return
    }
  }
  func.func @launch(%n: index) {
    // expected-error @below {{expected kernel k among the functions of the LLVM dialect in a gpu.module}}
    gpu.launch_func @kernels::@k blocks in (%n, %n, %n) threads in (%n, %n, %n)
    return
  }
}
//--- within.mlir
module attributes {gpu.container_module} {
  gpu.module @kernels {
    llvm.func @k() attributes {gpu.kernel, nvvm.kernel} {
      llvm.return
    }
  }
  // CHECK-LABEL: module @inner
  module @inner attributes {gpu.container_module} {
    gpu.module @kernels {
      gpu.func @k() kernel {
        gpu.return
      }
    }
    // CHECK: func.func @launch
    func.func @launch(%n: index) {
      // CHECK-NEXT: gpu.launch_func @kernels::@k
      gpu.launch_func @kernels::@k blocks in (%n, %n, %n) threads in (%n, %n, %n)
      return
    }
  }
  // CHECK: func.func @launch
  func.func @launch(%n: index) {
    // CHECK: llvm.call @diffattn_rt_device_launch
    gpu.launch_func @kernels::@k blocks in (%n, %n, %n) threads in (%n, %n, %n)
    return
  }
}
