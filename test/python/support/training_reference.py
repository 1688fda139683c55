"""The oracle of attention and its gradients with the arguments of PyTorch's operator, as autograd takes it; and random calls for it."""
import numpy as np
import torch
from attention_reference import attention as exact
from attention_reference import gradients

DIFFERENTIABLE = ("q1", "k1", "q2", "k2", "v", "lam", "attn_mask", "norm_weight", "gate")
#: Their names in attention_reference.
NAMES = ("q1", "k1", "q2", "k2", "v", "lam", "bias", "norm_weight", "gate")


class Exact(torch.autograd.Function):
    """attention_reference, of options and of the tensors of DIFFERENTIABLE."""

    @staticmethod
    def forward(ctx, options, *tensors):
        ctx.call = {name: None if t is None else t.numpy() for name, t in zip(NAMES, tensors)} | options
        return torch.from_numpy(exact(**ctx.call)[0])

    @staticmethod
    def backward(ctx, d_out):
        got = gradients(d_out.numpy(), **ctx.call)
        return None, *(torch.from_numpy(np.asarray(got[name])) if name in got else None for name in NAMES)


def per_batch(value, batch):
    return None if value is None else torch.as_tensor(value).expand(batch).numpy()


def attention(q1, k1, q2, k2, v, lam, *, scale=None, window=None, attn_mask=None, lam_activation=None, norm_weight=None, gate=None, kv_len=None,
              q_offset=None, q_segments=None, kv_segments=None, cu_seqlens_q=None, cu_seqlens_k=None, **options):
    """The arguments of torch.ops.diffattn.attention, of any types; the result is f64."""
    if cu_seqlens_q is not None:
        parts = []
        for n in range(len(cu_seqlens_q) - 1):
            rows, keys = slice(*cu_seqlens_q[n:n + 2].tolist()), slice(*cu_seqlens_k[n:n + 2].tolist())
            parts.append(attention(q1[:, :, rows], k1[:, :, keys], q2[:, :, rows], k2[:, :, keys], v[:, :, keys], lam[:, rows] if lam.ndim == 3 else lam,
                                   scale=scale, window=window, lam_activation=lam_activation, norm_weight=norm_weight,
                                   gate=None if gate is None else gate[:, :, rows], q_offset=None if q_offset is None else q_offset[n], **options))
        return torch.cat(parts, 2)
    tensors = [None if t is None else t.double() for t in (q1, k1, q2, k2, v, lam)]
    if attn_mask is not None:
        attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
        attn_mask = attn_mask if attn_mask.dtype == torch.bool else attn_mask.double()
    tensors += [attn_mask, *(None if t is None else t.double() for t in (norm_weight, gate))]
    integers = {name: None if t is None else t.numpy() for name, t in (("q_segments", q_segments), ("kv_segments", kv_segments))}
    return Exact.apply(dict(scale=q1.shape[3] ** -0.5 if scale is None else scale, window=window, lam_sigmoid=lam_activation == "sigmoid",
                            kv_len=per_batch(kv_len, len(q1)), q_offset=per_batch(q_offset, len(q1)), **integers, **options), *tensors)


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
