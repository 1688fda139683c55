"""Differential attention in PyTorch and f64, written from docs/spec.md without the operator: autograd gives the oracle of gradients."""
import torch

HUGE = 1 << 40


def visible(queries, keys, is_causal, window, kv_len, q_offset):
    """Which keys each query sees, [Tq, Tk]."""
    length = keys if kv_len is None else min(int(kv_len), HUGE)
    offset = length - queries if q_offset is None else int(q_offset)
    i, j = torch.arange(queries)[:, None] + offset, torch.arange(keys)[None]
    seen = (j < length) & torch.ones(queries, 1, dtype=torch.bool)
    if is_causal:
        seen = seen & (j <= i)
    left, right = window or (-1, -1)
    if left >= 0:
        seen = seen & (i - j <= left)
    if right >= 0:
        seen = seen & (j - i <= right)
    return seen


def per_batch(value, batch):
    if value is None:
        return [None] * batch
    return torch.as_tensor(value).expand(batch).tolist()


def attention(q1, k1, q2, k2, v, lam, *, scale=None, is_causal=False, window=None, attn_mask=None, softcap=None, lam_activation=None, norm=None,
              norm_weight=None, norm_eps=1e-5, norm_eps_mode="inside", out_scale=1.0, gate=None, kv_len=None, q_offset=None, q_segments=None,
              kv_segments=None, cu_seqlens_q=None, cu_seqlens_k=None):
    """The arguments of torch.ops.diffattn.attention, of any types; the result is f64."""
    q1, k1, q2, k2, v, lam, norm_weight, gate = (None if t is None else t.double() for t in (q1, k1, q2, k2, v, lam, norm_weight, gate))
    if cu_seqlens_q is not None:
        parts = []
        for n in range(len(cu_seqlens_q) - 1):
            rows, keys = slice(*cu_seqlens_q[n:n + 2].tolist()), slice(*cu_seqlens_k[n:n + 2].tolist())
            parts.append(attention(q1[:, :, rows], k1[:, :, keys], q2[:, :, rows], k2[:, :, keys], v[:, :, keys], lam[:, rows] if lam.ndim == 3 else lam,
                                   scale=scale, is_causal=is_causal, window=window, softcap=softcap, lam_activation=lam_activation, norm=norm,
                                   norm_weight=norm_weight, norm_eps=norm_eps, norm_eps_mode=norm_eps_mode, out_scale=out_scale,
                                   gate=None if gate is None else gate[:, :, rows], q_offset=None if q_offset is None else q_offset[n]))
        return torch.cat(parts, 2)
    (batch, signals, queries, width), noises, keys = q1.shape, q2.shape[1], k1.shape[2]
    seen = torch.stack([visible(queries, keys, is_causal, window, length, offset)
                        for length, offset in zip(per_batch(kv_len, batch), per_batch(q_offset, batch))])[:, None]
    if q_segments is not None:
        seen = seen & (q_segments[:, None, :, None] == kv_segments[:, None, None, :])
    seen, bias = seen.expand(batch, noises, queries, keys), 0
    if attn_mask is not None:
        mask = attn_mask.expand(batch, noises, queries, keys)
        seen, bias = (seen & mask, 0) if mask.dtype == torch.bool else (seen & ~mask.isneginf(), mask.double())

    def spread(tensor, heads):
        return tensor.repeat_interleave(heads // tensor.shape[1], 1)

    def one_map(q, k):
        scores = q @ spread(k, q.shape[1]).mT * (width ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        mine = spread(seen, q.shape[1])
        scores = scores + (bias if isinstance(bias, int) else spread(bias, q.shape[1]))
        # A row without keys is 0, and so are its gradients.
        rows = mine.any(-1, keepdim=True)
        return torch.where(mine, scores.masked_fill(~mine & rows, -torch.inf).masked_fill(~rows, 0).softmax(-1), 0)

    if lam_activation == "sigmoid":
        lam = lam.sigmoid()
    if lam.ndim == 3:
        lam = lam.repeat_interleave(signals // lam.shape[2], 2).mT[..., None]
    elif lam.ndim == 1:
        lam = lam[:, None, None]
    x = (one_map(q1, k1) - lam * spread(one_map(q2, k2), signals)) @ spread(v, signals)
    if norm == "rms":
        square = x.square().mean(-1, keepdim=True)
        # The root has no derivative at 0.
        root = (square + norm_eps).sqrt() if norm_eps_mode == "inside" else torch.where(square > 0, square, 1).sqrt() * (square > 0) + norm_eps
        x = torch.where(root > 0, x / torch.where(root > 0, root, 1), 0)
        x = x if norm_weight is None else x * norm_weight
    x = x * out_scale
    return x if gate is None else x * gate.sigmoid()
