define ptx_kernel void @k(ptr addrspace(1) %out, i32 %n) {
  %a = alloca [4 x i32]
  %i = mul i32 %n, 100000000
  %p = getelementptr i32, ptr %a, i32 %i
  store i32 %n, ptr %p
  %v = load i32, ptr %p
  store i32 %v, ptr addrspace(1) %out, align 4
  ret void
}
