// One line on stderr for each attention that is not fused or is no kernel, and why: by default, and no line for others.
// RUN: rm -rf %t && mkdir %t && cp %s %t/copy.mlir
// RUN: diffattn-run %s --info --cache-dir=%t/cache 2>&1 >%t/info | FileCheck %s --check-prefix=MISSED --implicit-check-not=remark: -DFILE=%s
// RUN: diffattn-run %s --info --no-cache --remarks=none 2>&1 >%t/info | FileCheck %s --check-prefix=NONE --allow-empty
// NONE-NOT: remark:
// RUN: diffattn-run %s --info --no-cache --raise=false 2>&1 >%t/info | FileCheck %s --check-prefix=UNRAISED --implicit-check-not=remark:
// RUN: diffattn-run %s --emit=scheduled --remarks=all -o %t/scheduled 2>&1 | FileCheck %s --check-prefix=ALL --implicit-check-not=remark: -DFILE=%s
// RUN: diffattn-run %s --emit=bundle -o %t/bundle --no-cache 2>&1 | FileCheck %s --check-prefix=MISSED --implicit-check-not=remark: -DFILE=%s
// RUN: not diffattn-run %s --remarks=some 2>&1 | FileCheck %s --check-prefix=WRONG

// What comes from the cache was said when it was compiled, maybe of a file with another name.
// RUN: diffattn-run %s --info --cache-dir=%t/cache 2>&1 >%t/info | FileCheck %s --check-prefix=MISSED --implicit-check-not=remark: -DFILE=%s
// RUN: diffattn-run %t/copy.mlir --info --cache-dir=%t/cache 2>&1 >%t/info | FileCheck %s --check-prefix=MISSED --implicit-check-not=remark: -DFILE=%t/copy.mlir
// RUN: diffattn-run %t/copy.mlir --info --cache-dir=%t/cache --remarks=all 2>&1 >%t/info | FileCheck %s --check-prefix=ALL --implicit-check-not=remark: -DFILE=%t/copy.mlir
// RUN: diffattn-run cache ls --cache-dir=%t/cache | FileCheck %s --check-prefix=ONE
// ONE: 1 in

// A cache that is not used is a warning in any case.
// RUN: mkdir %t/open && chmod 777 %t/open
// RUN: diffattn-run %s --info --cache-dir=%t/open --remarks=none 2>&1 >%t/info | FileCheck %s --check-prefix=NOTE
// NOTE: {{^}}warning: compiled code is not kept in {{.*}}open: {{.*}} [diffattn-cache]{{$}}

// What docs/pipelines.md promises of diffattn-opt.
// RUN: diffattn-opt %s --diffattn-cpu-pipeline="until=scheduled" --remarks-filter=diffattn-schedule --remark-format=emitRemark 2>&1 >%t/opt \
// RUN: | FileCheck %s --check-prefix=OPT
// OPT: [Passed] SelectSchedule | Category:diffattn-schedule | Schedules="[#diffattn.{{.*}}]", Summary="attention is one kernel"
// OPT: [Missed] SelectSchedule | Category:diffattn-schedule | Reason="a head of 1025 is above 1024, {{.*}}", Summary="attention runs as loops over maps in memory, not as one kernel"
// WRONG: for the --remarks option: Cannot find option named 'some'

!t = tensor<1x1x8x16xf32>
!w = tensor<1x1x8x1025xf32>
!m = tensor<1x8x16xf32>
!s = tensor<1x8x8xf32>

// A map is a result too.
func.func @returned(%q1: !m, %q2: !m, %k: tensor<1x16x8xf32>, %v: !m) -> (!m, !s) {
  %zero = arith.constant 0.0 : f32
  %es = tensor.empty() : !s
  %zs = linalg.fill ins(%zero : f32) outs(%es : !s) -> !s
  %s1 = linalg.batch_matmul ins(%q1, %k : !m, tensor<1x16x8xf32>) outs(%zs : !s) -> !s
  %s2 = linalg.batch_matmul ins(%q2, %k : !m, tensor<1x16x8xf32>) outs(%zs : !s) -> !s
  %a1 = linalg.softmax dimension(2) ins(%s1 : !s) outs(%es : !s) -> !s
  %a2 = linalg.softmax dimension(2) ins(%s2 : !s) outs(%es : !s) -> !s
  %lambda = arith.constant dense<0.3> : !s
  %b2 = arith.mulf %lambda, %a2 : !s
  %d = arith.subf %a1, %b2 : !s
  %ev = tensor.empty() : !m
  %zv = linalg.fill ins(%zero : f32) outs(%ev : !m) -> !m
  // MISSED: {{^}}[[FILE]]:[[#@LINE+2]]:8: remark: attention is not fused: a map or its scores are also used by func.return; linalg.batch_matmul stays [diffattn-fuse]{{$}}
  // ALL: [[FILE]]:[[#@LINE+1]]:8: remark: attention is not fused:
  %o = linalg.batch_matmul ins(%d, %v : !s, !m) outs(%zv : !m) -> !m
  return %o, %a1 : !m, !s
}

func.func @kernel(%q: !t, %l: tensor<f32>, %o: !t) -> !t {
  // ALL: [[FILE]]:[[#@LINE+1]]:8: remark: attention is one kernel: [#diffattn.{{.*}}] [diffattn-schedule]{{$}}
  %r = diffattn.attention ins(%q, %q, %q, %q, %q : !t, !t, !t, !t, !t) lambda(%l : tensor<f32>) outs(%o : !t)
    {scale = 0.25 : f32} -> !t
  return %r : !t
}

// The code of a kernel grows with the head.
func.func @wide(%q: !w, %l: tensor<f32>, %o: !w) -> !w {
  // MISSED: {{^}}[[FILE]]:[[#@LINE+3]]:8: remark: attention runs as loops over maps in memory, not as one kernel: a head of 1025 is above 1024, and the code of a kernel grows with it [diffattn-schedule]{{$}}
  // ALL: [[FILE]]:[[#@LINE+2]]:8: remark: attention runs as loops
  // UNRAISED: :[[#@LINE+1]]:8: remark: attention runs as loops
  %r = diffattn.attention ins(%q, %q, %q, %q, %q : !w, !w, !w, !w, !w) lambda(%l : tensor<f32>) outs(%o : !w)
    {scale = 0.25 : f32} -> !w
  return %r : !w
}
