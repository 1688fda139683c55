"""The gradients of attention, on random configurations, judged by the f64 oracle: decomposed and interpreted in f64, compiled by the CPU's
pipeline, and on memrefs as linalg loops that stock passes lower. And what hidden keys, rows without keys and bad numbers of d_out do.
"""
import ctypes
import subprocess

import numpy as np
import pytest

from diffattn import runtime
from interpreter import Interpreter
from kernel_library import TYPES, call, memref, signature
from paths import LLVM
from test_attention_decomposed import LOWER
from test_attention_random import SIGNATURES as OF_TWO_MAPS
from test_attention_random import Inputs, draw_signature

SIGNATURES = 50  # of two maps, two thirds of them with dynamic sizes and 6 shapes: 220 configurations for each of the three ways, half of them without --full
OF_ONE_MAP = 16  # behind them
HEADED = {"q1": "q", "k1": "k", "q2": "q", "k2": "k", "v": "v", "d_out": "o", "gate": "o", "out": "o", "x": "o"}
OPERANDS = ["q1", "k1", "q2", "k2", "v", "d_out", "lambda", "bias", "norm_weight", "gate", "kv_len", "q_offset", "q_segments", "kv_segments"]
GRADIENTS = ["q1", "k1", "q2", "k2", "v", "lambda", "bias", "norm_weight", "gate"]


def of(name):
    """The operand that the destination `name` is of, or the name of the operand itself."""
    return name[2:] if name != "d_out" and name.startswith("d_") else name


class Signature:
    """A function's compile-time choices, and its text. Every other one with a norm or a gate `saves` the rows before these: it
    computes attention too, whose x the gradients take."""

    QUERIES, KEYS = [1, 2, 3, 7, 9, 16, 17], [1, 2, 5, 16, 17, 31]

    def __init__(self, rng, number, sig=None, maps=2):
        pick = lambda *options: options[rng.integers(len(options))]
        self.number, self.sig = number, {**(sig or self.options(rng, number, maps)), "sizes": pick(None, (3, 5), (8, 16)), "layout": "bhtd"}
        self.isStatic, self.shared = number % 3 == 2, pick(False, False, True) and maps == 2
        self.layouts = {x: pick("bhtd", "bthd") for x in "qkvo"}
        self.types = {name: self.sig["type"] for name in HEADED}
        self.types.update({"lambda": "f32", "bias": self.sig["bias"], "norm_weight": pick("f32", self.sig["type"]), "kv_len": "i64", "q_offset": "i64",
                           "q_segments": self.sig["segments"], "kv_segments": self.sig["segments"], "d_out": pick(self.sig["type"], "f32")})
        has = {"bias": self.sig["bias"], "norm_weight": self.sig["weight"], "gate": self.sig["gate"], "kv_len": self.sig["kv_len"],
               "q_offset": self.sig["q_offset"], "q_segments": self.sig["segments"], "kv_segments": self.sig["segments"],
               **dict.fromkeys(("q2", "k2", "lambda"), maps == 2)}
        self.operands = [name for name in OPERANDS if has.get(name, True) and not (name == "k2" and self.shared)]
        possible = [name for name in GRADIENTS if name in self.operands and self.types[name] != "i1"]
        some = rng.random(len(possible)) < (1.0 if sig or number < 4 else 0.6)
        some[rng.integers(len(some))] = True
        self.wanted = ["d_" + name for name, wanted in zip(possible, some) if wanted]
        for name in self.wanted:
            self.types[name] = pick(self.types[of(name)], "f32")
        self.saves = bool(number % 2 and (self.sig["norm"] or self.sig["gate"]))
        if self.saves:
            self.wanted = ["out", "x", *self.wanted]
            self.types["x"] = "f32"
        self.shape = (pick(*self.QUERIES), pick(*self.KEYS))

    def options(self, rng, number, maps):
        """Choices of a signature that are drawn."""
        return draw_signature(rng, min(number, OF_TWO_MAPS - 1) if maps == 2 else OF_TWO_MAPS)

    def draw(self, seed):
        """Operands and destinations of one call, in their layouts; those of a static signature always of the same shapes."""
        rng = np.random.default_rng(self.number if self.isStatic else [self.number, seed])
        queries, keys = self.shape if self.isStatic else (int(rng.choice(self.QUERIES)), int(rng.choice(self.KEYS)))
        made = Inputs(rng, self.sig, dict(tq=queries, tk=keys))
        arrays = made.arrays
        if "lam" in arrays:
            arrays["lambda"] = arrays.pop("lam")
        arrays["d_out"] = made.make(arrays["out"].shape, dtype=TYPES[self.types["d_out"]])
        arrays["x"] = arrays["out"]
        if self.shared:
            arrays["k1"] = arrays["k2"]
        if "norm_weight" in arrays:
            arrays["norm_weight"] = arrays["norm_weight"].astype(TYPES[self.types["norm_weight"]])
        for name in self.wanted:
            arrays[name] = np.full(arrays[of(name)].shape, np.nan, TYPES[self.types[name]])
        return {name: arrays[name].swapaxes(1, 2) if self.layouts.get(HEADED.get(of(name))) == "bthd" else arrays[name]
                for name in self.operands + self.wanted}

    def text(self, form, arrays):
        """The function s<number> on tensors or memrefs, with the destinations as its last arguments."""
        types = {}
        for name in self.operands + self.wanted:
            array = arrays[name]
            sizes = list(array.shape) if self.isStatic else ["?"] * array.ndim
            if self.sig["sizes"] and of(name) in HEADED:
                sizes[3] = array.shape[3]
            dims = "".join(f"{size}x" for size in sizes)
            types[name] = f"tensor<{dims}{self.types[name]}>" if form == "tensor" else memref(self.types[name], array.ndim, sizes, False) \
                if array.ndim else f"memref<{self.types[name]}>"
        sig, given = self.sig, lambda name: f"{name}(%{name} : {types[name]})"
        maps = ["q1", "k1", *(["q2", "k1" if self.shared else "k2"] if "q2" in self.operands else []), "v"]
        attributes = [f"scale = {sig['scale']:e} : f32", f"out_scale = {sig['out_scale']:e} : f32"] + ["is_causal"] * sig["causal"]
        attributes += ["window = array<i64: %d, %d>" % sig["window"]] if sig["window"] else []
        attributes += [f"softcap = {sig['softcap']:e} : f32"] if sig["softcap"] else []
        attributes += ["lambda_act = #diffattn.activation<sigmoid>"] * sig["sigmoid"]
        if sig["norm"]:
            attributes.append(f"norm = #diffattn.norm<rms>, norm_eps = {sig['eps']:e} : f32, norm_eps_mode = #diffattn.eps_mode<{sig['eps_mode']}>")
        attributes += [f"{x}_layout = #diffattn.layout<{layout}>" for x, layout in self.layouts.items()]
        def op(kind, clauses, outs, results):
            text = (f"diffattn.{kind} ins({', '.join('%' + name for name in maps)} : {', '.join(types[name] for name in maps)}) "
                    + " ".join(given(name) for name in OPERANDS[5:] if name in self.operands and name in clauses) + f" {outs} {{{', '.join(attributes)}}}")
            if form == "memref":
                return f"  {text}\n"
            return f"  {', '.join(f'%r_{name}' for name in results)} = {text} -> {', '.join(types[name] for name in results)}\n"

        gradients, body, saved = [name for name in self.wanted if name.startswith("d_")], "", ""
        if self.saves:
            body = op("attention", OPERANDS[6:], f"outs(%out : {types['out']}) {given('x')}", ["out", "x"])
            saved = f"x({'%r_x' if form == 'tensor' else '%x'} : {types['x']}) "
        body += op("attention_backward", OPERANDS, f"{saved}outs({' '.join(map(given, gradients))})", gradients)
        head = f"func.func @s{self.number}({', '.join(f'%{name}: {types[name]}' for name in self.operands + self.wanted)})"
        if form == "tensor":
            results = ", ".join(types[name] for name in self.wanted)
            return f"{head} -> ({results}) {{\n{body}  return {', '.join(f'%r_{name}' for name in self.wanted)} : {results}\n}}\n"
        return f"{head} attributes {{llvm.emit_c_interface}} {{\n{body}  return\n}}\n"


@pytest.fixture(scope="module")
def signatures(full):
    rng = np.random.default_rng(23)
    drawn = [Signature(rng, number, maps=2 if number < SIGNATURES else 1) for number in range(SIGNATURES + OF_ONE_MAP)]
    return drawn if full else drawn[::3]


def cases(signatures, full):
    """Each signature with the arrays of its calls."""
    for one in signatures:
        yield one, [one.draw(seed) for seed in range(1 if one.isStatic else 60 if full else 6)]


@pytest.fixture(scope="module")
def module(signatures):
    return "".join(one.text("tensor", one.draw(0)) for one in signatures)


def decompose(build_dir, text, *passes):
    done = subprocess.run([str(build_dir / "bin/diffattn-opt"), "-", f"--pass-pipeline=builtin.module({','.join(('diffattn-decompose', *passes))})"],
                          input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    assert "diffattn.attention" not in done.stdout
    return done.stdout


def test_the_decomposition_interpreted_in_f64_is_the_op(signatures, module, build_dir, full):
    calls, names = [], []
    for one, drawn in cases(signatures, full):
        for arrays in drawn:
            calls.append((f"s{one.number}", "exact", list(arrays.values())))
            names.append(one.wanted)
    expected, got = Interpreter(build_dir, module).calls(calls), Interpreter(build_dir, decompose(build_dir, module)).calls(calls)
    for (function, _, _), wanted, of_op, of_loops in zip(calls, names, expected, got):
        assert of_op.kind == of_loops.kind == "ok", (function, of_op, of_loops)
        for name, a, b in zip(wanted, of_op.results, of_loops.results, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9 * np.abs(a).max(initial=1e-3), err_msg=f"{function} {name}")


def judge(executable, one, arrays, results):
    judgement = executable.judge(one.text("tensor", arrays), f"s{one.number}", list(arrays.values()), results)
    assert judgement, (f"s{one.number}", one.wanted, judgement.lines, one.sig, {name: array.shape for name, array in arrays.items()})


@pytest.fixture(scope="module")
def executable(module):
    return runtime.Executable(module, cache=False)


def test_the_pipeline_for_cpus(signatures, executable, full):
    for one, drawn in cases(signatures, full):
        for arrays in drawn:
            judge(executable, one, arrays, executable.call(f"s{one.number}", *arrays.values()))


def test_loops_on_memrefs(signatures, executable, build_dir, tmp_path, full):
    text = decompose(build_dir, "".join(one.text("memref", one.draw(0)) for one in signatures), LOWER)
    llvm = subprocess.run([str(LLVM / "mlir-translate"), "--mlir-to-llvmir"], input=text, capture_output=True, text=True, check=True)
    shared, upstream = tmp_path / "loops.so", LLVM.parent / "lib"
    subprocess.run([str(LLVM / "clang"), "-x", "ir", "-", "-O0", "-Wno-override-module", "-fPIC", "-shared", "-o", str(shared), f"-L{upstream}",
                    f"-Wl,-rpath,{upstream}", "-lmlir_float16_utils", "-lmlir_c_runner_utils", "-lm"], input=llvm.stdout, text=True, check=True)
    code = ctypes.CDLL(str(shared))
    for one, drawn in cases(signatures, full):
        for arrays in drawn:
            call(code, one.number, list(arrays), arrays)
            results = [arrays[name] for name in one.wanted]
            judge(executable, one, {**arrays, **{name: np.zeros_like(arrays[name]) for name in one.wanted}}, results)


def gradients(one, executable, arrays):
    """The gradients by their names, in the axes [B, H, T, w], in f32."""
    results = executable.call(f"s{one.number}", *arrays.values())
    return {name: (result.swapaxes(1, 2) if one.layouts.get(HEADED.get(of(name))) == "bthd" else result).astype(np.float32)
            for name, result in zip(one.wanted, results, strict=True) if name.startswith("d_")}


def headed(one, arrays, name):
    """A view of an operand in the axes [B, H, T, w]."""
    return arrays[name].swapaxes(1, 2) if one.layouts[HEADED[name]] == "bthd" else arrays[name]


@pytest.fixture(scope="module", params=[("f32", "f32"), ("bf16", "f32"), ("f32", "i1"), ("f32", None), ("bf16", None)], ids=str)
def lengths(request):
    """Two batches of some queries and keys with lengths of keys, a norm whose epsilon is 0 and a gate; compiled. With a bias of numbers it is
    decomposed, for its gradient; else it is a kernel."""
    element, bias = request.param
    one = Signature(np.random.default_rng(3), 1, signature(type=element, kv_len=True, bias=bias, softcap=None if bias == "i1" else 2.0, lam="signal", norm="rms",
                                                           weight=True, eps=0.0, eps_mode="outside", gate=True))
    for seed in range(100):
        arrays = one.draw(seed)
        if arrays["kv_len"].shape == (2,) and headed(one, arrays, "q1").shape[2] > 2 and headed(one, arrays, "k1").shape[2] > 8:
            break
    arrays = {name: array.copy() for name, array in arrays.items()}
    if bias == "f32":
        arrays["bias"] = np.where(np.isfinite(arrays["bias"]), arrays["bias"], 0).astype(np.float32)
    elif bias:
        arrays["bias"] = np.ones_like(arrays["bias"])
    return one, runtime.Executable(one.text("tensor", arrays), cache=False), arrays


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_hidden_keys_may_hold_anything(lengths, bad):
    one, executable, arrays = lengths
    arrays["kv_len"][:] = [7, 3]
    clean = gradients(one, executable, arrays)
    dirty = {name: array.copy() for name, array in arrays.items()}
    for batch, length in enumerate(arrays["kv_len"]):
        for name in ("k1", "k2", "v"):
            headed(one, dirty, name)[batch, :, length:] = bad
    got = gradients(one, executable, dirty)
    for name in clean:
        assert np.isfinite(clean[name]).all() and clean[name].any(), name
        np.testing.assert_array_equal(got[name], clean[name], name)
    for batch, length in enumerate(arrays["kv_len"]):
        for name in ("d_k1", "d_k2", "d_v"):
            assert not got[name][batch, :, length:].any(), name


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_without_keys_give_nothing(lengths, bad):
    """Whatever stands in them: d_out, the gate, lambda and the queries of a batch without keys."""
    one, executable, arrays = lengths
    arrays["kv_len"][:] = [7, 0]
    clean = gradients(one, executable, arrays)
    dirty = {name: array.copy() for name, array in arrays.items()}
    for name in ("d_out", "gate", "q1", "q2", "k1", "k2", "v"):
        headed(one, dirty, name)[1] = bad
    dirty["lambda"][1] = bad
    got = gradients(one, executable, dirty)
    for name in clean:
        np.testing.assert_array_equal(got[name], clean[name], name)
        assert np.isfinite(got[name]).all(), name
        if name not in ("d_bias", "d_norm_weight"):
            assert not got[name][1].any() and got[name][0].any(), name


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_of_d_out_reaches_the_gradients(lengths, bad):
    one, executable, arrays = lengths
    arrays["kv_len"][:] = [7, 3]
    dirty = {name: array.copy() for name, array in arrays.items()}
    headed(one, dirty, "d_out")[0, -1, 1, 0] = bad
    clean, got = gradients(one, executable, arrays), gradients(one, executable, dirty)
    for name in clean:
        assert not np.isfinite(got[name]).all(), name
        if name not in ("d_bias", "d_norm_weight"):
            np.testing.assert_array_equal(got[name][1], clean[name][1], name)
    # No other query's gradient has it.
    np.testing.assert_array_equal(np.delete(got["d_q1"], 1, 2), np.delete(clean["d_q1"], 1, 2))
    assert not np.isfinite(got["d_q1"][0, -1, 1]).any()


class Packed:
    """Sequences that follow one another, of which one is empty and one has no keys, with a norm, a gate and what comes before these."""

    QUERIES, KEYS = [0, 2, 2, 5, 14], [0, 4, 6, 6, 17]

    def __init__(self, element, lam):
        rng, self.element, dtype = np.random.default_rng(8), element, TYPES[element]
        make = lambda *shape: rng.standard_normal(shape).astype(dtype)
        lam = {"number": (), "head": (4,), "token": (1, 14, 2)}[lam]
        self.operands = {"q1": make(1, 4, 14, 8), "k1": make(1, 2, 17, 8), "q2": make(1, 2, 14, 8), "k2": make(1, 1, 17, 8), "v": make(1, 2, 17, 16),
                         "d_out": make(1, 4, 14, 16), "lambda": np.float32(rng.standard_normal(lam)).reshape(lam), "norm_weight": make(16),
                         "gate": make(1, 4, 14, 16), "q_offset": np.array([2, 0, 0, 1]), "cu_seqlens_q": np.array(self.QUERIES, np.int32),
                         "cu_seqlens_k": np.array(self.KEYS)}
        self.results = {name: np.full((1, 4, 14, 16), np.nan, dtype if name == "out" else np.float32) for name in ("out", "x")}
        self.results |= {f"d_{name}": np.full(self.operands[name].shape, np.nan, self.operands[name].dtype) for name in GRADIENTS if name in self.operands}

    def cut(self, sequence):
        """The arrays of one sequence."""
        queries, keys = (slice(*bounds[sequence:sequence + 2]) for bounds in (self.QUERIES, self.KEYS))
        parts = {name: array for name, array in (self.operands | self.results).items() if not name.startswith("cu_")}
        parts["q_offset"] = parts["q_offset"][sequence:sequence + 1]
        for name, array in parts.items():
            if array.ndim == 4:
                parts[name] = array[:, :, keys if of(name) in ("k1", "k2", "v") else queries]
            elif array.ndim == 3:
                parts[name] = array[:, queries]
        return parts

    def text(self, arrays):
        rows = {"q1", "k1", "q2", "k2", "v", "gate", "d_out", "out", "x"}
        types = {name: "tensor<" + "".join(f"{'?' if axis == 2 and of(name) in rows else size}x" for axis, size in enumerate(array.shape))
                 for name, array in arrays.items()}
        for name, array in arrays.items():
            sizes = "?x" if name in ("q_offset", "cu_seqlens_q", "cu_seqlens_k") else "1x?x2x" if array.ndim == 3 else types[name][7:]
            types[name] = f"tensor<{sizes}{ {2: self.element, 4: 'f32', 8: 'i64'}[array.itemsize] if array.dtype != np.int32 else 'i32'}>"
        given = lambda *names: " ".join(f"{name}(%{name} : {types[name]})" for name in names if name in types)
        maps = ["q1", "k1", "q2", "k2", "v"]
        ins = f"ins({', '.join('%' + name for name in maps)} : {', '.join(types[name] for name in maps)})"
        rest = given("lambda", "norm_weight", "gate", "q_offset", "cu_seqlens_q", "cu_seqlens_k")
        attributes = "{scale = 0.4 : f32, is_causal, norm = #diffattn.norm<rms>, out_scale = 0.75 : f32}"
        gradients = [name for name in self.results if name.startswith("d_")]
        returned = ", ".join(types[name] for name in self.results)
        return (f"func.func @f({', '.join(f'%{name}: {kind}' for name, kind in types.items())}) -> ({returned}) {{\n"
                f"  %r_out, %r_x = diffattn.attention {ins} {rest} outs(%out : {types['out']}) {given('x')} {attributes} -> {types['out']}, {types['x']}\n"
                f"  {', '.join('%r_' + name for name in gradients)} = diffattn.attention_backward {ins} {given('d_out')} {rest} x(%r_x : {types['x']})\n"
                f"    outs({given(*gradients)}) {attributes} -> {', '.join(types[name] for name in gradients)}\n"
                f"  return {', '.join('%r_' + name for name in self.results)} : {returned}\n}}\n")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("lam", ["number", "head", "token"])
@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_packed_sequences(element, lam, build_dir):
    """Against the oracle, decomposed and compiled; and each sequence has the bits of itself alone."""
    packed = Packed(element, lam)
    arrays = packed.operands | packed.results
    text = packed.text(arrays)
    got = runtime.Executable(text, cache=False).call("f", *arrays.values())
    judgement = runtime.Executable(text, cache=False).judge(text, "f", list(arrays.values()), got)
    assert judgement, judgement.lines
    one_call = [("f", "exact", list(arrays.values()))]
    expected, loops = (Interpreter(build_dir, module).calls(one_call)[0] for module in (text, decompose(build_dir, text)))
    assert expected.kind == loops.kind == "ok", (expected, loops)
    for name, a, b in zip(packed.results, expected.results, loops.results, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9 * np.abs(a).max(), err_msg=name)

    results = dict(zip(packed.results, got))
    for name, array in results.items():
        packed.results[name] = array
    sums, alone = {}, runtime.Executable(packed.text(packed.cut(3)), cache=False)
    for sequence in range(4):
        parts = packed.cut(sequence)
        for (name, result), of_one in zip(((name, parts[name]) for name in packed.results), alone.call("f", *parts.values())):
            if result.ndim < 3:
                sums[name] = sums.get(name, 0) + of_one.astype(np.float64)
            else:
                np.testing.assert_array_equal(result.astype(np.float32), of_one.astype(np.float32), f"{name} of sequence {sequence}")
    for name, array in sums.items():
        # Each sequence's part of a gradient in bf16 is rounded here, and only their sum above.
        np.testing.assert_allclose(results[name].astype(np.float64), array, rtol=0, atol=np.abs(array).max() * (1e-2 if element == "bf16" else 1e-6))
