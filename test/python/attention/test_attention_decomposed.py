"""The decomposed op against the f64 reference, on random configurations: attention on memrefs as linalg loops, and attention on
tensors as an online op, a finalize and linalg loops. Stock passes lower the rest, so nothing but the op's own lowering is tested.
"""
import ctypes
import subprocess

import numpy as np
import pytest

from kernel_library import TYPES, call, function_text
from paths import LLVM
from test_attention_random import OF_ONE_MAP, SHAPES, SIGNATURES, Inputs, check, draw_signature

COUNT = SIGNATURES + OF_ONE_MAP  # times 4 shapes and 2 forms: 304 configurations, of which 80 are of one map, and without --full half of them
SCHEDULE = "schedules = [#diffattn.linalg]"
LOWER = ("one-shot-bufferize,func.func(convert-linalg-to-loops),expand-strided-metadata,lower-affine,convert-scf-to-cf,"
         "convert-math-to-libm,convert-to-llvm,reconcile-unrealized-casts")
PASSES = {"memref": "diffattn-decompose", "online": "func.func(diffattn-to-online),diffattn-decompose"}
HEADS = dict(q1=4, k1=2, q2=2, k2=1, v=2, gate=4, out=4)
# Sums of the stock loops run one after another.
BOUNDS = {"f32": 2e-5, "f16": 1.5e-3, "bf16": 1.2e-2}


class FixedHeads(Inputs):
    """Inputs with the numbers of heads that the online form has in its types."""

    def __init__(self, rng, sig):
        draw = rng.integers
        super().__init__(rng, sig)
        batch, _, tq, d = self.arrays["q1"].shape
        tk, dv = self.arrays["v"].shape[2:]
        lengths = dict(q1=(tq, d), k1=(tk, d), q2=(tq, d), k2=(tk, d), v=(tk, dv), gate=(tq, dv))
        for name, (t, w) in lengths.items():
            if name in self.arrays:
                self.arrays[name] = self.make((batch, HEADS[name], t, w))
        self.arrays["out"] = self.make((batch, 4, tq, dv), fill=np.nan, dtype=self.arrays["out"].dtype)
        lam = {0: (), 1: (4,), "signal": (batch, tq, 4), "noise": (batch, tq, 2)}[sig["lam"]]
        if sig["maps"] == 2:
            self.arrays["lam"] = np.asarray(rng.normal(0.5, 0.4, lam), np.float32)
        self.noise_heads = HEADS["q2" if sig["maps"] == 2 else "q1"]
        if sig["bias"]:
            shape = (self.arrays["bias"].shape[0], (1, self.noise_heads)[int(draw(2))], *self.arrays["bias"].shape[2:])
            bias = rng.random(shape) < 0.7 if sig["bias"] == "i1" else rng.standard_normal(shape)
            self.arrays["bias"] = bias.astype(TYPES[sig["bias"]])


def online_text(number, sig):
    """The function on tensors with static heads, around the same arguments."""
    text, names = function_text(number, dict(sig, small=True), "generic")
    head, body = text.split("  diffattn.attention", 1)
    types = {}
    for argument in head[head.index("(") + 1: head.rindex(") attributes")].split(", %"):
        name, kind = argument.lstrip("%").split(": ", 1)
        types[name] = kind
    lines, op = [], "diffattn.attention" + body.split("\n")[0]
    layout = (0, 1) if sig["layout"] == "bhtd" else (0, 2)
    for name in names:
        shape = types[name][len("memref<"):].split(", strided")[0].rstrip(">").split("x")
        dynamic = f"tensor<{'x'.join(shape)}>"
        if name in HEADS:
            shape[layout[1]] = str(HEADS[name])
        elif name == "lam" and sig["lam"]:
            shape[-2] = str({1: 4, "signal": 4, "noise": 2}[sig["lam"]])
        static = f"tensor<{'x'.join(shape)}>"
        lines.append(f"  %{name}_d = bufferization.to_tensor %{name} restrict {'writable ' if name == 'out' else ''}: {types[name]} to {dynamic}")
        lines.append(f"  %{name}_t = tensor.cast %{name}_d : {dynamic} to {static}")
        types[name + "_t"] = static
    order = sorted(names, key=len, reverse=True)
    operands = op.split("{scale")[0]
    attributes = "{scale" + op.split("{scale", 1)[1].replace(schedules_of(op), SCHEDULE)
    ins = [n for n in ("q1", "k1", "q2", "k2", "v") if n in names]
    text = f"diffattn.attention ins({', '.join(f'%{n}_t' for n in ins)} : {', '.join(types[n + '_t'] for n in ins)})"
    if "lam" in names:
        text += f" lambda(%lam_t : {types['lam_t']})"
    for name in ("bias", "norm_weight", "gate", "kv_len", "q_offset", "q_segments", "kv_segments"):
        if name in order and name + "(" in operands:
            text += f" {name}(%{name}_t : {types[name + '_t']})"
    text += f" outs(%out_t : {types['out_t']}) {attributes} -> {types['out_t']}"
    lines += [f"  %result = {text}",
              f"  bufferization.materialize_in_destination %result in restrict writable %out : ({types['out_t']}, {types['out']}) -> ()",
              "  return", "}"]
    return head + "\n".join(lines), names


def schedules_of(op):
    start = op.index("schedules = [")
    return op[start: op.index(">]", start) + 2]


def memref_text(number, sig):
    text, names = function_text(number, dict(sig, small=True), "generic")
    return text.replace(schedules_of(text), SCHEDULE), names


@pytest.fixture(scope="module")
def signatures(full):
    rng = np.random.default_rng(11)
    drawn = [draw_signature(rng, i) for i in range(COUNT)]
    for number, sig in enumerate(drawn):
        # The online form has static widths.
        sig["sizes"] = sig["sizes"] or [(1, 1), (3, 5), (16, 17), (8, 2)][number % 4]
    return drawn if full else drawn[::2]


@pytest.fixture(scope="module", params=["memref", "online"])
def library(request, signatures, build_dir, tmp_path_factory):
    form, folder = request.param, tmp_path_factory.mktemp(request.param)
    write = memref_text if form == "memref" else online_text
    texts = [write(i, s) for i, s in enumerate(signatures)]
    mlir = subprocess.run([str(build_dir / "bin/diffattn-opt"), "-", f"--pass-pipeline=builtin.module({PASSES[form]},{LOWER})"],
                          input="\n".join(t for t, _ in texts), capture_output=True, text=True)
    assert mlir.returncode == 0, mlir.stderr[:4000]
    llvm = subprocess.run([str(LLVM / "mlir-translate"), "--mlir-to-llvmir"], input=mlir.stdout, capture_output=True, text=True, check=True)
    shared, upstream = folder / "loops.so", LLVM.parent / "lib"
    # Linked, not loaded for everyone to see: torch-mlir's own LLVM would take this one's symbols, and abort.
    subprocess.run([str(LLVM / "clang"), "-x", "ir", "-", "-O1", "-Wno-override-module", "-fPIC", "-shared", "-o", str(shared), f"-L{upstream}",
                    f"-Wl,-rpath,{upstream}", "-lmlir_float16_utils", "-lmlir_c_runner_utils", "-lm"], input=llvm.stdout, text=True, check=True)
    return form, ctypes.CDLL(str(shared)), [names for _, names in texts]


def test_random_configurations(library, signatures, full):
    form, code, names = library
    for number, sig in enumerate(signatures):
        rng = np.random.default_rng(5000 + number)
        for _ in range(SHAPES * (10 if full else 1)):
            inputs = (Inputs if form == "memref" else FixedHeads)(rng, sig)
            call(code, number, names[number], {n: inputs.in_layout(n) for n in names[number]})
            check(inputs, form, number, BOUNDS)
