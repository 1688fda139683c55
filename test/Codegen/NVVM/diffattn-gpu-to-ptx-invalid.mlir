// What LLVM refuses in a kernel is an error at its module, and does not end the process.
// RUN: diffattn-opt %s --diffattn-gpu-to-ptx="chip=sm_80 assemble=false" --verify-diagnostics

// expected-error@+1 {{expected LLVM to generate code for the module, but got: couldn't allocate output register for constraint 'z'}}
gpu.module @kernels {
  llvm.func @kernel(%x: i32, %y: !llvm.ptr<1>) attributes {gpu.kernel, nvvm.kernel} {
    %0 = llvm.inline_asm "mov.b32 $0, $1;", "=z,r" %x : (i32) -> i32
    llvm.store %0, %y : i32, !llvm.ptr<1>
    llvm.return
  }
}
