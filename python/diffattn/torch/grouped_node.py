"""Products of groups of rows, each group with a matrix of its own, as a mixture of experts has them: one node, which nothing takes apart.

The builtin `grouped_gemm`. How many rows a group has is data.
"""

from __future__ import annotations

import torch

from .op import add_operator

#: Rows [rows, k] times matrices [groups, k, n], or with `transposed` 1 [groups, n, k]: [rows, n], in f32 for numbers of 16 bits. `ends`,
#: [groups], rises and says before which row each group ends; rows behind the last end are 0.
SCHEMA = "_grouped_gemm(Tensor x, Tensor matrices, Tensor ends, int transposed) -> Tensor"


def _sums_in(dtype):
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _fake(x, matrices, ends, transposed):
    return x.new_empty([x.size(0), matrices.size(1 if transposed else 2)], dtype=_sums_in(x.dtype))


def _run(x, matrices, ends, transposed):
    """Computes as the builtin: ends that fall, or lie behind the rows, are taken as the nearest ones that do not."""
    result, begin = x.new_zeros([x.size(0), matrices.size(1 if transposed else 2)], dtype=_sums_in(x.dtype)), 0
    for matrix, end in zip(matrices, ends.tolist()):
        end = max(min(end, x.size(0)), begin)
        result[begin:end] = x[begin:end].to(result.dtype) @ (matrix.mT if transposed else matrix).to(result.dtype)
        begin = end
    return result


add_operator(SCHEMA, _fake, _run)


def _multiply(x, matrices, ends, dtype):
    # The matrices of layers lie turned: as they lie they are read in place.
    transposed = matrices.stride(-1) != 1 and matrices.stride(-2) == 1
    return torch.ops.diffattn._grouped_gemm(x, matrices.mT if transposed else matrices, ends, int(transposed)).to(dtype)


def grouped_mm(x, matrices, offs=None, bias=None, out_dtype=None):
    """aten._grouped_mm of rows with matrices; of other ranks NotImplemented."""
    if x.dim() != 2 or matrices.dim() != 3 or offs is None or bias is not None or not x.is_floating_point():
        return NotImplemented
    return _multiply(x, matrices, offs, out_dtype or x.dtype)


def grouped_mm_fallback(input, weight, offs):
    """transformers' own operator, where torch.compile meets other numbers than bf16."""
    return _multiply(input, weight, offs, input.dtype) if input.is_floating_point() else NotImplemented


def histc(x, bins=100, min=0, max=0):
    """Number of elements in each of `bins` parts of [min, max], or of the elements' own range where both are one number."""
    if not x.is_floating_point():
        return NotImplemented
    x = x.reshape(-1)
    if min == max:
        min, max = x.amin(), x.amax()
        min, max = torch.where(min == max, min - 1, min), torch.where(min == max, max + 1, max)
    place = ((x - min) / (max - min) * bins).to(torch.int64).clamp(max=bins - 1)
    is_inside = torch.logical_and(x >= min, x <= max)
    is_here = torch.logical_and(place == torch.arange(bins, device=x.device).unsqueeze(1), is_inside)
    return is_here.to(x.dtype).sum(1)


def rules() -> dict:
    """The decompositions by op. transformers defines its operator when its own module of experts is imported."""
    result = {torch.ops.aten._grouped_mm.default: grouped_mm, torch.ops.aten.histc.default: histc}
    fallback = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    return {**result, fallback.default: grouped_mm_fallback} if fallback else result
