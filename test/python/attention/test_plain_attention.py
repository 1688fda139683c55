"""`diffattn.plain_attention`: one map, against f64 and against two maps of which lambda takes the second away."""
import re
import subprocess
import warnings

import ml_dtypes
import numpy as np
import pytest

import diffattn
from attention_cases import Call, draw_signature, memref, module_of
from diffattn import attention_module
from diffattn.runtime import Executable, InputError, UsageError
from interpreter import Interpreter
from kernel_library import runnable_isas

BF16 = ml_dtypes.bfloat16
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": BF16}


def rewritten(build_dir, text, passes):
    return subprocess.run([str(build_dir / "bin/diffattn-opt"), "-", passes], input=text, capture_output=True, text=True, check=True).stdout


def draw(dtype, queries=40, keys=70, width=32, heads=2, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, heads, length, width)).astype(TYPES[dtype]) for length in (queries, keys, keys)]


@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.sampled(20)) for n in range(20)])
def test_random_calls(isa, number):
    rng = np.random.default_rng(number)
    fixed = dict(dtype="bf16", step=1) if isa.startswith("amx") else {}
    Call(rng, draw_signature(rng, maps=1, **fixed)).check(f"cpu:{isa}")


def same(a, b):
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("queries", [1, 7])
def test_few_queries_have_the_bits_of_two_maps_without_the_second(isa, dtype, queries):
    q, k, v = draw(dtype, queries=queries, keys=1100)
    other = draw(dtype, queries=queries, keys=1100, seed=1)
    options = dict(is_causal=True, norm="rms", target=f"cpu:{isa}")
    assert same(diffattn.plain_attention(q, k, v, **options), diffattn.attention(q, k, other[0], other[1], v, 0.0, **options))


def merged_schedule(isa, dtype):
    """A schedule for many queries of two maps that merges blocks of keys, as that of one map does."""
    lanes, tiles = {"avx2": (8, "[4, 3, 4], pv_tile = [6, 2, 4]"), "generic": (4, "[4, 3, 4], pv_tile = [6, 2, 4]")}.get(
        isa, (16, "[8, 3, 4], pv_tile = [6, 4, 2]"))
    product = ""
    if dtype == "bf16" and isa.startswith("amx"):
        tiles, product = "[16, 3, 1], pv_tile = [48, 1, 1]", ", product = bf16_tiles"
    elif dtype == "bf16" and isa == "avx512bf16":
        product = ", product = bf16_pairs"
    return (f', schedules = [#diffattn.cpu_prefill<isa = "{isa}", lanes = {lanes}, q_block_size = 48, qk_tile = {tiles}, kv_block_size = 32, '
            f"two_pass_keys = 0{product}>]")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("options", ["is_causal", "window = array<i64: 9, 4>", "softcap = 5.0 : f32"])
def test_many_queries_have_the_bits_of_two_maps_without_the_second(isa, dtype, options):
    q, k, v = draw(dtype, queries=50, keys=131)
    q2, k2, _ = draw(dtype, queries=50, keys=131, seed=1)
    attributes = f"scale = 0.2 : f32, {options}" + merged_schedule(isa, dtype)
    results = []
    for maps in (dict(q1=q, k1=k, v=v), dict(q1=q, k1=k, q2=q2, k2=k2, v=v, **{"lambda": np.float32(0).reshape(())})):
        arrays = dict(maps, init=np.full_like(q, np.nan))
        Executable(module_of(arrays, attributes), target=f"cpu:{isa}", name="attention").call("attention", *arrays.values())
        results.append(arrays["init"])
    assert not np.isnan(results[0].astype(np.float32)).any() and same(*results)


@pytest.mark.parametrize("queries", [1, 40])
def test_a_constant_lambda_of_0_leaves_one_map(build_dir, queries):
    """Which NaN in the other one does not reach."""
    q, k, v = draw("f32", queries=queries)
    bad = np.full_like(q, np.nan), np.full_like(k, np.nan)
    tensor = lambda a: "tensor<" + "x".join(map(str, a.shape)) + "xf32>"
    t = [tensor(a) for a in (q, k, v)]
    text = f"""
func.func @main(%q1: {t[0]}, %k1: {t[1]}, %q2: {t[0]}, %k2: {t[1]}, %v: {t[2]}) -> {t[0]} {{
  %l = arith.constant dense<0.0> : tensor<f32>
  %init = tensor.empty() : {t[0]}
  %o = diffattn.attention ins(%q1, %k1, %q2, %k2, %v : {t[0]}, {t[1]}, {t[0]}, {t[1]}, {t[2]}) lambda(%l : tensor<f32>)
         outs(%init : {t[0]}) {{scale = 0.25 : f32}} -> {t[0]}
  return %o : {t[0]}
}}"""
    got = Executable(rewritten(build_dir, text, "--canonicalize")).call("main", q, k, *bad, v)[0]
    assert same(got, diffattn.plain_attention(q, k, v, scale=0.25))


@pytest.mark.parametrize("form", ["whole", "states"])
def test_the_interpreter_knows_one_map(build_dir, form):
    q, k, v = draw("f32", queries=6, keys=9, heads=4)
    k, v = k[:, :2], v[:, :1]
    bias = np.random.default_rng(3).standard_normal((1, 4, 6, 9)).astype(np.float32)
    text = """
func.func @main(%q: tensor<1x4x6x32xf32>, %k: tensor<1x2x9x32xf32>, %v: tensor<1x1x9x32xf32>, %b: tensor<1x4x6x9xf32>) -> tensor<1x4x6x32xf32> {
  %init = tensor.empty() : tensor<1x4x6x32xf32>
  %o = diffattn.attention ins(%q, %k, %v : tensor<1x4x6x32xf32>, tensor<1x2x9x32xf32>, tensor<1x1x9x32xf32>)
         bias(%b : tensor<1x4x6x9xf32>) outs(%init : tensor<1x4x6x32xf32>)
         {scale = 0.3 : f32, is_causal, norm = #diffattn.norm<rms>} -> tensor<1x4x6x32xf32>
  return %o : tensor<1x4x6x32xf32>
}"""
    if form == "states":
        text = rewritten(build_dir, text, "--pass-pipeline=builtin.module(func.func(diffattn-to-online))")
        assert "diffattn.finalize" in text and text.count("linalg.fill") == 3
    got = Interpreter(build_dir, text).call("main", q, k, v, bias)[0]
    np.testing.assert_allclose(got, diffattn.plain_attention(q, k, v, scale=0.3, is_causal=True, norm="rms", attn_mask=bias), rtol=0, atol=2e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isa", [isa for isa in runnable_isas() if not isa.startswith("amx")])
def test_sequences_and_pages(isa):
    rng = np.random.default_rng(5)
    make = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    q, k, v, starts = make(1, 4, 60, 16), make(1, 2, 60, 16), make(1, 2, 60, 24), np.array([0, 7, 7, 60], np.int32)
    target = f"cpu:{isa}"
    got = diffattn.plain_attention(q, k, v, is_causal=True, cu_seqlens_q=starts, cu_seqlens_k=starts, target=target)
    for first, end in zip(starts, starts[1:]):
        assert same(got[:, :, first:end], diffattn.plain_attention(*(x[:, :, first:end] for x in (q, k, v)), is_causal=True, target=target))
    # Keys 0 to 59 in pages of 16, in another order, with NaN in what no length counts.
    order, pages = np.array([[3, 0, 2, 1]], np.int32), [np.full((5, 2, 16, width), np.nan, np.float32) for width in (16, 24)]
    for at, page in enumerate(order[0]):
        for memory, array in zip(pages, (k, v)):
            part = array[0, :, 16 * at: 16 * at + 16]
            memory[page, :, :part.shape[1]] = part
    for queries in (q, q[:, :, -2:]):
        paged = diffattn.plain_attention(queries, *pages, is_causal=True, block_table=order, kv_len=60, target=target)
        np.testing.assert_allclose(paged, diffattn.plain_attention(queries, k, v, is_causal=True, target=target), rtol=0, atol=1e-5)


def test_gpus_have_kernels_for_it():
    q, k, v = draw("f32", queries=5, keys=9, width=8)
    got = diffattn.plain_attention(q, k, v, is_causal=True, target="cuda-sim:sm_80")
    np.testing.assert_allclose(got, diffattn.plain_attention(q, k, v, is_causal=True), rtol=0, atol=1e-5)
    starts = np.array([0, 2, 5], np.int32)
    sequences = dict(cu_seqlens_q=starts, cu_seqlens_k=starts, is_causal=True)
    got = diffattn.plain_attention(q, k[:, :, :5], v[:, :, :5], **sequences, target="cuda-sim:sm_80")
    np.testing.assert_allclose(got, diffattn.plain_attention(q, k[:, :, :5], v[:, :, :5], **sequences), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:linalg.generic gets one thread")
def test_a_gpu_without_a_kernel_says_so():
    q, k, v = draw("f32", queries=5, keys=9, width=8)
    with pytest.warns(RuntimeWarning, match="expected a softcap of at most 64 for f32, but got 65") as caught:
        got = diffattn.plain_attention(q, k, v, softcap=65.0, target="cuda-sim:sm_80")
    assert all(one.filename == __file__ for one in caught)
    np.testing.assert_allclose(got, diffattn.plain_attention(q, k, v, softcap=65.0), rtol=0, atol=1e-5)


X = np.zeros((1, 4, 8, 16), np.float32)


@pytest.mark.parametrize("error, message, arguments", [
    (InputError, "q: expected rank 4, [batch, heads, length, width], but got shape [4, 8, 16]", dict(q=X[0])),
    (InputError, "k: expected float32 as q, but got float16", dict(k=X.astype(np.float16))),
    (InputError, "q: expected float32, float16 or bfloat16, but got float64", dict(q=X.astype(np.float64))),
    (InputError, "k: expected shape [B, Hk1, Tk, d] = [1, 4, 8, 16], but got [1, 4, 8, 15]", dict(k=X[..., :15])),
    (InputError, "v: expected shape [B, Hv, Tk, dv] = [1, 4, 8, 16], but got [1, 4, 7, 16]", dict(v=X[:, :, :7])),
    (InputError, "k: expected Hs to be a multiple of Hk1, a divisor of the 4 heads of q, but got 3", dict(k=X[:, :3])),
    (InputError, "q: expected a width d of at least 1, but got 0", dict(q=X[..., :0], k=X[..., :0])),
    (InputError, "attn_mask: expected a shape that broadcasts to [B, Hn, Tq, Tk] = [1, 4, 8, 8]", dict(attn_mask=np.zeros((1, 2, 8, 8), bool))),
    (InputError, "out: expected an array that shares no element with q", dict(out=X)),
    (InputError, "q: expected one batch, in which sequences follow one another, but got 2",
     dict(dict.fromkeys("qkv", np.zeros((2, 4, 8, 16), np.float32)), cu_seqlens_q=[0, 8], cu_seqlens_k=[0, 8])),
    (InputError, "k: expected at least one page, of at least one key, but got 0 of 8",
     dict(k=X[:0], v=X[:0], block_table=np.zeros((1, 1), np.int32), kv_len=0)),
    (UsageError, "norm_weight: expected norm='rms' with it", dict(norm_weight=np.ones(16, np.float32))),
    (TypeError, "lam", dict(lam=0.5)),
    (TypeError, "integral", dict(integral=True)),
])
def test_bad_arguments(error, message, arguments):
    with pytest.raises(error, match=re.escape(message)):
        diffattn.plain_attention(**dict(q=X, k=X, v=X) | arguments)


def test_one_call_compiles_one_module():
    """Text of one map has neither operands nor a clause of the second."""
    q, k, v = draw("f32")
    arrays = dict(q1=q, k1=k, v=v, init=q)
    text = module_of(arrays, "scale = 1.0 : f32")
    assert "lambda" not in text and "%q2" not in text
    assert text == attention_module.module(tuple((n, memref(n, a)) for n, a in arrays.items()), "scale = 1.0 : f32", False)


def test_tensors():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(a) for a in draw("f32"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = diffattn.plain_attention(q, k, v)
    torch.testing.assert_close(got, torch.nn.functional.scaled_dot_product_attention(q, k, v), rtol=0, atol=1e-5)
    # Gradients are in test_torch_training.py.
    wanted = k.clone().requires_grad_()
    assert diffattn.plain_attention(q, wanted, v).requires_grad
    with torch.no_grad():
        assert same(diffattn.plain_attention(q, wanted, v).numpy(), got.numpy())
    with pytest.raises(UsageError, match="^q: expected a tensor outside of torch.func's transforms"):
        torch.vmap(lambda one: diffattn.plain_attention(one[None], k, v))(q)


def test_the_operator_of_pytorch_without_a_second_map():
    torch = pytest.importorskip("torch")
    import diffattn.torch  # noqa: F401  registers it

    q, k, v = (torch.from_numpy(a) for a in draw("f32"))
    attention = torch.ops.diffattn.attention
    got = attention(q, k, None, None, v, None, is_causal=True, norm="rms")
    assert torch.equal(got, diffattn.plain_attention(q, k, v, is_causal=True, norm="rms"))
    graph = torch.compile(lambda q, k, v: attention(q, k, None, None, v, None, is_causal=True, norm="rms"), backend="diffattn", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(graph(q, k, v), got, rtol=0, atol=1e-5)
    with pytest.raises(UsageError, match="^k2: expected q2, k2 and lam, or none of them, but got q2, lam alone"):
        attention(q, k, q, None, v, torch.tensor(0.5))
    with pytest.raises(UsageError, match="^lam_activation: expected None without q2, k2 and lam, but got 'sigmoid'"):
        attention(q, k, None, None, v, None, lam_activation="sigmoid")
