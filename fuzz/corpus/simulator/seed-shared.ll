@tile = internal addrspace(3) global [64 x float] undef, align 16
define ptx_kernel void @k(ptr addrspace(1) %out, float %x) {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %mine = getelementptr float, ptr addrspace(3) @tile, i32 %tid
  store float %x, ptr addrspace(3) %mine, align 4
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %other = xor i32 %tid, 1
  %theirs = getelementptr float, ptr addrspace(3) @tile, i32 %other
  %y = load float, ptr addrspace(3) %theirs, align 4
  %z = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %y, i32 2, i32 31)
  %to = getelementptr float, ptr addrspace(1) %out, i32 %tid
  store float %z, ptr addrspace(1) %to, align 4
  ret void
}
