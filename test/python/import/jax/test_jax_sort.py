"""Sorting, scans of a few elements and unsigned integers of StableHLO, as routers of experts, samplers and recurrences use them, against
JAX."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import diffattn
from diffattn.errors import InputError

pytestmark = pytest.mark.oracle

X = jnp.asarray(np.random.default_rng(0).standard_normal((5, 13)), jnp.float32)
#: Zeros of both signs, infinities, NaN of both signs, and numbers several times.
ODD = jnp.asarray([0.0, 2, -0.0, np.inf, 2, np.nan, -np.inf, -np.nan, 1, 0, 2, -1], jnp.float32)
KEY = jax.random.PRNGKey(7)
U32 = jnp.asarray([1, 2**32 - 1, 40001, 2**31], jnp.uint32)


def greatest(x):
    weights, places = lax.top_k(jax.nn.softmax(x), 3)
    return weights / weights.sum(-1, keepdims=True), places


def among_best(key, logits):
    """A sampler's step: of the numbers that together have most of the weight, one by chance."""
    order = jnp.argsort(logits, axis=-1, descending=True)
    ranked = jnp.take_along_axis(logits, order, -1)
    behind = jnp.cumsum(jax.nn.softmax(ranked), -1) - jax.nn.softmax(ranked) > 0.8
    return jnp.take_along_axis(order, jax.random.categorical(key, jnp.where(behind, -jnp.inf, ranked))[:, None], -1)


CASES = {
    "rows": (lambda x: jnp.sort(x, 1), X), "columns": (lambda x: jnp.sort(x, 0), X), "falling": (lambda x: jnp.sort(x, 1, descending=True), X),
    "odd numbers": (jnp.sort, ODD), "places of odd numbers": (jnp.argsort, ODD), "places, falling": (lambda x: jnp.argsort(x, descending=True), ODD),
    "equal ones keep their order": (lambda x: jnp.argsort(x // 4), jnp.arange(40)[::-1]), "of three": (lambda x: jnp.lexsort((x[0], x[1].round())), X),
    "one": (jnp.sort, X[:1, 0]), "none": (jnp.sort, X[:0, 0]), "two": (jnp.sort, X[:2, 0]), "power of two": (jnp.sort, X.reshape(-1)[:64]), "one more": (jnp.sort, X.reshape(-1)),
    "bfloat16": (jnp.sort, X.astype(jnp.bfloat16)), "int8": (jnp.argsort, (X * 9).astype(jnp.int8)), "uint8": (jnp.sort, jnp.asarray([200, 3, 127, 128], jnp.uint8)), "truth values": (jnp.sort, X > 0),
    **{f"shifted by {by}": (lambda a, n, by=by: (a << by, a >> by, n << by, n >> by, lax.shift_right_logical(n, by)), U32, jnp.asarray([1, -1, 2**31 - 1, -2**31], jnp.int32)) for by in (31, 32, 40)},
    "shifted by each": (lambda n, by: (n << by, n >> by, lax.shift_right_logical(n, by)), jnp.asarray([1, -1, 5, -2**31], jnp.int32), jnp.asarray([-1, 32, 3, 100], jnp.int32)),
    "over no axis": (lambda x: x.sum(axis=()), X), "greatest": (greatest, X), "median": (lambda x: jnp.median(x, 1), X), "place in a sorted row": (lambda x, y: jnp.searchsorted(jnp.sort(x), y), X[0], X[1]),
    "sampler": (among_best, KEY, X * 3), "permutation": (jax.random.permutation, KEY, X), "in a loop": (lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.sort(y * (-1.5) ** i), x), X),
    **{f"scan of {n}": (lambda x: lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, x), axis=1), X[:, :n]) for n in (2, 3, 5, 13)},
    "unsigned": (lambda a: (a // 3, a >> 2, a.astype(jnp.float32), a.max(), a > 40001, a % 7, -a, a.astype(jnp.int32), a.astype(jnp.int8)), U32),
    "unsigned, of floats": (lambda x: x.astype(jnp.uint32), jnp.asarray([-1.0, 2.0**33, 40001.5, np.nan])), "unsigned of 16 bits": (lambda a: (a // 3, jnp.sort(a)), jnp.asarray([1, 65535, 40001], jnp.uint16)),
    "unsigned table": (lambda i: (jnp.arange(99, dtype=jnp.uint32) * 70000000)[i], jnp.asarray([1, 98, 40])), "unsigned in a loop": (lambda a: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] // 2), (0, a))[1], U32),
    "unsigned in a branch": (lambda a, i: lax.switch(i, [lambda a: a // 2, lambda a: a >> 3], a), U32, jnp.int32(1)), "dropout": (lambda key, x: jnp.where(jax.random.bernoulli(key, 0.4, x.shape), x, 0), KEY, X),
    "normal": (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), X), "integers": (lambda key, i: jax.random.randint(jax.random.fold_in(key, i), (5,), 0, 100), KEY, jnp.int32(4)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_as_jax(name):
    function, *args = CASES[name]
    got, want = diffattn.jax.compile(function, *args)(*args), jax.jit(function)(*args)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(np.signbit(one[one == 0]), np.signbit(other[other == 0]))


def test_integers_with_and_without_signs_are_others():
    compiled = diffattn.jax.compile(lambda a: a // 3, U32)
    with pytest.raises(InputError, match=r"args\[0\]: expected elements of uint32, but got int32"):
        compiled(U32.astype(jnp.int32))
    np.testing.assert_array_equal(compiled(np.asarray(U32)), np.asarray(U32) // 3)
