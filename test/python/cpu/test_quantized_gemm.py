"""Products with quantized weights whose answer is exact, on every instruction set: all integers, scales that are powers of two."""
import itertools

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from kernel_library import runnable_isas

from diffattn import runtime

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
#: Bits of an integer, number of integers that share a scale, and length of a row.
SHAPES = [(8, 8, 24), (8, 16, 48), (8, 32, 96), (8, 128, 256), (8, 272, 544), (4, 8, 24), (4, 16, 80), (4, 32, 32), (4, 128, 384),
          (4, 544, 544)]
COLUMNS = 37
ROWS = [0, 1, 2, 3, 4, 5, 8, 33, 64, 65, 70]


def function(name, bits, group, depth, kind, out, accumulate):
    n = COLUMNS
    b, s, x, y = (f"tensor<{n}x{depth * bits // 8}xi8>", f"tensor<{n}x{depth // group}xf32>", f"tensor<?x{depth}x{kind}>", f"tensor<?x{n}x{out}>")
    return f'''
ml_program.global private @"{name}.w"(#ml_program.extern<{b}>) : {b}
ml_program.global private @"{name}.s"(#ml_program.extern<{s}>) : {s} {{diffattn.finite}}
func.func @{name}(%x: {x} {{bufferization.writable = false}}, %y: {y} {{bufferization.writable = false}}) -> {y} {{
  %w = ml_program.global_load_const @"{name}.w" : {b}
  %s = ml_program.global_load_const @"{name}.s" : {s}
  %0 = diffattn.quantized_gemm ins(%x, %w, %s : {x}, {b}, {s}) outs(%y : {y}) {{bits = {bits} : i64{", accumulate" * accumulate}}} -> {y}
  return %0 : {y}
}}'''


def weight(bits, group, depth, rng):
    """Bytes, scales, and the numbers that they stand for; every integer is there, in every place of a byte."""
    least = -(2 ** (bits - 1)) + (bits == 8)
    every = np.arange(least, 2 ** (bits - 1))
    numbers = np.resize(np.concatenate([every, rng.permutation(every), every[::-1]]), COLUMNS * depth).reshape(COLUMNS, depth)
    scales = 2.0 ** rng.integers(-3, 3, (COLUMNS, depth // group))
    stored = numbers if bits == 8 else (numbers[:, ::2] % 16 + numbers[:, 1::2] % 16 * 16)
    return stored.astype(np.uint8).view(np.int8), scales.astype(np.float32), numbers * np.repeat(scales, group, 1)


@pytest.fixture(scope="module", params=[isa for isa in runnable_isas() if isa != "amx"])
def isa(request):
    return request.param


@pytest.mark.sampled(2)
@pytest.mark.parametrize("invariant", [True, False])
def test_answers_are_exact(isa, invariant, tmp_path):
    rng, text, files, expected = np.random.default_rng(1), [], {}, {}
    for number, (bits, group, depth) in enumerate(SHAPES):
        # Each type with each number of bits, in turns.
        kind, accumulate = list(TYPES)[number % 3], number % 2 == 1
        name = f"f{number}"
        text.append(function(name, bits, group, depth, kind, "f32" if number < 7 else kind, accumulate))
        files[f"{name}.w"], files[f"{name}.s"], wide = weight(bits, group, depth, rng)
        expected[name] = (wide, kind, "f32" if number < 7 else kind, accumulate)
    safetensors.numpy.save_file(files, tmp_path / "w")
    executable = runtime.Executable("\n".join(text), target=f"cpu:{isa}", weights=[tmp_path / "w"], threads=2, batch_invariant=invariant)
    for (name, (wide, kind, out, accumulate)), rows in itertools.product(expected.items(), ROWS):
        # One or two numbers in a row are not 0: sums fit every type.
        x = np.zeros((rows, wide.shape[1]))
        for row in x:
            row[rng.integers(0, len(row), 2)] = rng.choice([-2, -1, 1, 2], 2) if out == "f32" else (1, 0)
        before = rng.integers(-8, 8, (rows, COLUMNS))
        answer = x @ wide.T + (before if accumulate and out == "f32" else 0)
        if out != "f32":
            before[:] = 0
        got, = executable.call(name, x.astype(TYPES[kind]), before.astype(TYPES[out]))
        np.testing.assert_array_equal(np.asarray(got, np.float64), answer, err_msg=f"{name} {rows} rows")


def test_dense_rows_in_one_order(isa, tmp_path):
    """Rows without zeros: near f64, and with batch_invariant bitwise the same for every number of rows and of threads; by tiles, which
    take more than 64 of them, they are so without it too."""
    rng, bits, group, depth = np.random.default_rng(2), 4, 32, 512
    files = dict(zip(("f.w", "f.s"), weight(bits, group, depth, rng)))
    wide = weight(bits, group, depth, np.random.default_rng(2))[2]
    safetensors.numpy.save_file(files, tmp_path / "w")
    x = rng.standard_normal((70, depth)).astype(np.float32)
    zeros = np.zeros((70, COLUMNS), np.float32)
    answer, bound = x @ wide.T, np.abs(x).astype(np.float64) @ np.abs(wide).T
    for invariant, threads in itertools.product((True, False), (1, 2)):
        executable = runtime.Executable(function("f", bits, group, depth, "f32", "f32", False), target=f"cpu:{isa}", weights=[tmp_path / "w"],
                                        threads=threads, batch_invariant=invariant)
        whole, = executable.call("f", x, zeros)
        assert (np.abs(whole - answer) <= 1e-6 * bound).all()
        if invariant:
            first = whole.copy() if threads == 1 else first  # noqa: F821 - of the round before
            assert whole.tobytes() == first.tobytes()
        if not invariant and isa == "amx-emulated":
            tiled = whole.copy() if threads == 1 else tiled  # noqa: F821 - of the round before
            assert whole.tobytes() == tiled.tobytes() != first.tobytes()
            part, = executable.call("f", x[3:69], zeros[3:69])
            assert part.tobytes() == whole[3:69].tobytes()
        few, = executable.call("f", x[:64], zeros[:64])
        for begin, end in ((0, 1), (1, 3), (5, 12), (20, 53)):
            part, = executable.call("f", x[begin:end], zeros[begin:end])
            assert part.tobytes() == few[begin:end].tobytes()
            assert not invariant or part.tobytes() == whole[begin:end].tobytes()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("bits", [8, 4])
def test_tiles_round_no_weight(bits, kind, tmp_path):
    """Where there are tiles, 16-bit rows meet the numbers that integers and scales stand for, not those rounded to 16 bits."""
    if "amx-emulated" not in runnable_isas():
        pytest.skip("this CPU has no AVX2, which the emulation needs")
    rng, group, depth = np.random.default_rng(3), 48, 144
    stored, scales, wide = weight(bits, group, depth, rng)
    uneven = rng.uniform(0.5, 2, scales.shape).astype(np.float32)
    wide = wide / np.repeat(scales, group, 1) * np.repeat(uneven, group, 1).astype(np.float64)
    safetensors.numpy.save_file({"f.w": stored, "f.s": uneven}, tmp_path / "w")
    executable = runtime.Executable(function("f", bits, group, depth, kind, "f32", True), target="cpu:amx-emulated", weights=[tmp_path / "w"])
    x = rng.standard_normal((67, depth)).astype(TYPES[kind])
    before = rng.standard_normal((67, COLUMNS)).astype(np.float32)
    got, = executable.call("f", x, before)
    x = x.astype(np.float64)
    assert (np.abs(got - (x @ wide.T + before)) <= 1e-6 * (np.abs(x) @ np.abs(wide).T + np.abs(before))).all()
