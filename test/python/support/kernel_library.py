"""Fused kernels compiled without the Python package: many signatures of attention in one library for one ISA.

A signature is a dictionary of everything that is fixed at compile time (see `signature`); sizes are dynamic unless it
gives widths. Tests hand over NumPy arrays of any strides.
"""
import ctypes
import pathlib
import re
import subprocess

import ml_dtypes
import numpy as np

from paths import LLVM

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i1": np.bool_, "i64": np.int64, "i32": np.int32}
FLAGS = {"amx": "amx_bf16", "avx512bf16": "avx512_bf16", "avx512": "avx512bw", "avx2": "avx2", "generic": "sse2", "amx-emulated": "avx2"}


def may_use_tiles():
    """Asks Linux to let this process use the tiles of AMX, as the libraries do where they load such code."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


def runnable_isas():
    flags = pathlib.Path("/proc/cpuinfo").read_text().split("flags", 1)[1].splitlines()[0].split()
    return [isa for isa, flag in FLAGS.items() if flag in flags and (isa != "amx" or may_use_tiles())]


def signature(**changes):
    """The plainest signature: f32, no mask, one lambda, no norm, the result in the operands' type; with `changes`. maps=1: no q2, k2, lambda."""
    plain = dict(maps=2, type="f32", result=None, scale=0.17, causal=False, window=None, softcap=None, bias=None, kv_len=False, q_offset=False, segments=None, lam=0,
                 sigmoid=False, norm=None, weight=False, eps=1e-5, eps_mode="inside", out_scale=1.0, gate=False, layout="bhtd", shared_k=False,
                 unit=True, sizes=None, small=False)
    assert changes.keys() <= plain.keys()
    return {**plain, **changes}


def memref(name, rank, sizes=None, unit=True):
    dims = "".join(f"{s}x" for s in (sizes or ["?"] * rank))
    return f"memref<{dims}{name}, strided<[{', '.join(['?'] * (rank - 1) + ['1' if unit else '?'])}], offset: ?>>"


def small_schedule(isa, bf16):
    """Schedules by hand whose blocks and limits are small, so that small inputs go past them."""
    lanes, tiles = {"avx2": (8, "[4, 3, 4], pv_tile = [6, 2, 4]"), "generic": (4, "[4, 3, 4], pv_tile = [6, 2, 4]")}.get(
        isa, (16, "[8, 3, 4], pv_tile = [6, 4, 2]"))
    tiled = bf16 and isa in ("amx", "amx-emulated")
    if tiled:
        tiles = "[16, 3, 1], pv_tile = [48, 1, 1]"
    few = "4, q_vectors = 16, pv_rows = 2, pv_keys = 8, o_vectors = 16" if lanes == 16 else "2, q_vectors = 8, pv_rows = 1, pv_keys = 8, o_vectors = 8"
    product = ", product = bf16_pairs" * (bf16 and isa == "avx512bf16") + ", product = bf16_tiles" * tiled
    return (f'schedules = [#diffattn.when<max_queries = 3, min_keys = 4 : #diffattn.cpu_split_kv<isa = "{isa}", lanes = {lanes}, '
            f"kv_split_size = 32, qk_rows = {few}, o_row_vectors = 8{product}>>, "
            f'#diffattn.cpu_prefill<isa = "{isa}", lanes = {lanes}, q_block_size = 48, qk_tile = {tiles}, kv_block_size = 32, '
            f"two_pass_keys = 48{product}>]")


def function_text(number, sig, isa):
    t, d, dv = sig["type"], *(sig["sizes"] or ("?", "?"))
    wide, value = [memref(t, 4, ["?", "?", "?", d], sig["unit"]), memref(t, 4, ["?", "?", "?", dv], sig["unit"])]
    args = [(n, wide) for n in ("q1", "k1", "q2", "k2")[: 2 * sig["maps"]]] + [("v", value)]
    text = f"ins({', '.join('%' + n for n, _ in args)} : {', '.join(ty for _, ty in args)})"
    if sig["maps"] == 2:
        lam = "memref<f32>" if sig["lam"] == 0 else memref("f32", 1 if sig["lam"] == 1 else 3)
        text += f" lambda(%lam : {lam})"
        args.append(("lam", lam))
    optional = [("bias", sig["bias"] and memref(sig["bias"], 4, unit=sig["unit"])), ("norm_weight", sig["weight"] and memref("f32", 1)),
                ("gate", sig["gate"] and value), ("kv_len", sig["kv_len"] and memref("i64", 1)),
                ("q_offset", sig["q_offset"] and memref("i64", 1)),
                *((name, sig["segments"] and memref(sig["segments"], 2, unit=sig["unit"])) for name in ("q_segments", "kv_segments"))]
    for name, type_ in optional:
        if type_:
            args.append((name, type_))
            text += f" {name}(%{name} : {type_})"
    result = memref(sig["result"] or t, 4, ["?", "?", "?", dv], sig["unit"])
    args.append(("out", result))
    attrs = [f"scale = {sig['scale']:e} : f32"]
    attrs += ["is_causal"] * sig["causal"]
    if sig["window"]:
        attrs.append("window = array<i64: %d, %d>" % sig["window"])
    if sig["softcap"]:
        attrs.append(f"softcap = {sig['softcap']:e} : f32")
    if sig["sigmoid"]:
        attrs.append("lambda_act = #diffattn.activation<sigmoid>")
    if sig["norm"]:
        attrs.append(f"norm = #diffattn.norm<rms>, norm_eps = {sig['eps']:e} : f32, norm_eps_mode = #diffattn.eps_mode<{sig['eps_mode']}>")
    attrs.append(f"out_scale = {sig['out_scale']:e} : f32")
    attrs += [f"{x}_layout = #diffattn.layout<{sig['layout']}>" for x in "qkvo"]
    attrs += [small_schedule(isa, sig["type"] == "bf16")] * sig["small"]
    arguments = ", ".join(f"%{n}: {ty}" for n, ty in args)
    return (f"func.func @s{number}({arguments}) attributes {{llvm.emit_c_interface}} {{\n"
            f"  diffattn.attention {text} outs(%out : {result}) {{{', '.join(attrs)}}}\n  return\n}}\n"), [n for n, _ in args]


def compile_library(signatures, isa, build_dir, folder, optimize=True):
    """The library of all `signatures` (functions s0, s1, ...) for one ISA. The IR is verified at the end alone, by LLVM: each pass is, in lit's tests."""
    texts = [function_text(i, s, isa)[0] for i, s in enumerate(signatures)]
    source, shared = "\n".join(texts), folder / "kernels.so"
    ctypes.CDLL(str(build_dir / "lib/libDiffAttnRuntime.so"), mode=ctypes.RTLD_GLOBAL)
    mlir = subprocess.run([str(build_dir / "bin/diffattn-opt"), "-", f"--pass-pipeline=builtin.module(diffattn-cpu-pipeline{{isa={isa}}})", "--verify-each=0"],
                          input=source, capture_output=True, text=True, check=False)
    assert mlir.returncode == 0, mlir.stderr[:4000]
    assert "diffattn." not in re.sub(r'"[^"]*"', "", mlir.stdout)
    code = subprocess.run([str(LLVM / "mlir-translate"), "--mlir-to-llvmir"], input=mlir.stdout, capture_output=True, text=True, check=True).stdout
    # The base of x86-64: what more a kernel needs, its own features must say. With optimizations clang takes seven times as long; tiles stay
    # in registers with them alone.
    subprocess.run([str(LLVM / "clang"), "-x", "ir", "-", "-O1" if optimize or isa == "amx" else "-O0", "-Wno-override-module", "-fPIC", "-shared", "-o", str(shared)],
                   input=code, text=True, check=True)
    return ctypes.CDLL(str(shared))


def descriptor(array):
    rank = array.ndim

    class Descriptor(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("data", ctypes.c_void_p), ("offset", ctypes.c_int64)]
        if rank:
            _fields_ += [("sizes", ctypes.c_int64 * rank), ("strides", ctypes.c_int64 * rank)]

    d = Descriptor(array.ctypes.data, array.ctypes.data, 0)
    for i in range(rank):
        d.sizes[i], d.strides[i] = array.shape[i], array.strides[i] // array.itemsize
    return d


def call(library, number, names, arrays):
    function = getattr(library, f"_mlir_ciface_s{number}")
    function.restype = None
    descriptors = [descriptor(arrays[n]) for n in names]
    function(*[ctypes.byref(d) for d in descriptors])
