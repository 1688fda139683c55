"""Weights as modules declare them: types, transposes, orders of rows, layers, other names."""
import ctypes
import json
import struct

import ml_dtypes
import numpy as np
import pytest

from diffattn import runtime
from diffattn.arrays import CODES, Array

NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(ml_dtypes.bfloat16): "BF16",
         np.dtype(np.float64): "F64", np.dtype(np.int64): "I64", np.dtype(np.bool_): "BOOL"}


def save(path, align=1, **tensors):
    """`align`: what the header's end is a multiple of; the format leaves it open, and its own library takes 8."""
    header, data = {}, b""
    for name, array in tensors.items():
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % align)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def load(declaration, kind, name="w"):
    """A module that returns the weight of this declaration."""
    return runtime.Executable(f"""
        ml_program.global private @{name}(#ml_program.extern<{kind}>) : {kind} {declaration}
        func.func @get() -> {kind} {{
          %w = ml_program.global_load_const @{name} : {kind}
          return %w : {kind}
        }}""", cache=False)


MLIR = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64", "I64": "i64", "BOOL": "i1"}


@pytest.mark.parametrize("source", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("target", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_types_are_converted(tmp_path, source, target):
    source, target = np.dtype(source), np.dtype(target)
    numbers = np.random.default_rng(0).normal(size=(7, 5)) * 10.0 ** np.random.default_rng(1).integers(-6, 4, size=(7, 5))
    array = numbers.astype(source)
    array[0, 0], array[0, 1], array[0, 2] = np.inf, -0.0, 1e-7
    executable = load("", f"tensor<7x5x{MLIR[NAMES[target]]}>")
    executable.bind_weights(save(tmp_path / "w.safetensors", w=array))
    (got,) = executable.call("get")
    assert got.dtype == target
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, array.astype(target))


def test_transpose_and_row_blocks(tmp_path):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    path = save(tmp_path / "w.safetensors", w=array)
    executable = load("{diffattn.transpose}", "tensor<6x4xf32>")
    executable.bind_weights(path)
    np.testing.assert_array_equal(executable.call("get")[0], array.T)
    executable = load("{diffattn.row_block_size = 2 : i64, diffattn.row_blocks = array<i64: 1, 0>}", "tensor<4x6xbf16>")
    executable.bind_weights(path)
    np.testing.assert_array_equal(executable.call("get")[0], array[[2, 3, 0, 1]].astype(ml_dtypes.bfloat16))
    executable = load("{diffattn.transpose, diffattn.row_block_size = 2 : i64, diffattn.row_blocks = array<i64: 2, 0, 1>}",
                      "tensor<6x4xf32>")
    executable.bind_weights(path)
    np.testing.assert_array_equal(executable.call("get")[0], array.T[[4, 5, 0, 1, 2, 3]])


def test_source_names_and_integers(tmp_path):
    table, mask = np.arange(6, dtype=np.int64), np.array([True, False])
    path = save(tmp_path / "w.safetensors", table=table, mask=mask)
    executable = load('{diffattn.source = "table"}', "tensor<6xi64>")
    executable.bind_weights([path])
    assert executable.call("get")[0].tolist() == table.tolist()
    executable = load("", "tensor<2xi1>", "mask")
    executable.bind_weights([path])
    assert executable.call("get")[0].tolist() == [True, False]


def test_layers(tmp_path):
    layers = {f"layers.{i}.w": np.full((3, 2), i, np.float32) for i in range(2, 6)}
    module = """
        ml_program.global private @"layers.{}.w"(#ml_program.extern<tensor<3x2xf32>>) : tensor<3x2xf32> {diffattn.layers = 4 : i64, diffattn.first_layer = 2 : i64}
        func.func @get(%i: index) -> tensor<3x2xf32> {
          %w = diffattn.layer_weight @"layers.{}.w"[%i] : tensor<3x2xf32>
          return %w : tensor<3x2xf32>
        }"""
    executable = runtime.Executable(module, weights=[save(tmp_path / "w.safetensors", **layers)], cache=False)
    assert executable.weight_names == ["layers.{}.w"]
    for i in range(4):
        assert (executable.call("get", i)[0] == i + 2).all()
    every_other = module.replace("layers = 4 : i64", "layers = 2 : i64, diffattn.layer_step = 2 : i64")
    executable = runtime.Executable(every_other, weights=[tmp_path / "w.safetensors"], cache=False)
    assert [executable.call("get", i)[0][0, 0] for i in range(2)] == [2, 4]
    del layers["layers.5.w"]
    with pytest.raises(runtime.WeightsError, match="'layers.5.w'"):
        runtime.Executable(module, weights=[save(tmp_path / "v.safetensors", **layers)], cache=False)


def test_equal_types_are_not_copied(tmp_path):
    """A weight of the declared type stays in the mapped file, whatever its size."""
    array = np.arange(1 << 23, dtype=np.float32)
    path = save(tmp_path / "w.safetensors", align=8, w=array)
    module = f"""
        ml_program.global private @w(#ml_program.extern<tensor<{array.size}xf32>>) : tensor<{array.size}xf32>
        func.func @at(%i: index) -> f32 {{
          %w = ml_program.global_load_const @w : tensor<{array.size}xf32>
          %x = tensor.extract %w[%i] : tensor<{array.size}xf32>
          return %x : f32
        }}"""
    executable = runtime.Executable(module, cache=False)
    executable.call  # loaded before memory is read off
    before = resident()
    executable.bind_weights(path)
    assert float(executable.call("at", 12345)[0]) == 12345
    assert resident() - before < array.nbytes // 4


def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096


@pytest.mark.parametrize("target", ["cpu", "cuda-sim:sm_80"])
def test_progress_is_told(tmp_path, target):
    path = save(tmp_path / "w.safetensors", **{f"layers.{i}.w": np.full((3, 2), i, np.float32) for i in range(4)})
    steps = []
    executable = runtime.Executable("""
        ml_program.global private @"layers.{}.w"(#ml_program.extern<tensor<3x2xf32>>) : tensor<3x2xf32> {diffattn.layers = 4 : i64}
        func.func @get(%i: index) -> tensor<3x2xf32> {
          %w = diffattn.layer_weight @"layers.{}.w"[%i] : tensor<3x2xf32>
          return %w : tensor<3x2xf32>
        }""", target=target, weights=[path], progress=lambda *bytes: steps.append(bytes), cache=False)
    assert steps == [(24 * i, 96) for i in range(1, 5)]
    assert (executable.call("get", 2)[0] == 2).all()


def described(*arrays):
    """Arrays of NumPy for `bind_arrays`, and what must stay alive."""
    slots, kept = (Array * len(arrays))(), []
    for slot, array in zip(slots, arrays):
        sizes, strides = ((ctypes.c_int64 * array.ndim)(*numbers) for numbers in (array.shape, [s // array.itemsize for s in array.strides]))
        slot.data, slot.dtype, slot.rank, slot.shape, slot.strides = array.ctypes.data, CODES[array.dtype], array.ndim, sizes, strides
        kept.append((sizes, strides))
    return slots, kept


def bind(executable, **arrays):
    slots, _ = described(*arrays.values())
    executable.bind_arrays((ctypes.c_char_p * len(arrays))(*[name.encode() for name in arrays]), slots)


def test_weights_in_memory():
    executable, array = load("", "tensor<3x2xf32>"), np.arange(6, dtype=np.float32).reshape(3, 2)
    bind(executable, w=array)
    np.testing.assert_array_equal(executable.call("get")[0], array)
    array[:] = 7  # used where they lie
    np.testing.assert_array_equal(executable.call("get")[0], array)
    bind(executable, other=array, w=(more := array + 1))
    np.testing.assert_array_equal(executable.call("get")[0], more)
    bind(executable, w=(wide := (array * 3).astype(np.float64)))
    np.testing.assert_array_equal(executable.call("get")[0], wide.astype(np.float32))
    before = executable.call("get")[0]
    for arrays, error, message in [
        ({"w": np.ones((2, 3), np.float32)}, runtime.WeightsError, r"memory: weight 'w': expected shape \[3, 2\], but got \[2, 3\]"),
        ({"w": np.zeros((3, 4), np.float32)[:, ::2]}, runtime.InputError, "weight 'w': expected a dense array in memory of the host, but got one with strides"),
        ({"v": array}, runtime.WeightsError, "weight 'w': expected it in the weight files, but they lack it"),
        ({"w": array.astype(np.int64)}, runtime.WeightsError, "memory: weight 'w': expected element type f32 or another float, but got i64"),
    ]:
        with pytest.raises(error, match=message):
            bind(executable, **arrays)
    np.testing.assert_array_equal(executable.call("get")[0], before)


def test_weights_in_memory_by_name_once():
    executable, array = load("", "tensor<2xf32>"), np.ones(2, np.float32)
    slots, _ = described(array, array)
    with pytest.raises(runtime.WeightsError, match="weight 'w': expected each name once"):
        executable.bind_arrays((ctypes.c_char_p * 2)(b"w", b"w"), slots)
