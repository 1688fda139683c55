"""Executable: calls, arrays of every kind, in-place arguments, errors, the cache."""
import gc
import time

import ml_dtypes
import numpy as np
import pytest

from diffattn import bundle, calls, runtime

MODULE = """
func.func @forward(%x: tensor<?x4xf32>, %w: tensor<8x4xf32>) -> tensor<?x8xf32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%n) : tensor<?x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x8xf32>) -> tensor<?x8xf32>
  %r = linalg.matmul indexing_maps=[affine_map<(m,n,k)->(m,k)>, affine_map<(m,n,k)->(n,k)>, affine_map<(m,n,k)->(m,n)>]
         ins(%x, %w : tensor<?x4xf32>, tensor<8x4xf32>) outs(%f : tensor<?x8xf32>) -> tensor<?x8xf32>
  return %r : tensor<?x8xf32>
}
func.func @scale(%x: tensor<3xbf16>, %s: bf16) -> (tensor<3xbf16>, bf16) {
  %e = tensor.empty() : tensor<3xbf16>
  %r = linalg.generic {indexing_maps = [affine_map<(i)->(i)>, affine_map<(i)->(i)>], iterator_types = ["parallel"]}
         ins(%x : tensor<3xbf16>) outs(%e : tensor<3xbf16>) {
    ^bb0(%a: bf16, %b: bf16):
      %c = arith.mulf %a, %s : bf16
      linalg.yield %c : bf16
  } -> tensor<3xbf16>
  %t = arith.addf %s, %s : bf16
  return %r, %t : tensor<3xbf16>, bf16
}
func.func @update(%c: tensor<4xf32> {bufferization.writable = true}, %v: f32, %i: index) -> (tensor<4xf32>, i1) {
  %r = tensor.insert %v into %c[%i] : tensor<4xf32>
  %true = arith.constant true
  return %r, %true : tensor<4xf32>, i1
}
func.func @checked(%x: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?xf32>
  %c3 = arith.constant 3 : index
  %ok = arith.cmpi ult, %n, %c3 : index
  cf.assert %ok, "expected fewer than 3 elements"
  return %x : tensor<?xf32>
}
func.func private @hidden() { return }
"""


@pytest.fixture(scope="module")
def executable():
    return runtime.Executable(MODULE, cache=False)


def test_entries_and_signature(executable):
    assert executable.entries == ["forward", "scale", "update", "checked"]
    arguments, results = executable.signature("forward")
    assert [a.shape for a in arguments] == [(None, 4), (8, 4)]
    assert results[0].shape == (None, 8) and results[0].dtype == np.float32
    assert [a.in_place for a in executable.signature("update")[0]] == [True, False, False]


@pytest.mark.parametrize("rows", [0, 1, 5, 33])
def test_dynamic_sizes(executable, rows):
    rng = np.random.default_rng(rows)
    x, w = rng.normal(size=(rows, 4)).astype(np.float32), rng.normal(size=(8, 4)).astype(np.float32)
    (y,) = executable.call("forward", x, w)
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-5, atol=1e-6)


def test_strided_views_and_lists(executable):
    x, w = np.arange(40, dtype=np.float32).reshape(10, 4), np.ones((16, 8), np.float32)
    (y,) = executable.call("forward", x[::-2], w[::2, ::2])
    np.testing.assert_array_equal(y, x[::-2] @ w[::2, ::2].T)


def test_scalars_and_bfloat16(executable):
    bf16 = ml_dtypes.bfloat16
    y, t = executable.call("scale", np.array([1, 2, 3], bf16), 1.5)
    assert y.dtype == bf16 and y.tolist() == [1.5, 3, 4.5]
    assert t.shape == () and float(t) == 3.0


def test_bytes_of_either_sign():
    widen = runtime.Executable("""
func.func @widen(%x: tensor<3xi8>) -> tensor<3xi32> {
  %y = arith.extui %x : tensor<3xi8> to tensor<3xi32>
  return %y : tensor<3xi32>
}""")
    for dtype in (np.uint8, np.int8):
        (wide,) = widen.call("widen", np.array([0, 1, 127], dtype))
        assert wide.tolist() == [0, 1, 127]
    (wide,) = widen.call("widen", np.array([0, 128, 255], np.uint8))
    assert wide.tolist() == [0, 128, 255]


@pytest.mark.parametrize("target", ["cpu", "cpu:generic", "cuda-sim:sm_80"])
def test_any_byte_but_0_is_true(target):
    """As in NumPy, of which bytes of flags may be viewed as truth values."""
    executable = runtime.Executable("""
func.func @choose(%p: tensor<?x3xi1>, %q: tensor<?x3xi1>) -> (tensor<?x3xf32>, tensor<?x3xi1>) {
  %c0 = arith.constant 0 : index
  %yes = arith.constant 1.0 : f32
  %no = arith.constant 0.0 : f32
  %n = tensor.dim %p, %c0 : tensor<?x3xi1>
  %e = tensor.empty(%n) : tensor<?x3xf32>
  %f = tensor.empty(%n) : tensor<?x3xi1>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>,
                                          affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
         ins(%p, %q : tensor<?x3xi1>, tensor<?x3xi1>) outs(%e, %f : tensor<?x3xf32>, tensor<?x3xi1>) {
    ^bb0(%a: i1, %b: i1, %x: f32, %y: i1):
      %s = arith.select %a, %yes, %no : f32
      %t = arith.andi %a, %b : i1
      linalg.yield %s, %t : f32, i1
  } -> (tensor<?x3xf32>, tensor<?x3xi1>)
  return %r#0, %r#1 : tensor<?x3xf32>, tensor<?x3xi1>
}""", target=target)
    p = np.arange(256, dtype=np.uint8)[:255].reshape(85, 3)
    q = np.roll(p, 100)
    chosen, both = executable.call("choose", p.view(bool), q.view(bool))
    np.testing.assert_array_equal(chosen, p != 0)
    np.testing.assert_array_equal(both.view(np.uint8), (p != 0) & (q != 0))


def test_sizes_that_do_not_fit():
    add = runtime.Executable("""
func.func @add(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
  %z = arith.addf %x, %y : tensor<?xf32>
  return %z : tensor<?xf32>
}""")
    assert add.call("add", np.ones(5, np.float32), np.ones(5, np.float32))[0].sum() == 10
    with pytest.raises(runtime.RunError, match="argument 1 of .add.: expected size 8 on axis 0, as on axis 0 of argument 0, but got 5"):
        add.call("add", np.ones(8, np.float32), np.ones(5, np.float32))


def test_arguments_updated_in_place_come_back(executable):
    cache = np.zeros(4, np.float32)
    result, flag = executable.call("update", cache, 7.0, 2)
    assert result is cache and cache.tolist() == [0, 0, 7, 0] and bool(flag)


def test_other_arguments_are_never_changed_or_shared(executable):
    x = np.array([1, 2], np.float32)
    (y,) = executable.call("checked", x)
    y[0] = 9
    assert x.tolist() == [1, 2]


def test_results_outlive_the_executable():
    (y,) = runtime.Executable(MODULE, cache=False).call("checked", np.array([1, 2], np.float32))
    gc.collect()
    assert y.tolist() == [1, 2]


def test_dlpack():
    import torch
    executable = runtime.Executable(MODULE, cache=False)
    x, w = torch.randn(6, 4), torch.randn(8, 4)
    (y,) = executable.call("forward", x, w)
    np.testing.assert_allclose(y, (x @ w.T).numpy(), rtol=1e-5, atol=1e-6)
    y, _ = executable.call("scale", torch.tensor([1, 2, 3], dtype=torch.bfloat16), 2.0)
    assert y.tolist() == [2, 4, 6]
    cache = torch.zeros(4)
    result, _ = executable.call("update", cache, 5.0, 1)
    assert result is cache and cache.tolist() == [0, 5, 0, 0]
    # A view of a tensor, from its last row backwards in memory.
    np.testing.assert_allclose(executable.call("forward", torch.randn(4, 6).T[2:], w)[0].shape, (4, 8))


def test_counters_and_no_growth_once_warm(executable):
    x, w = np.ones((50, 4), np.float32), np.ones((8, 4), np.float32)
    for _ in range(3):
        executable.call("forward", x, w)
    runtime.reset_counters()
    executable.call("forward", x, w)
    assert runtime.counters().arena_grows == 0


@pytest.mark.parametrize(
    "entry, arguments, error, message",
    [
        ("nope", [], runtime.UsageError, "expected an entry of"),
        ("hidden", [], runtime.UsageError, "expected an entry of"),
        ("forward", [np.zeros((1, 4), np.float32)], runtime.UsageError, "expected 2 arguments, but got 1"),
        ("checked", [np.zeros(2)], runtime.InputError, "expected tensor<?xf32>, but got 2xf64"),
        ("checked", [np.zeros((2, 2), np.float32)], runtime.InputError, "but got 2x2xf32"),
        ("checked", [np.zeros(2, np.complex64)], runtime.InputError, "but got complex64"),
        ("checked", [np.zeros(5, np.float32)], runtime.RunError, "expected fewer than 3 elements"),
        ("update", [np.zeros((4, 2), np.float32)[:, 0], 1.0, 1], runtime.InputError, "updated in place"),
    ],
)
def test_errors_of_calls(executable, entry, arguments, error, message):
    with pytest.raises(error) as raised:
        executable.call(entry, *arguments)
    assert message in str(raised.value)
    # And the next call works.
    assert executable.call("checked", np.ones(1, np.float32))[0].tolist() == [1]


def test_read_only_caches_are_refused(executable):
    cache = np.zeros(4, np.float32)
    cache.flags.writeable = False
    with pytest.raises(runtime.InputError, match="writable"):
        executable.call("update", cache, 1.0, 1)


def test_kinds_of_calls_that_are_known(executable):
    """A kind of call is described once; another one, or what the first was not checked for, is looked at."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(8, 4)).astype(np.float32)
    for rows in (3, 3, 5, 3):  # each time other arrays
        x = rng.normal(size=(rows, 4)).astype(np.float32)
        np.testing.assert_allclose(executable.call("forward", x, w)[0], x @ w.T, rtol=1e-5, atol=1e-6)
    x = rng.normal(size=(4, 3)).astype(np.float32).T  # the same sizes with other strides
    np.testing.assert_allclose(executable.call("forward", x, w)[0], x @ w.T, rtol=1e-5, atol=1e-6)
    with pytest.raises(runtime.InputError, match="argument 0 of 'forward'.*f64"):
        executable.call("forward", x.astype(np.float64), w)
    with pytest.raises(runtime.InputError, match="masked"):
        executable.call("forward", np.ma.masked_array(x), w)
    cache, number, at = np.zeros(4, np.float32), np.array(2, np.float32), np.array(1)
    for _ in range(2):
        assert executable.call("update", cache, number, at)[0] is cache
    cache.flags.writeable = False
    with pytest.raises(runtime.InputError, match="writable"):
        executable.call("update", cache, number, at)
    assert cache.tolist() == [0, 2, 0, 0]


def test_kinds_of_calls_are_forgotten(executable):
    w = np.ones((8, 4), np.float32)
    for rows in range(1, calls.MOST_KINDS + 10):
        assert executable.call("forward", np.ones((rows, 4), np.float32), w)[0].shape == (rows, 8)
        assert 0 < len(executable._kinds) <= calls.MOST_KINDS


@pytest.mark.parametrize("text, error, message", [
    ("func.func @f( {", runtime.IRError, "module:1:"),
    ("func.func @f() -> i32 { return }", runtime.IRError, "return"),
    ("[" * 100000, runtime.IRError, "levels of brackets"),
    ("", runtime.UsageError, "public"),
    ("ML\xefR".encode("latin-1") + b"\x00\x01\x02", runtime.IRError, "expected a module of MLIR"),
])
def test_bad_modules(text, error, message):
    with pytest.raises(error) as raised:
        runtime.Executable(text, cache=False).call("f")
    assert message in str(raised.value)


def test_names_of_the_package_are_listed():
    import diffattn

    assert {"attention", "bundle", "load", "__version__"} <= set(dir(diffattn))


def test_bad_options():
    with pytest.raises(runtime.UsageError, match="cpu:<isa>"):
        runtime.Executable(MODULE, target="gpu")


def test_cache(tmp_path):
    folder = tmp_path / "cache"
    first = runtime.Executable(MODULE, cache=folder)
    second = runtime.Executable(MODULE, cache=folder)
    assert not first.from_cache and second.from_cache
    assert second.signature("update")[0][0].in_place
    assert second.call("checked", np.ones(2, np.float32))[0].tolist() == [1, 1]
    assert (folder.stat().st_mode & 0o777) == 0o700
    # Each choice that changes code has a record of its own, and so has other IR.
    for changed in [dict(target="cpu:generic"), dict(raise_attention=False), dict(reference=True)]:
        assert not runtime.Executable(MODULE, cache=folder, **changed).from_cache
    assert not runtime.Executable(MODULE + "\n", cache=folder).from_cache
    # A damaged record is compiled again.
    for record in folder.glob("*.diffattn"):
        data = bytearray(record.read_bytes())
        data[-100] ^= 1
        record.write_bytes(data)
    assert not runtime.Executable(MODULE, cache=folder).from_cache
    assert runtime.Executable(MODULE, cache=folder).from_cache
    # Others could put code into a folder that they can write to.
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="expected a folder that this user alone can write"):
        assert not runtime.Executable(MODULE, cache=folder).from_cache


def test_a_whole_model_compiles_and_loads_fast(root, tmp_path):
    """In time of this process, since other processes may want the machine too, and in units of plain work, since cores differ: 6 of
    them on one, 8 on another, 13 on a third, 11 where a neighbour shares the core. So the work is timed before and after, and compiling
    twice."""
    from diffattn import models
    from diffattn.checkpoint import open_checkpoint

    def time_work():
        start = time.process_time()
        sum(i * i for i in range(4_000_000))
        return time.process_time() - start

    units = [time_work()]
    checkpoint = open_checkpoint(root / "examples" / "tiny-lm")
    text = str(models.build(checkpoint.config, checkpoint.dtype))
    seconds = []
    for cache in ("cache", "other", "cache"):
        start = time.process_time()
        runtime.Executable(text, weights=[root / "examples" / "tiny-lm"], cache=tmp_path / cache)
        seconds.append(time.process_time() - start)
    units.append(time_work())
    assert min(seconds[:2]) < 16 * max(units) and seconds[2] < 0.1 * max(units), (seconds, units)


def test_emit():
    assert b"linalg.matmul" in runtime.emit(MODULE, "input")
    assert b"llvm.func" in runtime.emit(MODULE, "llvm")
    assert b"define" in runtime.emit(MODULE, "llvm-ir")
    assert runtime.emit(MODULE, "object")[:4] == b"\x7fELF"
    with pytest.raises(runtime.UsageError, match="expected a stage of"):
        runtime.emit(MODULE, "nope")


def test_code_for_a_gpu_is_emitted_without_one(tmp_path):
    mlir = """
!q = tensor<1x1x?x32xf16>
func.func @f(%q: !q, %k: !q, %l: tensor<f32>, %o: !q) -> !q {
  %r = diffattn.attention ins(%q, %k, %q, %k, %k : !q, !q, !q, !q, !q) lambda(%l : tensor<f32>) outs(%o : !q) {scale = 0.1 : f32} -> !q
  return %r : !q
}"""
    assert runtime.emit(mlir, "ptx", target="cuda:sm_86").decode().count(".target sm_86") == 1
    assert runtime.emit(mlir, "cubin", target="cuda:sm_86").startswith(b"\x7fELF")
    with pytest.raises(runtime.CompileError, match=f"found none; tried {tmp_path}/ptxas. It comes"):
        runtime.emit(mlir, "cubin", target="cuda:sm_86", ptxas=tmp_path / "ptxas")
    # No driver, no GPU, or not so many.
    with pytest.raises(runtime.UsageError, match="expected (the CUDA driver's library|an NVIDIA GPU|a device from 0 to)"):
        runtime.Executable(mlir, target="cuda:sm_86@4096")
    with pytest.raises(runtime.UsageError, match="a chip of sm_80, sm_86, .*, sm_121, but got"):
        runtime.emit(mlir, "ptx", target="cuda:sm_75")


def test_kernels_can_be_changed_and_run():
    mlir = """
!q = memref<1x1x?x32xf16>
func.func @f(%q: !q, %k: !q, %l: memref<f32>, %o: !q) {
  diffattn.attention ins(%q, %k, %k, %q, %k : !q, !q, !q, !q, !q) lambda(%l : memref<f32>) outs(%o : !q) {scale = 0.1 : f32}
  return
}"""
    target = "cuda-sim:sm_80"
    kernels = runtime.emit(mlir, "gpu", target=target).decode()
    x = np.random.default_rng(0).normal(size=(1, 1, 40, 32)).astype(np.float16)
    results = []
    for text, stage in [(mlir, "input"), (kernels, "gpu"), (kernels.replace("ex2.approx.ftz.f", "ex2.approx.f"), "gpu")]:
        results.append(np.zeros_like(x))
        runtime.Executable(text, target=target, from_stage=stage).call("f", x, x[:, :, ::-1].copy(), np.float32(0.5), results[-1])
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


REVERSED = """func.func @copy(%x: memref<4xf32, strided<[-1]>>, %o: memref<4xf32>) {
  linalg.copy ins(%x : memref<4xf32, strided<[-1]>>) outs(%o : memref<4xf32>)
  return
}"""


@pytest.mark.parametrize("where", ["fresh", "from the cache", "bundle"])
def test_strides_below_zero_are_checked(where, tmp_path, monkeypatch):
    """-1 is a stride like another, not any stride: the code reads towards lower addresses."""
    monkeypatch.setenv("DIFFATTN_CACHE_DIR", str(tmp_path / "cache"))
    if where == "bundle":
        runtime.write_bundle(REVERSED, tmp_path / "b", cache=False)
        code = bundle.load(tmp_path / "b")
    else:
        code = [runtime.Executable(REVERSED) for _ in range(1 if where == "fresh" else 2)][-1]
        assert code.from_cache == (where != "fresh")
    x, out = np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
    code.call("copy", x[:4][::-1], out)
    np.testing.assert_array_equal(out, [3, 2, 1, 0])
    with pytest.raises(runtime.InputError, match="argument 0 of 'copy': expected stride -1 of axis 0, but got 1"):
        code.call("copy", x[4:], out)
