// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90a})" --remark-format=emitRemark --remarks-filter=diffattn-gpu 2>&1 >/dev/null | grep -F '[Missed]' | FileCheck %s --implicit-check-not=NoWgmma
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90})" --remark-format=emitRemark --remarks-filter=diffattn-gpu 2>&1 >/dev/null | FileCheck %s --check-prefix=PLAIN
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_80})" --remark-format=emitRemark --remarks-filter=diffattn-gpu 2>&1 >/dev/null | FileCheck %s --check-prefix=OTHER
// RUN: diffattn-opt %s --pass-pipeline="builtin.module(diffattn-select-gpu-schedule{chip=sm_90a},convert-diffattn-to-gpu{chip=sm_90a},canonicalize)" | FileCheck %s --check-prefix=HOST

// Code for sm_80 runs on no chip that has wgmma. Code for sm_90 does, and could use it as sm_90a.
// OTHER-NOT: NoWgmma
// PLAIN: no-wgmma.mlir:[[#@LINE+8]]:3: remark: [Missed] NoWgmma {{.*}}Reason="expected chip sm_90a, which has wgmma, but got sm_90", Summary="attention does not use wgmma"
// PLAIN: Reason="expected chip sm_90a, which has wgmma, but got sm_90; expected q1, k1, q2, k2 and v of f16 or bf16, but got f32"

!q = memref<2x8x100x64xbf16>
!v = memref<2x8x100x128xbf16>

// Nothing is said of what is by wgmma.
func.func @wgmma(%q: !q, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}

!f = memref<2x8x100x64xf32>

// The kernel is gpu_plain here, and gpu_forward below.
// CHECK: no-wgmma.mlir:[[#@LINE+2]]:3: remark: [Missed] NoWgmma | Category:diffattn-gpu | {{.*}}Reason="expected q1, k1, q2, k2 and v of f16 or bf16, but got f32", Summary="attention does not use wgmma"
func.func @f32(%q: !f, %l: memref<f32>, %o: !f) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !f, !f, !f, !f, !f) lambda(%l : memref<f32>) outs(%o : !f) {scale = 0.125 : f32}
  return
}

!q60 = memref<2x8x100x60xbf16>
!w = memref<2x8x100x256xbf16>

// CHECK: NoWgmma {{.*}}Reason="expected widths that are multiples of 8, but got 60 and 128"
func.func @odd_width(%q: !q60, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q60, !q60, !q60, !q60, !v) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
// CHECK: NoWgmma {{.*}}Reason="expected widths of at most 128 and 256, or 192 and 128, but got 256 and 256"
func.func @wide(%q: !w, %l: memref<f32>, %o: !w) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !w, !w, !w, !w, !w) lambda(%l : memref<f32>) outs(%o : !w) {scale = 0.125 : f32}
  return
}

// CHECK: NoWgmma {{.*}}Reason="expected no additive bias, but got one"
func.func @bias(%q: !q, %v: !v, %l: memref<f32>, %b: memref<1x1x100x100xf32>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) bias(%b : memref<1x1x100x100xf32>)
    outs(%o : !v) {scale = 0.125 : f32}
  return
}
// CHECK: NoWgmma {{.*}}Reason="expected no mask in memory, but got one"
func.func @mask(%q: !q, %v: !v, %l: memref<f32>, %b: memref<1x1x100x100xi1>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) bias(%b : memref<1x1x100x100xi1>)
    outs(%o : !v) {scale = 0.125 : f32}
  return
}
// CHECK: NoWgmma {{.*}}Reason="expected no segments, but got q_segments and kv_segments"
func.func @segments(%q: !q, %v: !v, %l: memref<f32>, %s: memref<2x100xi64>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) q_segments(%s : memref<2x100xi64>)
    kv_segments(%s : memref<2x100xi64>) outs(%o : !v) {scale = 0.125 : f32}
  return
}

// All reasons are said.
// CHECK: NoWgmma {{.*}}Reason="expected q1, k1, q2, k2 and v of f16 or bf16, but got f32; expected no softcap, but got one"
func.func @two_reasons(%q: !f, %l: memref<f32>, %o: !f) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !f, !f, !f, !f, !f) lambda(%l : memref<f32>) outs(%o : !f) {scale = 0.125 : f32, softcap = 30.0 : f32}
  return
}

!unaligned = memref<2x8x100x64xbf16, strided<[54400, 6800, 68, 1]>>
!broadcast = memref<2x8x100x64xbf16, strided<[0, 6400, 64, 1]>>
!far = memref<2x8x100x64xbf16, strided<[549755813888, 6400, 64, 1]>>
!apart = memref<2x8x100x128xbf16, strided<[204800, 25600, 256, 2]>>
!gate = memref<2x8x100x128xf32, strided<[103200, 12900, 129, 1]>>

// Which operand no tensor map describes, as far as its type says.
// CHECK: NoWgmma {{.*}}Reason="expected k1 with strides that are multiples of 16 bytes, but got 136 on axis 2"
func.func @unaligned(%q: !q, %k: !unaligned, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %q, %v : !q, !unaligned, !q, !q, !v) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
// CHECK: NoWgmma {{.*}}Reason="expected k2 with strides above 0 and below 2^40 bytes, but got 0 on axis 0"
func.func @broadcast(%q: !q, %k: !broadcast, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %k, %v : !q, !q, !q, !broadcast, !v) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
// CHECK: NoWgmma {{.*}}Reason="expected q2 with strides above 0 and below 2^40 bytes, but got 1099511627776 on axis 0"
func.func @far(%q: !q, %k: !far, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %q, %k, %q, %v : !q, !q, !far, !q, !v) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
// CHECK: NoWgmma {{.*}}Reason="expected v with an innermost stride of 1, but got 2 on axis 3"
func.func @apart(%q: !q, %v: !apart, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !apart) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
// CHECK: NoWgmma {{.*}}Reason="expected init with an innermost stride of 1, but got 2 on axis 3"
func.func @result_apart(%q: !q, %v: !v, %l: memref<f32>, %o: !apart) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) outs(%o : !apart) {scale = 0.125 : f32}
  return
}
// CHECK: NoWgmma {{.*}}Reason="expected gate with strides that are multiples of 16 bytes, but got 516 on axis 2"
func.func @gate(%q: !q, %v: !v, %l: memref<f32>, %g: !gate, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !q, !q, !q, !q, !v) lambda(%l : memref<f32>) gate(%g : !gate) outs(%o : !v) {scale = 0.125 : f32}
  return
}

// Host code is of the same mind, where it asks about strides and sizes one by one.
// HOST-LABEL: func.func @broadcast
// HOST-NOT:     launch_func {{.*}}wgmma
// HOST-LABEL: func.func @far
// HOST-NOT:     launch_func {{.*}}wgmma
// HOST-LABEL: func.func @apart
// HOST-LABEL: func.func @no_keys
// HOST-NOT:     launch_func {{.*}}wgmma
// HOST-LABEL: func.func @pages
// HOST-NOT:     launch_func {{.*}}wgmma
// HOST-LABEL: func.func @may_be_mapped
// HOST:         launch_func {{.*}}wgmma
// HOST-LABEL: func.func @asked_in_each_call
// HOST:         launch_func {{.*}}wgmma

!nothing = memref<2x8x0x64xbf16>
!vnothing = memref<2x8x0x128xbf16>
!pages = memref<9x8x24x64xbf16>
!vpages = memref<9x8x24x128xbf16>

// CHECK: NoWgmma {{.*}}Reason="expected k1 with at least one element on each axis, but got 0 on axis 2"
func.func @no_keys(%q: !q, %k: !nothing, %v: !vnothing, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !nothing, !q, !nothing, !vnothing) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
// CHECK: NoWgmma {{.*}}Reason="expected pages of a multiple of 16 keys, but got 24"
func.func @pages(%q: !q, %k: !pages, %v: !vpages, %l: memref<f32>, %n: memref<2xi64>, %t: memref<2x4xi32>, %o: !v) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q, !pages, !q, !pages, !vpages) lambda(%l : memref<f32>) kv_len(%n : memref<2xi64>)
    block_table(%t : memref<2x4xi32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}

!one = memref<1x8x100x64xbf16, strided<[0, 6400, 64, 1]>>
!v1 = memref<1x8x100x128xbf16>
!unknown = memref<2x8x100x64xbf16, strided<[?, ?, ?, 1], offset: ?>>
!q1 = memref<2x8x1x64xbf16>
!o1 = memref<2x8x1x128xbf16>
!k1 = memref<2x8x100x64xbf16, strided<[54400, 6800, 68, 1]>>

// An axis of one element is never stepped along; what the call says is asked then; of few queries there are other kernels, and a
// schedule that was asked for by name takes every call.
func.func @may_be_mapped(%q: !one, %v: !v1, %l: memref<f32>, %o: !v1) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !one, !one, !one, !one, !v1) lambda(%l : memref<f32>) outs(%o : !v1) {scale = 0.125 : f32}
  return
}
func.func @asked_in_each_call(%q: !unknown, %v: !v, %l: memref<f32>, %o: !v) {
  diffattn.attention ins(%q, %q, %q, %q, %v : !unknown, !unknown, !unknown, !unknown, !v) lambda(%l : memref<f32>) outs(%o : !v) {scale = 0.125 : f32}
  return
}
func.func @by_name(%q: !f, %l: memref<f32>, %o: !f) {
  diffattn.attention ins(%q, %q, %q, %q, %q : !f, !f, !f, !f, !f) lambda(%l : memref<f32>) outs(%o : !f)
    {scale = 0.125 : f32, schedules = [#diffattn.gpu_plain<warps = 4>]}
  return
}
// CHECK: remark: [Missed] SelectGpuSchedule {{.*}}Reason="expected k1 with strides that are multiples of 16 bytes, but got 136 on axis 2", Summary="decode does not use tensor maps"
func.func @decode(%q: !q1, %k: !k1, %v: !v, %l: memref<f32>, %o: !o1) {
  diffattn.attention ins(%q, %k, %q, %k, %v : !q1, !k1, !q1, !k1, !v) lambda(%l : memref<f32>) outs(%o : !o1) {scale = 0.125 : f32}
  return
}
