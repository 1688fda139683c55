"""Attention of one shape, differential or of one map, as PyTorch composes it, beside ours: shared by attention_cpu.py and
attention_backward_cpu.py."""

import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np

LAMBDA, OUT_SCALE, EPS = 0.4, 0.8, 1e-5
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
#: The largest difference from PyTorch's naive composition, which rounds its sums to the type.
TOLERANCE = {"f32": 1e-3, "bf16": 0.1, "f16": 0.02}


@dataclass(frozen=True)
class Shape:
    """V1: two keys, a norm of each head, one lambda. V2: one key for both maps, a sigmoid of a logit for each token and head, no norm.
    Plain: one map, which is softmax attention."""

    batch: int = 1
    heads: int = 8
    key_heads: int = 8
    d: int = 64
    dv: int = 128
    v2: bool = False
    plain: bool = False

    @property
    def scale(self):
        return self.d ** -0.5

    def flop(self, queries, keys):
        """Operations of two separate attentions, or of the one of a single map, whatever ours does."""
        return self.batch * self.heads * queries * keys * (2 * self.d + 2 * self.dv) * (1 if self.plain else 2)

    def backward_flop(self, queries, keys):
        """Operations of the gradients: both maps again, d_q and d_k of each, and once d_v and the product of d_out with the values."""
        return self.batch * self.heads * queries * keys * (12 * self.d + 4 * self.dv)

    def describe(self):
        return (f"{'V2 ' if self.v2 else 'one map ' if self.plain else ''}({self.d},{self.dv}), {self.heads} heads" +
                (f", {self.key_heads} key heads" if self.key_heads != self.heads else "") +
                (f", batch {self.batch}" if self.batch != 1 else ""))


class Operands:
    """Arrays q1, k1, q2, k2, v and lambda, of one map q1, k1 and v, and the same memory as tensors of PyTorch."""

    def __init__(self, shape, dtype, queries, keys):
        import torch

        rng = np.random.default_rng(0)

        def make(heads, length, width):
            return rng.standard_normal((shape.batch, heads, length, width), dtype=np.float32).astype(TYPES[dtype])

        q1, q2 = (make(shape.heads, queries, shape.d) for _ in range(2))
        k1 = make(shape.key_heads, keys, shape.d)
        k2 = k1 if shape.v2 else make(shape.key_heads, keys, shape.d)
        self.shape, self.dtype = shape, dtype
        self.arrays = [q1, k1, *([] if shape.plain else [q2, k2]), make(shape.key_heads, keys, shape.dv)]
        self.lam = rng.standard_normal((shape.batch, queries, shape.heads), dtype=np.float32) if shape.v2 else LAMBDA
        self.tensors = [torch.from_numpy(a.view(np.uint16)).view(torch.bfloat16) if dtype == "bf16" else torch.from_numpy(a)
                        for a in self.arrays]

    @property
    def bytes_read(self):
        """Bytes of keys and values, each array once."""
        return sum(a.nbytes for a in self.read)

    @property
    def read(self):
        keys, v = self.arrays[1:-1:2], self.arrays[-1]
        return [keys[0], v] if keys[-1] is keys[0] else [*keys, v]

    @property
    def options(self):
        """Options of `diffattn.attention` that follow from the shape."""
        ends = {"lam_activation": "sigmoid"} if self.shape.v2 else {} if self.shape.plain else {"norm": "rms", "out_scale": OUT_SCALE}
        return {"scale": self.shape.scale, **ends}

    def ours(self, target="cpu", **options):
        import diffattn

        if self.shape.plain:
            return diffattn.plain_attention(*self.arrays, target=target, **self.options, **options)
        return diffattn.attention(*self.arrays, self.lam, target=target, **self.options, **options)

    def rows_of_lambda(self, lam):
        """Factors of the second map, for each row [batch, heads, queries, 1]: of V2's logits; a number is one for all rows."""
        return lam.sigmoid().transpose(1, 2)[..., None].to(self.tensors[-1].dtype) if self.shape.v2 else lam

    def compositions(self, causal, seen=None):
        """PyTorch's ways to compute it, each a function of q1, k1, q2, k2, v and the rows of lambda, of one map of q, k and v; `seen`: which
        keys [queries, keys] a query sees. "sdpa x4" takes v as its two halves, and is there where each is of the queries' width, as PyTorch's fast kernel asks."""
        import torch

        shape, (q1, k1, *_, v) = self.shape, self.tensors
        group, sdpa = shape.heads // shape.key_heads, torch.nn.functional.scaled_dot_product_attention
        mask = torch.full((q1.shape[2], k1.shape[2]), float("-inf"), dtype=v.dtype).triu(1) if causal else None
        if seen is not None:
            seen = torch.from_numpy(seen)
            mask = torch.zeros(seen.shape, dtype=v.dtype).masked_fill(~seen, float("-inf"))

        def end(x):
            if shape.v2:
                return x
            return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS) * OUT_SCALE).to(x.dtype)

        def wide(x):
            return x if group == 1 else x.repeat_interleave(group, 1)

        def one_map(q, k):
            scores = q @ wide(k).transpose(-1, -2) * shape.scale
            return torch.softmax(scores if mask is None else scores + mask, -1)

        def one(q, k, v):
            return sdpa(q, k, v, seen, is_causal=causal, scale=shape.scale, enable_gqa=group > 1)

        def both(q, k, halves):
            return torch.cat([one(q, k, x) for x in halves], -1)

        if shape.plain:
            return {"naive": lambda q, k, v: one_map(q, k) @ wide(v), "sdpa": one}
        functions = {"naive": lambda q1, k1, q2, k2, v, lam: end((one_map(q1, k1) - lam * one_map(q2, k2)) @ wide(v)),
                     "sdpa x2": lambda q1, k1, q2, k2, v, lam: end(one(q1, k1, v) - lam * one(q2, k2, v))}
        if shape.dv == 2 * shape.d:
            functions["sdpa x4"] = lambda q1, k1, q2, k2, halves, lam: end(both(q1, k1, halves) - lam * both(q2, k2, halves))
        return functions

    def peers(self, causal, compiled=True, seen=None):
        """The compositions on these operands, each a function without arguments; `compiled`: also the naive one under torch.compile."""
        import torch

        functions = self.compositions(causal, seen)
        if compiled:
            torch._dynamo.reset()
            functions["compiled"] = torch.compile(functions["naive"])
        if self.shape.plain:
            return {name: functools.partial(function, *self.tensors) for name, function in functions.items()}
        *maps, v = self.tensors
        lam = self.rows_of_lambda(torch.from_numpy(self.lam) if self.shape.v2 else self.lam)
        return {name: functools.partial(function, *maps, [x.contiguous() for x in v.chunk(2, -1)] if name == "sdpa x4" else v, lam)
                for name, function in functions.items()}
