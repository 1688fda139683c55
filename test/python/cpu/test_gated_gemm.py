"""A gate fused into two products by tiles has the bits of the products and an element-wise op, and is near f64 everywhere."""
import itertools
import subprocess

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from interpreter import Interpreter
from kernel_library import runnable_isas

from diffattn import bundle, runtime

BF16 = ml_dtypes.bfloat16
TILES = [isa for isa in runnable_isas() if isa.startswith("amx")]
#: The types of the sums and of the result, and what is computed from them: in f32 alone, in bf16 alone, and as PyTorch does.
BODIES = {
    "unrounded": ("f32", "f32", """%0 = NEGATED %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %1, %one : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %r = arith.mulf %4, %b : f32"""),
    "f32": ("f32", "bf16", """%0 = NEGATED %a : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %1, %one : f32
    %3 = arith.divf %one, %2 : f32
    %4 = arith.mulf %a, %3 : f32
    %5 = arith.mulf %4, %b : f32
    %r = arith.truncf %5 : f32 to bf16"""),
    "bf16": ("bf16", "bf16", """%0 = NEGATED %a : bf16
    %1 = math.exp %0 : bf16
    %2 = arith.addf %1, %one : bf16
    %3 = arith.divf %one, %2 : bf16
    %4 = arith.mulf %a, %3 : bf16
    %r = arith.mulf %4, %b : bf16"""),
    "torch": ("bf16", "bf16", """%w = arith.extf %a : bf16 to f32
    %0 = NEGATED %w : f32
    %1 = math.exp %0 : f32
    %2 = arith.addf %1, %wide : f32
    %3 = arith.divf %wide, %2 : f32
    %4 = arith.mulf %w, %3 : f32
    %5 = arith.truncf %4 : f32 to bf16
    %r = arith.mulf %5, %b : bf16"""),
}


def function(kind, columns, depth, fused=True, transposed=True):
    """Two products and the op behind them. Not `fused`: -g is a product with -1, the same bits by another name."""
    sums, result, body = BODIES[kind]
    if not fused:
        body = body.replace("NEGATED", f"arith.mulf %minus_{'bf16' if kind == 'bf16' else 'f32'},")
    form, shape = ("{transpose_b} ", f"{columns}x{depth}") if transposed else ("", f"{depth}x{columns}")
    w, x, s, y = f"tensor<{shape}xbf16>", f"tensor<?x{depth}xbf16>", f"tensor<?x{columns}x{sums}>", f"tensor<?x{columns}x{result}>"
    return f"""#id = affine_map<(i, j) -> (i, j)>
ml_program.global private @gate(#ml_program.extern<{w}>) : {w}
ml_program.global private @up(#ml_program.extern<{w}>) : {w}
func.func @f(%x: {x} {{bufferization.writable = false}}) -> {y} {{
  %one = arith.constant 1.0 : {sums}
  %wide = arith.constant 1.0 : f32
  %minus_f32 = arith.constant -1.0 : f32
  %minus_bf16 = arith.constant -1.0 : bf16
  %first = arith.constant 0 : index
  %rows = tensor.dim %x, %first : {x}
  %wg = ml_program.global_load_const @gate : {w}
  %wu = ml_program.global_load_const @up : {w}
  %e = tensor.empty(%rows) : {s}
  %o = tensor.empty(%rows) : {y}
  %g = diffattn.gemm ins(%x, %wg : {x}, {w}) outs(%e : {s}) {form}-> {s}
  %u = diffattn.gemm ins(%x, %wu : {x}, {w}) outs(%e : {s}) {form}-> {s}
  %y = linalg.generic {{indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}} ins(%g, %u : {s}, {s}) outs(%o : {y}) {{
  ^bb0(%a: {sums}, %b: {sums}, %c: {result}):
    {body.replace("NEGATED", "arith.negf")}
    linalg.yield %r : {result}
  }} -> {y}
  return %y : {y}
}}
"""


def scheduled(text, isa, build_dir):
    done = subprocess.run([str(build_dir / "bin/diffattn-opt"), "-", f"--diffattn-cpu-pipeline=isa={isa} until=scheduled"], input=text,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled(text, isa, folder, gate, up, **options):
    safetensors.numpy.save_file({"gate": gate.astype(np.float32), "up": up.astype(np.float32)}, folder / "w")
    return runtime.Executable(text, target=f"cpu:{isa}", weights=[folder / "w"], **options)


def same(x, y):
    """Equal bits; of a NaN its being one counts alone."""
    x, y = np.asarray(x), np.asarray(y)
    bits = f"u{x.itemsize}"
    return ((x.view(bits) == y.view(bits)) | (np.isnan(x.astype(np.float32)) & np.isnan(y.astype(np.float32)))).all()


def numbers_in_parts(rng):
    """Rows of six bf16: the first three add up to a number of f32, the others to another."""
    g = np.concatenate([rng.uniform(-16, 16, 30000), rng.uniform(-110, 110, 30000), rng.normal(0, 1, 30000) * 2.0 ** rng.integers(-60, 60, 30000),
                        [0.0, -0.0, 88.72, 88.73, 89.0, 89.1, -88.72, -88.73, -89.0, -103.9, -104.0, -104.1, 1e30, -1e30]]).astype(np.float32)
    # Where the power of two in the exponential changes.
    edges = ((np.arange(-120, 120) + 0.5) * np.log(2)).astype(np.float32)
    g = np.concatenate([g, (edges.view(np.int32)[:, None] + np.arange(-40, 41, dtype=np.int32)).view(np.float32).ravel()])
    u = (rng.normal(0, 1, len(g)) * 2.0 ** rng.integers(-30, 30, len(g))).astype(np.float32)
    rows = np.zeros((len(g), 6), np.float32)
    for half, rest in enumerate((g, u)):
        for part in range(3):
            rows[:, 3 * half + part] = (rest.view(np.uint32) & 0xffff0000).view(np.float32)
            rest = rest - rows[:, 3 * half + part]
    return rows.astype(BF16)


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("isa", TILES)
def test_fused_has_the_bits_of_apart(isa, kind, build_dir, tmp_path):
    """All numbers of bf16 and many of f32 as gates: what the runtime computes is what would have been emitted."""
    every = np.arange(1 << 16, dtype=np.uint16).view(BF16)[:, None]
    # Sums that are infinite where others are not, of both signs; sums that are 0.
    factors = np.array([1, -1, 2.0**100, -(2.0**100), 2.0**-40, 3, 0], np.float32)
    wide = [(np.repeat([[1, 1, 1, 0, 0, 0]], 2, 0), np.array([[0, 0, 0, 1, 1, 1], [0, 0, 0, -1, -1, -1]]), numbers_in_parts(np.random.default_rng(4)))]
    narrow = [(np.tile(factors, 2)[:, None], np.repeat([-(2.0**-60), 1.5], len(factors))[:, None], every)]
    for gate, up, rows in wide + narrow:
        # Rows of many parts meet weights as they lie, the others transposed ones.
        transposed = rows.shape[1] == 1
        texts = [function(kind, *gate.shape, fused, transposed) for fused in (True, False)]
        assert ["gated_gemm" in scheduled(text, isa, build_dir) for text in texts] == [True, False]
        weights = (gate, up) if transposed else (np.ascontiguousarray(gate.T), np.ascontiguousarray(up.T))
        results = [compiled(text, isa, tmp_path, *weights).call("f", rows)[0].copy() for text in texts]
        assert same(*results)
        # Not all of it is the same number, nor NaN.
        assert len(np.unique(results[0].view(f"u{results[0].itemsize}"))) > 1000


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("isa", TILES)
def test_a_row_is_the_same_in_any_batch(isa, kind, tmp_path):
    rng = np.random.default_rng(5)
    gate, up = rng.normal(0, 0.2, (2, 75, 1060))
    x = rng.normal(0, 1, (290, 1060)).astype(BF16)
    for threads in (1, 2):
        executable = compiled(function(kind, 75, 1060), isa, tmp_path, gate, up, threads=threads)
        whole = executable.call("f", x)[0].copy()
        first = whole if threads == 1 else first  # noqa: F821 - of the round before
        assert whole.tobytes() == first.tobytes()
        for begin, end in ((0, 1), (1, 3), (5, 12), (20, 53), (7, 264), (289, 290), (3, 3)):
            part, = executable.call("f", x[begin:end])
            assert part.tobytes() == whole[begin:end].tobytes()


@pytest.mark.parametrize("isa", TILES)
def test_a_bundle_has_it(isa, build_dir, tmp_path):
    """Code in a bundle finds the runtime's function in the table that it is given."""
    rng = np.random.default_rng(9)
    gate, up = rng.normal(0, 0.2, (2, 75, 160))
    x = rng.normal(0, 1, (19, 160)).astype(BF16)
    text = function("torch", 75, 160)
    want = compiled(text, isa, tmp_path, gate, up).call("f", x)[0].copy()
    (tmp_path / "model.mlir").write_text(text)
    (tmp_path / "w").rename(tmp_path / "model.safetensors")
    done = subprocess.run([str(build_dir / "bin/diffattn-run"), str(tmp_path / "model.mlir"), f"--target=cpu:{isa}", "--emit=bundle",
                           f"--weights={tmp_path / 'model.safetensors'}", "-o", str(tmp_path / "bundle")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    got, = bundle.load(tmp_path / "bundle").call("f", x)
    assert np.asarray(got).tobytes() == want.tobytes()


GATED = """func.func @f(%x: tensor<?x{k}x{t}>, %g: tensor<{w}x{t}>, %u: tensor<{w}x{t}>) -> tensor<?x{n}x{r}> {{
  %first = arith.constant 0 : index
  %rows = tensor.dim %x, %first : tensor<?x{k}x{t}>
  %o = tensor.empty(%rows) : tensor<?x{n}x{r}>
  %y = diffattn.gated_gemm ins(%x, %g, %u : tensor<?x{k}x{t}>, tensor<{w}x{t}>, tensor<{w}x{t}>) outs(%o : tensor<?x{n}x{r}>) {{
    rounded = #diffattn.gate_rounding<{rounded}>{transposed}}} -> tensor<?x{n}x{r}>
  return %y : tensor<?x{n}x{r}>
}}
"""
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": BF16}


def gated(t, r, rounded, transposed, n=21, k=40):
    w = f"{n}x{k}" if transposed else f"{k}x{n}"
    return GATED.format(t=t, r=r, rounded=rounded, n=n, k=k, w=w, transposed=", transpose_b" if transposed else "")


def drawn(rng, t, transposed, rows=7, n=21, k=40):
    x, gate, up = rng.normal(0, 1, (rows, k)), *rng.normal(0, 0.4, (2, n, k))
    x, gate, up = (array.astype(TYPES[t]) for array in (x, gate, up))
    g, u = (x.astype(np.float64) @ weight.astype(np.float64).T for weight in (gate, up))
    weights = (gate, up) if transposed else tuple(np.ascontiguousarray(weight.T) for weight in (gate, up))
    return (x, *weights), g / (1 + np.exp(-g)) * u


@pytest.mark.sampled(2)
@pytest.mark.parametrize("t, r, rounded", [("f32", "f32", "sums|silu"), ("f16", "f32", "none"), ("bf16", "bf16", "none"), ("bf16", "f32", "sums"),
                                           ("bf16", "bf16", "sums|exponential|denominator|sigmoid|silu"), ("f16", "f16", "exponential|sigmoid")])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("isa", runnable_isas())
def test_the_op_as_it_is_written(isa, transposed, t, r, rounded, tmp_path):
    """In a program of a user's own, on every instruction set: with arguments for weights, nothing is fused."""
    arguments, want = drawn(np.random.default_rng(6), t, transposed)
    executable = runtime.Executable(gated(t, r, rounded, transposed), target=f"cpu:{isa}")
    got, = executable.call("f", *arguments)
    steps = 8 if rounded != "none" and t != "f32" else 1
    unit = 2.0 ** -{"f32": 20, "f16": 11, "bf16": 8}[t if steps > 1 else r]
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=steps * unit, atol=steps * unit * np.abs(want).max())


def test_the_interpreter(build_dir):
    """In f64 with nothing rounded; and in the types written, where each step that is said to be rounded is."""
    rng = np.random.default_rng(7)
    for transposed in (False, True):
        arguments, want = drawn(rng, "f32", transposed)
        exact, = Interpreter(build_dir, gated("f32", "f32", "sums|silu", transposed)).call("f", *arguments, precision="exact")
        np.testing.assert_allclose(exact, want, rtol=1e-12)
    x = np.append(rng.normal(0, 2, 40), [300.0, -8.0])[:, None].astype(np.float16)
    weight = np.array([[1.2373]], np.float16)

    def steps(rounded):
        sums = x.astype(np.float32) * weight.astype(np.float32)
        narrow = lambda name, value: value.astype(np.float16).astype(np.float32) if name in rounded else value
        g = narrow("sums", sums)
        e = narrow("exponential", np.exp(-g.astype(np.float64)).astype(np.float32))
        sigmoid = narrow("sigmoid", 1 / narrow("denominator", e + 1))
        return narrow("silu", g * sigmoid) * g

    every, seen = ["sums", "exponential", "denominator", "sigmoid", "silu"], set()
    for count in range(6):
        for chosen in itertools.combinations(every, count):
            text = gated("f16", "f32", "|".join(chosen) or "none", True, n=1, k=1)
            got, = Interpreter(build_dir, text).call("f", x, weight, weight)
            np.testing.assert_allclose(got, steps(chosen), rtol=1e-6)
            seen.add(steps(chosen).tobytes())
    assert len(seen) == 32


def test_sizes_that_differ(build_dir):
    (x, gate, up), _ = drawn(np.random.default_rng(8), "f32", True)
    text = gated("f32", "f32", "none", True).replace("%g: tensor<21x40xf32>", "%g: tensor<?x40xf32>").replace("%g, %u : tensor<?x40xf32>, tensor<21x40xf32>",
                                                                                                         "%g, %u : tensor<?x40xf32>, tensor<?x40xf32>")
    answer, = Interpreter(build_dir, text).calls([("f", "as-written", [x, gate[:20], up])])
    assert answer.kind == "fault" and "'diffattn.gated_gemm': expected size" in answer.message
