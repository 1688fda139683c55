"""diffattn.jax.attention in plain JAX: results, gradients by every transform of JAX, which are computed, training, and what is refused."""
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import torch

import diffattn
import diffattn.jax
import training_reference
from diffattn import errors
from diffattn.jax import op, xla
from test_torch_training import BOUNDS
from torch_op_cases import OPTIONS, draw, operands, split

pytestmark = [pytest.mark.oracle,
              pytest.mark.filterwarnings("ignore:the gradient of attention runs as loops:RuntimeWarning"),  # of a bias
              pytest.mark.filterwarnings("ignore:attention runs as loops:RuntimeWarning")]  # of the integral
NAMES = training_reference.DIFFERENTIABLE


def of_tensor(value):
    """A tensor as an array of JAX of its type, or anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return tuple(value) if isinstance(value, list) else value
    value = value.detach()
    return jnp.asarray(value.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if value.dtype == torch.bfloat16 else value.numpy())


def call(given):
    """`diffattn.jax.attention` by the names of PyTorch's operator."""
    given = dict(given)
    if "q_segments" in given:
        given["segment_ids"] = given.pop("q_segments"), given.pop("kv_segments")
    return diffattn.jax.attention(*[given.pop(name) for name in NAMES[:6]], **given)


def check(given, weights, wrap=lambda run: run, compute=lambda run: run):
    """Values and gradients of those tensors of `given` that require one, against autograd's in f64. `wrap` is around the function that is
    differentiated, and `compute` around the one that gives gradients."""
    arrays = {name: of_tensor(value) for name, value in given.items()}
    wanted = [name for name, value in given.items() if isinstance(value, torch.Tensor) and value.requires_grad]

    @wrap
    def run(trained):
        result = call({**arrays, **trained})
        return (result * of_tensor(weights)).sum(dtype=jnp.float32), result

    trained = {name: arrays[name] for name in wanted}
    (_, result), got = compute(jax.value_and_grad(run, has_aux=True))(trained)
    expected = training_reference.attention(**given)
    bound, dtype = BOUNDS[given["q1"].dtype], of_tensor(given["q1"]).dtype
    assert result.dtype == dtype and result.shape == expected.shape
    near(result, expected, bound, "result")
    for name, tensor in zip(wanted, torch.autograd.grad((expected * weights.double()).sum(), [given[name] for name in wanted])):
        assert got[name].shape == tensor.shape and got[name].dtype == arrays[name].dtype, name
        near(got[name], tensor, bound, name)
    return result, got


def near(got, expected, bound, name):
    expected = expected.detach().double().numpy()
    error = np.abs(np.asarray(got, np.float64) - expected).max() / max(np.abs(expected).max(), 1e-3)
    assert error <= bound, (name, error)


@pytest.mark.parametrize("number", range(96))
@pytest.mark.sampled(24)
def test_random_calls(number):
    given, weights = training_reference.draw_call(np.random.default_rng(1000 + number), number)
    check(given, weights, (lambda run: run, jax.jit, jax.checkpoint)[number % 3], (lambda run: run, jax.jit)[number % 2])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("paged", "integral", "target")])
def test_options(name):
    """The result has the bits of diffattn.attention, and gradients those of the same function under jax.jit and jax.checkpoint."""
    tensors, options = split(OPTIONS[name])
    given = dict(zip(NAMES, tensors), **options)
    given = {name: value.clone().requires_grad_() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
             for name, value in given.items()}
    weights = draw(*call({name: of_tensor(value) for name, value in given.items()}).shape)
    result, got = check(given, weights)
    segments = {"segment_ids": (options.pop("q_segments"), options.pop("kv_segments"))} if "q_segments" in options else {}
    np.testing.assert_array_equal(result, diffattn.attention(*tensors, **options, **segments))
    for again, others in (check(given, weights, jax.checkpoint, jax.jit), check(given, weights, jax.jit)):
        assert (again == result).all() and all((others[one] == got[one]).all() for one in got)


@pytest.mark.parametrize("name", ["paged", "integral"])
def test_without_gradients(name):
    tensors, options = split(OPTIONS[name])
    given = {key: of_tensor(value) for key, value in dict(zip(NAMES, tensors), **options).items()}
    for run in (call, jax.jit(lambda arrays: call({**given, **arrays}))):
        np.testing.assert_array_equal(run({key: value for key, value in given.items() if isinstance(value, jax.Array)} if run is not call else given),
                                      diffattn.attention(*tensors, **options))
    culprit = "block_table" if name == "paged" else name
    for wrap in (lambda run: run, jax.jit):
        with pytest.raises(errors.UsageError, match=f"^{culprit}: expected none in a call that needs gradients, because"):
            jax.grad(wrap(lambda q1: call({**given, "q1": q1}).sum()))(given["q1"])


@pytest.fixture
def arrays():
    return dict(zip(NAMES, map(of_tensor, operands())))


def test_sinks(arrays):
    """As of diffattn.attention to the bit, also compiled; no gradient goes by, nor to one."""
    sums = {"sink": jnp.array([1.0, -2.0, 0.5, 3.0]), "sink2": jnp.linspace(-1.0, 1.0, arrays["q2"].shape[1])}
    expected = diffattn.attention(*map(np.asarray, arrays.values()), is_causal=True, **{name: np.asarray(sink) for name, sink in sums.items()})
    run = jax.jit(lambda given: call({**given, "is_causal": True}))
    np.testing.assert_array_equal(run({**arrays, **sums}), expected)
    np.testing.assert_allclose(diffattn.jax.compile(run, {**arrays, **sums})({**arrays, **sums}), expected, rtol=2e-5, atol=2e-5)
    for name, culprit in (("v", "sink"), ("sink", "sink"), ("sink2", "sink2")):
        given = {**arrays, **sums} if name == "v" else {**arrays, name: sums[name]}
        with pytest.raises(errors.UsageError, match=f"^{culprit}: expected none in a call that needs gradients, because"):
            jax.grad(lambda trained: run({**given, name: trained}).sum())(given[name])


@pytest.fixture
def calls(monkeypatch):
    """The calls of gradients: the names of those that they computed, and whether there was x and a k2."""
    seen, run = [], xla.attention_backward

    def record(d_out, *, gradients, x, k2, **given):
        seen.append((set(gradients), x is not None, k2 is not None))
        run(d_out, gradients=gradients, x=x, k2=k2, **given)

    monkeypatch.setattr(xla, "attention_backward", record)
    return seen


def test_what_is_computed(arrays, calls):
    """Gradients that are wanted alone, and x where they read it; a mask of truth values and integers have none."""
    gate, seen = of_tensor(draw(2, 4, 5, 32)), jnp.ones((5, 7), bool)
    for wanted, options, x in ((("q1",), {}, False), (("v", "lam"), {}, False), (("k1", "k2"), {"norm": "rms"}, True),
                               (("q2",), {"gate": gate}, False), (("gate",), {"gate": gate}, True),
                               (("v",), {"attn_mask": seen, "kv_len": jnp.array([3, 7])}, False)):
        trained = {name: {**arrays, **options}[name] for name in wanted}
        jax.block_until_ready(jax.jit(jax.grad(lambda trained: call({**arrays, **options, **trained}).sum()))(trained))
        assert calls.pop() == (set(wanted), x, True) and not calls
    for mask in (None, jnp.zeros((5, 7))):  # a loop's carry may be trained or not
        jax.block_until_ready(jax.grad(lambda q1: jax.lax.scan(lambda q, _: (q + call({**arrays, "q1": q, "attn_mask": mask}).sum() * 1e-3, None), q1,
                                                               length=2)[0].sum())(arrays["q1"]))
        assert [one[0] for one in calls] == [{"q1"}, {"q1"}]
        calls.clear()


@pytest.mark.parametrize("jit", [False, True])
def test_one_key(arrays, calls, jit):
    """Where k2 is k1, it is read once and has the gradient of both."""
    compute = jax.jit if jit else lambda run: run
    k, weights = arrays["k1"], of_tensor(draw(2, 4, 5, 32))
    loss = lambda k1, k2: (call({**arrays, "k1": k1, "k2": k2}) * weights).sum()
    together = jax.block_until_ready(compute(jax.grad(lambda k: loss(k, k)))(k))
    assert calls.pop() == ({"k1"}, False, False) and not calls
    apart = jax.block_until_ready(compute(jax.grad(loss, (0, 1)))(k, k))
    assert calls.pop() == ({"k1", "k2"}, False, True)
    np.testing.assert_allclose(together, apart[0] + apart[1], rtol=1e-4, atol=1e-5)


def test_vmap(arrays):
    """Each of a batch is a call; what is not mapped has the sum of all gradients."""
    queries = jnp.stack([arrays["q1"], 2 * arrays["q1"], 1 - arrays["q1"]])
    lams = jnp.array([0.1, 0.5, 0.9])
    one = lambda q1, lam, v: call({**arrays, "q1": q1, "lam": lam, "v": v})
    mapped = jax.vmap(one, (0, 0, None))
    expected = jnp.stack([one(q, lam, arrays["v"]) for q, lam in zip(queries, lams)])
    np.testing.assert_array_equal(mapped(queries, lams, arrays["v"]), expected)
    loss = lambda run: lambda *given: (run(*given) ** 2).sum()
    got = jax.jit(jax.grad(loss(mapped), (0, 1, 2)))(queries, lams, arrays["v"])
    each = [jax.grad(loss(one), (0, 1, 2))(q, lam, arrays["v"]) for q, lam in zip(queries, lams)]
    for number in (0, 1):
        np.testing.assert_allclose(got[number], jnp.stack([gradients[number] for gradients in each]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[2], sum(gradients[2] for gradients in each), rtol=1e-4, atol=1e-4)
    inner = jax.vmap(jax.grad(loss(one), (0, 1)), (0, 0, None))(queries, lams, arrays["v"])
    np.testing.assert_allclose(inner[1], got[1], rtol=1e-5)


def test_derivatives_that_there_are_not(arrays):
    run = lambda lam: call({**arrays, "lam": lam}).sum()
    lam = arrays["lam"]
    with pytest.raises(errors.UsageError, match=r"^diffattn.jax.attention: expected reverse mode, .* no forward-mode derivative \(jvp\)"):
        jax.jvp(run, (lam,), (lam,))
    with pytest.raises(errors.UsageError, match="^diffattn.jax.attention: expected reverse mode"):
        jax.jacfwd(run)(lam)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(jax.jit(run), (lam,), (lam,))
    for second in (jax.grad(lambda lam: jax.grad(run)(lam).sum()), jax.hessian(run), jax.jit(jax.grad(lambda lam: jax.jit(jax.grad(run))(lam).sum()))):
        with pytest.raises(errors.UsageError, match="^diffattn.jax.attention: expected one derivative, .* but got a second one"):
            second(lam)


@pytest.mark.parametrize("change, message", [
    ({"q1": jnp.ones((2, 4, 5))}, "q1: expected rank 4, [batch, heads, length, width], but got shape [2, 4, 5]"),
    ({"k1": jnp.ones((2, 2, 7, 8))}, "k1: expected shape [B, Hk1, Tk, d] = [2, 2, 7, 16], but got [2, 2, 7, 8]"),
    ({"k1": jnp.ones((2, 3, 7, 16))}, "k1: expected Hs to be a multiple of Hk1, a divisor of the 4 heads of q1, but got 3"),
    ({"v": jnp.ones((2, 2, 7, 32), jnp.float16)}, "v: expected float32 as q1, but got float16"),
    ({"q1": jnp.ones((2, 4, 5, 16), jnp.int32)}, "q1: expected float32, float16 or bfloat16, but got int32"),
    ({"q1": "text"}, "q1: expected an array, but got 'text'"),
    ({"v": jax.random.key(0)}, "v: expected an array of numbers, but got key<fry>"),
    ({"lam": jnp.ones(3)}, "lam: expected a number or shape [4] or [2, 5, 4], but got [3]"),
    ({"lam": jnp.ones(4, bool)}, "lam: expected floats, but got bool"),
    ({"attn_mask": jnp.ones((5, 6), bool)}, "attn_mask: expected a shape that broadcasts to [B, Hn, Tq, Tk] = [2, 4, 5, 7]"),
    ({"norm_weight": jnp.ones(32)}, "norm_weight: expected norm='rms' with it"),
    ({"gate": jnp.ones((2, 4, 5, 16))}, "gate: expected shape [2, 4, 5, 32], but got [2, 4, 5, 16]"),
    ({"kv_len": jnp.ones(2)}, "kv_len: expected integers, but got float32"),
    ({"q_offset": jnp.array([1, 2, 3])}, "q_offset: expected a number or shape [2], but got [3]"),
    ({"kv_len": 2**40}, "kv_len: expected an array, but got 1099511627776"),
    ({"q_segments": jnp.zeros((2, 5), jnp.int32), "kv_segments": jnp.zeros((2, 6), jnp.int32)}, "kv_segments: expected shape [2, 7], but got [2, 6]"),
    ({"cu_seqlens_q": jnp.array([0, 5])}, "cu_seqlens_q: expected it with either cu_seqlens_k or block_table"),
    ({"softcap": -1.0}, "softcap: expected a positive number, but got -1.0"),
    ({"sink": jnp.ones(3)}, "sink: expected shape [4], but got [3]"),
])
def test_what_tracing_refuses(change, message, arrays):
    """Before anything runs, and by the same words eagerly, in jax.jit and in `compile`."""
    given = {**arrays, **change}
    for run in (lambda: call(given), lambda: jax.jit(lambda: call(given)).trace(), lambda: jax.grad(lambda v: call({"v": v, **given}).sum())(1.0),
                lambda: diffattn.jax.compile(lambda: call(given))):
        with pytest.raises((errors.InputError, errors.UsageError), match=re.escape(message)):
            run()


def test_what_a_call_refuses(arrays):
    """Contents are checked when the call runs; JAX raises its own error, which says what was expected."""
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"kv_len: expected 0 to \d+, but got -1 to 3"):
        jax.block_until_ready(jax.jit(lambda lengths: call({**arrays, "kv_len": lengths}))(jnp.array([3, -1])))
    tensors, options = split(OPTIONS["packed"])
    given = {key: of_tensor(value) for key, value in dict(zip(NAMES, tensors), **options).items()}
    with pytest.raises(jax.errors.JaxRuntimeError, match="cu_seqlens_q: expected 5, the number of queries, as the last number, but got 4"):
        jax.block_until_ready(jax.jit(lambda bounds: call({**given, "cu_seqlens_q": bounds}))(jnp.array([0, 2, 4])))


def test_a_gpu_is_refused(arrays):
    """By the code that is registered for platforms of GPUs, which is registered for the CPU here."""
    jax.ffi.register_ffi_target("refused", jax.ffi.pycapsule(xla._REFUSING), platform="cpu")
    refused = jax.ffi.ffi_call("refused", jax.ShapeDtypeStruct((2,), np.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="diffattn.jax.attention: expected a computation on a CPU, but got one on a GPU"):
        jax.block_until_ready(refused(jnp.ones(2), operands="q1"))


def test_nothing_given_is_written(arrays):
    """Also where JAX may take the memory of an argument for a result."""
    before = {name: np.array(value) for name, value in arrays.items()}
    step = jax.jit(lambda v: jax.grad(lambda v: (call({**arrays, "v": v, "norm": "rms"}) ** 2).sum())(v) + v)
    expected = np.array(step(arrays["v"]))
    assert all((before[name] == np.asarray(value)).all() for name, value in arrays.items())
    donated = jax.jit(step, donate_argnums=0)(jnp.array(before["v"]))
    np.testing.assert_array_equal(donated, expected)


@pytest.mark.parametrize("sizes", [dict(batch=0), dict(queries=0), dict(keys=0)])
def test_empty_calls(sizes):
    given = dict(zip(NAMES, map(of_tensor, operands(**sizes))))
    for compute in (jax.grad, lambda run: jax.jit(jax.grad(run))):
        gradients = compute(lambda trained: call(trained).sum())(given)
        assert all(gradients[name].shape == given[name].shape and not gradients[name].any() for name in given)


def test_wide_types(arrays):
    """With JAX's 64-bit types switched on, positions may be int64, and lambda float64."""
    run = lambda lam, length: call({**arrays, "lam": lam, "kv_len": length, "q_offset": 2}).sum()
    narrow = jax.grad(run)(arrays["lam"], jnp.array([3, 7]))
    with jax.enable_x64(True):
        wide = jax.grad(run)(jnp.asarray(np.asarray(arrays["lam"]), jnp.float64), jnp.array([3, 7], jnp.int64))
        assert wide.dtype == jnp.float64
    np.testing.assert_allclose(wide, narrow, rtol=1e-6)


#: Many calls that may run at the same time, in several programs of several threads.
_PARALLEL = """
import threading, jax, jax.numpy as jnp, numpy as np, diffattn.jax
q = [jax.random.normal(jax.random.key(i), (2, 4, 128, 32)) for i in range(8)]
run = jax.jit(jax.value_and_grad(lambda q: sum((diffattn.jax.attention(one, one, one, one, one, 0.3, norm="rms") ** 2).mean() for one in q)))
expected = run(q)
def work():
    for _ in range(5):
        for a, b in zip(jax.tree.leaves(run(q)), jax.tree.leaves(expected)):
            np.testing.assert_array_equal(a, b)
    done.append(1)
done = []
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == 4
"""

#: A process that ends while a computation of it runs, whose results are kept or not.
_ENDING = """
import jax, jax.numpy as jnp, diffattn.jax
q = [jax.random.normal(jax.random.key(i), (2, 4, 256, 32)) for i in range(8)]
run = jax.jit(jax.grad(lambda q: sum((diffattn.jax.attention(one, one, one, one, one, 0.3, norm="rms") ** 2).mean() for one in q)))
jax.block_until_ready(run(q))
"""


#: A process that ends before its call has come. A function that is registered before the package runs after it.
_LATE = """
import atexit, os, jax
atexit.register(lambda: None if kept.is_ready() else os._exit(3))
import jax.numpy as jnp, diffattn.jax
q = jnp.ones((1, 2, 9, 16))
late = lambda q: q + 0 * jax.lax.fori_loop(0, 400, lambda _, x: jnp.sin(x), jnp.ones(1 << 20)).sum()
run = jax.jit(lambda q: diffattn.jax.attention(q, q, late(q), q, q, 0.3))
jax.block_until_ready(run(q))
kept = run(q)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", [_PARALLEL, _ENDING + "kept = run(q)", _ENDING + "run(q)", _LATE], ids=["parallel", "kept", "dropped", "late"])
def test_processes_end(code):
    """Calls at the same time do not wait for one another, and a process may end while some run."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])


def plain_attention(q1, k, q2, v, lam, weight):
    """The decoder's layer in plain JAX."""
    seen = jnp.tril(jnp.ones((q1.shape[2], k.shape[2]), bool))
    k, v = (jnp.repeat(one, q1.shape[1] // one.shape[1], 1) for one in (k, v))
    maps = [jax.nn.softmax(jnp.where(seen, jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5, -jnp.inf), -1) for q in (q1, q2)]
    x = jnp.einsum("bhqk,bhkd->bhqd", maps[0] - jax.nn.sigmoid(lam).swapaxes(1, 2)[..., None] * maps[1], v)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight * 0.8


def fused_attention(q1, k, q2, v, lam, weight):
    return diffattn.jax.attention(q1, k, q2, k, v, lam, is_causal=True, lam_activation="sigmoid", norm="rms", norm_weight=weight, out_scale=0.8)


HEADS, GROUPS, WIDTH = 4, 2, 32


def decoder(attention, remat):
    """Two layers, with one K for both maps, which two heads share, and lambda of each token."""
    def layer(x, weights):
        split = lambda y, heads: y.reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)
        h = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        q, k, v = (split(h @ weights[name], heads) for name, heads in (("q", 2 * HEADS), ("k", GROUPS), ("v", GROUPS)))
        y = attention(q[:, ::2], k, q[:, 1::2], v, h @ weights["lam"], weights["norm"])
        return x + y.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ weights["out"]

    layer = jax.checkpoint(layer) if remat else layer

    def loss(weights, tokens):
        x = weights["embedding"][tokens[:, :-1]]
        for one in weights["layers"]:
            x = layer(x, one)
        chosen = jax.nn.log_softmax(x @ weights["embedding"].T)
        return -jnp.take_along_axis(chosen, tokens[:, 1:, None], -1).mean()

    return loss


def weights_of_decoder():
    keys, head = iter(jax.random.split(jax.random.key(0), 16)), WIDTH // HEADS
    make = lambda *shape: jax.random.normal(next(keys), shape) * shape[0] ** -0.5
    return {"embedding": make(16, WIDTH), "layers": [
        {"q": make(WIDTH, 2 * HEADS * head), "k": make(WIDTH, GROUPS * head), "v": make(WIDTH, GROUPS * head), "lam": make(WIDTH, HEADS),
         "norm": jnp.ones(head), "out": make(HEADS * head, WIDTH)} for _ in range(2)]}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("remat", [False, True])
def test_training(remat):
    """Twenty steps of Adam on a decoder come along the curve of plain JAX."""
    tokens = jnp.asarray((np.arange(20)[None] * np.array([[1], [3], [5]]) + np.arange(3)[:, None]) % 16)
    curves = []
    for attention in (fused_attention, plain_attention):
        weights, optimizer = weights_of_decoder(), optax.adam(1e-2)
        state, losses = optimizer.init(weights), []
        gradient = jax.value_and_grad(decoder(attention, remat))

        @jax.jit
        def step(weights, state):
            loss, gradients = gradient(weights, tokens)
            updates, state = optimizer.update(gradients, state)
            return optax.apply_updates(weights, updates), state, loss

        for _ in range(20):
            weights, state, loss = step(weights, state)
            losses.append(float(loss))
        curves.append(losses)
    assert curves[0][-1] < 0.6 * curves[0][0]
    np.testing.assert_allclose(curves[0], curves[1], atol=1e-3)


def test_compiled_functions_keep_the_op(arrays):
    """`compile` takes the custom call, also of a function that JAX has run and whose trace it keeps."""
    run = jax.jit(lambda *given: call({**dict(zip(NAMES, given)), "is_causal": True, "window": (3, None)}))
    expected = run(*arrays.values())
    text = run.lower(*arrays.values()).as_text()
    assert text.count("custom_call") == text.count("@diffattn.attention(") == 1 and "callback" not in text
    compiled = diffattn.jax.compile(run, *arrays.values())
    np.testing.assert_allclose(compiled(*arrays.values()), expected, rtol=2e-5, atol=2e-5)
    assert "call @diffattn_attention_0" in compiled.mlir and not compiled.diagnostics


def test_names_of_operands_as_a_list(arrays, tmp_path):
    """A module of others has them so, which is the builtin's own form."""
    run = jax.jit(lambda *given: call({**dict(zip(NAMES, given)), "is_causal": True}))
    text, changes = re.subn(r'operands = "([^"]*)"', lambda match: f"operands = [{', '.join(map(repr, match[1].split()))}]".replace("'", '"'),
                            run.lower(*arrays.values()).as_text())
    assert changes == 1
    (tmp_path / "m.mlir").write_text(text)
    np.testing.assert_allclose(diffattn.jax.load(tmp_path / "m.mlir")(*arrays.values()), run(*arrays.values()), rtol=2e-5, atol=2e-5)


def test_gradients_are_not_compiled(arrays):
    loss = lambda q1: call({**arrays, "q1": q1, "norm": "rms"}).sum()
    for run in (jax.grad(loss), jax.jit(jax.value_and_grad(loss)), jax.grad(jax.checkpoint(loss))):
        with pytest.raises(errors.CompileError, match="expected no gradients of diffattn.jax.attention, because they are not compiled, but got a "
                                                      "custom call of diffattn.attention_(and_x|backward)"):
            diffattn.jax.compile(run, arrays["q1"])


def test_attributes_that_are_not_read():
    """An attribute that XLA hands on is read or is an error of the call, not of the process."""
    call = jax.ffi.ffi_call(op.FORWARD, jax.ShapeDtypeStruct((2,), np.float32))
    for attributes, message in (({"operands": "q1"}, "TypeError: .*k1"), ({"operands": "q1", "more": {"a": 1}}, "more: expected a word, a number"),
                                ({}, "KeyError: 'operands'")):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(call(jnp.ones(2), **attributes))
