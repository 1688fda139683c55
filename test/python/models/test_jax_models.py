"""Differential attention of JAX and Flax by diffattn.jax.compile: the numbers, and that each attention was raised."""
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import diffattn

pytestmark = pytest.mark.oracle
#: Relative to the largest value.
TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
WIDTH, HEADS = 64, 4


def split_heads(x, heads=HEADS):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def softmax_of(q, k, mask):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)


def plain(parameters, x, mask=None):
    """With a mask of its own, or one that is given: [batch, length], true where a key is there."""
    q, k, v = (split_heads(one) for one in jnp.split(x @ parameters["qkv"], 3, -1))
    (q1, q2), (k1, k2) = jnp.split(q, 2, -1), jnp.split(k, 2, -1)
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)) if mask is None else mask[:, None, None, :]
    o = (softmax_of(q1, k1, seen) - parameters["lambda"] * softmax_of(q2, k2, seen)) @ v
    return o.swapaxes(1, 2).reshape(x.shape) @ parameters["out"]


def rotated(x):
    """RoPE of pairs beside each other."""
    length, width = x.shape[-2:]
    angles = jnp.arange(length)[:, None] * 10000.0 ** -(jnp.arange(0, width, 2) / width)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack((a * cos - b * sin, a * sin + b * cos), -1).reshape(x.shape)


def v1(parameters, x, init=0.35):
    """Microsoft's first: one softmax over both maps, lambda of four vectors, a norm over each head."""
    q, k = (rotated(split_heads(x @ parameters[name], 2 * HEADS)) for name in ("q", "k"))
    v = split_heads(x @ parameters["v"])
    maps = softmax_of(q, k, jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)))
    maps = maps.reshape(x.shape[0], HEADS, 2, *maps.shape[-2:])
    l1, l2 = (jnp.exp(jnp.sum(parameters[f"lambda_q{n}"] * parameters[f"lambda_k{n}"])) for n in "12")
    o = (maps[:, :, 0] - (l1 - l2 + init) * maps[:, :, 1]) @ v
    o = o * jax.lax.rsqrt(jnp.mean(jnp.square(o), -1, keepdims=True) + 1e-5) * parameters["norm"] * (1 - init)
    return o.swapaxes(1, 2).reshape(x.shape) @ parameters["out"]


class FlaxAttention(nn.Module):
    """Two calls of Flax's own attention, their difference, a norm."""

    @nn.compact
    def __call__(self, x):
        q, k = (nn.DenseGeneral((2, HEADS, WIDTH // HEADS // 2), name=name)(x) for name in "qk")
        v = nn.DenseGeneral((HEADS, WIDTH // HEADS), name="v")(x)
        mask = nn.make_causal_mask(x[..., 0])
        o1, o2 = (nn.dot_product_attention(q[:, :, n], k[:, :, n], v, mask=mask) for n in (0, 1))
        lam = self.param("lambda", nn.initializers.constant(0.3), ())
        o = nn.RMSNorm(name="norm")(o1 - lam.astype(x.dtype) * o2)
        return nn.DenseGeneral(WIDTH, axis=(-2, -1), name="out")(o)


def random_arrays(sizes, dtype):
    random = np.random.default_rng(0)
    return {name: jnp.asarray(random.standard_normal(shape) * (shape[0] ** -0.5 if len(shape) > 1 else 0.3), dtype)
            for name, shape in sizes.items()}


SQUARE = (WIDTH, WIDTH)
SIZES = {plain: {"qkv": (WIDTH, 3 * WIDTH), "lambda": (), "out": SQUARE},
         v1: {"q": SQUARE, "k": SQUARE, "v": SQUARE, "out": SQUARE, "norm": (WIDTH // HEADS,),
              **{f"lambda_{side}{n}": (8,) for side in "qk" for n in "12"}}}


def inputs(batch, length, dtype):
    return jnp.asarray(np.random.default_rng(batch * 1000 + length).standard_normal((batch, length, WIDTH)), dtype)


def check(function, calls, example=None):
    compiled = diffattn.jax.compile(function, *(example or calls[0]))
    for call in calls:
        got, want = compiled(*call), function(*call)
        assert got.dtype == want.dtype and got.shape == want.shape
        got, exact = np.asarray(got, np.float64), np.asarray(want, np.float64)
        error, scale = np.abs(got - exact).max(), np.abs(exact).max()
        assert error <= TOLERANCE[str(want.dtype)] * scale, f"error {error:.3g} at magnitude {scale:.3g}"
    assert compiled.diagnostics == []
    kinds = len({call[-1].shape for call in calls})  # sets of sizes, each of which is compiled
    assert sum(d.name == "Raised" for d in compiled.applied) == kinds, [str(d) for d in compiled.applied]
    return compiled


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("model", SIZES)
def test_an_attention(model, dtype):
    """Parameters are arguments, then closed over."""
    parameters = random_arrays(SIZES[model], dtype)
    check(model, [(parameters, inputs(2, 20, dtype))])
    closed = check(lambda x: model(parameters, x), [(inputs(2, 20, dtype),)])
    assert "diffattn.weight" in closed.mlir and len(closed.mlir) < 60000
    assert diffattn.jax.compile(lambda x: model(parameters, x), inputs(2, 20, dtype)).mlir == closed.mlir


def test_a_mask_of_keys():
    parameters = random_arrays(SIZES[plain], "float32")
    mask = jnp.arange(20)[None] >= jnp.array([[0], [5]])
    check(plain, [(parameters, inputs(2, 20, "float32"), mask)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_flax(dtype):
    module = FlaxAttention()
    parameters = jax.tree_util.tree_map(lambda one: one.astype(dtype), module.init(jax.random.key(0), inputs(2, 20, "float32")))
    check(module.apply, [(parameters, inputs(2, 20, dtype))])


def test_sizes_that_calls_decide():
    parameters = random_arrays(SIZES[v1], "float32")
    batch, length = export.symbolic_shape("batch, length")
    example = (jax.ShapeDtypeStruct((batch, length, WIDTH), jnp.float32),)
    compiled = check(lambda x: v1(parameters, x), [(inputs(*shape, "float32"),) for shape in ((2, 20), (1, 2), (3, 33), (2, 20))], example=example)
    assert compiled.symbols == ["batch", "length"]
