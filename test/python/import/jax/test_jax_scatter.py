"""Scatter of StableHLO: what `x.at[...]`, mapped updates of caches and sums of segments become, against JAX."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import diffattn

pytestmark = pytest.mark.oracle


def draw(*sizes, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(sum(sizes)).standard_normal(sizes), dtype)


def at(*places):
    return jnp.asarray(places, jnp.int32)


def write(cache, rows, place):
    return lax.dynamic_update_slice(cache, rows, (place, 0))


X, CACHE, ROWS = draw(6, 5), draw(3, 8, 4), at(1, 7, -1, -9)
CASES = {
    "row": (lambda x, i, v: x.at[i].set(v), X, jnp.int32(2), draw(5)), "rows": (lambda x, i, v: x.at[i].set(v), X, at(1, 3, 5), draw(3, 5)),
    "one row several times": (lambda x, i, v: x.at[i].add(v), X, at(1, 3, 1, 1), draw(4, 5)), "greatest": (lambda x, i, v: x.at[i].max(v), X, at(1, 3, 1), draw(3, 5)),
    "products": (lambda x, i, v: x.at[i].multiply(v), X, at(1, 3, 1), draw(3, 5)), "outside, dropped": (lambda x, i, v: x.at[i].set(v, mode="drop"), X, ROWS, draw(4, 5)),
    "outside, clipped": (lambda x, i, v: x.at[i].set(v, mode="clip"), X, ROWS, draw(4, 5)), "columns": (lambda x, i, v: x.at[:, i].set(v), X, at(0, 4), draw(6, 2)),
    "pairs": (lambda x, i, j, v: x.at[i, j].add(v), X, at(0, 4, 0), at(1, 2, 1), draw(3)), "part": (lambda x, v: x.at[1:3, 2:].set(v), X, draw(2, 3)),
    "every second": (lambda x, v: x.at[::2].add(v), X, draw(3, 5)), "number": (lambda x: x.at[2, 3].set(7.0), X), "function": (lambda x, i: x.at[i].apply(jnp.sin), X, at(1, 2)),
    "window that ends outside": (lambda x, u: lax.scatter(x, at(4), u, lax.ScatterDimensionNumbers((0, 1), (), (0,))), X, draw(3, 5)),
    "window": (lambda x, u: lax.scatter_add(x, at(3), u, lax.ScatterDimensionNumbers((0, 1), (), (0,))), X, draw(3, 5)),
    "places in two axes": (lambda c, i, v: c.at[i].add(v), CACHE, at(0, 2, 0, 1).reshape(2, 2), draw(2, 2, 8, 4)),
    "mapped update": (jax.vmap(write), CACHE, draw(3, 2, 4), at(0, 7, -1)), "row of each": (lambda c, r, p: c.at[jnp.arange(3), p].set(r), CACHE, draw(3, 4), at(0, 5, 7)),
    "mapped twice": (jax.vmap(jax.vmap(lambda a, j, w: a.at[j].add(w))), CACHE, at(*range(24)).reshape(3, 8) % 4, draw(3, 8)),
    "ring": (lambda c, r, p: c.at[:, (p + jnp.arange(2)) % 8].set(r), CACHE, draw(3, 2, 4), jnp.int32(7)), "segments": (lambda v, i: jax.ops.segment_sum(v, i, 4), draw(7, 3), at(0, 1, 1, 3, 0, 2, 3)),
    "greatest of segments": (lambda v, i: jax.ops.segment_max(v, i, 4), draw(7, 3), at(0, 1, 1, 3, 0, 2, 3)), "counts": (lambda x: jnp.bincount(x, length=4), at(0, 1, 1, 3)),
    "bfloat16": (lambda x, i, v: x.at[i].add(v), X.astype(jnp.bfloat16), at(1, 3, 1), draw(3, 5, dtype=jnp.bfloat16)), "int8": (lambda x, i: x.at[i].add(jnp.int8(100)), jnp.ones(5, jnp.int8), at(1, 1, 2)),
    "uint8": (lambda x, i: x.at[i].max(jnp.uint8(200)), jnp.ones(5, jnp.uint8), at(1, 1, 2)), "truth values": (lambda x, i: x.at[i].set(True), jnp.zeros(5, bool), at(1, 4)),
    "none": (lambda x, i, v: x.at[i].set(v), X, jnp.zeros(0, jnp.int32), draw(0, 5)), "in a loop": (lambda x, v: lax.fori_loop(0, 4, lambda i, y: y.at[i].set(v * i), x), X, draw(5)),
    "gradient of a gather": (lambda x, i: jax.grad(lambda y: (y[i] ** 2).sum())(x), X, at(1, 3, 1)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_as_jax(name):
    function, *args = CASES[name]
    got, want = diffattn.jax.compile(function, *args)(*args), jax.jit(function)(*args)
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=1e-2 if got.dtype == jnp.bfloat16 else 1e-5, atol=1e-6)


def test_a_cache_with_a_place_for_each_row_decodes():
    def step(cache_k, cache_v, q, k, v, place):
        cache_k, cache_v = (jax.vmap(write)(cache, new, place) for cache, new in ((cache_k, k), (cache_v, v)))
        seen = jnp.arange(8)[None, None] <= place[:, None, None]
        weights = [jax.nn.softmax(jnp.where(seen, x @ y.mT * 0.5, -jnp.inf)) for x, y in zip(jnp.split(q, 2, -1), jnp.split(cache_k, 2, -1))]
        return cache_k, cache_v, (weights[0] - 0.3 * weights[1]) @ cache_v

    args = (jnp.zeros((3, 8, 4)), jnp.zeros((3, 8, 4)), draw(3, 1, 4), draw(3, 1, 4), draw(3, 1, 4), at(0, 3, 7))
    compiled = diffattn.jax.compile(step, *args)
    for got, want in zip(compiled(*args), jax.jit(step)(*args)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert compiled.applied
