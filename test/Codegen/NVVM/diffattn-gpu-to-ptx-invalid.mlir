// RUN: diffattn-opt %s --split-input-file --verify-diagnostics --pass-pipeline="builtin.module(diffattn-gpu-to-ptx{chip=sm_80 assemble=false})"

// A device library's function, as the exponential of other lowerings becomes one.
// expected-error @+1 {{expected kernels that call nothing outside of their module, because no device library is linked, but got a call of __nv_exp2f}}
gpu.module @library {
  llvm.func @__nv_exp2f(f32) -> f32
  llvm.func @kernel(%out: !llvm.ptr<1>, %x: f32) attributes {gpu.kernel, nvvm.kernel} {
    %y = llvm.call @__nv_exp2f(%x) : (f32) -> f32
    llvm.store %y, %out : f32, !llvm.ptr<1>
    llvm.return
  }
}

// -----

// expected-error @+1 {{but got a call of llvm.exp.f32}}
gpu.module @intrinsic {
  llvm.func @kernel(%out: !llvm.ptr<1>, %x: f32) attributes {gpu.kernel, nvvm.kernel} {
    %y = llvm.intr.exp(%x) : (f32) -> f32
    llvm.store %y, %out : f32, !llvm.ptr<1>
    llvm.return
  }
}

// -----

// What is an instruction stays: no error.
gpu.module @instruction {
  llvm.func @kernel(%out: !llvm.ptr<1>, %x: f32) attributes {gpu.kernel, nvvm.kernel} {
    %y = llvm.intr.exp2(%x) : (f32) -> f32
    llvm.store %y, %out : f32, !llvm.ptr<1>
    llvm.return
  }
}
