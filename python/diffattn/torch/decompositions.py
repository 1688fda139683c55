"""Decompositions of ATen ops, applied before torch-mlir lowers them.

torch-mlir's own table, with these changes. `aten.linear` and `aten.matmul` stay, but for products of a vector: taken apart they have wrong
shapes once two sizes are dynamic, and raising reads them better whole. What torch-mlir lowers to ops of its dialect `tm_tensor`, which
MLIR 22 does not parse, is written as comparisons, sums and reads along one axis, and rows that are written at given places are one node
(scattering.py), as are the order of elements (sorting.py) and products of groups of rows (grouped_node.py). What it computes otherwise
than PyTorch is written with ops that it computes alike (elementwise.py). What it lowers for known sizes alone, or without saying which sizes
stay as they are, is written so that it does. Complex numbers are computed by their parts (complex_numbers.py). The operator of diffattn
becomes one node (attention_node.py).
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import warnings
from functools import partial

import torch
from torch import _refs as refs
from torch._decomp.decompositions import scaled_dot_product_flash_attention_for_cpu as flash_attention_on_cpu
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.functional import pad

from . import complex_numbers, elementwise, grouped_node, scattering
from .attention_node import attention
from .encoder import encoder_layer
from .graph import in_order_of, physical_order
from .scattering import along
from .sorting import place_of, sort, sort_stable, topk, with_place
from .uniform import COMPARISONS

aten = torch.ops.aten

#: Kept whole.
WHOLE = (aten.linear, aten.matmul)
#: The longest axis along which sums up to each element take each one with all before it: the fewer passes, the less memory is written.
_SHORT = 32


def table(exported: bool = False, device: bool = False) -> dict:
    """The decompositions by op, for graphs of AOTAutograd and (`exported`) of torch.export. `device`: what they make may run on a GPU."""
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    plain = {op: function for op, function in get_decomposition_table().items() if op.overloadpacket not in WHOLE}
    ours = {**_ours(), **grouped_node.rules(), torch.ops.diffattn.attention.default: attention(exported)}
    if device:
        ours.update({op: partial(ours[op], compares=True) for op in _SORTS})
    result = dict(plain)
    for op in {*ours, *_OF_UINT8, *complex_numbers.RULES}:
        of_bytes = partial(elementwise.with_signs, op) if op in _OF_UINT8 else None
        result[op] = partial(_decomposed, (of_bytes, ours.get(op)), complex_numbers.RULES.get(op), plain.get(op))
    return result


def _ours() -> dict:
    """Decompositions of real tensors, which leave to torch-mlir's what they give NotImplemented for."""
    smallest, largest = torch.amin, torch.amax
    return {
        aten.argmax.default: partial(place_of, largest), aten.argmin.default: partial(place_of, smallest),
        aten.max.dim: partial(with_place, largest), aten.min.dim: partial(with_place, smallest), aten.topk.default: topk,
        aten.sort.default: sort, aten.sort.stable: sort_stable, aten.cumsum.default: cumsum,
        aten.clamp.default: elementwise.clamp, aten.clamp.Tensor: elementwise.clamp_tensor, aten.clamp_min.default: elementwise.clamp,
        aten.clamp_min.Tensor: elementwise.clamp_tensor, aten.clamp_max.default: lambda x, max: elementwise.clamp(x, None, max),
        aten.maximum.default: partial(elementwise.extreme, operator.gt), aten.minimum.default: partial(elementwise.extreme, operator.lt),
        aten.hardtanh.default: refs.nn.functional.hardtanh, aten.elu.default: refs.nn.functional.elu, aten.gelu.default: elementwise.gelu,
        aten.eq.Tensor: elementwise.equal, aten.trunc.default: elementwise.trunc, aten.neg.default: neg, aten.reciprocal.default: reciprocal,
        **{packet.Scalar: partial(elementwise.compared, packet.Scalar) for packet in COMPARISONS},
        aten.bitwise_or.Scalar: partial(elementwise.bitwise, torch.bitwise_or), aten.bitwise_xor.Scalar: partial(elementwise.bitwise, torch.bitwise_xor),
        aten.__lshift__.Tensor: torch.bitwise_left_shift, aten.__rshift__.Tensor: torch.bitwise_right_shift,
        aten.div.Tensor_mode: elementwise.div, aten.floor_divide.default: elementwise.floor_divide, aten.fmod.Tensor: elementwise.fmod,
        aten.fmod.Scalar: elementwise.fmod, aten.remainder.Scalar_Tensor: elementwise.remainder_of_number,
        aten.index.Tensor: scattering.index, aten.index_copy.default: scattering.index_copy, aten.index_put.default: scattering.index_put,
        aten._unsafe_index_put.default: scattering.index_put, aten.scatter.src: scattering.scatter,
        aten.scatter.value: scattering.scatter_number, aten.scatter_add.default: scattering.scatter_add,
        aten.scatter_reduce.two: scattering.scatter_reduce,
        aten.as_strided.default: as_strided, aten.constant_pad_nd.default: constant_pad_nd, aten.expand.default: expand,
        aten.repeat.default: repeat, aten.split_with_sizes.default: split_with_sizes,
        aten.native_group_norm.default: refs.native_group_norm, aten.var_mean.correction: var_mean,
        aten._scaled_dot_product_flash_attention_for_cpu.default: attention_on_cpu,
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
        aten.complex.default: complex_numbers.joined, aten.polar.default: complex_numbers.polar}


_SORTS = (aten.sort.default, aten.sort.stable, aten.topk.default)
#: Ops that torch-mlir computes as of signed numbers if an operand is uint8.
_OF_UINT8 = [getattr(packet, kind) for packet in (
    aten.abs, aten.add, aten.all, aten.amax, aten.amin, aten.any, aten.argmax, aten.argmin, aten.atan2, aten.bitwise_and, aten.bitwise_left_shift,
    aten.bitwise_not, aten.bitwise_or, aten.bitwise_right_shift, aten.bitwise_xor, aten.cat, aten.clamp, aten.constant_pad_nd, aten.div,
    aten.floor_divide, aten.fmod, aten.logical_and, aten.logical_not, aten.logical_or, aten.max, aten.maximum, aten.min, aten.minimum, aten.mul,
    aten.prod, aten.remainder, aten.__rshift__, aten.rsub, aten.sort, aten.sub, aten.sum, aten.topk, aten.where, *COMPARISONS)
    for kind in ("default", "Tensor", "Scalar", "Tensor_mode", "dim", "dim_int", "dim_IntList", "self", "stable") if kind in packet.overloads()]


def _decomposed(ways, rule, plain, *args, **kwargs):
    """The result of the first of `ways` that gives one, or of `rule` if complex numbers take part; else of `plain`, torch-mlir's. Each may
    be None, or give NotImplemented."""
    for way in (*((rule,) if complex_numbers.takes_part((args, kwargs)) else ways), plain):
        made = NotImplemented if way is None else way(*args, **kwargs)
        if made is not NotImplemented:
            return made
    return NotImplemented


def decompose(program: torch.export.ExportedProgram, *, exported: bool = True, device: bool = False) -> torch.export.ExportedProgram:
    """`program` taken apart by `table`, with ops that PyTorch makes of others taken apart into these, as AOTAutograd does. By
    `run_decompositions` each of hundreds would be kept that is not in the table, which takes twice as long as all else for a small one."""
    from torch.export.exported_program import _decompose_exported_program

    return _decompose_exported_program(program, cia_to_decomp=_kept(), python_decomp_table=table(exported, device), joint_loss_index=None,
                                       decompose_custom_triton_ops=False)


@contextlib.contextmanager
def exporting():
    """A context without gradients, and without a warning that torch.export gives of its own code."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.` is deprecated", FutureWarning)
        yield


def kept_whole():
    """A context in which AOTAutograd keeps the ops of `WHOLE`."""
    from torch.export.exported_program import _override_composite_implicit_decomp

    return _override_composite_implicit_decomp(_kept())


def _kept() -> dict:
    return {packet.default: lambda *_, **__: NotImplemented for packet in WHOLE}


def as_strided(x, size, stride, storage_offset=None):
    """torch-mlir takes the elements of `x` to lie in row-major order, and sizes to be known. Where PyTorch says no more than how `x` itself
    lies, as behind the mean of a tensor whose channels are last, nothing is read anew."""
    is_same = [statically_known_true(new == old) and (statically_known_true(old == 1) or statically_known_true(step == stride))
               for new, old, step, stride in zip(size, x.shape, stride, x.stride())]
    begins_there = storage_offset is None or statically_known_true(storage_offset == x.storage_offset())
    if len(size) == x.dim() and all(is_same) and begins_there:
        return aten.alias.default(x)
    order = None if x.is_contiguous() else physical_order(x)
    return NotImplemented if order is None else x.permute(order).reshape(-1).as_strided(size, stride, storage_offset)


def expand(x, size, *, implicit=False):
    """Says which sizes stay as they are: torch-mlir asks of all others at run time whether they were 1."""
    added = len(size) - x.dim()
    stays = [not isinstance(new, int) and statically_known_true(old == new) for old, new in zip(x.shape, size[added:])]
    if not any(stays):
        return NotImplemented
    return x.expand([*size[:added], *(-1 if stay else new for stay, new in zip(stays, size[added:]))])


def attention_on_cpu(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """The result lies in the order of axes that the query has, as eager PyTorch's, and not in that of PyTorch's own decomposition."""
    result, sums = flash_attention_on_cpu(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    return in_order_of(result, query), sums


def cumsum(x, dim, *, dtype=None):
    """Along short axes, and those whose length is a symbol, every element is taken with all before it; along longer ones each pass doubles the
    elements that a number stands for."""
    if dtype is None and not x.is_floating_point():
        dtype = torch.int64
    x = x if dtype is None else x.to(dtype)
    if x.dim() == 0:
        return x.clone()
    axis = dim % x.dim()
    if not isinstance(x.size(axis), int) or x.size(axis) <= _SHORT:
        places = torch.arange(x.size(axis), device=x.device)
        counts = along(places.unsqueeze(1) >= places.unsqueeze(0), x.dim() + 1, axis)
        return torch.where(counts, x.unsqueeze(axis), torch.zeros((), dtype=x.dtype, device=x.device)).sum(axis + 1, dtype=x.dtype)
    whole = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    length, step = whole.size(axis), 1
    while step < length:
        earlier, later = (whole.narrow(axis, begin, length - step) for begin in (0, step))
        whole = torch.cat([whole.narrow(axis, 0, step), earlier + later], axis)
        step *= 2
    return whole.to(x.dtype)


def var_mean(x, dim=None, *, correction=None, keepdim=False):
    """Both by themselves: without elements they are no number, which torch-mlir's own form does not give."""
    return torch.var(x, dim, correction=correction, keepdim=keepdim), torch.mean(x, dim, keepdim=keepdim)


def constant_pad_nd(x, margins, value=0):
    """Cuts by the margins below 0 before it pads by the others."""
    numbers = list(margins)
    if not all(isinstance(number, int) for number in numbers) or all(number >= 0 for number in numbers):
        return NotImplemented
    for axis, (before, behind) in enumerate(zip(numbers[::2], numbers[1::2])):
        dim, cut = x.dim() - 1 - axis, (max(-before, 0), max(-behind, 0))
        if any(cut):
            x = x.narrow(dim, cut[0], x.size(dim) - sum(cut))
    return pad(x, [max(number, 0) for number in numbers], value=value)


def neg(x):
    """torch-mlir takes integers through f32, which holds no more than 24 bits."""
    return NotImplemented if x.is_floating_point() or x.is_complex() else 0 - x


def reciprocal(x):
    """torch-mlir refuses an element of 0."""
    x = x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
    return torch.div(torch.ones((), dtype=x.dtype, device=x.device), x)


def repeat(x, repeats):
    sizes = [1] * (len(repeats) - x.dim()) + list(x.shape)
    x = x.reshape([part for size in sizes for part in (1, size)]).expand([part for pair in zip(repeats, sizes) for part in pair])
    return x.reshape([times * size for times, size in zip(repeats, sizes)]).clone()


def split_with_sizes(x, sizes, dim=0):
    """Slices, where a size is symbolic: torch-mlir splits by known sizes alone."""
    if all(isinstance(size, int) for size in (x.size(dim), *sizes)):
        return NotImplemented
    return [aten.slice.Tensor(x, dim, end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes))]
