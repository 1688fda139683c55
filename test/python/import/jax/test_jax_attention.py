"""`jax.nn.dot_product_attention` and attention spelled out, of one map, by diffattn.jax: each is fused, and the numbers are JAX's."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import dot_product_attention

import diffattn

pytestmark = pytest.mark.oracle
_random = np.random.default_rng(0)


def normal(*sizes, dtype=jnp.float32):
    return jnp.asarray(_random.standard_normal(sizes), dtype)


def spelled(q, k, v):
    """The scores in f32, the mask as a number in the place of hidden ones."""
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(jnp.float32).min)), v)


def attention(**options):
    return lambda q, k, v: dot_product_attention(q, k, v, **options)


SAME, GROUPED = [normal(2, 12, 4, 8) for _ in range(3)], [normal(2, 12, 4, 8), normal(2, 12, 2, 8), normal(2, 12, 2, 8)]
LENGTHS = jnp.asarray([5, 12], jnp.int32)
CASES = {
    "plain": (attention(), SAME), "causal": (attention(is_causal=True, scale=0.3), SAME), "grouped": (attention(is_causal=True), GROUPED),
    "few queries": (lambda q, k, v: dot_product_attention(q[:, -5:], k, v, is_causal=True), SAME),
    "window": (attention(is_causal=True, local_window_size=(3, 0)), SAME),
    "bias": (dot_product_attention, [*SAME, normal(2, 4, 12, 12)]),
    "mask": (lambda q, k, v, mask: dot_product_attention(q, k, v, mask=mask), [*SAME, jnp.asarray(_random.random((2, 1, 12, 12)) > 0.3)]),
    "lengths": (lambda q, k, v, n: dot_product_attention(q, k, v, query_seq_lengths=n, key_value_seq_lengths=n), [*SAME, LENGTHS]),
    "bfloat16": (attention(is_causal=True), [x.astype(jnp.bfloat16) for x in SAME]), "spelled": (spelled, SAME),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_fused(name):
    function, args = CASES[name]
    compiled = diffattn.jax.compile(function, *args)
    diagnostics = [str(one) for one in (*compiled.applied, *compiled.diagnostics) if one.category == "diffattn-fuse"]
    assert len(diagnostics) == 1 and "one map became a" in diagnostics[0], diagnostics
    got, want = (np.asarray(call(*args), np.float64) for call in (compiled, function))
    tolerance = 4e-2 if args[0].dtype == jnp.bfloat16 else 1e-5
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
