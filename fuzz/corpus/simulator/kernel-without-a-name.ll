define ptx_kernel void @2(ptr addrspace(1) %in, ptr addrspace(1) %out, i32 %shift) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %size = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %base = mul i32 %block, %size
  %index = add i32 %base, %tid
  %from = getelementptr i32, ptr addrspace(1) %in, i32 %index
  %value = load i32, ptr addrspace(1) %from, align 4
  %shifted = add i32 %index, %shift
  %to = getelementptr i59, ptr addrspace(1) %out, i32 %shifted
 ; store i32 %value, ptr addrspace(1) %to, align 4
  ret void
}
