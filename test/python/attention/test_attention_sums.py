"""Sinks, scores without a value in the sums of each map, and `return_lse`, the logarithms of these sums: against f64, and what they leave as
it is."""
import itertools
import re
import warnings

import ml_dtypes
import numpy as np
import pytest

import diffattn
from attention_cases import Call, draw_signature, module_of
from attention_reference import attention as reference
from diffattn.runtime import Executable, InputError, UsageError
from kernel_library import runnable_isas, small_schedule

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
SINK, SINK2 = np.array([0.5, -1.0, 2.0, 0.0], np.float32), np.array([1.0, -0.25], np.float32)


def draw(dtype="f32", queries=9, keys=70, width=32, seed=0):
    """q1 [1, 4, Tq, d], q2 [1, 2, Tq, d], k1 and v with four heads, k2 with two."""
    rng = np.random.default_rng(seed)
    heads = lambda count, length: rng.standard_normal((1, count, length, width)).astype(TYPES[dtype])
    return dict(q1=heads(4, queries), k1=heads(4, keys), q2=heads(2, queries), k2=heads(2, keys), v=heads(4, keys), lam=np.float32(0.4))


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.sampled(20)) for n in range(20)])
def test_random_calls(isa, number):
    rng = np.random.default_rng(number)
    pick = lambda *options: options[rng.integers(len(options))]
    fixed = dict(dtype="bf16", step=1, weight=None, mask=pick(None, "bool")) if isa.startswith("amx") else {}
    sig = draw_signature(rng, maps=1 + number % 2, **fixed)
    for name in ("sink", "sink2")[:sig["maps"]]:
        sig[name] = pick(None, "f32", sig["dtype"])
    sig["lse"] = sig["sink"] is None or pick(True, True, False)
    for _ in range(2):
        Call(rng, sig).check(f"cpu:{isa}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("queries, keys", [(2, 100), (50, 40), (50, 131)])
def test_every_path_of_the_kernels(isa, dtype, queries, keys):
    """Keys split over blocks, two passes, and blocks that are merged."""
    operands = draw(dtype, queries, keys)
    arrays = {"q1": operands["q1"], "k1": operands["k1"], "q2": operands["q2"], "k2": operands["k2"], "v": operands["v"],
              "lambda": operands["lam"].reshape(()), "sink": SINK, "sink2": SINK2.astype(TYPES[dtype]), "init": np.full_like(operands["q1"], np.nan),
              "lse1": np.full((1, 4, queries), np.nan, np.float32), "lse2": np.full((1, 2, queries), np.nan, np.float32)}
    attributes = f"scale = 0.2 : f32, is_causal, {small_schedule(isa, dtype == 'bf16')}"
    Executable(module_of(arrays, attributes), target=f"cpu:{isa}", name="attention").call("attention", *arrays.values())
    expected, magnitude, *logs = reference(**operands, scale=float(np.float32(0.2)), is_causal=True, sink=SINK, sink2=arrays["sink2"], return_lse=True)
    bound = {"f32": 5e-5, "bf16": 1.2e-2}[dtype]
    assert (np.abs(arrays["init"].astype(np.float64) - expected) <= bound * (magnitude + np.abs(expected))).all()
    for name, log in zip(("lse1", "lse2"), logs):
        np.testing.assert_allclose(arrays[name], log, rtol=5e-4 if dtype == "bf16" else 2e-5, atol=5e-4 if dtype == "bf16" else 2e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("options", [dict(), dict(softcap=5.0, is_causal=True), dict(norm="rms", window=(3, 0), q_offset=[0])])
def test_logarithms_and_sinks_of_nothing_leave_every_bit(dtype, queries, options):
    operands = draw(dtype, queries, keys=300)
    plain = diffattn.attention(**operands, **options)
    result, lse1, lse2 = diffattn.attention(**operands, **options, return_lse=True)
    assert same(plain, result) and lse1.shape == (1, 4, queries) and lse2.shape == (1, 2, queries)
    none = dict(sink=np.full(4, -np.inf, np.float32), sink2=np.full(2, -np.inf, np.float32))
    assert same(plain, diffattn.attention(**operands, **options, **none))
    assert all(map(same, (result, lse1, lse2), diffattn.attention(**operands, **options, **none, return_lse=True)))
    sunk = diffattn.attention(**operands, **options, sink=SINK, sink2=SINK2)
    assert not same(plain, sunk)
    assert same(sunk, diffattn.attention(**operands, **options, sink=SINK, sink2=SINK2, return_lse=True)[0])


def test_a_sink_is_a_key_without_a_value():
    """With a score that a bias gives it."""
    operands = draw(queries=5, keys=12)
    wider = {name: np.concatenate([operands[name], np.zeros_like(operands[name][:, :, :1])], 2) for name in ("k1", "k2", "v")}
    bias = np.zeros((1, 2, 1, 13), np.float32)
    bias[0, :, 0, 12] = SINK2
    expected = diffattn.attention(**{**operands, **wider}, attn_mask=bias, return_lse=True)
    got = diffattn.attention(**operands, sink=SINK2.repeat(2), sink2=SINK2, return_lse=True)
    for one, other in zip(got, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("queries", [2, 20])
def test_rows_without_keys(queries):
    operands = draw(queries=queries)
    result, lse1, lse2 = diffattn.attention(**operands, kv_len=[0], sink=SINK, sink2=SINK2, return_lse=True)
    assert not result.any() and np.isneginf(lse1).all() and np.isneginf(lse2).all()
    # The first row sees none, the others do.
    result, lse = diffattn.plain_attention(operands["q1"], operands["k1"], operands["v"], is_causal=True, q_offset=[-1], sink=SINK, return_lse=True)
    assert not result[:, :, 0].any() and result[:, :, 1:].any()
    assert np.isneginf(lse[:, :, 0]).all() and np.isfinite(lse[:, :, 1:]).all()


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_scores_that_do_not_rise_with_the_products(queries, scale):
    for dtype in ("f32", "bf16"):
        operands = draw(dtype, queries)
        result, *logarithms = diffattn.attention(**operands, scale=scale, sink=SINK, sink2=SINK2, return_lse=True)
        expected, magnitude, *logs = reference(**operands, scale=float(np.float32(scale)), sink=SINK, sink2=SINK2, return_lse=True)
        assert (np.abs(result.astype(np.float64) - expected) <= 1.2e-2 * magnitude).all()
        for got, log in zip(logarithms, logs):
            np.testing.assert_allclose(got, log, rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize("queries", [1, 30])
def test_sinks_far_from_the_scores(queries):
    """Above all of them by more than f32's exponents hold, and below."""
    operands = draw(queries=queries)
    for far, near in itertools.permutations((1e4, -1e4)):
        sink, sink2 = np.array([far, near, far, near], np.float32), np.array([near, far], np.float32)
        result, lse1, lse2 = diffattn.attention(**operands, sink=sink, sink2=sink2, return_lse=True)
        expected, magnitude, *logs = reference(**operands, scale=float(np.float32(32**-0.5)), sink=sink, sink2=sink2, return_lse=True)
        assert (np.abs(result - expected) <= 5e-5 * magnitude).all()
        np.testing.assert_allclose(lse1, logs[0], rtol=2e-5)
        np.testing.assert_allclose(lse2, logs[1], rtol=2e-5)


def test_parts_of_the_keys_are_joined_by_their_logarithms():
    operands = draw(queries=3, keys=200)
    q, k, v = operands["q1"], operands["k1"], operands["v"]
    whole, lse = diffattn.plain_attention(q, k, v, sink=SINK, return_lse=True)
    parts = [diffattn.plain_attention(q, k[:, :, keys], v[:, :, keys], sink=sink, return_lse=True)
             for keys, sink in ((slice(0, 77), SINK), (slice(77, None), None))]
    total = np.logaddexp(parts[0][1], parts[1][1])
    np.testing.assert_allclose(total, lse, rtol=0, atol=1e-5)
    np.testing.assert_allclose(sum(part * np.exp(log - total)[..., None] for part, log in parts), whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 20])
def test_any_number_of_threads_gives_the_same_bits(queries):
    operands = draw(queries=queries, keys=2100)
    results = [diffattn.attention(**operands, sink=SINK, sink2=SINK2, return_lse=True, threads=threads) for threads in (1, 2, 3)]
    assert all(same(*both) for other in results[1:] for both in zip(results[0], other))


def test_packed_sequences_and_pages():
    """Each sequence is computed as if it were alone; sinks are of all."""
    operands = draw(queries=30, keys=30)
    starts = np.array([0, 7, 7, 30], np.int32)
    sums = dict(sink=SINK, sink2=SINK2, return_lse=True)
    packed = diffattn.attention(**operands, is_causal=True, cu_seqlens_q=starts, cu_seqlens_k=starts, **sums)
    for first, end in ((0, 7), (7, 30)):
        one = diffattn.attention(**{name: x if name == "lam" else x[:, :, first:end] for name, x in operands.items()}, is_causal=True, **sums)
        assert all(same(np.ascontiguousarray(whole[:, :, first:end]), part) for whole, part in zip(packed, one))
    pages = {name: x[0].reshape(x.shape[1], 3, 10, 32).swapaxes(0, 1)[[1, 2, 0]] for name, x in operands.items() if name in ("k1", "k2", "v")}
    paged = diffattn.attention(**{**operands, **pages}, block_table=np.array([[2, 0, 1]], np.int32), kv_len=[30], is_causal=True, **sums)
    for one, other in zip(paged, diffattn.attention(**operands, is_causal=True, **sums)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_no_queries_and_no_keys():
    operands = draw(queries=0)
    assert [x.shape for x in diffattn.attention(**operands, sink=SINK, return_lse=True)] == [(1, 4, 0, 32), (1, 4, 0), (1, 2, 0)]
    result, lse1, lse2 = diffattn.attention(**draw(keys=0), sink=SINK, return_lse=True)
    assert not result.any() and np.isneginf(lse1).all() and np.isneginf(lse2).all()


@pytest.mark.parametrize("error, message, arguments", [
    (InputError, "sink: expected shape [4], but got [3]", dict(sink=SINK[:3])),
    (InputError, "sink: expected shape [4], but got [1, 4]", dict(sink=SINK[None])),
    (InputError, "sink2: expected shape [2], but got [4]", dict(sink2=SINK)),
    (InputError, "sink: expected float32, but got float16", dict(sink=SINK.astype(np.float16))),
    (InputError, "sink2: expected float32, but got float64", dict(sink2=SINK2.astype(np.float64))),
    (UsageError, "integral: expected no sink2 with it", dict(sink2=SINK2, integral=True)),
    (UsageError, "integral: expected no return_lse with it", dict(return_lse=True, integral=True)),
    (UsageError, "return_lse: expected True or False, but got 1", dict(return_lse=1)),
    (UsageError, "return_lse: expected values of a width of at least 1 with it, but got 0", dict(return_lse=True, v=np.zeros((1, 4, 70, 0), np.float32))),
    (InputError, "q1: expected rank 4", dict(return_lse=True, q1=np.zeros((4, 9, 32), np.float32))),
])
def test_bad_arguments(error, message, arguments):
    with pytest.raises(error, match=re.escape(message)):
        diffattn.attention(**{**draw(), **arguments})


def test_one_map_has_one_sink():
    operands = draw()
    with pytest.raises(TypeError, match="sink2"):
        diffattn.plain_attention(operands["q1"], operands["k1"], operands["v"], sink2=SINK2)
    with pytest.raises(InputError, match=re.escape("sink: expected shape [4], but got [2]")):
        diffattn.plain_attention(operands["q1"], operands["k1"], operands["v"], sink=SINK2)


def test_tensors_and_gradients():
    torch = pytest.importorskip("torch")
    import diffattn.torch

    operands = {name: torch.from_numpy(np.asarray(x)) for name, x in draw().items()}
    sink, sink2 = torch.from_numpy(SINK), torch.from_numpy(SINK2)
    expected = diffattn.attention(**draw(), sink=SINK, sink2=SINK2, return_lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = diffattn.attention(**operands, sink=sink, sink2=sink2, return_lse=True)
    assert all(isinstance(x, torch.Tensor) and same(x.numpy(), y) for x, y in zip(got, expected))
    assert same(torch.ops.diffattn.attention(*operands.values(), sink=sink, sink2=sink2).numpy(), expected[0])

    wanted = {**operands, "v": operands["v"].clone().requires_grad_()}
    for given, message in ((dict(sink=sink), "^sink: expected none in a call that needs gradients"),
                           (dict(sink2=sink2), "^sink2: expected none in a call that needs gradients"),
                           (dict(return_lse=True), "^return_lse: expected none in a call that needs gradients")):
        with pytest.raises(UsageError, match=message):
            diffattn.attention(**wanted, **given)
    trained = sink.clone().requires_grad_()
    for call in (lambda: diffattn.attention(**operands, sink=trained), lambda: torch.ops.diffattn.attention(*operands.values(), sink=trained)):
        with pytest.raises(UsageError, match="^sink: expected none in a call that needs gradients"):
            call()
    with pytest.raises(UsageError, match="^sink: expected none in a call that needs gradients"):
        diffattn.plain_attention(operands["q1"], operands["k1"], operands["v"], sink=trained)
    with torch.no_grad():
        assert same(diffattn.attention(**wanted, sink=trained, sink2=sink2).numpy(), expected[0])


def test_a_compiled_graph_takes_sinks():
    torch = pytest.importorskip("torch")
    import diffattn.torch  # noqa: F401 - registers the operator

    operands = [torch.from_numpy(np.asarray(x)) for x in draw().values()]
    sink, sink2 = torch.from_numpy(SINK), torch.from_numpy(SINK2)

    def call(*operands):
        return torch.ops.diffattn.attention(*operands, sink=sink, sink2=sink2) + 1

    with torch.no_grad():
        got = torch.compile(call, backend="diffattn")(*operands)
        torch.testing.assert_close(got, call(*operands), rtol=0, atol=1e-5)
