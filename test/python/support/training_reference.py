"""Differential attention in PyTorch and f64, written from docs/spec.md without the operator: autograd gives the oracle of gradients."""
import torch

DIFFERENTIABLE = ("q1", "k1", "q2", "k2", "v", "lam", "attn_mask", "norm_weight", "gate")

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


def draw_call(rng, number):
    """Random arguments of a call: any option may be there, tensors lie in memory in any order of axes, some with holes, and some are frozen."""
    pick = lambda *options: options[rng.integers(len(options))]
    dtype = pick(torch.float32, torch.float32, torch.float16, torch.bfloat16)
    noises, batch, queries, keys = pick(1, 2, 4), pick(1, 2), pick(1, 5, 16, 19), pick(1, 7, 18, 33)
    signals = noises * pick(1, 2)
    divisor = lambda n: pick(*[x for x in (1, 2, 4, 8) if n % x == 0])
    d, dv = pick((8, 16), (16, 16), (5, 6))

    def make(heads, length, width, type_=dtype):
        axes = pick((0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3), (0, 1, 3, 2))
        step = pick(1, 1, 2)
        shape = [(batch, heads, length, width)[axis] for axis in axes]
        shape[-1] *= step
        made = torch.from_numpy(rng.standard_normal(shape)).to(type_)[..., ::step]
        return made.permute([axes.index(axis) for axis in range(4)])

    keys_of_first = divisor(signals)
    given = dict(q1=make(signals, queries, d), k1=make(keys_of_first, keys, d), q2=make(noises, queries, d), k2=make(divisor(noises), keys, d),
                 v=make(divisor(signals), keys, dv))
    form = ((), (signals,), (batch, queries, signals), (batch, queries, noises))[number % 4]
    given["lam"] = torch.from_numpy(rng.normal(0.4, 0.3, form)).to(pick(torch.float32, torch.float32, dtype))
    if pick(False, True):
        given["lam_activation"] = "sigmoid"
    if pick(False, True):
        given["is_causal"] = True
    if pick(False, False, True):
        given["window"] = [pick(-1, 0, 3), pick(-1, 0, 5)]
    if pick(False, False, True):
        given["softcap"] = 2.0
    if pick(False, True):
        given["scale"] = 0.3
    if pick(False, True):
        given.update(norm="rms", norm_eps=1e-3, norm_eps_mode=pick("inside", "outside"), out_scale=0.7)
        if pick(False, True):
            given["norm_weight"] = torch.from_numpy(rng.normal(1, 0.3, dv)).to(pick(dtype, torch.float32))
    if pick(False, False, True):
        given["gate"] = make(signals, queries, dv)
    if pick(False, False, True):
        given["kv_len"] = torch.from_numpy(rng.integers(0, keys + 1, batch))
    if pick(False, False, True):
        given["q_offset"] = torch.from_numpy(rng.integers(-2, keys, batch))
    if pick(False, False, True):
        given.update(q_segments=torch.from_numpy(rng.integers(0, 2, (batch, queries))), kv_segments=torch.from_numpy(rng.integers(0, 2, (batch, keys))))
    if kind := pick(None, None, torch.bool, torch.float32, dtype):
        shape = pick((queries, keys), (batch, 1, 1, keys), (1, noises, queries, keys), (noises, 1, keys))
        mask = torch.from_numpy(rng.standard_normal(shape))
        given["attn_mask"] = mask > -1 if kind == torch.bool else torch.where(mask < -1.5, -torch.inf, mask).to(kind)
    possible = [name for name in DIFFERENTIABLE if name in given and given[name].is_floating_point()]
    trained = {name for name in possible if pick(False, True, True)} | {possible[rng.integers(len(possible))]}
    for name in trained:
        given[name] = given[name].requires_grad_()
    return given, torch.from_numpy(rng.standard_normal((batch, signals, queries, dv))).to(dtype)
