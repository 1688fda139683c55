"""Parts of decoders in float64 with plain NumPy, written from the definitions, without caches; attention is the oracle's."""
import math

import ml_dtypes
import numpy as np

from attention_reference import attention

NUMBERS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


def lambda_init(depth):
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


def silu(x):
    return x / (1 + np.exp(-x))


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps) * weight + bias


def poly_norm(x, weight, bias):
    def unit(z):
        return z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-6)

    return weight[0] * unit(x**3) + weight[1] * unit(x**2) + weight[2] * unit(x) + bias[0]


def rotate_half(x, theta):
    """Half-split rotary positions 0, 1, ... of `[T, heads, d]`."""
    length, _, d = x.shape
    angles = np.arange(length)[:, None] * theta ** (-2 * np.arange(d // 2) / d)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., : d // 2], x[..., d // 2:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def vectors_lambda(w, init):
    """Lambda by the weights lambda_q1, lambda_k1, lambda_q2 and lambda_k2, and its initial value."""
    return math.exp(w["lambda_q1"] @ w["lambda_k1"]) - math.exp(w["lambda_q2"] @ w["lambda_k2"]) + init


def differential_heads(q1, q2, k1, k2, v, lam, visible):
    """`[Tq, Hs, dv]` of q1 `[Tq, Hs, d]`, q2 `[Tq, Hn, d]`, keys `[Tk, Hk, d]`, values `[Tk, Hk, dv]` and who sees whom `[Tq, Tk]`."""
    by_head = lambda x: x.swapaxes(0, 1)[None]
    out, _ = attention(*map(by_head, (q1, k1, q2, k2, v)), lam, scale=q1.shape[2] ** -0.5, bias=visible[None, None])
    return out[0].swapaxes(0, 1)


def joined_pairs(v):
    """Heads 2j and 2j + 1 of `[T, 2n, d]` side by side."""
    return np.concatenate([v[:, 0::2], v[:, 1::2]], -1)


def causal(length, window=None):
    """Who sees whom among `length` tokens; with a window, so many keys and the query's own among them."""
    past = np.arange(length)[:, None] - np.arange(length)
    return (past >= 0) & (past < (window or length))


def draw(shapes, seed, dtype=np.float32, width=0.2):
    """Float32 weights of these shapes: wide enough that attention is far from uniform, norms that are not all ones. Rounded to
    `dtype`, so that a model of that type has the reference's weights. `width` is the deviation of matrices."""
    rng = np.random.default_rng(seed)
    result = {}
    for name, shape in shapes.items():
        mean = 1.0 if "norm" in name and name.endswith("weight") or "subln" in name else 0.0
        result[name] = rng.normal(mean, 0.3 if len(shape) == 1 else width, shape).astype(dtype).astype(np.float32)
    return result
