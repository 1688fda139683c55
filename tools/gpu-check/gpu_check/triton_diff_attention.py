"""Differential attention as one Triton kernel with both maps: a peer, written for the comparison.

One program computes a block of queries of one pair of heads: both online softmaxes, V read once for both, lambda and the head
norm in the epilogue. As in Triton's own tutorial, keys that a causal mask cuts through have a loop of their own, exponentials are
powers of two with the scale folded in, and tiles, warps and stages are chosen by timing.
"""
import triton
import triton.language as tl

LOG2E = 1.4426950408889634
CONFIGS = [(128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 3), (128, 32, 8, 3), (128, 128, 8, 2)]


@triton.jit
def _online(q, k_at, top, total, scale, rows, columns, tokens, MASKED: tl.constexpr, CAUSAL: tl.constexpr):
    """Scores of a tile of keys: weights, the new maximum and sum, and what the old accumulator is multiplied with."""
    if MASKED:
        k = tl.load(k_at, mask=columns[None, :] < tokens, other=0.0)
    else:
        k = tl.load(k_at)
    scores = tl.dot(q, k) * scale
    if MASKED:
        seen = columns[None, :] < tokens
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, -1.0e30)
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.math.exp2(scores - new_top[:, None])
    keep = tl.math.exp2(top - new_top)
    return weights, new_top, total * keep + tl.sum(weights, 1), keep


@triton.jit
def _tiles(acc1, acc2, top1, top2, total1, total2, q1, q2, k1, k2, v, scale, rows, tokens, begin, end,
           D: tl.constexpr, DV: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr):
    wide, wide_v = tl.arange(0, D), tl.arange(0, DV)
    for start in range(begin, end, BN):
        columns = start + tl.arange(0, BN)
        at = columns[None, :] * D + wide[:, None]
        p1, top1, total1, keep1 = _online(q1, k1 + at, top1, total1, scale, rows, columns, tokens, MASKED, CAUSAL)
        p2, top2, total2, keep2 = _online(q2, k2 + at, top2, total2, scale, rows, columns, tokens, MASKED, CAUSAL)
        at_v = v + columns[:, None] * DV + wide_v[None, :]
        if MASKED:
            values = tl.load(at_v, mask=columns[:, None] < tokens, other=0.0)
        else:
            values = tl.load(at_v)
        acc1 = tl.dot(p1.to(values.dtype), values, acc1 * keep1[:, None])
        acc2 = tl.dot(p2.to(values.dtype), values, acc2 * keep2[:, None])
    return acc1, acc2, top1, top2, total1, total2


@triton.jit
def _forward(q1, k1, q2, k2, v, lam, weight, out, tokens, scale, eps, out_scale,
             D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, NORM: tl.constexpr, WEIGHT: tl.constexpr,
             BM: tl.constexpr, BN: tl.constexpr):
    # The blocks with most keys first: the short ones fill the end.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    rows = block * BM + tl.arange(0, BM)
    wide, wide_v = tl.arange(0, D), tl.arange(0, DV)
    inside = rows[:, None] < tokens
    at = head * tokens * D + rows[:, None] * D + wide[None, :]
    first, second = tl.load(q1 + at, mask=inside, other=0.0), tl.load(q2 + at, mask=inside, other=0.0)
    k1 += head * tokens * D
    k2 += head * tokens * D
    v += head * tokens * DV
    acc1, acc2 = tl.zeros([BM, DV], tl.float32), tl.zeros([BM, DV], tl.float32)
    top1, top2 = tl.full([BM], -1.0e30, tl.float32), tl.full([BM], -1.0e30, tl.float32)
    total1, total2 = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    # Whole tiles that every row sees, then those that a mask cuts.
    if CAUSAL:
        whole, end = block * BM // BN * BN, tl.minimum((block + 1) * BM, tokens)
    else:
        whole, end = tokens // BN * BN, tokens
    acc1, acc2, top1, top2, total1, total2 = _tiles(acc1, acc2, top1, top2, total1, total2, first, second, k1, k2, v, scale, rows,
                                                    tokens, 0, whole, D, DV, BN, False, CAUSAL)
    acc1, acc2, top1, top2, total1, total2 = _tiles(acc1, acc2, top1, top2, total1, total2, first, second, k1, k2, v, scale, rows,
                                                    tokens, whole, end, D, DV, BN, True, CAUSAL)
    x = acc1 / total1[:, None] - tl.load(lam) * (acc2 / total2[:, None])
    if NORM:
        x = x * tl.rsqrt(tl.sum(x * x, 1) / DV + eps)[:, None]
        if WEIGHT:
            x = x * tl.load(weight + wide_v)[None, :].to(tl.float32)
        x = x * out_scale
    tl.store(out + head * tokens * DV + rows[:, None] * DV + wide_v[None, :], x.to(out.dtype.element_ty), mask=inside)


_tuned = triton.autotune([triton.Config({"BM": bm, "BN": bn}, num_warps=warps, num_stages=stages) for bm, bn, warps, stages in CONFIGS],
                         key=["tokens", "CAUSAL", "NORM"])(_forward)


def forward(q1, k1, q2, k2, v, lam, out, *, scale, causal, weight=None, norm=False, eps=1e-5, out_scale=1.0, blocks=None):
    """[B,H,T,d] and [B,H,T,dv], dense, as many queries as keys; `lam` is a tensor of one f32. `blocks` (BM, BN): no tuning."""
    batch, heads, tokens, d = q1.shape
    dv = v.shape[3]
    for x in (q1, k1, q2, k2, v, out):
        if not x.is_contiguous() or x.shape[2] != tokens:
            raise ValueError("expected dense tensors with as many queries as keys")
    kernel, options = (_tuned, {}) if blocks is None else (_forward, {"BM": blocks[0], "BN": blocks[1]})
    kernel[lambda meta: (triton.cdiv(tokens, meta["BM"]), batch * heads)](
        q1, k1, q2, k2, v, lam, weight if weight is not None else lam, out, tokens, scale * LOG2E, eps, out_scale,
        D=d, DV=dv, CAUSAL=causal, NORM=norm, WEIGHT=weight is not None, **options)
    return out


def chosen():
    """The configurations that the tuning chose, for the report."""
    return {str(key): str(config) for key, config in getattr(_tuned, "cache", {}).items()}
