"""Expected results of a case: in f64, with the measure of docs/numerics.md, and as a composition of PyTorch's own attention."""
import math
from typing import NamedTuple

import torch

from . import cases

# |error| / M of docs/numerics.md, by the type of the operands.
GATES = {"f32": 5e-5, "f16": 1.5e-3, "bf16": 1.2e-2}


#: Largest errors of logarithms of sums, as parts of 1 + |logarithm|, by the type of the operands.
LOG_GATES = {"f32": 2e-5, "f16": 5e-4, "bf16": 5e-4}


class Exact(NamedTuple):
    """A result in f64, M, and N, M with every weight as large as the largest of its row and map; each [B, Hs, rows, dv]. The logarithms
    of the sums of each map, [B, Hs, rows] and [B, Hn, rows], and all of the rows before norm and gate, and of map 2 times the values."""
    result: torch.Tensor
    m: torch.Tensor
    n: torch.Tensor
    logarithms: tuple = ()
    before: tuple = ()
    second: tuple = ()


def half_step(dtype):
    """Half of the type's least number above 0: by so much rounding moves a number below the normal range, however small it is."""
    facts = torch.finfo(dtype)
    return facts.smallest_normal * facts.eps / 2


def visible(case, tensors, rows):
    """Which keys the queries `rows` see: [B, 1, rows, Tk]."""
    tq, tk, device = tensors["q1"].shape[2], tensors["k1"].shape[2], tensors["q1"].device
    batch = tensors["q1"].shape[0]
    length = tensors.get("kv_len", torch.full((batch,), tk, device=device)).clamp(0, tk)
    offset = tensors.get("q_offset", length - tq)
    place = (rows[None, :] + offset[:, None])[:, :, None]
    key = torch.arange(tk, device=device)[None, None, :]
    seen = key < length[:, None, None]
    left, right = (case.window or (-1, -1))
    if case.causal:
        right = 0
    if left >= 0:
        seen = seen & (place - key <= left)
    if right >= 0:
        seen = seen & (key - place <= right)
    if "q_segments" in tensors:
        seen = seen & (tensors["q_segments"][:, rows, None] == tensors["kv_segments"][:, None, :])
    seen = seen.expand(batch, len(rows), tk)[:, None]
    return seen & tensors["mask"][:, :, rows] if "mask" in tensors else seen


def spread(x, heads):
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def lambdas(case, tensors, rows, heads):
    lam = tensors["lambda"]
    if lam.ndim == 1:
        lam = lam[None, :, None, None]
    elif lam.ndim == 3:
        lam = spread(lam.transpose(1, 2), heads)[:, :, rows, None]
    return lam


def exact(case, tensors, rows=None):
    """The queries `rows` (all by default) by the formula of docs/spec.md."""
    device, tq = tensors["q1"].device, tensors["q1"].shape[2]
    rows = torch.arange(tq, device=device) if rows is None else rows
    heads, noise = case.heads[0], case.heads[1]
    seen = visible(case, tensors, rows)
    bias = tensors["bias"][:, :, rows].double() if "bias" in tensors else None

    logarithms = []

    def one_map(q, k, sink):
        scores = q[:, :, rows].double() @ spread(k, q.shape[1]).double().transpose(-1, -2) * cases.SCALE
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        if bias is not None:
            scores = scores + bias
        scores = scores.masked_fill(~seen, -math.inf)
        total = torch.logsumexp(scores, -1, keepdim=True)
        if sink in tensors:
            total = torch.logaddexp(total, tensors[sink].double()[None, :, None, None])
        some = seen.any(-1, keepdim=True)
        logarithms.append(torch.where(some, total, -math.inf).squeeze(-1))
        return torch.where(some, torch.exp(scores - total), 0.0)

    first = one_map(tensors["q1"], tensors["k1"], "sink")
    values = spread(tensors["v"], heads).double()
    weights = sizes = first
    largest = first.amax(-1, keepdim=True)
    of_second = ()
    if not case.one_map:
        second = one_map(tensors["q2"], tensors["k2"], "sink2")
        second = spread(second, heads) if noise != heads else second
        of_second = second @ values, second @ values.abs(), second.amax(-1, keepdim=True) * (seen.double() @ values.abs())
        lam = lambdas(case, tensors, rows, heads).double()
        lam = torch.sigmoid(lam) if case.sigmoid else lam
        weights, sizes = first - lam * second, first + lam.abs() * second
        largest = largest + lam.abs() * second.amax(-1, keepdim=True)
    x, m = weights @ values, sizes @ values.abs()
    n = largest * (seen.double() @ values.abs())
    before = x, m, n
    factor = torch.full((), case.out_scale, dtype=torch.float64, device=device)
    if case.norm:
        factor = factor / torch.sqrt(x.square().mean(-1, keepdim=True) + cases.EPS)
        through_root = (x * factor / case.out_scale).abs()
        m, n = (size + through_root * size.square().mean(-1, keepdim=True).sqrt() for size in (m, n))
    if "weight" in tensors:
        factor = factor * tensors["weight"].double()
    if "gate" in tensors:
        factor = factor * torch.sigmoid(tensors["gate"][:, :, rows].double())
    return Exact(x * factor, m * factor.abs(), n * factor.abs(), tuple(logarithms), before, of_second)


def tail(case, tensors, x):
    """Norm, factor and gate after the difference of the maps, as a module writes them in PyTorch."""
    if case.norm:
        wide = x.float()
        x = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + cases.EPS)).to(x.dtype)
        if "weight" in tensors:
            x = x * tensors["weight"]
        x = x * case.out_scale
    if "gate" in tensors:
        x = x * torch.sigmoid(tensors["gate"])
    return x


def composition(case, tensors):
    """The result by a call of scaled_dot_product_attention for each map and element-wise ops, all in the type of the inputs."""
    device, tq = tensors["q1"].device, tensors["q1"].shape[2]
    rows, heads, element = torch.arange(tq, device=device), case.heads[0], tensors["q1"].dtype
    seen = visible(case, tensors, rows)
    mask = torch.zeros(seen.shape, dtype=element, device=device).masked_fill(~seen, -math.inf)
    if "bias" in tensors:
        mask = mask + tensors["bias"]
    values = spread(tensors["v"], heads)

    def one_map(q, k, sink):
        of_sink = spread(tensors[sink].to(element)[None, :, None, None], heads) if sink in tensors else None
        q, k = spread(q, heads), spread(spread(k, q.shape[1]), heads)
        if of_sink is not None:
            scores = q @ k.transpose(-1, -2) * cases.SCALE
            if case.softcap:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            joined = torch.cat([scores + mask, of_sink.expand(*scores.shape[:-1], 1)], -1)
            result = torch.softmax(joined.float(), -1)[..., :-1].to(element) @ values
        elif case.softcap:
            scores = case.softcap * torch.tanh(q @ k.transpose(-1, -2) * (cases.SCALE / case.softcap))
            result = torch.softmax((scores + mask).float(), -1).to(element) @ values
        else:
            result = torch.nn.functional.scaled_dot_product_attention(q, k, values, attn_mask=mask, scale=cases.SCALE)
        return torch.where(seen.any(-1, keepdim=True), result, 0)

    x = one_map(tensors["q1"], tensors["k1"], "sink")
    if not case.one_map:
        lam = lambdas(case, tensors, rows, heads)
        lam = (torch.sigmoid(lam) if case.sigmoid else lam).to(element)
        x = x - lam * one_map(tensors["q2"], tensors["k2"], "sink2")
    return tail(case, tensors, x)


def relative(got, want):
    """The norm of the difference over that of the result."""
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-300))


def measured(got, exact, element):
    """The largest |error| / M, beside what rounding to subnormal numbers does: of the result, and of weights in the type `element` of
    the operands. Infinite where something is not finite, or M is 0 and the error is not."""
    subnormal = half_step(got.dtype) + half_step(element) * exact.n
    error = ((got.double() - exact.result).abs() - subnormal).clamp_min(0)
    ratio = torch.where(error == 0, 0.0, error / exact.m)
    return math.inf if not bool(torch.isfinite(got).all()) else float(torch.nan_to_num(ratio, nan=math.inf).max())


def log_error(got, want):
    """The largest error of a logarithm of a sum, of 1 and of itself; infinite where something is not finite, but for rows without keys,
    which have -inf."""
    empty = torch.isneginf(want)
    error = torch.where(empty, torch.where(torch.isneginf(got), 0.0, math.inf), (got.double() - want).abs() / (1 + want.abs()))
    return float(torch.nan_to_num(error, nan=math.inf).max())
