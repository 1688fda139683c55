"""The near misses as PyTorch functions of q1, k1, q2, k2, v, lambda and what a case adds: `CASES[name]`.

`raised` marks differential attention in disguise; `left` what is not differential attention, or is it in a way that the
compiler leaves alone (both_runtime, mul_sum, scores_clamped).
"""

import math
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn.functional as F

B, H, T, D, DV = 2, 2, 10, 8, 16  # batch, heads, tokens, width of a query, of a value
CASES = {}


@dataclass
class Case:
    function: Callable
    attention_ops: int
    more_inputs: Callable[[], list]


def raised(*shapes, ops=1):
    """Enters a function into CASES; `shapes` are those of its arguments behind the first six."""
    def enter(function):
        CASES[function.__name__] = Case(function, ops, lambda: [torch.randn(*shape) for shape in shapes])
        return function

    return enter


def left(*shapes):
    return raised(*shapes, ops=0)


def base_inputs():
    queries_and_keys = [torch.randn(B, H, T, D) for _ in range(4)]
    return [*queries_and_keys, torch.randn(B, H, T, DV), torch.tensor(.3)]


def scaled_scores(q, k):
    return q @ k.transpose(-1, -2) * D ** -.5


def softmax(x):
    return torch.softmax(x, -1)


def attend(q, k):
    return softmax(scaled_scores(q, k))


def difference(q1, k1, q2, k2, lam):
    return attend(q1, k1) - lam * attend(q2, k2)


def causal(scores):
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)


def keeping(keep, q1, k1, q2, k2, v, lam):
    """Differential attention in which both maps see the keys that `keep` says."""
    def seen(q, k):
        return softmax(scaled_scores(q, k).masked_fill(~keep, -math.inf))

    return (seen(q1, k1) - lam * seen(q2, k2)) @ v


@left((B, H, T, DV))
def two_v(q1, k1, q2, k2, v, lam, w):
    return attend(q1, k1) @ v - lam * (attend(q2, k2) @ w)


@left((T,))
def lam_key(q1, k1, q2, k2, v, lam, w):
    return (attend(q1, k1) - w * attend(q2, k2)) @ v


@left((DV,))
def lam_width(q1, k1, q2, k2, v, lam, w):
    return attend(q1, k1) @ v - w * (attend(q2, k2) @ v)


@left()
def ret_a2(q1, k1, q2, k2, v, lam):
    a2 = attend(q2, k2)
    return (attend(q1, k1) - lam * a2) @ v, a2


@left()
def ret_diff(q1, k1, q2, k2, v, lam):
    a = difference(q1, k1, q2, k2, lam)
    return a @ v, a


@left()
def ret_scores(q1, k1, q2, k2, v, lam):
    s = scaled_scores(q1, k1)
    return (softmax(s) - lam * attend(q2, k2)) @ v, s.amax(-1)


@left()
def entropy(q1, k1, q2, k2, v, lam):
    a1 = attend(q1, k1)
    return (a1 - lam * attend(q2, k2)) @ v, -(a1 * torch.log(a1 + 1e-9)).sum()


@left()
def masks_differ(q1, k1, q2, k2, v, lam):
    return (softmax(causal(scaled_scores(q1, k1))) - lam * attend(q2, k2)) @ v


@left()
def windows_differ(q1, k1, q2, k2, v, lam):
    i = torch.arange(T)
    m1 = (i[:, None] - i) < 3
    m2 = (i[:, None] - i) < 4
    a1 = softmax(causal(scaled_scores(q1, k1)).masked_fill(~m1, -math.inf))
    return (a1 - lam * softmax(causal(scaled_scores(q2, k2)).masked_fill(~m2, -math.inf))) @ v


@left((B, 1, T, T), (B, 1, T, T))
def bias_differ(q1, k1, q2, k2, v, lam, b1, b2):
    return (softmax(scaled_scores(q1, k1) + b1) - lam * softmax(scaled_scores(q2, k2) + b2)) @ v


@left((B, H, T, D), (B, H, T, D))
def three(q1, k1, q2, k2, v, lam, q3, k3):
    return (difference(q1, k1, q2, k2, lam) - .1 * attend(q3, k3)) @ v


@left()
def over_queries(q1, k1, q2, k2, v, lam):
    return (torch.softmax(scaled_scores(q1, k1), -2) - lam * torch.softmax(scaled_scores(q2, k2), -2)) @ v


@left()
def relu(q1, k1, q2, k2, v, lam):
    return torch.relu(difference(q1, k1, q2, k2, lam)) @ v


@left()
def product(q1, k1, q2, k2, v, lam):
    return (attend(q1, k1) * attend(q2, k2)) @ v


@left()
def renorm(q1, k1, q2, k2, v, lam):
    a = difference(q1, k1, q2, k2, lam)
    return (a / a.sum(-1, keepdim=True)) @ v


@left()
def scale_differs(q1, k1, q2, k2, v, lam):
    return (attend(q1, k1) - lam * softmax(scaled_scores(q2, k2) * 2)) @ v


@left()
def cap_differs(q1, k1, q2, k2, v, lam):
    a1 = softmax(20 * torch.tanh(scaled_scores(q1, k1) / 20))
    return (a1 - lam * softmax(30 * torch.tanh(scaled_scores(q2, k2) / 30))) @ v


@left()
def sigmoid_maps(q1, k1, q2, k2, v, lam):
    return (torch.sigmoid(scaled_scores(q1, k1)) - lam * torch.sigmoid(scaled_scores(q2, k2))) @ v


@left()
def softmax1(q1, k1, q2, k2, v, lam):
    def one_more(x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / (1 + e.sum(-1, keepdim=True))

    return (one_more(scaled_scores(q1, k1)) - lam * one_more(scaled_scores(q2, k2))) @ v


@left()
def post_mask(q1, k1, q2, k2, v, lam):
    keep = torch.tril(torch.ones(T, T))
    return (difference(q1, k1, q2, k2, lam) * keep) @ v


@left()
def dint(q1, k1, q2, k2, v, lam):
    a1 = attend(q1, k1)
    return (a1 - lam * attend(q2, k2) + lam * a1.mean(-2, keepdim=True)) @ v


@left((H, H))
def talking_heads(q1, k1, q2, k2, v, lam, w):
    return torch.einsum("gh,bhqk->bgqk", w, difference(q1, k1, q2, k2, lam)) @ v


@raised()
def plain(q1, k1, q2, k2, v, lam):
    return attend(q1, k1) @ v


@left((B, T, T))
def dropout_like(q1, k1, q2, k2, v, lam, m):
    return (difference(q1, k1, q2, k2, lam) * m[:, None]) @ v


@left()
def mean_rest(q1, k1, q2, k2, v, lam):
    return (attend(q1, k1) - lam) @ v


@raised((B, H, T, D))
def linear_second(q1, k1, q2, k2, v, lam, x):
    return attend(q1, k1) @ v - lam * (scaled_scores(q2, k2) @ v)


@left()
def diff_inside(q1, k1, q2, k2, v, lam):
    return softmax(scaled_scores(q1, k1) - lam * scaled_scores(q2, k2)) @ v


@left((T,))
def temp_key(q1, k1, q2, k2, v, lam, w):
    return (softmax(scaled_scores(q1, k1) * w) - lam * softmax(scaled_scores(q2, k2) * w)) @ v


@raised()
def plus(q1, k1, q2, k2, v, lam):
    return (attend(q1, k1) + lam * attend(q2, k2)) @ v


@raised()
def first_scaled(q1, k1, q2, k2, v, lam):
    return (lam * attend(q1, k1) - attend(q2, k2)) @ v


@raised()
def both_const(q1, k1, q2, k2, v, lam):
    return (1.5 * attend(q1, k1) - .5 * attend(q2, k2)) @ v


@raised()
def shared_q(q1, k1, q2, k2, v, lam):
    return (attend(q1, k1) - lam * attend(q1, k2)) @ v


@raised()
def shared_factor(q1, k1, q2, k2, v, lam):
    return lam * ((attend(q1, k1) - .5 * attend(q2, k2)) @ v)


@left()
def both_runtime(q1, k1, q2, k2, v, lam):
    return ((1 + lam) * attend(q1, k1) - lam * attend(q2, k2)) @ v


@raised()
def shared_runtime(q1, k1, q2, k2, v, lam):
    return (lam * attend(q1, k1) - lam * .5 * attend(q2, k2)) @ v


@raised((H, T, T))
def bias_head(q1, k1, q2, k2, v, lam, b):
    return (softmax(scaled_scores(q1, k1) + b) - lam * softmax(scaled_scores(q2, k2) + b)) @ v


@raised((B, T))
def lam_tok(q1, k1, q2, k2, v, lam, w):
    return attend(q1, k1) @ v - w[:, None, :, None] * (attend(q2, k2) @ v)


@raised((B,))
def lam_batch(q1, k1, q2, k2, v, lam, w):
    return (attend(q1, k1) - w.view(B, 1, 1, 1) * attend(q2, k2)) @ v


@raised((B, H, T, 1))
def lam_softplus(q1, k1, q2, k2, v, lam, w):
    return (attend(q1, k1) - F.softplus(w) * attend(q2, k2)) @ v


@raised()
def used_twice_out(q1, k1, q2, k2, v, lam):
    y = difference(q1, k1, q2, k2, lam) @ v
    return y, y.mean()


@raised(ops=2)
def two_layers(q1, k1, q2, k2, v, lam):
    y = difference(q1, k1, q2, k2, lam) @ v
    q, k = y[..., :D], y[..., D:]
    return (attend(q, k1) - lam * attend(q2, k)) @ v


@raised()
def residual(q1, k1, q2, k2, v, lam):
    return v + difference(q1, k1, q2, k2, lam) @ v


@raised()
def vt(q1, k1, q2, k2, v, lam):
    return (difference(q1, k1, q2, k2, lam) @ v).transpose(-1, -2)


@raised()
def swapped_product(q1, k1, q2, k2, v, lam):
    def keys_first(q, k):
        return softmax((k @ q.transpose(-1, -2) * D ** -.5).transpose(-1, -2))

    return (keys_first(q1, k1) - lam * keys_first(q2, k2)) @ v


@raised()
def softmax_dim2(q1, k1, q2, k2, v, lam):
    def keys_first(q, k):
        return torch.softmax(k @ q.transpose(-1, -2) * D ** -.5, -2)

    return (keys_first(q1, k1) - lam * keys_first(q2, k2)).transpose(-1, -2) @ v


@raised()
def vt_a(q1, k1, q2, k2, v, lam):
    def keys_first(q, k):
        return torch.softmax(k @ q.transpose(-1, -2) * D ** -.5, -2)

    return v.transpose(-1, -2) @ (keys_first(q1, k1) - lam * keys_first(q2, k2))


@left()
def scores_clamped(q1, k1, q2, k2, v, lam):
    a1 = softmax(scaled_scores(q1, k1).clamp(-50, 50))
    return (a1 - lam * softmax(scaled_scores(q2, k2).clamp(-50, 50))) @ v


@raised()
def addcmul(q1, k1, q2, k2, v, lam):
    return torch.addcmul(attend(q1, k1), lam.expand(1, 1, 1, 1), attend(q2, k2), value=-1) @ v


@raised()
def lerp_like(q1, k1, q2, k2, v, lam):
    return torch.lerp(attend(q1, k1), attend(q2, k2), -0.5) @ v


def by_baddbmm(bias, beta, q1, k1, q2, k2, v, lam):
    """The scores by torch.baddbmm, on heads and batch in one axis."""
    def attend_flat(q, k):
        q, k = q.reshape(B * H, T, D), k.reshape(B * H, T, D).transpose(1, 2)
        return softmax(torch.baddbmm(bias, q, k, beta=beta, alpha=D ** -.5))

    flat = torch.bmm(attend_flat(q1, k1) - lam * attend_flat(q2, k2), v.reshape(B * H, T, DV))
    return flat.view(B, H, T, DV)


@raised()
def baddbmm(q1, k1, q2, k2, v, lam):
    return by_baddbmm(torch.zeros(B * H, T, T).type_as(q1), 0, q1, k1, q2, k2, v, lam)


@raised()
def baddbmm_bias(q1, k1, q2, k2, v, lam):
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    bias = torch.zeros(T, T).masked_fill(hidden, -math.inf).expand(B * H, T, T).type_as(q1)
    return by_baddbmm(bias, 1, q1, k1, q2, k2, v, lam)


@raised()
def loop_heads(q1, k1, q2, k2, v, lam):
    heads = range(1)  # one of two heads, so that the result has one
    return torch.stack([(attend(q1[:, h], k1[:, h]) - lam * attend(q2[:, h], k2[:, h])) @ v[:, h] for h in heads], 1)


@left()
def mul_sum(q1, k1, q2, k2, v, lam):
    def scores(q, k):
        return (q[:, :, :, None] * k[:, :, None]).sum(-1) * D ** -.5

    return (softmax(scores(q1, k1)) - lam * softmax(scores(q2, k2))) @ v


@raised()
def last_query(q1, k1, q2, k2, v, lam):
    return (attend(q1[:, :, -1:], k1) - lam * attend(q2[:, :, -1:], k2)) @ v


@raised()
def causal_where_nan(q1, k1, q2, k2, v, lam):
    def guarded(q, k):
        return torch.nan_to_num(softmax(causal(scaled_scores(q, k))))

    return (guarded(q1, k1) - lam * guarded(q2, k2)) @ v


def by_powers(of_scores, q1, k1, q2, k2, v, lam):
    """Softmaxes by hand: `of_scores` turns scores into the powers and their sums."""
    def attend_so(q, k):
        powers, sums = of_scores(scaled_scores(q, k))
        return powers / sums

    return (attend_so(q1, k1) - lam * attend_so(q2, k2)) @ v


def powers_of(x, shift=True):
    return torch.exp(x - x.amax(-1, keepdim=True)) if shift else torch.exp(x)


def sums(powers):
    return powers.sum(-1, keepdim=True)


@raised()
def eps_den(*arguments):
    return by_powers(lambda x: (powers_of(x), sums(powers_of(x)) + 1e-9), *arguments)


@left()
def eps_counts(*arguments):
    return by_powers(lambda x: (powers_of(x), sums(powers_of(x)) + 1e-3), *arguments)


@left()
def eps_unshifted(*arguments):
    return by_powers(lambda x: (powers_of(x, False), sums(powers_of(x, False)) + 1e-9), *arguments)


@raised()
def sum_clamped(*arguments):
    return by_powers(lambda x: (powers_of(x), sums(powers_of(x)).clamp_min(1e-9)), *arguments)


@raised()
def powers_masked(*arguments):
    return by_powers(lambda x: (powers_of(x).tril(), sums(powers_of(x).tril())), *arguments)


@raised((2,))
def lam_softmax(q1, k1, q2, k2, v, lam, w):
    return difference(q1, k1, q2, k2, torch.softmax(w, 0)[1]) @ v


@raised((B, T, 2))
def lam_softmax_tok(q1, k1, q2, k2, v, lam, w):
    weights = torch.softmax(w, -1)[:, None]
    return (attend(q1, k1) - weights[..., 1:] * attend(q2, k2)) @ v


@raised()
def stacked(q1, k1, q2, k2, v, lam):
    return torch.stack([attend(q1, k1), -lam * attend(q2, k2)]).sum(0) @ v


@raised()
def values_scaled(q1, k1, q2, k2, v, lam):
    return attend(q1, k1) @ v - attend(q2, k2) @ (lam * v)


@raised((B, T))
def maps_gated(q1, k1, q2, k2, v, lam, w):
    return (torch.sigmoid(w)[:, None, :, None] * difference(q1, k1, q2, k2, lam)) @ v


@left()
def lam_of_map(q1, k1, q2, k2, v, lam):
    a1 = attend(q1, k1)
    return (a1 - a1.amax(-1, keepdim=True) * attend(q2, k2)) @ v


@left()
def pooled(q1, k1, q2, k2, v, lam):
    return F.avg_pool2d(difference(q1, k1, q2, k2, lam), 3, 1, 1) @ v


@raised()
def rope(q1, k1, q2, k2, v, lam):
    angles = torch.arange(T)[:, None] * torch.arange(1, D // 2 + 1)[None] * .1
    c, s = torch.cos(angles), torch.sin(angles)

    def turned(x):
        half = D // 2
        return torch.cat([x[..., :half] * c - x[..., half:] * s, x[..., :half] * s + x[..., half:] * c], -1)

    a1 = softmax(causal(scaled_scores(turned(q1), turned(k1))))
    return (a1 - lam * softmax(causal(scaled_scores(turned(q2), turned(k2))))) @ v


@raised()
def rope_inter(q1, k1, q2, k2, v, lam):
    angles = torch.arange(T)[:, None] * torch.arange(1, D // 2 + 1)[None] * .1
    c, s = torch.cos(angles), torch.sin(angles)

    def turned(x):
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * c - odd * s, even * s + odd * c], -1).flatten(-2)

    a1 = softmax(causal(scaled_scores(turned(q1), turned(k1))))
    return (a1 - lam * softmax(causal(scaled_scores(turned(q2), turned(k2))))) @ v


@raised()
def qk_norm(q1, k1, q2, k2, v, lam):
    def unit(x):
        return F.normalize(x, dim=-1)

    a1 = softmax(scaled_scores(unit(q1), unit(k1)) * 5)
    return (a1 - lam * softmax(scaled_scores(unit(q2), unit(k2)) * 5)) @ v


@raised((D,))
def qk_rms(q1, k1, q2, k2, v, lam, w):
    def normed(x):
        return F.rms_norm(x, (D,), w)

    return (attend(normed(q1), normed(k1)) - lam * attend(normed(q2), normed(k2))) @ v


@raised((H, 1, 1))
def temp_head(q1, k1, q2, k2, v, lam, w):
    return (softmax(scaled_scores(q1, k1) * w) - lam * softmax(scaled_scores(q2, k2) * w)) @ v


@raised((B, H, 4, D), (B, H, 4, D), (B, H, 4, DV))
def kv_cache(q1, k1, q2, k2, v, lam, c1, c2, cv):
    a1 = attend(q1, torch.cat([c1, k1], 2))
    return (a1 - lam * attend(q2, torch.cat([c2, k2], 2))) @ torch.cat([cv, v], 2)


@raised()
def prefix_lm(q1, k1, q2, k2, v, lam):
    i = torch.arange(T)
    return keeping((i[:, None] >= i) | (i < 4)[None], q1, k1, q2, k2, v, lam)


@raised()
def block_mask(q1, k1, q2, k2, v, lam):
    i = torch.arange(T) // 5
    return keeping(i[:, None] == i, q1, k1, q2, k2, v, lam)


@raised()
def dilated(q1, k1, q2, k2, v, lam):
    i = torch.arange(T)
    return keeping((i[:, None] - i) % 2 == 0, q1, k1, q2, k2, v, lam)
