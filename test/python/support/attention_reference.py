"""Differential attention and its gradients in NumPy and f64, written from docs/spec.md alone: the oracle of tests in Python."""
import types

import numpy as np


def _wide(a):
    return None if a is None else np.asarray(a).astype(np.float64)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def visible_keys(tq, tk, causal, window, kv_len, q_offset):
    """Which keys each query sees, [Tq, Tk]."""
    # Python's integers are exact; only then are limits brought into the range of NumPy's, far beyond every size.
    near = lambda x: min(max(int(x), -(1 << 40)), 1 << 40)
    length = tk if kv_len is None else int(kv_len)
    offset = length - tq if q_offset is None else int(q_offset)
    i, j = np.arange(tq)[:, None], np.arange(tk)[None, :]
    seen = np.broadcast_to(j < near(length), (tq, tk)).copy()
    if causal:
        seen &= j - i <= near(offset)
    if window:
        left, right = (-1 if side is None else int(side) for side in window)
        if left >= 0:
            seen &= j - i >= near(offset - left)
        if right >= 0:
            seen &= j - i <= near(offset + right)
    return seen


def softmax_map(q, k, scale, softcap, bias, seen, sink=None):
    """The map, and the logarithms of the sums that its rows are divided by: -inf where there is no score."""
    scores = q @ k.T * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(seen, scores + bias, -np.inf)
    top = scores.max(1, keepdims=True, initial=-np.inf)
    is_empty = np.isneginf(top)
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(is_empty, 0, top)
    e = np.where(seen, np.exp(scores - top), 0)
    total = e.sum(1, keepdims=True) + (0 if sink is None else np.where(is_empty, 0, np.exp(np.where(is_empty, 0, sink) - top)))
    logs = np.where(is_empty, -np.inf, top + np.log(np.where(is_empty, 1, total)))
    return divided(e, total), logs[:, 0]


def norm_root(x, eps, mode):
    """The roots that the norm divides the rows of `x` by, [Tq, 1]."""
    mean = (x * x).mean(1, keepdims=True)
    return np.sqrt(mean + eps) if mode == "inside" else np.sqrt(mean) + eps


def divided(a, b):
    """a / b, and 0 where b is 0: a row of zeros stays one, also where eps is 0."""
    return np.where(b == 0, 0, a / np.where(b == 0, 1, b))


def each_head(q1, k1, q2, k2, v, lam, *, scale, is_causal=False, window=None, softcap=None, bias=None, kv_len=None, q_offset=None,
              lam_sigmoid=False, q_segments=None, kv_segments=None, sink=None, sink2=None):
    """Each signal head of each batch: places of its rows in the operands, which pairs are seen [Tq, Tk], both maps (the second is 0 of one map)
    and the logarithms of their sums, and act(lambda) [Tq, 1]. Operands are f64; those of the maps are [B, H, T, d]."""
    batch, hs, tq, _ = q1.shape
    hn, tk = hs if q2 is None else q2.shape[1], k1.shape[2]
    for b in range(batch):
        seen = visible_keys(tq, tk, is_causal, window, None if kv_len is None else int(kv_len[b]),
                            None if q_offset is None else int(q_offset[b]))
        if q_segments is not None:
            seen = seen & (q_segments[b][:, None] == kv_segments[b][None, :])
        for s in range(hs):
            g = s // (hs // hn)
            at = {"q1": (b, s), "k1": (b, s // (hs // k1.shape[1])), "v": (b, s // (hs // v.shape[1])), "out": (b, s)}
            head_seen, add = seen, 0.0
            if bias is not None:
                at["bias"] = b if bias.shape[0] > 1 else 0, g if bias.shape[1] > 1 else 0
                one = np.broadcast_to(bias[at["bias"]], (tq, tk))
                if one.dtype == np.bool_:
                    head_seen = seen & one
                else:
                    one = one.astype(np.float64)
                    head_seen = seen & ~np.isneginf(one)
                    add = np.where(np.isneginf(one), 0, one)
            a1, *logs = softmax_map(q1[at["q1"]], k1[at["k1"]], scale, softcap, add, head_seen, None if sink is None else sink[s])
            if q2 is None:
                a2 = np.zeros_like(a1)
            else:
                at["q2"], at["k2"] = (b, g), (b, g // (hn // k2.shape[1]))
                a2, log = softmax_map(q2[at["q2"]], k2[at["k2"]], scale, softcap, add, head_seen, None if sink2 is None else sink2[g])
                logs.append(log)
            if lam is None:
                row_lam = np.zeros((tq, 1))
            else:
                at["lam"] = () if lam.ndim == 0 else (s,) if lam.ndim == 1 else (b, slice(None), s if lam.shape[2] == hs else g)
                row_lam = np.broadcast_to(np.reshape(lam[at["lam"]], (-1, 1)), (tq, 1))
            yield types.SimpleNamespace(at=at, seen=head_seen, a1=a1, a2=a2, logs=logs, lam=_sigmoid(row_lam) if lam_sigmoid else row_lam)


def attention(q1, k1, q2, k2, v, lam, *, scale, is_causal=False, window=None, softcap=None, bias=None,
              kv_len=None, q_offset=None, lam_sigmoid=False, norm=None, norm_weight=None, norm_eps=1e-5,
              norm_eps_mode="inside", out_scale=1.0, gate=None, q_segments=None, kv_segments=None, integral=False, sink=None, sink2=None,
              return_lse=False):
    """The result, and M = sum of (A1 + |lambda| A2) * |v|, by which errors are judged, both [B, Hs, Tq, dv]. Of one map q2, k2 and lam
    are None, and A2 is 0. With return_lse also the logarithms of the sums of map 1 [B, Hs, Tq] and, of two maps, of map 2 [B, Hn, Tq].

    With a norm, M is carried through it: it grows where the two maps cancel."""
    q1, k1, q2, k2, v, lam, weight, gate, sink, sink2 = map(_wide, (q1, k1, q2, k2, v, lam, norm_weight, gate, sink, sink2))
    batch, hs, tq, _ = q1.shape
    out, bound = np.zeros((batch, hs, tq, v.shape[3])), np.zeros((batch, hs, tq, v.shape[3]))
    logs = [np.zeros((batch, heads, tq)) for heads in ((hs,) if q2 is None else (hs, q2.shape[1]))]
    for head in each_head(q1, k1, q2, k2, v, lam, scale=scale, is_causal=is_causal, window=window, softcap=softcap, bias=bias, kv_len=kv_len,
                          q_offset=q_offset, lam_sigmoid=lam_sigmoid, q_segments=q_segments, kv_segments=kv_segments, sink=sink, sink2=sink2):
        for array, name, log in zip(logs, ("q1", "q2"), head.logs):
            array[head.at[name]] = log
        a1, a2, row_lam, values, place = head.a1, head.a2, head.lam, v[head.at["v"]], head.at["out"]
        a3 = np.broadcast_to(a1.mean(0, keepdims=True) if integral and tq else 0.0, a1.shape)
        x = (a1 - row_lam * a2 + row_lam * a3) @ values
        m = (a1 + np.abs(row_lam) * (a2 + a3)) @ np.abs(values)
        factor = np.full((tq, 1), out_scale)
        if norm == "rms":
            factor = divided(factor, norm_root(x, norm_eps, norm_eps_mode))
            m = m + np.sqrt((m * m).mean(1, keepdims=True))
        factor = factor * (1 if weight is None else weight[None, :])
        if gate is not None:
            factor = factor * _sigmoid(gate[place])
        out[place], bound[place] = x * factor, m * np.abs(factor)
    return (out, bound, *logs) if return_lse else (out, bound)


def gradients(d_out, q1, k1, q2, k2, v, lam, *, scale, softcap=None, bias=None, lam_sigmoid=False, norm=None, norm_weight=None, norm_eps=1e-5,
              norm_eps_mode="inside", out_scale=1.0, gate=None, **masks):
    """The gradients of the operands that are there, by their names and in their shapes, for the gradient `d_out` of the result of `attention`
    with the same arguments (sinks and `integral` have none). That of a boolean mask is no array."""
    d_out, q1, k1, q2, k2, v, lam, weight, gate = map(_wide, (d_out, q1, k1, q2, k2, v, lam, norm_weight, gate))
    given = {"q1": q1, "k1": k1, "q2": q2, "k2": k2, "v": v, "lam": lam, "norm_weight": weight, "gate": gate}
    if bias is not None and bias.dtype != np.bool_:
        given["bias"] = bias
    got = {name: np.zeros(np.shape(array)) for name, array in given.items() if array is not None}
    for head in each_head(q1, k1, q2, k2, v, lam, scale=scale, softcap=softcap, bias=bias, lam_sigmoid=lam_sigmoid, **masks):
        at, values, place = head.at, v[head.at["v"]], head.at["out"]
        difference = head.a1 - head.lam * head.a2
        x = difference @ values
        root = norm_root(x, norm_eps, norm_eps_mode) if norm == "rms" else np.ones((len(x), 1))
        normed, opened = divided(x, root), 1.0 if gate is None else _sigmoid(gate[place])
        scaled = d_out[place] * out_scale
        if gate is not None:
            got["gate"][place] += scaled * normed * (1 if weight is None else weight) * opened * (1 - opened)
        if weight is not None:
            got["norm_weight"] += (scaled * opened * normed).sum(0)
        d_normed = scaled * opened * (1 if weight is None else weight)
        d_x = divided(d_normed, root)
        if norm == "rms":
            # A root of squares and eps has the slope of its own; behind a root of squares alone eps is a constant.
            slope = root if norm_eps_mode == "inside" else norm_root(x, 0.0, "inside")
            d_x = d_x - divided(normed * (d_normed * normed).mean(1, keepdims=True), slope)
        d_map = d_x @ values.T
        got["v"][at["v"]] += difference.T @ d_x
        for number, a, sign in ((1, head.a1, 1.0), (2, head.a2, -head.lam)):
            if number == 2 and q2 is None:
                continue
            row_sums = (a * d_map).sum(1, keepdims=True)
            if number == 2:
                d_lam = -row_sums * (head.lam * (1 - head.lam) if lam_sigmoid else 1)
                got["lam"][at["lam"]] += d_lam[:, 0] if lam.ndim == 3 else d_lam.sum()
            d_scores = sign * a * (d_map - row_sums)
            if "bias" in got:
                part = d_scores.sum(0, keepdims=True) if bias.shape[2] == 1 else d_scores
                got["bias"][at["bias"]] += part.sum(1, keepdims=True) if bias.shape[3] == 1 else part
            q, k = (given[f"{name}{number}"][at[f"{name}{number}"]] for name in "qk")
            if softcap:
                d_scores = d_scores * (1 - np.tanh(q @ k.T * scale / softcap) ** 2)
            got[f"q{number}"][at[f"q{number}"]] += scale * d_scores @ k
            got[f"k{number}"][at[f"k{number}"]] += scale * d_scores.T @ q
    return got
