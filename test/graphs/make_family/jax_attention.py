"""Differential attention as a JAX function, spelled as a set of options says (jax_family.py)."""

import math

import jax
import jax.numpy as jnp
import numpy as np

SOFTMAXES = {
    "nn": lambda x: jax.nn.softmax(x, axis=-1),
    "lse": lambda x: jnp.exp(x - jax.scipy.special.logsumexp(x, axis=-1, keepdims=True)),
    "logsm": lambda x: jnp.exp(jax.nn.log_softmax(x, -1)),
    "f32": lambda x: jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype),
}


def softmax(function):
    SOFTMAXES[function.__name__] = function
    return function


@softmax
def manual(x):
    e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    return e / jnp.sum(e, -1, keepdims=True)


@softmax
def stop(x):
    e = jnp.exp(x - jax.lax.stop_gradient(x.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


@softmax
def nomax(x):
    e = jnp.exp(x)
    return e / e.sum(-1, keepdims=True)


@softmax
def exp2(x):
    x = x * math.log2(math.e)
    e = jnp.exp2(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def masked(s, kind, given):
    """`s` is [B, H, T, Tk]; `given` is the mask, the bias or the lengths that come as an argument."""
    T, Tk = s.shape[-2:]
    i, j = jnp.arange(T)[:, None], jnp.arange(Tk)[None]
    if kind == "tril":
        return jnp.where(jnp.tril(jnp.ones((T, Tk), bool), Tk - T), s, -jnp.inf)
    if kind == "tril_min":
        return jnp.where(jnp.tril(jnp.ones((T, Tk), bool), Tk - T)[None, None], s, jnp.finfo(s.dtype).min)
    if kind == "tril_add":
        return s + jnp.where(j <= i + Tk - T, 0.0, -1e9).astype(s.dtype)
    if kind == "win":
        keep = (j <= i + Tk - T) & (j > i + Tk - T - 4)
        return jnp.where(keep, s, -1e30 if s.dtype != jnp.float16 else -jnp.inf)
    if kind == "iota":
        row, column = (jax.lax.broadcasted_iota(jnp.int32, (T, Tk), axis) for axis in (0, 1))
        return jnp.where(row + (Tk - T) >= column, s, -jnp.inf)
    if kind == "in_bool":
        return jnp.where(given, s, -jnp.inf)
    if kind == "in_add":
        return s + given
    if kind == "lens":
        return jnp.where(j[None, None] < given[:, None, None, None], s, -jnp.inf)
    if kind == "lens_causal":
        keep = (j[None, None] < given[:, None, None, None]) & (j <= i + Tk - T)[None, None]
        return jnp.where(keep, s, -jnp.inf)
    if kind == "np":
        return jnp.where(np.tril(np.ones((T, Tk), bool), Tk - T), s, -np.inf)
    if kind:
        raise KeyError(kind)
    return s


def normed(y, kind):
    """The norm of each head along its width."""
    if kind == "rms":
        return y * jax.lax.rsqrt(jnp.mean(jnp.square(y), -1, keepdims=True) + 1e-5)
    if kind == "rms2":
        return y / jnp.sqrt(jnp.mean(y ** 2, axis=-1, keepdims=True) + 1e-6)
    if kind == "rmsf":
        # A variance of factor 0 stands beside the mean of squares, as where one formula serves two norms.
        spread = jnp.var(y.astype(jnp.float32), -1, keepdims=True) * 0
        squares = jnp.mean(jax.lax.square(y.astype(jnp.float32)), -1, keepdims=True)
        return (y.astype(jnp.float32) * jax.lax.rsqrt(spread + squares + 1e-5)).astype(y.dtype)
    if kind == "ln":
        mean = y.mean(-1, keepdims=True)
        return (y - mean) * jax.lax.rsqrt(((y - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    if kind:
        raise KeyError(kind)
    return y


def attention(o):
    """A function of q1, k1, q2, k2, v and of what lambda and mask take."""
    H, Hk, d, dv, T, B = (o[axis] for axis in ("H", "Hk", "d", "dv", "T", "B"))
    tokens_first, group, map_of = o["lay"] == "bthd", H // Hk, SOFTMAXES[o["sm"]]
    head_axis = 2 if tokens_first else 1
    to_scores = "bqhd,bkhd->bhqk" if tokens_first else "bhqd,bhkd->bhqk"
    to_result = "bhqk,bkhd->bqhd" if tokens_first else "bhqk,bhkd->bhqd"

    def scores(q, k, given):
        factor = 1 / math.sqrt(d)
        if o["scale"] == "q":
            q = q * factor
        elif o["scale"] == "qdiv":
            q = q / jnp.sqrt(d).astype(q.dtype)
        s = jnp.einsum(to_scores, q, k)
        if o["scale"] == "mul":
            s = s * factor
        elif o["scale"] == "div":
            s = s / jnp.sqrt(d)
        elif o["scale"] == "divd":
            s = s / math.sqrt(d)
        if o["cap"]:
            s = 30. * jnp.tanh(s / 30.)
        return masked(s, o["mask"], given)

    def take_lambda(arrays):
        """A number, or an array that fits what it is multiplied with: the maps, or behind the products the results."""
        behind = o["comb"] == "after" and tokens_first
        if o["lam"] == "exp":
            fourth, third, second, first = (arrays.pop() for _ in range(4))
            return jnp.exp(jnp.sum(fourth * third)) - jnp.exp(jnp.dot(second, first)) + 0.2
        if o["lam"] == "in":
            return arrays.pop()
        if o["lam"] == "head":
            lam = arrays.pop()
            return lam[None, None, :, None] if behind else lam[None, :, None, None]
        if o["lam"] == "tok":
            lam = jax.nn.sigmoid(arrays.pop())
            return lam[..., None] if behind else lam.transpose(0, 2, 1)[..., None]
        return 0.35

    def grouped(q1, k1, q2, k2, v):
        """Products in which the queries of a group share a key."""
        def attend(q, k):
            q = q.reshape(B, T, Hk, group, d) if tokens_first else q.reshape(B, Hk, group, T, d)
            s = jnp.einsum("btgnd,bsgd->bgnts" if tokens_first else "bgntd,bgsd->bgnts", q, k) / math.sqrt(d)
            return map_of(s)

        difference = attend(q1, k1) - 0.35 * attend(q2, k2)
        y = jnp.einsum("bgnts,bsgd->btgnd" if tokens_first else "bgnts,bgsd->bgntd", difference, v)
        return y.reshape(B, T, H, dv) if tokens_first else y.reshape(B, H, T, dv)

    def repeated(q1, k1, q2, k2, v, lam, given):
        if group > 1:
            k1, k2, v = (jnp.repeat(t, group, axis=head_axis) for t in (k1, k2, v))
        if o["batched"]:
            q, k = jnp.concatenate([q1, q2], head_axis), jnp.concatenate([k1, k2], head_axis)
            a1, a2 = jnp.split(map_of(scores(q, k, given)), 2, axis=1)
        else:
            a1, a2 = map_of(scores(q1, k1, given)), map_of(scores(q2, k2, given))
        if o["comb"] == "diff":
            return jnp.einsum(to_result, a1 - lam * a2, v)
        return jnp.einsum(to_result, a1, v) - lam * jnp.einsum(to_result, a2, v)

    def f(*arrays):
        arrays = list(arrays)
        given = arrays.pop() if o["mask"] in ("in_bool", "in_add", "lens", "lens_causal") else None
        lam = take_lambda(arrays)
        if o["gq"] == "group" and group > 1:
            y = grouped(*arrays)
        else:
            y = repeated(*arrays, lam, given)
        y = normed(y, o["norm"])
        if o["om"]:
            y = y * (1 - 0.2)
        if o["out"] == "flat":
            y = (y if tokens_first else y.transpose(0, 2, 1, 3)).reshape(B, T, H * dv)
        return y

    return f
