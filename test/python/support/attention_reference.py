"""Differential attention in NumPy and f64, written from docs/spec.md alone: the oracle of random tests."""
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
    return np.where(total == 0, 0, e / np.where(total == 0, 1, total)), logs[:, 0]


def attention(q1, k1, q2, k2, v, lam, *, scale, is_causal=False, window=None, softcap=None, bias=None,
              kv_len=None, q_offset=None, lam_sigmoid=False, norm=None, norm_weight=None, norm_eps=1e-5,
              norm_eps_mode="inside", out_scale=1.0, gate=None, q_segments=None, kv_segments=None, integral=False, sink=None, sink2=None,
              return_lse=False):
    """The result, and M = sum of (A1 + |lambda| A2) * |v|, by which errors are judged, both [B, Hs, Tq, dv]. Of one map q2, k2 and lam
    are None, and A2 is 0. With return_lse also the logarithms of the sums of map 1 [B, Hs, Tq] and, of two maps, of map 2 [B, Hn, Tq].

    With a norm, M is carried through it: it grows where the two maps cancel."""
    q1, k1, q2, k2, v, lam, weight, gate, sink, sink2 = map(_wide, (q1, k1, q2, k2, v, lam, norm_weight, gate, sink, sink2))
    batch, hs, tq, _ = q1.shape
    hn, tk, dv = hs if q2 is None else q2.shape[1], k1.shape[2], v.shape[3]
    out, bound = np.zeros((batch, hs, tq, dv)), np.zeros((batch, hs, tq, dv))
    logs = [np.zeros((batch, heads, tq)) for heads in ((hs,) if q2 is None else (hs, hn))]
    for b in range(batch):
        seen = visible_keys(tq, tk, is_causal, window, None if kv_len is None else int(kv_len[b]),
                            None if q_offset is None else int(q_offset[b]))
        if q_segments is not None:
            seen = seen & (q_segments[b][:, None] == kv_segments[b][None, :])
        for s in range(hs):
            g = s // (hs // hn)
            head_seen, add = seen, 0.0
            if bias is not None:
                one = np.broadcast_to(bias[b if bias.shape[0] > 1 else 0, g if bias.shape[1] > 1 else 0], (tq, tk))
                if one.dtype == np.bool_:
                    head_seen = seen & one
                else:
                    one = one.astype(np.float64)
                    head_seen = seen & ~np.isneginf(one)
                    add = np.where(np.isneginf(one), 0, one)
            a1, logs[0][b, s] = softmax_map(q1[b, s], k1[b, s // (hs // k1.shape[1])], scale, softcap, add, head_seen,
                                            None if sink is None else sink[s])
            if q2 is None:
                a2 = np.zeros_like(a1)
            else:
                a2, logs[1][b, g] = softmax_map(q2[b, g], k2[b, g // (hn // k2.shape[1])], scale, softcap, add, head_seen,
                                                None if sink2 is None else sink2[g])
            if lam is None:
                row_lam = np.zeros((tq, 1))
            elif lam.ndim == 0:
                row_lam = np.full((tq, 1), lam)
            elif lam.ndim == 1:
                row_lam = np.full((tq, 1), lam[s])
            else:
                row_lam = lam[b, :, s if lam.shape[2] == hs else g][:, None]
            if lam_sigmoid:
                row_lam = _sigmoid(row_lam)
            values = v[b, s // (hs // v.shape[1])]
            a3 = np.broadcast_to(a1.mean(0, keepdims=True) if integral and tq else 0.0, a1.shape)
            x = (a1 - row_lam * a2 + row_lam * a3) @ values
            m = (a1 + np.abs(row_lam) * (a2 + a3)) @ np.abs(values)
            factor = np.full((tq, 1), out_scale)
            if norm == "rms":
                mean = (x * x).mean(1, keepdims=True)
                root = np.sqrt(mean + norm_eps) if norm_eps_mode == "inside" else np.sqrt(mean) + norm_eps
                # A row of zeros stays one, also where eps is 0.
                factor = np.where(root == 0, 0, factor / np.where(root == 0, 1, root))
                m = m + np.sqrt((m * m).mean(1, keepdims=True))
            factor = factor * (1 if weight is None else weight[None, :])
            if gate is not None:
                factor = factor * _sigmoid(gate[b, s])
            out[b, s], bound[b, s] = x * factor, m * np.abs(factor)
    return (out, bound, *logs) if return_lse else (out, bound)
