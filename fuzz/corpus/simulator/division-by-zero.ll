define ptx_kernel void @k(ptr addrspace(1) %out, i32 %n) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %w = load i32, ptr addrspace(1) %out, align 4
  %y = sub i32 %w, 16843009
  %q = udiv i32 %n, %y
  store i32 %q, ptr addrspace(1) %out, align 4
  ret void
}
