"""Assembles every shipped GPU kernel and prints what ptxas says of it.

The lists below and in gradient_ops.py say which kernels are shipped: a row for each variant of differential attention, and of its
gradients, in f16 and bf16, for each chip, and f32 at every width of the table of schedules; on sm_90a also the schedules that are asked
for by name. With --every also each width of the table, and many of gradients, with each feature that a kernel's code depends on, with
and without K shared by both maps. --widths takes a part of the table. Each is taken from its op to a cubin; equal kernels are made once. The table shows
registers, spilled bytes, dynamic shared memory and the blocks that an SM holds. A spill, or more registers or shared memory than a
chip has, ends with status 1.
"""
import argparse
import itertools
import pathlib
import re
import subprocess
import sys
import tempfile

from . import gradient_ops
from .op_attributes import CAUSAL, RMS, SIGMOID, SOFTCAP

#: Operands that join the sums of rows, and results with the logarithms of these; of one map the first of each.
SUMS, SUMS_OF_ONE = ["sink", "sink2", "lse1", "lse2"], ["sink", "lse1"]
#: Results that are kept for gradients, of rows with a norm or a gate.
SAVED = ["x", "lse1", "lse2", "o2"]
#: The arguments of either, in their order.
LAST = ["sink", "sink2", "x", "lse1", "lse2", "o2"]
#: name, d, dv, signal/noise/k1/k2/v heads, K shared, attributes, optional operands. Of one map noise and k2 have 0 heads.
VARIANTS = [
    ("v1", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight"]),
    ("v1-wide", 128, 256, (2, 2, 2, 2, 2), False, [CAUSAL, RMS], ["weight"]),
    ("v1-830m", 96, 192, (2, 2, 2, 2, 2), False, [CAUSAL, RMS], ["weight"]),
    ("v1-gqa", 64, 128, (4, 4, 2, 2, 2), False, [CAUSAL, RMS], ["weight"]),
    ("diffllama", 64, 128, (4, 4, 2, 2, 2), False, [CAUSAL, RMS], []),
    ("diffllama-bias", 64, 128, (4, 4, 2, 2, 2), False, [RMS], ["bias"]),
    ("phi4-flash-window", 64, 128, (4, 4, 2, 2, 2), False, ["window = array<i64: 511, 0>", RMS], ["weight"]),
    ("phi4-flash-cross", 64, 128, (4, 4, 2, 2, 2), False, [CAUSAL, RMS], ["weight"]),
    ("motif", 128, 256, (2, 2, 2, 2, 2), False, [CAUSAL, RMS], ["weight"]),
    ("motif-gda", 128, 256, (8, 2, 4, 1, 4), False, [CAUSAL, RMS], ["weight"]),
    ("v2", 128, 128, (4, 4, 2, 2, 2), True, [CAUSAL, SIGMOID], []),
    ("v2-64", 64, 64, (4, 4, 2, 2, 2), True, [CAUSAL, SIGMOID], []),
    ("gdla", 192, 128, (8, 2, 2, 2, 2), True, ["window = array<i64: 128, 0>", SIGMOID], ["gate"]),
    ("gdla-two-keys", 192, 128, (8, 2, 2, 2, 2), False, ["window = array<i64: 128, 0>", SIGMOID], ["gate"]),
    ("dragon", 128, 128, (4, 2, 2, 2, 2), True, [CAUSAL, SIGMOID, SOFTCAP], []),
    ("edifice", 64, 64, (4, 4, 4, 4, 4), False, [CAUSAL], []),
    ("timm", 32, 64, (4, 4, 4, 4, 4), False, [RMS], ["weight"]),
    ("timm-mask", 32, 64, (4, 4, 4, 4, 4), False, [RMS], ["weight", "mask"]),
    ("stable-audio", 64, 64, (4, 4, 4, 4, 4), False, ["window = array<i64: 64, 64>"], []),
    ("axolotl", 64, 64, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], []),
    ("nanowell", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight"]),
    ("v1-packed", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", "segments"]),
    ("v1-packed-i64", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", "segments-i64"]),
    ("v2-packed", 128, 128, (4, 4, 2, 2, 2), True, [CAUSAL, SIGMOID], ["segments-i64"]),
    ("v1-128-packed", 128, 128, (2, 2, 2, 2, 2), False, [CAUSAL], ["segments"]),
    ("v2-wide-bias", 128, 256, (4, 4, 2, 2, 2), True, [], ["bias"]),
    ("v2-wide-mask", 128, 256, (4, 4, 2, 2, 2), True, [SOFTCAP], ["mask"]),
    ("v1-pages", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", "pages"]),
    ("v1-sequences", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", "sequences"]),
    ("motif-gda-pages", 128, 256, (8, 2, 4, 1, 4), False, [CAUSAL, RMS], ["weight", "sequences", "pages"]),
    ("v2-pages", 128, 128, (4, 4, 2, 2, 2), True, [CAUSAL, SIGMOID], ["sequences", "pages"]),
    ("v1-gate", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["gate"]),
    ("v1-128-gate", 128, 128, (4, 4, 4, 4, 4), False, [CAUSAL], ["gate"]),
    ("v1-sequences-gate", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL], ["gate", "sequences"]),
    ("timm-pages", 32, 64, (4, 4, 4, 4, 4), True, [SOFTCAP], ["sequences", "pages"]),
    ("v1-f32-result", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", "f32"]),
    ("diffllama-bias-f32-result", 64, 128, (4, 4, 2, 2, 2), False, [RMS], ["bias", "f32"]),
    ("motif-gda-f32-result", 128, 256, (8, 2, 4, 1, 4), False, [CAUSAL, RMS], ["weight", "f32"]),
    ("v2-f32-result", 128, 128, (4, 4, 2, 2, 2), True, [CAUSAL, SIGMOID], ["f32"]),
    ("gdla-f32-result", 192, 128, (8, 2, 2, 2, 2), True, ["window = array<i64: 128, 0>", SIGMOID], ["gate", "f32"]),
    ("one-map", 64, 64, (4, 0, 2, 0, 2), False, [CAUSAL], []),
    ("one-map-32", 32, 32, (4, 0, 4, 0, 4), False, [], []),
    ("one-map-128", 128, 128, (4, 0, 1, 0, 1), False, [CAUSAL], []),
    ("one-map-256", 256, 256, (4, 0, 2, 0, 2), False, [CAUSAL, SOFTCAP], []),
    ("one-map-256-plain", 256, 256, (2, 0, 2, 0, 2), False, [CAUSAL], []),
    ("one-map-192", 192, 128, (4, 0, 4, 0, 4), False, [CAUSAL], []),
    ("one-map-window", 128, 128, (4, 0, 2, 0, 2), False, ["window = array<i64: 511, 0>", RMS], ["weight"]),
    ("one-map-bias", 64, 64, (4, 0, 4, 0, 4), False, [], ["bias"]),
    ("one-map-mask", 64, 64, (4, 0, 4, 0, 4), False, [], ["mask"]),
    ("one-map-packed", 64, 64, (4, 0, 4, 0, 4), False, [CAUSAL], ["segments-i64"]),
    ("one-map-pages", 128, 128, (4, 0, 2, 0, 2), False, [CAUSAL], ["sequences", "pages"]),
    ("one-map-gate", 128, 128, (4, 0, 2, 0, 2), False, [CAUSAL], ["gate"]),
    ("one-map-f32-result", 64, 64, (4, 0, 2, 0, 2), False, [CAUSAL], ["f32"]),
    ("v1-sums", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", *SUMS]),
    ("v1-lse", 64, 128, (4, 4, 2, 2, 2), False, [CAUSAL, RMS], ["weight", "lse1", "lse2"]),
    ("v1-wide-sums", 128, 256, (2, 2, 2, 2, 2), False, [CAUSAL, RMS], ["weight", *SUMS]),
    ("v1-830m-sums", 96, 192, (2, 2, 2, 2, 2), False, [CAUSAL, RMS], ["weight", *SUMS]),
    ("v2-sums", 128, 128, (4, 4, 2, 2, 2), True, [CAUSAL, SIGMOID], SUMS),
    ("gdla-sums", 192, 128, (8, 2, 2, 2, 2), True, ["window = array<i64: 128, 0>", SIGMOID], ["gate", *SUMS]),
    ("dragon-sums", 128, 128, (4, 2, 2, 2, 2), True, [CAUSAL, SIGMOID, SOFTCAP], SUMS),
    ("edifice-sums", 64, 64, (4, 4, 4, 4, 4), False, [CAUSAL], SUMS),
    ("v1-sequences-sums", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", "sequences", *SUMS]),
    ("v1-saved", 64, 128, (4, 4, 4, 4, 4), False, [CAUSAL, RMS], ["weight", *SAVED]),
    ("v1-wide-saved", 128, 256, (2, 2, 2, 2, 2), False, [CAUSAL, RMS], ["weight", *SAVED]),
    ("gdla-saved", 192, 128, (8, 2, 2, 2, 2), True, ["window = array<i64: 128, 0>", SIGMOID], ["gate", *SAVED]),
    ("one-map-saved", 64, 64, (4, 0, 2, 0, 2), False, [CAUSAL, RMS], ["x", "lse1"]),
    ("gpt-oss", 64, 64, (8, 0, 1, 0, 1), False, [CAUSAL], ["sink"]),
    ("gpt-oss-window", 64, 64, (8, 0, 1, 0, 1), False, ["window = array<i64: 127, 0>"], SUMS_OF_ONE),
    ("one-map-lse", 128, 128, (4, 0, 1, 0, 1), False, [CAUSAL], ["lse1"]),
    ("one-map-256-sums", 256, 256, (2, 0, 2, 0, 2), False, [CAUSAL], SUMS_OF_ONE),
    ("one-map-192-sums", 192, 128, (4, 0, 4, 0, 4), False, [CAUSAL], SUMS_OF_ONE),
    ("one-map-pages-sums", 128, 128, (4, 0, 2, 0, 2), False, [CAUSAL], ["sequences", "pages", *SUMS_OF_ONE]),
]
# Widths without a schedule of their own, and decode steps.
GENERAL = [("general", 48, 80), ("general", 24, 40), ("general", 160, 256), ("general", 256, 256)]
GENERAL_ONE_MAP = [("general-one-map", 80, 80), ("general-one-map", 24, 40), ("general-one-map", 160, 256)]
DECODE = ["v1", "v1-packed-i64", "v1-pages", "timm-pages", "motif-gda-pages", "v2-pages", "v1-wide", "v2", "v2-wide-bias", "v2-wide-mask", "gdla",
          "v1-f32-result", "one-map", "one-map-128", "one-map-256", "one-map-bias", "one-map-pages",
          "v1-sums", "gpt-oss", "one-map-256-sums"]
#: Other features on which the code of a kernel depends: attributes, operands.
FEATURES = [([], []), ([SOFTCAP], []), ([], ["bias"]), ([SOFTCAP], ["bias"]), ([], ["mask"]), ([SOFTCAP], ["mask"]),
            ([], ["segments"]), ([], ["segments-i64"]), ([SOFTCAP], ["segments-i64"]), ([SOFTCAP], ["bias", "segments-i64"]),
            ([SOFTCAP], ["mask", "segments-i64"]), ([], ["pages"]), ([], SUMS), ([SOFTCAP], SUMS), ([SOFTCAP], ["bias", "segments-i64", *SUMS]),
            ([RMS], ["weight", "gate", *SAVED])]
#: On sm_90a, what the code of kernels by warpgroups depends on, in all combinations that they take: result and what the end of a row
#: reads, how sequences and pages lie, and (where a row has most) scores that are scaled first.
ENDS = [([RMS] * norm, ["weight"] * norm + ["gate"] * gate + ["f32"] * wide) for norm, gate, wide in itertools.product((0, 1), repeat=3)]
PLACES = [[], ["pages"], ["sequences"], ["sequences", "pages"]]
SCALED = "scale = 20.0 : f32"
WARPGROUPS = [(attrs, extra + place) for attrs, extra in ENDS for place in PLACES]
WARPGROUPS += [([RMS, SCALED], ["weight", "gate", *place]) for place in PLACES]
#: Least and most features of f32, whose kernels are all of one form, with strides that none shares.
PLAIN = [([CAUSAL], []), ([CAUSAL], SUMS), ([CAUSAL, RMS], ["weight", "sequences"]), ([SOFTCAP, RMS], ["weight", "gate", "sequences", "pages"]), ([SOFTCAP, RMS], ["bias", "weight", "gate"]), ([SOFTCAP, RMS], ["bias", "weight", "gate", "segments-i64"])]
CHIPS = {"sm_80": (2048, 32, 164 << 10), "sm_86": (1536, 16, 100 << 10), "sm_89": (1536, 24, 100 << 10),
         "sm_90": (2048, 32, 228 << 10), "sm_90a": (2048, 32, 228 << 10)}


def attention(name, element, variant, queries):
    """A function with one op of `variant`; `queries` is a number or `?`. Extra operands: bias, mask, weight, gate, kv_len,
    q_offset, segments (of i32) or segments-i64, sequences (packed, by i32), pages (by i32), sink, sink2, lse1 and lse2, of which one map
    has the first ones, x, o2; heads for a lambda of each head, f32 for a result in f32."""
    _, d, dv, (hs, hn, hk1, hk2, hv), shared, attrs, extra = variant
    is_packed, is_paged = "sequences" in extra, "pages" in extra
    batch, key_batch = "1" if is_packed else "?", "1" if is_packed and not is_paged else "?"
    memref = lambda heads, length, width, batch: f"memref<{batch}x{heads}x{length}x{width}x{element}, strided<[?, ?, ?, 1], offset: ?>>"
    is_one = not hn
    q1, q2, gate = (memref(heads, queries, width, batch) for heads, width in ((hs, d), (hn, d), (hs, dv)))
    k1, k2, v = (memref(heads, "?", width, key_batch) for heads, width in ((hk1, d), (hk2, d), (hv, dv)))
    o = gate.replace(f"x{element},", "xf32,") if "f32" in extra else gate
    tokens = SIGMOID in attrs
    lam = f"memref<{batch}x{queries}x{hs}xf32>" if tokens else f"memref<{hs}xf32>" if "heads" in extra else "memref<f32>"
    if is_one:
        args = dict(q1=q1, k1=k1, v=v, o=o)
        text = f"ins(%q1, %k1, %v : {q1}, {k1}, {v})"
    else:
        args = dict(q1=q1, k1=k1, q2=q2, k2=k2, v=v, l=lam, o=o)
        text = f"ins(%q1, %k1, %q2, {'%k1' if shared else '%k2'}, %v : {q1}, {k1}, {q2}, {k2}, {v}) lambda(%l : {lam})"
    options = {"bias": ("bias", f"memref<?x1x?x?x{element}>"), "mask": ("bias", "memref<?x1x?x?xi1>"),
               "weight": ("norm_weight", f"memref<{dv}x{element}>"), "gate": ("gate", gate), "kv_len": ("kv_len", "memref<?xi64>"),
               "q_offset": ("q_offset", "memref<?xi64>")}
    ids = "i64" if "segments-i64" in extra else "i32" if "segments" in extra else None
    if ids:
        options["q_segments"], options["kv_segments"] = [(n, f"memref<?x{length}x{ids}, strided<[?, ?], offset: ?>>")
                                                         for n, length in (("q_segments", queries), ("kv_segments", "?"))]
        extra = [*extra, "q_segments", "kv_segments"]
    tables = (["cu_seqlens_q"] if is_packed else []) + (["block_table"] if is_paged else ["cu_seqlens_k"] if is_packed else [])
    options.update((n, (n, "memref<?x?xi32>" if n == "block_table" else "memref<?xi32>")) for n in tables)
    extra = [*extra, *tables, *(["kv_len"] if is_paged else [])]
    for key in sorted(set(extra) & set(options), key=list(options).index):
        operand, type_ = options[key]
        args[operand] = type_
        text += f" {operand}(%{operand} : {type_})"
    outs = f"outs(%o : {o})"
    for operand in (n for n in LAST if n in extra and not (is_one and n.endswith("2"))):
        heads = hn if operand.endswith("2") else hs
        args[operand] = (gate if operand in ("x", "o2") else f"memref<{heads}xf32>" if operand.startswith("sink")
                         else f"memref<{batch}x{heads}x{queries}xf32>")
        clause = f" {operand}(%{operand} : {args[operand]})"
        text, outs = (text + clause, outs) if operand.startswith("sink") else (text, outs + clause)
    joined = ", ".join(f"%{n}: {t}" for n, t in args.items())
    return (f"func.func @{name.replace('-', '_')}({joined}) {{\n  diffattn.attention {text} {outs}\n"
            f"    {{{', '.join(attrs if SCALED in attrs else ['scale = 0.125 : f32', *attrs])}}}\n  return\n}}\n")


#: Everything else that models do, a function each: types are filled in.
OTHERS = """
func.func @row_norm_ELEMENT_N(%x: memref<?xNxf32>, %w: memref<Nxf32>) -> memref<?xNxELEMENT> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %rows = memref.dim %x, %c0 : memref<?xNxf32>
  %s = memref.alloc(%rows) {alignment = 64 : i64} : memref<?xf32>
  %y = memref.alloc(%rows) {alignment = 64 : i64} : memref<?xNxELEMENT>
  linalg.fill ins(%zero : f32) outs(%s : memref<?xf32>)
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : memref<?xNxf32>) outs(%s : memref<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.mulf %a, %a : f32
    %c = arith.addf %o, %b : f32
    linalg.yield %c : f32
  }
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%x, %s, %w : memref<?xNxf32>, memref<?xf32>, memref<Nxf32>) outs(%y : memref<?xNxELEMENT>) {
  ^bb0(%a: f32, %b: f32, %c: f32, %o: ELEMENT):
    %d = math.rsqrt %b : f32
    %e = arith.mulf %a, %d : f32
    %f = arith.mulf %e, %c : f32
    %g = arith.truncf %f : f32 to ELEMENT
    linalg.yield %g : ELEMENT
  }
  return %y : memref<?xNxELEMENT>
}
func.func @gate_ELEMENT_N(%x: memref<?xNxf32>, %y: memref<?xNxf32>, %o: memref<?xNxELEMENT>) {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x, %y : memref<?xNxf32>, memref<?xNxf32>) outs(%o : memref<?xNxELEMENT>) {
  ^bb0(%a: f32, %b: f32, %c: ELEMENT):
    %one = arith.constant 1.0 : f32
    %d = arith.negf %a : f32
    %e = math.exp %d : f32
    %f = arith.addf %e, %one : f32
    %g = arith.divf %a, %f : f32
    %h = arith.mulf %g, %b : f32
    %i = arith.truncf %h : f32 to ELEMENT
    linalg.yield %i : ELEMENT
  }
  return
}
func.func @turn_ELEMENT_N(%x: memref<?x8x2xNxf32>, %cos: memref<?xNxf32>, %sin: memref<?xNxf32>, %o: memref<?x8x2xNxELEMENT>) {
  linalg.generic {indexing_maps = [affine_map<(t, h, s, p) -> (t, h, s, p)>, affine_map<(t, h, s, p) -> (t, h, 1 - s, p)>,
      affine_map<(t, h, s, p) -> (t, p)>, affine_map<(t, h, s, p) -> (t, p)>, affine_map<(t, h, s, p) -> (t, h, s, p)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%x, %x, %cos, %sin : memref<?x8x2xNxf32>, memref<?x8x2xNxf32>, memref<?xNxf32>, memref<?xNxf32>)
      outs(%o : memref<?x8x2xNxELEMENT>) {
  ^bb0(%a: f32, %b: f32, %c: f32, %d: f32, %e: ELEMENT):
    %c0 = arith.constant 0 : index
    %s = linalg.index 2 : index
    %first = arith.cmpi eq, %s, %c0 : index
    %f = arith.negf %d : f32
    %g = arith.select %first, %f, %d : f32
    %h = arith.mulf %a, %c : f32
    %i = arith.mulf %b, %g : f32
    %j = arith.addf %h, %i : f32
    %k = arith.truncf %j : f32 to ELEMENT
    linalg.yield %k : ELEMENT
  }
  return
}
func.func @project_ELEMENT_N(%x: memref<3xNxELEMENT>, %w: memref<321xNxELEMENT>, %o: memref<3x321xf32>) {
  diffattn.gemm ins(%x, %w : memref<3xNxELEMENT>, memref<321xNxELEMENT>) outs(%o : memref<3x321xf32>) {transpose_b, accumulate}
  return
}
func.func @angles_ELEMENT_N(%at: memref<?xi64>, %f: memref<Nxf32>, %cos: memref<?xNxf32>, %x: memref<?x?xELEMENT>, %s: memref<?xELEMENT>) {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%at, %f : memref<?xi64>, memref<Nxf32>) outs(%cos : memref<?xNxf32>) {
  ^bb0(%a: i64, %b: f32, %o: f32):
    %c = arith.sitofp %a : i64 to f32
    %d = arith.mulf %c, %b : f32
    %e = math.cos %d : f32
    linalg.yield %e : f32
  }
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : memref<?x?xELEMENT>) outs(%s : memref<?xELEMENT>) {
  ^bb0(%a: ELEMENT, %o: ELEMENT):
    %c = arith.addf %o, %a : ELEMENT
    linalg.yield %c : ELEMENT
  }
  return
}
"""


#: A row of the table of schedules: widths, placement, warps, tiles of rows, keys, stages, Q in registers, registers.
ROW = re.compile(r"\{(\d+), (\d+), k(\w+), (\d+), (\d+), (\d+), (\d+), (true|false), \{([\d, ]+)\}(?:, (?:true|false))?\}")
HEADS = {1: (2, 0, 2, 0, 2), 2: (2, 2, 2, 2, 2)}


def table_rows():
    """The rows of the table of schedules, as `ROW` takes them apart, with the number of maps in front."""
    source = pathlib.Path(__file__).resolve().parents[3] / "lib/Schedule/GpuSchedule.cpp"
    of_two, _, of_one = " ".join(source.read_text().split()).partition("kOneMapTable[]")
    return [(maps, *row) for maps, text in ((2, of_two), (1, of_one)) for row in ROW.findall(text)]


def table_widths(maps=2):
    """The widths of heads that the table of schedules has rows for, with so many maps."""
    return list(dict.fromkeys((int(d), int(dv)) for of, d, dv, *_ in table_rows() if of == maps))


def table_text(elements, chip, wanted):
    """Every width of the table with every feature: those `wanted`, or all."""
    functions = []
    add = lambda queries, element, d, dv, shared, attrs, extra, maps=2: functions.append(
        attention(f"table_{len(functions)}", element, ("table", d, dv, HEADS[maps], shared, attrs, extra), queries))
    for element, (d, dv), (attrs, extra) in itertools.product(elements, table_widths(1), FEATURES):
        if not wanted or (d, dv) in wanted:
            add("?", element, d, dv, False, attrs, extra, maps=1)
    wanted = [widths for widths in table_widths() if not wanted or widths in wanted]
    for element, (d, dv), shared in itertools.product(elements, wanted, (False, True)):
        for attrs, extra in FEATURES:
            add("?", element, d, dv, shared, attrs, extra)
        # More than decode takes, so that this is prefill alone. Of f16, whose products differ in a letter, the most.
        if chip == "sm_90a" and element != "f32":
            for attrs, extra in WARPGROUPS[-len(PLACES):] if element == "f16" else WARPGROUPS:
                add(64, element, d, dv, shared, attrs, extra)
    return "".join(functions)


def general_variants():
    """Widths without a schedule of their own, of two maps and of one."""
    return [(n, d, dv, HEADS[maps], False, [CAUSAL], []) for maps, rows in ((2, GENERAL), (1, GENERAL_ONE_MAP)) for n, d, dv in rows]


def module_text(elements, names):
    functions, number = [], 0
    general = general_variants()
    for element in elements:
        rows = [(v, "?") for v in VARIANTS + general if not names or v[0] in names]
        rows += [(v, 1) for v in VARIANTS if v[0] in DECODE and (not names or v[0] in names)]
        for variant, queries in rows:
            functions.append(attention(f"{variant[0]}_{number}", element, variant, queries))
            number += 1
    if not names:
        for maps, general in ((2, GENERAL), (1, GENERAL_ONE_MAP)):
            widths = dict.fromkeys([*table_widths(maps), *[(d, dv) for _, d, dv in general]])
            for (d, dv), (attrs, extra) in itertools.product(widths, PLAIN):
                functions.append(attention(f"plain_{number}", "f32", ("plain", d, dv, HEADS[maps], False, attrs, extra), "?"))
                number += 1
        functions += [OTHERS.replace("ELEMENT", e).replace("N", n) for e in elements for n in ("64", "4096")]
    return "".join(functions)


def _by_name(parameters):
    """Behind it, for what tensor maps do not describe, the schedule that has registers for every feature."""
    return (f"schedules = [#diffattn.when<tensor_maps = true : #diffattn.gpu_wgmma<{parameters}>>, "
            "#diffattn.gpu_forward<placement = pair, warps = 8, kv_block_size = 16>]")


#: Schedules by name, on sm_90a: two blocks that bring tiles for each other, exponentials beside products of the same warpgroup,
#: persistent blocks, of wide heads and of narrow ones, with one map a warpgroup too, and a block for each tile of queries, of narrow heads
#: and of those with one K.
CLUSTER = _by_name("placement = apart, kv_block_size = 96, stages = 2, cluster = 2")
OVERLAP = _by_name("placement = both, kv_block_size = 48, stages = 8, overlap = true")
PERSISTENT_WIDE = _by_name("placement = apart, kv_block_size = 80, stages = 2, persistent_blocks = 132")
PERSISTENT = _by_name("placement = both, kv_block_size = 64, stages = 6, persistent_blocks = 132")
ONE_MAP = _by_name("placement = apart, kv_block_size = 192, stages = 2, persistent_blocks = 132")
A_BLOCK_A_TILE = {"v1": _by_name("placement = both, kv_block_size = 64, stages = 6"),
                  "v2": _by_name("placement = apart, kv_block_size = 192, stages = 2")}
#: Each with the least and the greatest width of values that it is for.
BY_NAME = [(CLUSTER, 129, 256), (OVERLAP, 128, 128), (PERSISTENT_WIDE, 129, 256)]


def by_name_text(elements, names, every):
    """Functions with the variants that schedules by name take; with `every`, also with all that kernels by warpgroups may have beside their tiles."""
    functions = []
    for element, (schedule, least, most) in itertools.product(elements, BY_NAME):
        variants = [v for v in VARIANTS if least <= v[2] <= most and (v[1] <= 64 or v[2] > 128) and (not names or v[0] in names)
                    and v[3][1] and SOFTCAP not in v[5] and not (schedule == OVERLAP and "x" in v[6]) and not {"bias", "mask", "segments", "segments-i64"} & set(v[6])]
        if every:
            features = WARPGROUPS[-len(PLACES):] if element == "f16" else WARPGROUPS
            variants += [("every", most // 2, most, (2, 2, 2, 2, 2), shared, *feature) for shared in (False, True) for feature in features]
        for name, d, dv, heads, shared, attrs, extra in variants:
            functions.append(attention(f"named_{len(functions)}", element, (name, d, dv, heads, shared, [*attrs, schedule], extra), "?"))
    for element, (name, d, dv, heads, shared, attrs, extra) in itertools.product(elements, VARIANTS):
        if name in A_BLOCK_A_TILE and (not names or name in names):
            variant = (name, d, dv, heads, shared, [*attrs, A_BLOCK_A_TILE[name]], extra)
            functions.append(attention(f"named_{len(functions)}", element, variant, "?"))
    return "".join(functions)


def report(opt, chip, text, folder):
    """Rows (kernel, registers, spilled bytes, shared bytes, threads) of one chip."""
    stem = pathlib.Path(folder) / chip
    pipeline = (f"builtin.module(diffattn-select-gpu-schedule{{chip={chip}}},convert-linalg-to-gpu{{chip={chip}}},"
                f"convert-diffattn-to-gpu{{chip={chip}}},"
                f"diffattn-gpu-to-ptx{{file={stem}}})")
    done = subprocess.run([opt, "-", f"--pass-pipeline={pipeline}"], input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    for warning in re.findall(r"\(C75[^\"]*", done.stdout):
        sys.exit(f"{chip}: expected ptxas to leave products by warpgroups as they are, but got {warning}")
    # The attributes of the module come before its kernels: name = {registers = ..., ...}.
    rows = re.findall(r"(diffattn_\w+) = \{registers = (\d+) : i64, spill_loads = (\d+) : i64, spill_stores = (\d+) : i64\}",
                      done.stdout)
    kernels = dict(re.findall(r"llvm\.func @(diffattn_\w+)\(.*?shared_bytes = (\d+)", done.stdout))
    threads = dict(re.findall(r"llvm\.func @(diffattn_\w+)\(.*?reqntid = array<i32: (\d+)", done.stdout))
    if not rows or set(kernels) != {name for name, *_ in rows}:
        sys.exit(f"{chip}: expected a report of ptxas for every kernel, but got {len(rows)} for {len(kernels)}")
    return [(name, int(r), int(a) + int(b), int(kernels[name]), int(threads[name])) for name, r, a, b in rows]


def occupancy(chip, registers, shared, threads):
    thread_limit, blocks, memory = CHIPS[chip]
    by_registers = 65536 // (-(-registers * 32 // 256) * 256) // (threads // 32)
    return min(thread_limit // threads, blocks, by_registers, memory // (shared + 1024))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opt", default=str(pathlib.Path(__file__).resolve().parents[3] / "build/bin/diffattn-opt"))
    parser.add_argument("--chips", default="sm_80,sm_90,sm_90a")
    parser.add_argument("--types", default="bf16,f16")
    parser.add_argument("--variants", default="", help="only these, by name")
    parser.add_argument("--every", action="store_true", help="also all that the table of schedules can choose: some minutes a chip")
    parser.add_argument("--widths", default="", help="with --every: of the table these alone, as 64x128,128x256; no variants")
    parser.add_argument("--print-module", action="store_true", help="print the ops and stop")
    args = parser.parse_args()
    names = [n for n in args.variants.split(",") if n]
    types, wanted = args.types.split(","), [tuple(map(int, w.split("x"))) for w in args.widths.split(",") if w]
    known = list(dict.fromkeys([*table_widths(), *table_widths(1)]))
    if wanted and (not args.every or set(wanted) - set(known)):
        parser.error(f"expected --widths with --every, of {', '.join(f'{d}x{dv}' for d, dv in known)}, but got {args.widths}")

    def text_for(chip):
        text = "" if wanted else module_text(types, names) + gradient_ops.module_text(types, names, args.every)
        if chip == "sm_90a" and not wanted:
            text += by_name_text(types, names, args.every)
        return text + (table_text([*types, "f32"], chip, wanted) if args.every else "")

    if args.print_module:
        print(text_for("sm_80"))
        return 0
    bad = 0
    print(f"{'chip':6} {'registers':>9} {'spills':>6} {'shared':>7} {'threads':>7} {'blocks/SM':>9}  kernel")
    with tempfile.TemporaryDirectory() as folder:
        for chip in args.chips.split(","):
            for name, registers, spills, shared, threads in report(args.opt, chip, text_for(chip), folder):
                blocks = occupancy(chip, registers, shared, threads)
                failed = spills > 0 or registers > 255 or blocks < 1
                bad += failed
                print(f"{chip:6} {registers:9} {spills:6} {shared:7} {threads:7} {blocks:9}  {name}{'  FAILED' * failed}")
    return 1 if bad else 0

