define void @f(i32 %n) {
  %a = alloca [4000 x i32]
  %m = add i32 %n, 1
  store i32 %m, ptr %a
  call void @f(i32 %m)
  store i32 %n, ptr %a
  ret void
}
define ptx_kernel void @k(ptr addrspace(1) %out, i32 %n) {
  call void @f(i32 %n)
  ret void
}
