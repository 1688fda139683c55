"""The oracle of gradients: against differences of the oracle of attention."""
import numpy as np
import pytest

from attention_reference import attention, gradients

OPTIONS = {
    "plain": {},
    "causal window": dict(is_causal=True, window=(2, -1)),
    "softcap": dict(softcap=1.5),
    "lengths": dict(kv_len=np.array([3, 7]), q_offset=np.array([1, -2]), is_causal=True),
    "segments": dict(q_segments=np.arange(10).reshape(2, 5) // 3, kv_segments=np.arange(14).reshape(2, 7) // 4),
    "norm": dict(norm="rms", out_scale=0.7),
    "norm outside": dict(norm="rms", norm_eps=0.1, norm_eps_mode="outside"),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("form", [(), (4,), (2, 5, 4), (2, 5, 2), None], ids=["one", "heads", "queries", "noise heads", "one map"])
def test_gradients_are_slopes_of_attention(options, form):
    """Along a random direction of each operand, by central differences; some rows see no key."""
    rng = np.random.default_rng(len(options) + (0 if form is None else len(form)))
    make = lambda *shape: rng.normal(0, 0.6, shape)
    given = dict(q1=make(2, 4, 5, 3), k1=make(2, 2, 7, 3), q2=make(2, 2, 5, 3), k2=make(2, 1, 7, 3), v=make(2, 2, 7, 4), lam=None, gate=make(2, 4, 5, 4),
                 bias=np.where(rng.random((2, 1, 1, 7)) < 0.2, -np.inf, make(2, 1, 1, 7)))
    if form is None:
        given.update(q2=None, k2=None)
    else:
        given.update(lam=make(*form))
    options = dict(options, scale=0.4, lam_sigmoid=form == (4,))
    if "norm" in options:
        given["norm_weight"] = make(4)
    d_out = make(2, 4, 5, 4)
    got = gradients(d_out, **given, **options)
    assert got.keys() == {name for name, array in given.items() if array is not None}
    for name, gradient in got.items():
        direction, step = make(*given[name].shape), 1e-5
        above, below = ((attention(**{**given, name: given[name] + sign * step * direction}, **options)[0] * d_out).sum() for sign in (1, -1))
        assert gradient.shape == np.shape(given[name])
        np.testing.assert_allclose((gradient * direction).sum(), (above - below) / (2 * step), rtol=1e-6, atol=1e-8, err_msg=name)
