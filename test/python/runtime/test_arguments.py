"""Every parameter with values that it does not take: one error that names it, and nothing rounded, wrapped, cut or ignored."""
import inspect
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from paths import ROOT

import diffattn
import malformed
from diffattn import arrays, bundle, checks, runtime
from diffattn.errors import DiffAttnError, InputError, UsageError
from diffattn.sampling import Sampler

TINY = ROOT / "examples" / "tiny-lm"
MODULE = """
func.func @values(%f: f32, %i: i32, %b: i1, %u: ui8, %l: i64) -> (f32, i32, i1, ui8, i64) {
  return %f, %i, %b, %u, %l : f32, i32, i1, ui8, i64
}
func.func @update(%x: tensor<2xf32> {bufferization.writable = true}, %f: f32) -> tensor<2xf32> {
  %c0 = arith.constant 0 : index
  %r = tensor.insert %f into %x[%c0] : tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func @take(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  return %x : tensor<?x4xf32>
}
"""
SIM = "cuda-sim:sm_80"

NAN, INF = float("nan"), float("inf")
#: Values of every kind, of which each table takes those that are wrong for it.
NO_NUMBERS = ["3", b"3", [3], (3,), {}, 3j, object(), np.array([3]), np.datetime64("2020-01-01"), np.array("3")]
NO_INTEGERS = [1.7, 2.0, np.float32(2), np.array(2.0), NAN, INF, -INF, True, False, np.True_, np.array(True), *NO_NUMBERS]
NO_FLOATS = [NAN, INF, -INF, np.float32(NAN), True, np.False_, 10**400, *NO_NUMBERS]
NO_FLAGS = [0, 1, 1.0, NAN, "true", "", b"", [], np.int64(1), np.array([True]), object()]
NO_TEXTS = [1, 1.5, True, b"cpu", ["cpu"], object(), "cp\0u", "\udcff"]
NO_PATHS = [1, 1.5, True, {}, object(), "", "a\0b", "\ud800"]
NO_THREADS = [-1, 4097, 10**9, 10**30, -(10**30), *NO_INTEGERS]


def heads(count=2, length=3, width=4, dtype=np.float32):
    return np.ones((1, count, length, width), dtype)


def attend(**changed):
    given = dict(q1=heads(), k1=heads(), q2=heads(), k2=heads(), v=heads(), lam=0.5)
    return diffattn.attention(**{**given, **changed})


@pytest.fixture(scope="module")
def executable():
    return runtime.Executable(MODULE)


@pytest.fixture(scope="module")
def simulated():
    return runtime.Executable(MODULE, target=SIM)


@pytest.fixture(scope="module")
def model():
    return diffattn.load(TINY)


@pytest.fixture(scope="module")
def tiny_bundle(tmp_path_factory):
    from diffattn.cli import main

    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    assert main(["bundle", str(TINY), "-o", str(folder)]) == 0
    return folder


NO_ARRAYS = [None, "abc", object(), {}, [[1], [2, 3]], 1j, np.ma.masked_array(heads()), heads(dtype=np.float64), heads(dtype=np.int32),
             heads()[0], heads().astype(">f4"), heads(dtype=bool)]
#: Ids of three queries and three keys.
IDS = np.zeros((1, 3), np.int64)

ATTENTION = {
    **{name: NO_ARRAYS for name in ("q1", "k1", "q2", "k2", "v")},
    "lam": [None, "0.5", True, NAN, INF, 1e300, 1e-60, 3j, [True, False], np.ones(3, np.float32), np.full(2, 1e300), object(), [[1], [2, 3]]],
    "scale": [v for v in NO_FLOATS] + [1e39, 1e-60],
    "is_causal": [None, *NO_FLAGS],
    "window": [3, "ab", (1,), (1, 2, 3), (1.7, None), (True, None), (-2, 0), (0, NAN), (0, 1 << 63), ("1", None), {1, 2}, np.array([1, 2])],
    "attn_mask": ["a", 1.5, np.ones((3, 3)), np.ones((3, 3), np.int64), np.ones((2, 3), bool), [[True], [True, False]], object()],
    "softcap": [0, -1.0, 1e39, 1e-60, *NO_FLOATS],
    "lam_activation": [True, 1, "tanh", b"sigmoid", np.array(["sigmoid", "x"]), ["sigmoid"]],
    "norm": [True, 1, "layer", ["rms"], np.array(["rms", "x"])],
    "norm_weight": [1.0, "a", np.ones(3, np.float32), np.ones(4), np.ones((1, 4), np.float32), object()],
    "norm_eps": [None, -1e-5, *NO_FLOATS],
    "norm_eps_mode": [None, True, "middle", ["inside"]],
    "out_scale": [None, 1e39, *NO_FLOATS],
    "gate": [1.0, "a", heads()[:, :1], heads(dtype=np.float64), object()],
    "kv_len": [1.7, NAN, True, "3", -1, 1 << 63, (1 << 64) - 1, 1 << 70, [1.0], [1, 2], np.uint64((1 << 64) - 1), np.array([True]), object()],
    "q_offset": [0.5, NAN, False, "0", 1 << 63, -(1 << 63) - 1, 1 << 70, [1, 2], np.uint64((1 << 64) - 1), object()],
    "segment_ids": [1, "ab", (), (IDS,), (IDS, None), (None, IDS), (IDS, IDS, IDS), (IDS, IDS.astype(np.int32)), (IDS * 1.0, IDS * 1.0),
                    (IDS > 0, IDS > 0), (IDS[0], IDS), (IDS, IDS[:, :2]), (IDS.astype(np.uint64), IDS.astype(np.uint64)), ("a", "b"),
                    {1: IDS, 2: IDS}, object()],
    "cu_seqlens_q": [1, "a", [0, 3], [0.0, 3.0], [[0, 3]], [], (IDS > 0)[0], np.array([0, 3], np.uint64), object()],
    "cu_seqlens_k": [1, "a", [0, 3], [0.0, 3.0], [[0, 3]], [], np.array([0, 3], np.int16), object()],
    "block_table": [1, "a", [0], [[0.0]], [[0]], [], np.array([[0]], np.uint32), object()],
    "integral": [None, *NO_FLAGS],
    "target": [None, 1, b"cpu", ["cpu"], "tpu", "cpu:", "cpu:avx9", "cpu\0", "cuda@x", "cuda@-1", "cuda@1.5", f"cuda@{1 << 40}", "cuda-sim:sm_1"],
    "threads": NO_THREADS,
    "out": ["a", 1.0, [[[[0.0] * 4] * 3] * 2], [[[[np.float32(0)] * 4] * 3] * 2], heads().tolist(), heads(dtype=np.float64), heads()[0],
            np.broadcast_to(np.float32(0), (1, 2, 3, 4)), object()],
    "stream": [0, 1, "x", 1.5, True, object()],
    "o2": ["a", 1.0, heads().tolist(), heads(dtype=np.float64), heads()[0], heads(dtype=np.float16), np.broadcast_to(np.float32(0), (1, 2, 3, 4)), object()],
    "x": ["a", 1.0, heads().tolist(), heads(dtype=np.float64), heads()[0], heads(dtype=np.float16), np.broadcast_to(np.float32(0), (1, 2, 3, 4)), object()],
    **{name: [1.0, "a", np.ones(3, np.float32), np.ones(2), np.ones((1, 2), np.float32), np.ones(2, np.float16), object()] for name in ("sink", "sink2")},
    "return_lse": [None, *NO_FLAGS],
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    for value in ATTENTION[name]:
        more = {"norm": "rms"} if name in ("norm_weight", "x") else {}
        with pytest.raises(DiffAttnError) as raised:
            attend(**{name: value}, **more)
        assert name in str(raised.value) and "expected" in str(raised.value), repr(value)


def test_attention_has_no_other_parameters():
    assert set(inspect.signature(diffattn.attention).parameters) == set(ATTENTION)


def test_an_empty_result_needs_no_memory():
    empty = np.empty((1, 2, 0, 4), np.float32)
    for out in (empty, empty.transpose(0, 2, 1, 3).reshape(1, 0, 2, 4).transpose(0, 2, 1, 3), np.lib.stride_tricks.as_strided(empty, empty.shape, (0,) * 4)):
        assert attend(q1=heads(length=0), q2=heads(length=0), out=out) is out


def test_values_of_every_exact_kind_are_taken():
    base = attend(scale=0.5, softcap=2.0, window=(1, 0), norm="rms", norm_eps=0.25, out_scale=2.0, kv_len=2, q_offset=1, is_causal=True)
    for wrap in (np.float32, np.float64, np.float16, np.array, ml_dtypes.bfloat16):
        same = attend(lam=wrap(0.5), scale=wrap(0.5), softcap=wrap(2.0), window=(np.int8(1), np.array(0)), norm="rms", norm_eps=wrap(0.25),
                      out_scale=wrap(2.0), kv_len=np.uint64(2), q_offset=np.array([1], np.uint8), is_causal=np.True_)
        assert np.array_equal(base, same), wrap
    assert np.array_equal(attend(lam=1), attend(lam=1.0))


EXECUTABLE = {
    "mlir": [None, 5, 1.5, TINY, ["a"], object()],
    "target": [None, *NO_TEXTS, "tpu"],
    "weights": [5, 1.5, True, {}, [1], ["a", None], ["a\0b"], [""], "", object()],
    "threads": NO_THREADS,
    "cache": [None, 0, 1, 1.5, "", [], object(), "a\0b"],
    "name": [None, *NO_TEXTS],
    "raise_attention": [None, *NO_FLAGS],
    "reference": [None, *NO_FLAGS],
    "from_stage": [None, 1, "gpus", ["gpu"]],
    "progress": [1, "a", True],
    "cuda_driver": NO_PATHS,
    "cublaslt": NO_PATHS,
    "batch_invariant": NO_FLAGS,
    "unchecked": [None, *NO_FLAGS],
    "trace": NO_FLAGS,
    "prefetch_bytes": [-1, 65537, *NO_INTEGERS],
}


@pytest.mark.parametrize("name", EXECUTABLE)
def test_executable(name):
    for value in EXECUTABLE[name]:
        arguments = {"mlir": MODULE, name: value}
        with pytest.raises(UsageError) as raised:
            runtime.Executable(**arguments)
        assert name in str(raised.value), repr(value)


EMIT = {
    "mlir": [None, 5, TINY],
    "stage": [None, 1, "objects", "llvm\0", ["llvm"]],
    "target": [None, *NO_TEXTS],
    "raise_attention": NO_FLAGS,
    "reference": NO_FLAGS,
    "from_stage": [None, "out"],
    "ptxas": [None, *NO_PATHS],
    "diagnostics": [(), "", 1, {}],
    "batch_invariant": NO_FLAGS,
    "unchecked": [None, *NO_FLAGS],
    "prefetch_bytes": [-1, 65537, *NO_INTEGERS],
}


@pytest.mark.parametrize("name", EMIT)
def test_emit(name):
    for value in EMIT[name]:
        with pytest.raises(UsageError) as raised:
            runtime.emit(**{"mlir": MODULE, "stage": "llvm", name: value})
        assert name in str(raised.value), repr(value)


WRITE_BUNDLE = {
    "mlir": [None, 5, TINY],
    "directory": [None, *NO_PATHS],
    "weights": [5, [1], "", object()],
    "target": [None, *NO_TEXTS],
    "model_folder": NO_PATHS,
    "copy_weights": [None, *NO_FLAGS],
    "cache": [None, 1, ""],
    "name": [None, *NO_TEXTS],
    "batch_invariant": NO_FLAGS,
    "unchecked": [None, *NO_FLAGS],
    "prefetch_bytes": [-1, 65537, *NO_INTEGERS],
}


@pytest.mark.parametrize("name", WRITE_BUNDLE)
def test_write_bundle(name, tmp_path):
    for value in WRITE_BUNDLE[name]:
        with pytest.raises(UsageError) as raised:
            runtime.write_bundle(**{"mlir": MODULE, "directory": tmp_path / "b", name: value})
        assert name in str(raised.value), repr(value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function, table", [(runtime.Executable.__init__, EXECUTABLE), (runtime.emit, EMIT),
                                             (runtime.write_bundle, WRITE_BUNDLE)])
def test_the_tables_are_whole(function, table):
    assert set(inspect.signature(function).parameters) - {"self"} == set(table)


LOAD = {
    "directory": [None, 1, b"", "", "a\0b", "\ud800", [TINY], object()],
    "target": [None, *NO_TEXTS, "tpu"],
    "dtype": ["f64", "float32", 1, True, np.float32, ["f32"]],
    "threads": NO_THREADS,
    "progress": [1, "a"],
    "cuda_driver": NO_PATHS,
    "batch_invariant": NO_FLAGS,
}


@pytest.mark.parametrize("name", LOAD)
def test_load(name):
    assert set(inspect.signature(diffattn.load).parameters) == set(LOAD)
    for value in LOAD[name]:
        with pytest.raises(UsageError) as raised:
            diffattn.load(**{"directory": TINY, name: value})
        assert name in str(raised.value), repr(value)


OPEN_BUNDLE = {
    "directory": [None, 1, "", "a\0b", object()],
    "weights": NO_PATHS,
    "threads": NO_THREADS,
    "gpu": [None, -1, 1 << 31, (1 << 32) + 1, *NO_INTEGERS],
    "cuda_driver": NO_PATHS,
    "cublaslt": NO_PATHS,
    "device": [-1, 0, 1 << 64, *NO_INTEGERS],
    "progress": [1, "a"],
}


@pytest.mark.parametrize("name", OPEN_BUNDLE)
def test_bundle_load(name, tiny_bundle):
    assert set(inspect.signature(bundle.load).parameters) == set(OPEN_BUNDLE)
    for value in OPEN_BUNDLE[name]:
        with pytest.raises(UsageError) as raised:
            bundle.load(**{"directory": tiny_bundle, name: value})
        assert name in str(raised.value), repr(value)


VALUES = [0.5, 7, True, 200, 1 << 40]
#: Numbers that an argument's type does not hold.
WRONG_VALUES = [
    (0, ["0.5", None, True, np.True_, 1j, 1e39, 10**400, [0.5, 1.0], np.array([0.5], np.float32)]),
    (1, [1.7, 7.0, NAN, INF, True, 1 << 31, -(1 << 31) - 1, 1 << 80, "7", None, np.float32(7), np.uint64(1 << 63)]),
    (2, [0, 1, 2, 1.0, NAN, "true", None, np.int64(1)]),
    (3, [-1, 256, 1.5, True, "3", None, np.int64(300)]),
    (4, [1.5, NAN, True, 1 << 63, -(1 << 63) - 1, np.uint64(1 << 63), "1", None]),
]


def test_numbers_of_calls(executable):
    assert [r.item() for r in executable.call("values", *VALUES)] == VALUES
    wrapped = [np.float64(0.5), np.int64(7), np.True_, np.uint8(200), np.uint64(1 << 40)]
    assert [r.item() for r in executable.call("values", *wrapped)] == VALUES
    assert np.isnan(executable.call("values", NAN, *VALUES[1:])[0]) and executable.call("values", INF, *VALUES[1:])[0] == INF
    for position, wrong in WRONG_VALUES:
        for value in wrong:
            arguments = [*VALUES[:position], value, *VALUES[position + 1:]]
            with pytest.raises(InputError, match=f"argument {position} of 'values': expected"):
                executable.call("values", *arguments)


def test_arguments_are_named_one_way(executable, simulated):
    """Numbered from 0, with the function, what came and what is wrong with it: in Python, the C API and diffattn-run."""
    for value, culprit in [(np.ones((2, 3), np.float32), r"but got 2x3xf32 \(size 3 on axis 1, not 4\)"),
                           (np.ones(4, np.float32), r"but got 4xf32 \(rank 1, not 2\)"),
                           (np.ones((2, 4)), r"but got 2x4xf64 \(element type f64, not f32\)"),
                           (np.ones((2, 4), np.complex64), "but got complex64"), ([[1], [2, 3]], r"but got \[\[1\], \[2, 3\]\]"),
                           (np.ma.masked_array(np.ones((2, 4), np.float32)), "without a mask"), (object(), "but got object")]:
        for code in (executable, simulated):
            with pytest.raises(InputError, match=rf"argument 0 of 'take': expected .*{culprit}"):
                code.call("take", value)
    with pytest.raises(InputError, match="argument 0 of 'update': expected an array, because it is updated in place"):
        executable.call("update", [np.float32(1), np.float32(2)], 3.0)
    with pytest.raises(UsageError, match="'take': expected 1 arguments, but got 0"):
        executable.call("take")
    for entry in (None, 1, b"take", "take\0", ["take"]):
        with pytest.raises(UsageError, match="entry: expected"):
            executable.call(entry)
    with pytest.raises(UsageError, match="expected an entry of values, update, take, but got 'tak'"):
        executable.call("tak")


def test_c_api_names_arguments_and_threads(executable):
    lib, result = executable._lib, (arrays.Result * 1)()

    def call(threads=1, dtype=0):
        views, packed = executable.pack("take", [np.ones((1, 4), np.float32)])
        packed[0].dtype = dtype
        lib.check(lib.call(executable._handle, b"take", packed, len(views), threads, result, 1))

    for threads in (0, 1, 4096):
        call(threads)
        lib.free(result[0].data)
    with pytest.raises(InputError, match="argument 0 of 'take': expected a known element type, but got code 99"):
        call(dtype=99)
    for threads in (-1, 4097, 10**9):
        with pytest.raises(UsageError, match=f"threads: expected 0 to 4096, but got {threads}"):
            call(threads)


C_OPTIONS = {
    b"threads": [b"", b"-1", b"4097", b"1.5", b"0x10", b"1e3", b" 1", b"1 ", b"nan", b"99999999999999999999"],
    b"prefetch_bytes": [b"", b"-2", b"65537", b"1.5", b"0x10", b" 1", b"auto", b"99999999999999999999"],
    b"raise": [b"", b"2", b"yes", b"TRUE", b" true", b"1.0"],
    b"reference": [b"", b"-1", b"on"],
    b"target": [b"", b"gpu", b"cpu:", b"cpu:avx9", b"cuda:sm_1", b"cuda:sm_80@", b"cuda@-1", b"cuda-sim:", b"cuda:sm_80,sm_1"],
    b"from": [b"", b"Input", b"ptx"],
    b"": [b""],
    b"thread": [b"1"],
    b"Threads": [b"1"],
}


@pytest.mark.parametrize("name", C_OPTIONS)
def test_c_option_strings(name):
    lib = runtime.library()
    options = lib.options_create()
    try:
        for value in C_OPTIONS[name]:
            with pytest.raises(UsageError) as raised:
                lib.check(lib.options_set(options, name, value))
            assert "expected" in str(raised.value) and name.decode() in str(raised.value), value
    finally:
        lib.options_destroy(options)


def test_weights_are_checked_before_compiling(tmp_path):
    """A module that no pass lowers: its weights are told first, in an executable and in a bundle."""
    unsound = malformed.MODEL.replace("func.func @forward", "func.func private @nowhere()\nfunc.func @forward")
    unsound = unsound.replace("  %c0 =", "  func.call @nowhere() : () -> ()\n  %c0 =", 1)
    file = tmp_path / "w.safetensors"
    file.write_bytes(malformed.safetensors(malformed.changed(w=malformed.entry("F32", [4, 3], 0, 48))))
    for use in (lambda: runtime.Executable(unsound, weights=file, cache=False),
                lambda: runtime.write_bundle(unsound, tmp_path / "b", weights=[file], cache=False)):
        with pytest.raises(runtime.WeightsError, match=r"expected shape \[3, 4\], but got \[4, 3\]"):
            use()
    with pytest.raises(runtime.WeightsError, match="gone"):
        runtime.Executable(unsound, weights=tmp_path / "gone", cache=False)


DEVICE_ARRAYS = [
    ("shape", lambda code, value: runtime.DeviceArray(code, value, np.float32),
     [None, 3, 1.5, "3", [1.7], [True], [-1], [NAN], [None], ["3"], [1 << 70], [1 << 40, 1 << 40], np.array(3), {}]),
    ("dtype", lambda code, value: runtime.DeviceArray.zeros(code, (2,), value), [None, "f31", np.complex64, 1.5, object(), ">f4"]),
    ("axis", lambda code, value: runtime.DeviceArray.zeros(code, (2, 3), np.float32).grown(value, 3), [-1, 2, *NO_INTEGERS]),
    ("size", lambda code, value: runtime.DeviceArray.zeros(code, (2, 3), np.float32).grown(0, value), [-1, 1, *NO_INTEGERS]),
    ("array", lambda code, value: runtime.DeviceArray.zeros(code, (2,), np.float32).write(value),
     [None, "ab", [1, 2], np.ones(3, np.float32), np.ones(2), np.ma.masked_array(np.ones(2, np.float32))]),
]


@pytest.mark.parametrize("name, make, values", DEVICE_ARRAYS, ids=[row[0] for row in DEVICE_ARRAYS])
def test_device_arrays(name, make, values, simulated):
    for value in values:
        with pytest.raises(DiffAttnError) as raised:
            make(simulated, value)
        assert str(raised.value).startswith(name), repr(value)


SAMPLING = {
    "temperature": [-1, -1e-9, *NO_FLOATS],
    "top_k": [-1, *NO_INTEGERS],
    "top_p": [0, -0.5, 1.0001, *NO_FLOATS[:-len(NO_NUMBERS)], "1"],
    "repetition_penalty": [0, -1, *NO_FLOATS],
}
GENERATE = {
    "prompts": [None, 5, 1.5, True, object(), {}, [1.7, 2], [True], [NAN], np.array([1.0]), np.array(5), [[1.5]], [[1], [NAN]],
                ["And", 5], ["And", None], [None], b"And", "\udcff", [2048], [-1], np.array([1 << 63], np.uint64), [1 << 70],
                np.ones((1, 2, 3), np.int64), [[[1]]], [], [[]], ["And", []]],
    "max_new_tokens": [0, -1, 1 << 31, 10**30, *NO_INTEGERS],
    **SAMPLING,
    "seed": [-1, 1 << 63, *(value for value in NO_INTEGERS if not isinstance(value, (list, tuple))), [], [1, 2], [-1], [True], ["1"]],
    "stop": [1, True, b"a", "", [""], ["a", 1], ["a", ""], {"a": 1}, object()],
}


@pytest.mark.parametrize("name", SAMPLING)
def test_sampler(name):
    for value in [None, *SAMPLING[name]]:
        with pytest.raises(UsageError, match=f"{name}: expected"):
            Sampler(**{name: value})


@pytest.mark.parametrize("name", GENERATE)
def test_generate(name, model):
    assert set(inspect.signature(model.generate).parameters) == set(GENERATE)
    for value in GENERATE[name]:
        with pytest.raises(DiffAttnError) as raised:
            model.generate(**{"prompts": "And", "max_new_tokens": 1, name: value})
        assert name in str(raised.value) or name == "prompts" and "text" in str(raised.value), repr(value)


@pytest.mark.filterwarnings("ignore:.*more than the 256")
def test_more_tokens_than_memory_holds(model):
    with pytest.raises(DiffAttnError, match="smaller max_new_tokens"):
        list(model.generate("And", (1 << 31) - 1))


def test_prompts_of_every_exact_kind(model):
    ids = model.tokenizer.encode("In the beginning")
    expected = list(model.generate(ids, 3))
    for same in (np.array(ids), np.array(ids, np.uint64), np.array(ids, np.int32), tuple(ids), [np.int64(i) for i in ids]):
        assert list(model.generate(same, 3)) == expected
    several = [(row, token) for token in expected for row in range(2)]
    for same in ([ids, ids], np.array([ids, ids]), [np.array(ids, np.uint16), tuple(ids)], np.array([ids, ids], np.uint64)):
        assert list(model.generate(same, 3)) == several
    whole = "".join(model.generate("In the beginning", 30))
    word = whole.split()[2]
    assert "".join(model.generate("In the beginning", 30, stop=word)) == whole[: whole.index(word)]


FORWARD = [None, "a", 1.5, [[1.7]], [[True]], [[NAN]], np.ones((1, 2)), np.ones((1, 2), bool), [[2048]], [[-1]], [[1], [2, 3]],
           np.array([[1 << 63]], np.uint64), np.array([[(1 << 64) - 1]], np.uint64), [[1 << 70]], [1, 2], [[[1]]], object()]


def test_forward_and_bits(model):
    for value in FORWARD:
        with pytest.raises(InputError, match="inputs: expected|argument 0 of 'forward': expected"):
            model.forward(value)
    for name, values in {"text": [None, 1, b"a", ["a"], "", "\udcff"], "window": [0, 1, -1, 1 << 31, *NO_INTEGERS],
                         "batch": [None, 0, -1, *NO_INTEGERS]}.items():
        for value in values:
            with pytest.raises(UsageError if name != "text" else DiffAttnError, match=f"{name}: expected"):
                model.bits_per_character(**{"text": "And", name: value})
    for name, values in {"text": [None, 1, b"a", ["a"], "\udcff"], "special": [None, *NO_FLAGS]}.items():
        for value in values:
            with pytest.raises(UsageError, match=f"{name}: expected"):
                model.tokenizer.encode(**{"text": "And", name: value})
    for ids in ([1.7], [True], [-1], [NAN], ["1"], [1 << 32]):
        with pytest.raises(UsageError, match="ids: expected"):
            model.tokenizer.decode(ids)


def test_a_folder_without_the_libraries(tmp_path):
    for folder in (tmp_path, tmp_path / "gone"):
        done = subprocess.run([sys.executable, "-c", "from diffattn import runtime; runtime.library()"], cwd=ROOT / "python", text=True,
                              capture_output=True, env={**os.environ, "DIFFATTN_BUILD_DIR": str(folder)}, timeout=60)
        assert done.returncode and "DIFFATTN_BUILD_DIR: expected a folder with lib/libDiffAttnC.so, but got" in done.stderr


def test_messages_stay_short():
    with pytest.raises(UsageError) as raised:
        checks.integer("n", "x\n" * 100000)
    assert len(str(raised.value)) < 200 and "\n" not in str(raised.value)

    class Bad:
        def __repr__(self):
            raise KeyError

    with pytest.raises(UsageError, match="an object of type Bad"):
        checks.flag("n", Bad())


class TestTensors:
    """PyTorch's tensors whose memory is not what they mean."""

    pytestmark = pytest.mark.oracle

    @pytest.mark.parametrize("name", ["q1", "k1", "q2", "k2", "v", "gate", "attn_mask", "lam", "norm_weight", "out"])
    def test_negative_bit(self, name):
        import torch

        shape = {"attn_mask": (3, 3), "lam": (2,), "norm_weight": (4,)}.get(name, (1, 2, 3, 4))
        lazy = torch.ones(shape, dtype=torch.complex64).conj().imag
        assert lazy.is_neg()
        more = {"norm": "rms"} if name == "norm_weight" else {}
        with pytest.raises(InputError, match=rf"{name}: expected a tensor whose memory holds its values.*resolve_neg\(\)"):
            attend(**{name: lazy}, **more)

    def test_negative_bit_in_calls(self, executable):
        import torch

        with pytest.raises(InputError, match=r"argument 0 of 'take': expected .*resolve_neg\(\)"):
            executable.call("take", torch.ones(2, 4, dtype=torch.complex64).conj().imag)
        with pytest.raises(InputError, match=r"argument 0 of 'take': expected .*resolve_conj\(\)"):
            executable.call("take", torch.ones(2, 4, dtype=torch.complex64).conj())

    def test_gradients(self, executable):
        import torch

        x = torch.full((1, 2, 3, 4), 0.5, requires_grad=True)
        with pytest.raises(InputError, match=r"v: expected a tensor without gradient.*torch.no_grad\(\)"):
            attend(v=x)
        expected = attend(v=x.detach())
        for off in (torch.no_grad, torch.inference_mode):
            with off():
                out = torch.empty(1, 2, 3, 4)
                assert np.array_equal(attend(v=x), expected) and attend(v=x, out=out) is out
                assert np.array_equal(out.numpy(), expected)
                (result,) = executable.call("take", x[0, 0])
                assert np.array_equal(result, np.full((3, 4), 0.5, np.float32))

    def test_a_typed_scalar_is_not_converted(self, executable):
        import torch

        with pytest.raises(InputError, match="argument 1 of 'values': expected i32, but got f32"):
            executable.call("values", 0.5, torch.tensor(1.7), True, 200, 1)
        assert executable.call("values", torch.tensor(0.5), 7, True, 200, 1)[0] == 0.5
