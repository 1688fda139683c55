"""Loops of JAX over two maps, which are written out, and those that are not."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffattn

pytestmark = pytest.mark.oracle


def maps(q, k):
    return jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5, -1)


def factors(lam):
    return jnp.stack([jnp.float32(1), -lam])


def scan(q, k, v, lam):
    return jax.lax.scan(lambda sum, one: (sum + one[2] * (maps(one[0], one[1]) @ v), None), jnp.zeros_like(v), (q, k, factors(lam)))[0]


def scanned_maps(q, k, v, lam):
    made = jax.lax.scan(lambda count, one: (count + 1, maps(*one)), 0, (q, k))[1]
    return (made[0] - lam * made[1]) @ v


def mapped(q, k, v, lam):
    made = jax.lax.map(lambda one: maps(*one), (q, k))
    return (made[0] - lam * made[1]) @ v


def counted(q, k, v, lam):
    return jax.lax.fori_loop(0, 2, lambda i, sum: sum + factors(lam)[i] * (maps(q[i], k[i]) @ v), jnp.zeros_like(v))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [scan, scanned_maps, mapped, counted])
def test_loops_over_two_maps(function):
    q, k, v = (jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(((2, 1, 2, 9, 4), (2, 1, 2, 9, 4), (1, 2, 9, 8))))
    compiled = diffattn.jax.compile(function, q, k, v, jnp.float32(0.3))
    assert sum(one.name == "Raised" for one in compiled.applied) == 1 and not compiled.diagnostics
    np.testing.assert_allclose(compiled(q, k, v, jnp.float32(0.3)), function(q, k, v, jnp.float32(0.3)), rtol=1e-4, atol=1e-5)


def test_loops_that_stay():
    """Loops stay that have more iterations or none, bounds or steps that are not constants, or a condition beside the counter; within one that is written out
    there may be others."""
    def loops(x, n):
        step = lambda i, y: y * 2 + i
        return [jax.lax.fori_loop(0, 3, step, x), jax.lax.fori_loop(2, 2, step, x), jax.lax.fori_loop(0, n, step, x), jax.lax.fori_loop(n, 7, step, x), jax.lax.fori_loop(5, 7, step, x), jax.lax.fori_loop(-1, 0, step, x),
                jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + n, c[1] * 2), (0, x)), jax.lax.while_loop(lambda c: (c[0] < 2) & (c[1].sum() < 9), lambda c: (c[0] + 1, c[1] * 2), (0, x)),
                jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 4, c[1] + c[0]), (1, x)), jax.lax.fori_loop(0, 2, lambda i, y: jax.lax.fori_loop(0, n, step, jax.lax.fori_loop(0, 2, step, y) + i), x),
                jax.lax.fori_loop(jnp.uint8(0), jnp.uint8(2), lambda i, y: y + i, x)]

    x, n = jnp.arange(4.0), jnp.int32(3)
    compiled = diffattn.jax.compile(loops, x, n)
    for got, want in zip(compiled(x, n), loops(x, n), strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True))
