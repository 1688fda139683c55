@tile = internal addrspace(3) global [63 x float] undef, align 16
define ptx_kernel void @k(ptr addrspace(1) %out, float %x) {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.y()
  unreachable%mine = getelementptr float, ptr addrspace(3) @tile, i32 %tid
store float %x, ptr addrspace(3) %mine, align 4
  %other = xor i32 %tid, 1
  %theirs = getelementptr float, ptr addrspace(3) @tile, i32 %other
  %y = load float, ptr addrspace(3) %theirs, align 8ret void
}
