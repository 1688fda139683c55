"""Differential attention as a PyTorch module, spelled as a set of options says (torch_options.py)."""

import math

import torch
import torch.nn.functional as F
from torch_masks import BUFFERS, MASKS
from torch_spellings import NORMS, SOFTMAXES, group_norm, rms_of_all_heads

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
LAMBDA_INIT = 0.2


def parameter(*shape):
    return torch.nn.Parameter(torch.randn(*shape) * 0.3)


def token_inputs(o, generator):
    """Arguments of the module for options `o`: q1, k1, q2, k2, v or x, then lambda and mask where they are arguments."""
    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    B, T, Tk, H, Hk, d, dv, D = (o[axis] for axis in ("B", "T", "Tk", "H", "Hk", "d", "dv", "D"))
    if o["inp"] == "heads":
        tensors = [normal(B, H, T, d), normal(B, Hk, Tk, d), normal(B, H, T, d), normal(B, Hk, Tk, d), normal(B, Hk, Tk, dv)]
    elif o["inp"] == "bthd":
        tensors = [normal(B, T, H, d), normal(B, Tk, Hk, d), normal(B, T, H, d), normal(B, Tk, Hk, d),
                   normal(B, Tk, Hk, dv)]
    else:
        tensors = [normal(B, T, D)]
    for name in ("lam", "mask"):
        if name not in o["extra"]:
            continue
        kind, shape = o["extra"][name]
        if kind in ("bool", "int"):
            given = torch.rand(shape, generator=generator) > .3
            given[..., 0] = True  # a row sees one key at least
            given = given.long() if kind == "int" else given
        elif kind == "add":
            given = normal(*shape)
        elif kind == "len":
            given = torch.tensor([Tk - 3, Tk][:shape[0]])
        else:
            given = normal(*shape) * .3 + .3 if shape else torch.tensor(.3)
        tensors.append(given)
    dtype = DTYPES[o["dtype"]]
    return [t.to(dtype) if t.is_floating_point() else t for t in tensors]


class DifferentialAttention(torch.nn.Module):
    """(softmax(s·q1·k1ᵀ) − λ·softmax(s·q2·k2ᵀ))·v, then norm, factor, gate and projection where the options have them."""

    def __init__(self, options):
        super().__init__()
        self.o = o = options
        d, dv, D, H, Hk = (o[axis] for axis in ("d", "dv", "D", "H", "Hk"))
        # The order of what is drawn here is part of what a seed stands for.
        if o["lam"] == "exp":
            self.lq1, self.lk1, self.lq2, self.lk2 = (parameter(d) for _ in range(4))
        elif o["lam"] == "exp_h":
            self.lq1, self.lk1, self.lq2, self.lk2 = (parameter(H, d) for _ in range(4))
        elif o["lam"] == "param":
            self.lam = torch.nn.Parameter(torch.tensor(0.37))
        elif o["lam"] == "head":
            self.lam = parameter(H)
        elif o["lam"] == "head4":
            self.lam = parameter(1, H, 1, 1)
        elif o["lam"] == "tok_lin":
            self.lw = torch.nn.Linear(D, H)
        if o["norm_w"]:
            self.w = torch.nn.Parameter(1 + 0.1 * torch.randn(dv))
        if o["norm"] == "group":
            self.gn = torch.nn.GroupNorm(H, H * dv)
        elif o["norm"] == "layer":
            self.ln = torch.nn.LayerNorm(dv)
        if o["inp"] == "proj":
            self.q = torch.nn.Linear(D, 2 * H * d, bias=o["bias"])
            self.k = torch.nn.Linear(D, 2 * Hk * d, bias=o["bias"])
            self.v = torch.nn.Linear(D, Hk * dv, bias=False)
        elif o["inp"] == "qkv":
            self.qkv = torch.nn.Linear(D, 2 * H * d * 2 + H * dv, bias=False)
        if o["out"] == "linear":
            self.wo = torch.nn.Linear(H * dv, D, bias=False)
        if o["gate"]:
            self.wg = torch.nn.Linear(D, H * dv)
        if o["mask"] in BUFFERS:
            self.register_buffer("m", BUFFERS[o["mask"]](o["T"], H))

    def forward(self, *a):
        # Torch names a graph's inputs after `a`, and where sizes are dynamic reads them from another input under another name.
        o, tensors = self.o, list(a)
        mask = tensors.pop() if "mask" in o["extra"] else getattr(self, "m", None)
        lam = tensors.pop() if "lam" in o["extra"] else None
        x, q1, k1, q2, k2, v = self.heads(tensors)
        group = o["H"] // o["Hk"]
        if o["gq"] == "einsum5" and group > 1:
            return self.finish(self.grouped(q1, k1, q2, k2, v, group, lam), None)
        k1, k2, v = self.repeat(k1, group), self.repeat(k2, group), self.repeat(v, group)
        if o["shareK"]:
            k2 = k1
        lam = self.lambda_value(lam, x, q1)
        if o["comb"].startswith("sdpa"):
            return self.finish(self.by_sdpa(q1, k1, q2, k2, v, lam, mask), x)
        return self.finish(self.combine(*self.maps(q1, k1, q2, k2, mask), v, lam), x)

    def heads(self, tensors):
        """x or None, and q1, k1, q2, k2, v as [batch, heads, tokens, width]."""
        o = self.o
        H, Hk, d, dv = (o[axis] for axis in ("H", "Hk", "d", "dv"))
        if o["inp"] == "heads":
            return None, *tensors
        if o["inp"] == "bthd":
            return None, *(t.transpose(1, 2) for t in tensors)
        x = tensors[0]
        B, T = x.shape[0], x.shape[1]
        if o["inp"] == "qkv":
            q1, q2, k1, k2, v = self.qkv(x).split([H * d] * 4 + [H * dv], dim=-1)
            q1, q2, k1, k2 = (t.view(B, T, H, d).transpose(1, 2) for t in (q1, q2, k1, k2))
            return x, q1, k1, q2, k2, v.view(B, T, H, dv).transpose(1, 2)
        q1, k1, q2, k2 = self.pairs(x, B, T)
        return x, q1, k1, q2, k2, self.v(x).view(B, T, Hk, dv).transpose(1, 2)

    def pairs(self, x, B, T):
        """The projections of x, shared out to the two maps."""
        pair = self.o["pair"]
        H, Hk, d = (self.o[axis] for axis in ("H", "Hk", "d"))
        if pair == "view5":
            q, k = self.q(x).view(B, T, H, 2, d), self.k(x).view(B, T, Hk, 2, d)
            q1, q2 = q[:, :, :, 0].transpose(1, 2), q[:, :, :, 1].transpose(1, 2)
            k1, k2 = k[..., 0, :].transpose(1, 2), k[..., 1, :].transpose(1, 2)
        elif pair == "lastchunk":
            q, k = self.q(x).view(B, T, H, 2 * d).transpose(1, 2), self.k(x).view(B, T, Hk, 2 * d).transpose(1, 2)
            q1, q2 = q.chunk(2, dim=-1)
            k1, k2 = torch.split(k, d, dim=-1)
        elif pair == "chunkfirst":
            q1, q2 = torch.chunk(self.q(x), 2, dim=-1)
            k1, k2 = self.k(x).chunk(2, -1)
            q1, q2 = (t.view(B, T, H, d).transpose(1, 2) for t in (q1, q2))
            k1, k2 = (t.reshape(B, T, Hk, d).permute(0, 2, 1, 3) for t in (k1, k2))
        elif pair == "unbind":
            q = self.q(x).view(B, T, 2, H, d).permute(2, 0, 3, 1, 4)
            k = self.k(x).view(B, T, 2, Hk, d).permute(2, 0, 3, 1, 4)
            q1, q2 = q.unbind(0)
            k1, k2 = k[0], k[1]
        else:
            q = self.q(x).view(B, T, 2 * H, d).transpose(1, 2)
            k = self.k(x).view(B, T, 2 * Hk, d).transpose(1, 2)
            if pair == "stride":
                q1, q2, k1, k2 = q[:, 0::2], q[:, 1::2], k[:, ::2], k[:, 1::2]
            elif pair == "halves":
                q1, q2, k1, k2 = q[:, :H], q[:, H:], k[:, :Hk], k[:, Hk:]
            else:
                raise KeyError(pair)
        return q1, k1, q2, k2

    def repeat(self, x, group):
        """Keys or values for all heads of the queries."""
        if group == 1:
            return x
        if self.o["rep"] == "interleave":
            return x.repeat_interleave(group, dim=1)
        B, H, T, width = x.shape
        return x[:, :, None, :, :].expand(B, H, group, T, width).reshape(B, H * group, T, width)

    def lambda_value(self, given, x, like):
        """A number, or a tensor that is broadcast to [batch, heads, queries, 1]."""
        kind = self.o["lam"]
        if kind == "const":
            return 0.4
        if kind == "exp":
            first = torch.exp(torch.sum(self.lq1 * self.lk1, dim=-1).float()).type_as(like)
            return first - torch.exp(torch.sum(self.lq2 * self.lk2, dim=-1).float()).type_as(like) + LAMBDA_INIT
        if kind == "exp_h":
            heads = torch.exp((self.lq1 * self.lk1).sum(-1)) - torch.exp((self.lq2 * self.lk2).sum(-1)) + LAMBDA_INIT
            return heads.view(1, -1, 1, 1)
        if kind == "param":
            return self.lam
        if kind == "head":
            return self.lam[None, :, None, None]
        if kind == "head4":
            return torch.clamp(self.lam, 0, 1) if self.o["clamp"] else torch.sigmoid(self.lam)
        if kind == "tok_lin":
            return torch.sigmoid(self.lw(x)).transpose(1, 2).unsqueeze(-1)
        if kind == "in0":
            return given
        if kind == "in_tok":
            return torch.sigmoid(given).permute(0, 2, 1)[..., None]
        if kind == "in_h":
            return given.view(1, -1, 1, 1)
        raise KeyError(kind)

    def scores(self, q, k, mask):
        """[batch, heads, queries, keys], scaled, capped and masked."""
        o, d = self.o, self.o["d"]
        scale, factor = o["scale"], d ** -0.5
        if scale == "qmul":
            q = q * factor
        elif scale == "qdiv":
            q = q / math.sqrt(d)
        elif scale == "both":
            q, k = q * math.sqrt(factor), k * math.sqrt(factor)
        elif scale == "kmul":
            k = k * factor
        elif scale == "tensor":
            q = q * torch.tensor(factor)
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) if o["mm"] == "einsum" else torch.matmul(q, k.transpose(-1, -2))
        if scale == "mul":
            s = s * factor
        elif scale == "rmul":
            s = factor * s
        elif scale == "div":
            s = s / math.sqrt(d)
        elif scale == "divt":
            s = s / torch.sqrt(torch.tensor(float(d)))
        elif scale == "divs":
            s = s / (q.size(-1) ** 0.5)
        if o["cap"] == 1:
            s = torch.tanh(s / 20.0) * 20.0
        elif o["cap"] == 2:
            s = 20.0 * torch.tanh(s * (1 / 20.0))
        if o["nan"]:
            s = torch.nan_to_num(s)
        sizes = s.shape[-2], s.shape[-1]
        return MASKS[o["mask"]](s, sizes, mask)

    def maps(self, q1, k1, q2, k2, mask):
        """The two softmaxes, one by one or in one."""
        batched, softmax, H = self.o["batched"], SOFTMAXES[self.o["sm"]], self.o["H"]
        if batched == "no":
            return softmax(self.scores(q1, k1, mask)), softmax(self.scores(q2, k2, mask))
        if batched == "stack":
            q, k = torch.stack([q1, q2], 2).flatten(1, 2), torch.stack([k1, k2], 2).flatten(1, 2)
            both = softmax(self.scores(q, k, mask))
            both = both.view(both.shape[0], H, 2, both.shape[-2], both.shape[-1])
            return both[:, :, 0], both[:, :, 1]
        both = softmax(self.scores(torch.cat([q1, q2], 1), torch.cat([k1, k2], 1), mask))
        return (both[:, :H], both[:, H:]) if batched == "cat" else both.chunk(2, 1)

    def combine(self, a1, a2, v, lam):
        comb = self.o["comb"]

        def times(a, values):
            return torch.einsum("bhqk,bhkd->bhqd", a, values) if self.o["mm"] == "einsum" else torch.matmul(a, values)

        if comb == "diff":
            return times(a1 - lam * a2, v)
        if comb == "diff_r":
            return times(a1 - a2 * lam, v)
        if comb == "addneg":
            return times(a1 + (-lam) * a2, v)
        if comb == "after":
            return times(a1, v) - lam * times(a2, v)
        if comb == "negsum":
            return -(lam * times(a2, v) - times(a1, v))
        if comb == "halves":
            v1, v2 = v.chunk(2, -1)
            return torch.cat([times(a1, v1), times(a1, v2)], -1) - lam * torch.cat([times(a2, v1), times(a2, v2)], -1)
        if comb == "halves2":
            half = self.o["dv"] // 2
            v1, v2 = v[..., :half], v[..., half:]
            return torch.cat([times(a1, v1) - lam * times(a2, v1), times(a1, v2) - lam * times(a2, v2)], -1)
        raise KeyError(comb)

    def by_sdpa(self, q1, k1, q2, k2, v, lam, mask):
        """By PyTorch's own attention, twice, or four times with the values in halves."""
        comb = self.o["comb"]
        keywords = {"attn_mask": mask} if comb == "sdpa_mask" else {"is_causal": self.o["sdpa_causal"]}

        def attend(q, k, values):
            return F.scaled_dot_product_attention(q, k, values, **keywords)

        if comb in ("sdpa", "sdpa_mask"):
            return attend(q1, k1, v) - lam * attend(q2, k2, v)
        if comb == "sdpa4":
            v1, v2 = v.chunk(2, -1)
            first = torch.cat([attend(q1, k1, v1), attend(q1, k1, v2)], -1)
            return first - lam * torch.cat([attend(q2, k2, v1), attend(q2, k2, v2)], -1)
        raise KeyError(comb)

    def grouped(self, q1, k1, q2, k2, v, group, lam):
        """Products of five axes, in which the queries of a group share a key."""
        factor = self.o["d"] ** -0.5
        B, H, T, d = q1.shape

        def attend(q, k):
            q = q.reshape(B, H // group, group, T, d)
            return torch.softmax(torch.einsum("bgnqd,bgkd->bgnqk", q, k) * factor, -1)

        difference = attend(q1, k1) - self.lambda_value(lam, None, q1) * attend(q2, k2)
        return torch.einsum("bgnqk,bgkd->bgnqd", difference, v).reshape(B, H, T, -1)

    def finish(self, y, x):
        y = self.epilogue(y, x)
        out = self.o["out"]
        if out == "heads":
            return y
        B, H, T, dv = y.shape
        y = y.transpose(1, 2)
        if out == "bthd":
            return y
        y = y.reshape(B, T, H * dv)
        return self.wo(y) if out == "linear" else y

    def epilogue(self, x, tokens):
        """Gate, norm, weight and factor of each head; `tokens` is what the gate is computed from."""
        o, gate = self.o, None
        if o["gate"]:
            B, H, T, dv = x.shape
            gate = self.wg(tokens).view(B, T, H, dv).transpose(1, 2)
            gate = torch.sigmoid(gate) if o["gate"].startswith("sig") else F.silu(gate)
            if o["gate"].endswith("pre"):
                x = x * gate
        if o["norm"] == "layer":
            y = self.ln(x)
        elif o["norm"] == "group":
            y = group_norm(self.gn, x)
        elif o["norm"] == "rms_all":
            y = rms_of_all_heads(x)
        else:
            y = NORMS[o["norm"]](x)
        if o["norm_w"] == 1:
            y = self.w * y
        elif o["norm_w"] == 2:
            y = y * self.w
        if o["one_minus"]:
            y = y * (1 - LAMBDA_INIT)
        return y * gate if gate is not None and o["gate"].endswith("post") else y
