"""Complex numbers by real ones: what an ATen op computes of complex tensors is written with ops on their real and imaginary parts.

A complex tensor stays one between these ops, as a view of a real tensor whose last axis holds both parts (`aten.view_as_complex`), which
complex_graph.py takes out of the finished graph. So each rule is a decomposition like the others, and what PyTorch takes apart into these
ops needs none. Ops that move whole elements move pairs; ops that treat each element alike, or add elements up, work on each part for
itself; what mixes the parts is a formula.

A part that is 0 because its operand is real, or is a number without it, takes no part in a formula: so a real factor scales both parts,
infinite or not, where PyTorch's own kernels multiply with that 0 too.
"""

from __future__ import annotations

import functools
import math

import torch

from . import complex_functions as functions
from .complex_parts import as_complex, as_parts, is_complex, join, number_parts, pair, taken_apart
from .tensors import part_type

aten, prims = torch.ops.aten, torch.ops.prims


def rules() -> dict:
    """The decompositions by op. They give NotImplemented where nothing is complex."""
    result = {op: _rule(function) for op, function in {**_FORMULAS, **_ON_PAIRS, **_MADE, **_PRODUCTS}.items()}
    result.update({op: _rule(_on_parts(op)) for op in _ON_PARTS})
    result.update({op: _rule(_on_truths(op)) for op in _ON_TRUTHS})
    result.update({op: _rule(taken_apart(op)) for op in _TAKEN_APART})
    result.update({aten.angle.default: angle, aten.complex.default: joined, aten.polar.default: polar, aten._neg_view.default: torch.neg})
    return result


def _rule(function):
    @functools.wraps(function)
    def decomposed(*args, **kwargs):
        return function(*args, **kwargs) if is_complex((args, kwargs)) else NotImplemented

    return decomposed


# What mixes the parts.


def _of_each_part(join_parts):
    def decomposed(x, y, *, alpha=1):
        if alpha != 1:
            y = y * alpha
        dtype = torch.result_type(x, y)
        return join(*(join_parts(*parts) for parts in zip(as_parts(x, dtype), as_parts(y, dtype))))

    return decomposed


add, sub = _of_each_part(functions.plus), _of_each_part(functions.minus)


def rsub(x, y, alpha=1):
    return sub(y, x * alpha if alpha != 1 else x)


def mul(x, y):
    dtype = torch.result_type(x, y)
    return join(*functions.product(as_parts(x, dtype), as_parts(y, dtype)))


def div(x, y, *, rounding_mode=None):
    if rounding_mode is not None:
        return NotImplemented  # as in PyTorch
    dtype = torch.result_type(x, y)
    return join(*functions.quotient(as_parts(x, dtype), as_parts(y, dtype)))


def power(x, y):
    dtype = torch.result_type(x, y)
    return join(*functions.power(as_parts(x, dtype), as_parts(y, dtype)))


def addcmul(x, y, z, *, value=1):
    return x + y * z * value if value != 1 else x + y * z


def addcdiv(x, y, z, *, value=1):
    return x + y / z * value if value != 1 else x + y / z


def lerp(x, y, weight):
    return x + weight * (y - x)


def _unary(function):
    """An op by a function from parts to parts, or to one real tensor."""

    def decomposed(x):
        made = function(*as_parts(x))
        return join(*made) if isinstance(made, tuple) else made

    return decomposed


def joined(re, im):
    """`torch.complex`."""
    return join(*torch.broadcast_tensors(re, im))


def polar(length, angle):
    return join(*torch.broadcast_tensors(length * torch.cos(angle), length * torch.sin(angle)))


def angle(x):
    """Of real numbers, too, for which torch-mlir has no lowering."""
    if x.is_complex():
        return torch.atan2(*reversed(as_parts(x)))
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(x != x, x, torch.where(x < 0, torch.full_like(x, math.pi), torch.zeros_like(x)))


def equal(x, y):
    dtype = torch.result_type(x, y)
    (a, b), (c, d) = as_parts(x, dtype), as_parts(y, dtype)
    a, b, c, d = (0 if part is None else part for part in (a, b, c, d))
    return (a == c) & (b == d)


def different(x, y):
    return torch.logical_not(equal(x, y))


def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    return torch.linalg.vector_norm(x.abs(), ord, dim, keepdim, dtype=None if dtype is None else part_type(dtype))


def var(x, dim=None, *, correction=None, keepdim=False):
    re, im = (torch.var(part, dim, correction=correction, keepdim=keepdim) for part in as_parts(x))
    return re + im


def product_along(x, dim, keepdim=False, *, dtype=None):
    """Halves by halves, if it is known how many there are."""
    if not x.dim() or not isinstance(x.size(dim), int):
        return NotImplemented
    x, whole = converted(x, dtype or x.dtype), x
    if x.size(dim) == 0:
        x = x.new_ones([1 if axis == dim % x.dim() else size for axis, size in enumerate(whole.shape)])
    while (size := x.size(dim)) > 1:
        half = size // 2
        parts = [x.narrow(dim, 0, half) * x.narrow(dim, half, half)]
        x = torch.cat([*parts, x.narrow(dim, 2 * half, 1)], dim) if size % 2 else parts[0]
    return x if keepdim else x.squeeze(dim)


def product_of_all(x, *, dtype=None):
    return product_along(x.reshape(-1), 0, dtype=dtype)


def products_before(x, dim, *, dtype=None):
    """Each with those that lie 1, 2, 4, .. before."""
    x = converted(x, dtype or x.dtype)
    if not x.dim():
        return x.clone()
    if not isinstance(x.size(dim), int):
        return NotImplemented
    size, step = x.size(dim), 1
    while step < size:
        x = torch.cat([x.narrow(dim, 0, step), x.narrow(dim, step, size - step) * x.narrow(dim, 0, size - step)], dim)
        step *= 2
    return x


_FORMULAS = {
    aten.add.Tensor: add, aten.add.Scalar: lambda x, y, alpha=1: add(x, y, alpha=alpha), aten.sub.Tensor: sub,
    aten.sub.Scalar: lambda x, y, alpha=1: sub(x, y, alpha=alpha), aten.rsub.Tensor: rsub, aten.rsub.Scalar: rsub, aten.mul.Tensor: mul,
    aten.mul.Scalar: mul, aten.div.Tensor: div, aten.div.Scalar: div, aten.div.Tensor_mode: div, aten.pow.Tensor_Tensor: power,
    aten.pow.Tensor_Scalar: power, aten.pow.Scalar: power, aten.addcmul.default: addcmul, aten.addcdiv.default: addcdiv,
    aten.lerp.Tensor: lerp, aten.lerp.Scalar: lerp, aten.eq.Tensor: equal, aten.eq.Scalar: equal, aten.ne.Tensor: different,
    aten.ne.Scalar: different, aten.linalg_vector_norm.default: vector_norm,
    aten.var.correction: var, aten.prod.dim_int: product_along, aten.prod.default: product_of_all, aten.cumprod.default: products_before,
    **{op: _unary(function) for op, function in {
        aten.neg.default: lambda a, b: (-a, -b), aten._conj.default: lambda a, b: (a, -b), aten._conj_physical.default: lambda a, b: (a, -b),
        aten.conj_physical.default: lambda a, b: (a, -b), aten.abs.default: torch.hypot,
        aten.sgn.default: functions.sign, aten.square.default: lambda a, b: functions.product((a, b), (a, b)),
        aten.reciprocal.default: lambda a, b: functions.quotient((1, None), (a, b)), aten.exp.default: functions.exp,
        aten.exp2.default: lambda a, b: functions.exp(*functions.scaled((a, b), math.log(2))), aten.log.default: functions.log,
        aten.log2.default: lambda a, b: functions.scaled(functions.log(a, b), 1 / math.log(2)),
        aten.log10.default: lambda a, b: functions.scaled(functions.log(a, b), 1 / math.log(10)), aten.sqrt.default: functions.sqrt,
        aten.rsqrt.default: lambda a, b: functions.quotient((1, None), functions.sqrt(a, b)), aten.sin.default: functions.sin,
        aten.cos.default: functions.cos, aten.tan.default: functions.tan, aten.sinh.default: functions.sinh, aten.cosh.default: functions.cosh,
        aten.tanh.default: functions.tanh, aten.sigmoid.default: functions.sigmoid, aten.silu.default: functions.silu,
        aten.isnan.default: lambda a, b: torch.isnan(a) | torch.isnan(b), aten.isinf.default: lambda a, b: torch.isinf(a) | torch.isinf(b),
        aten.isfinite.default: lambda a, b: torch.isfinite(a) & torch.isfinite(b)}.items()}}


# Products of matrices: four real ones.


def _product(op):
    def multiply(x, y):
        (a, b), (c, d) = as_parts(x), as_parts(y)
        return join(functions.minus(op(a, c), op(b, d)), functions.plus(op(a, d), op(b, c)))

    return multiply


def _added(op):
    def multiply(z, x, y, *, beta=1, alpha=1):
        made = op(x, y) * alpha if alpha != 1 else op(x, y)
        return made if beta == 0 else made + z * beta if beta != 1 else made + z

    return multiply


def linear(x, weight, bias=None):
    made = _product(aten.linear.default)(x, weight)
    return made if bias is None else made + bias


_PRODUCTS = {
    **{packet.default: _product(packet.default) for packet in (aten.mm, aten.bmm, aten.matmul, aten.mv, aten.dot)},
    aten.vdot.default: lambda x, y: aten.dot.default(torch.conj_physical(x), y), aten.linear.default: linear,
    aten.addmm.default: _added(aten.mm.default), aten.baddbmm.default: _added(aten.bmm.default), aten.addmv.default: _added(aten.mv.default)}


# What moves elements.


def _moved(op, *axes):
    """An op on pairs. `axes`: places of its arguments that are axes, or lists of axes."""

    def move(x, *args, **kwargs):
        args = [_from_front(one, x.dim()) if place in axes else one for place, one in enumerate(args, 1)]
        return as_complex(op(pair(x), *args, **kwargs))

    return move


def _from_front(axes, rank):
    return [axis % rank for axis in axes] if isinstance(axes, (list, tuple)) else axes % rank if rank else 0


def transpose(x, first, second):
    order = list(range(x.dim()))
    if order:
        order[first], order[second] = order[second], order[first]
    return x.permute(order)


def joined_along(tensors, dim=0):
    dtype = functools.reduce(torch.promote_types, (one.dtype for one in tensors))
    tensors = [one for one in tensors if one.shape != (0,)] or tensors  # which PyTorch leaves out, whatever axes the others have
    return as_complex(torch.cat([pair(one, part_type(dtype)) for one in tensors], dim % tensors[0].dim()))


def stacked(tensors, dim=0):
    return torch.cat([one.unsqueeze(dim) for one in tensors], dim)


def split(x, size, dim=0):
    return [as_complex(one) for one in torch.split(pair(x), size, dim % x.dim())]


def unbind(x, dim=0):
    return [as_complex(one) for one in torch.unbind(pair(x), dim % x.dim())]


def as_strided(x, size, stride, storage_offset=None):
    offset = None if storage_offset is None else 2 * storage_offset
    return as_complex(torch.as_strided(pair(x), [*size, 2], [*(2 * step for step in stride), 1], offset))


def converted(x, dtype):
    if not dtype.is_complex:
        if dtype == torch.bool:
            return x != 0
        return as_parts(x)[0].to(dtype)
    return as_complex(pair(x, part_type(dtype))) if x.is_complex() else join(x.to(part_type(dtype)), None)


def to_copy(x, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None):
    made = converted(x, dtype or x.dtype)
    return made.clone() if made.dtype.is_complex and made.dtype == x.dtype else made


def clone(x, *, memory_format=None):
    is_dense = memory_format == torch.contiguous_format
    return as_complex(pair(x).clone(memory_format=memory_format if is_dense else torch.preserve_format))


def copied(x, source, non_blocking=False):
    return converted(source, x.dtype).expand(x.shape).clone()


def viewed_as(x, dtype):
    """The bits of elements as elements of another type."""
    if x.is_complex() and dtype == part_type(x.dtype):
        return pair(x).flatten(-2) if x.dim() else NotImplemented
    if dtype.is_complex and x.dtype == part_type(dtype) and x.dim():
        return as_complex(x.reshape([*x.shape[:-1], x.size(-1) // 2, 2]))
    return x if x.dtype == dtype else NotImplemented


def where(condition, x, y):
    dtype = torch.result_type(x, y)
    (a, b), (c, d) = as_parts(x, dtype), as_parts(y, dtype)
    return join(torch.where(condition, a, c), torch.where(condition, torch.zeros_like(a) if b is None else b, torch.zeros_like(c) if d is None else d))


def masked_fill(x, mask, value):
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    return torch.where(mask, converted(value, x.dtype), x)


def index_put(x, indices, values, accumulate=False):
    values = converted(values, x.dtype)
    if values.dim():
        return as_complex(aten.index_put.default(pair(x), indices, pair(values), accumulate))
    return join(*(aten.index_put.default(a, indices, b, accumulate) for a, b in zip(as_parts(x), as_parts(values))))


def index_copy(x, dim, index, source):
    if x.dim() == 0:
        return source.reshape([])
    return as_complex(torch.index_copy(pair(x), dim % x.dim(), index, pair(source)))


def slice_scatter(x, src, dim=0, start=None, end=None, step=1):
    return as_complex(torch.slice_scatter(pair(x), pair(src), dim % x.dim(), start, end, step))


def select_scatter(x, src, dim, index):
    return as_complex(torch.select_scatter(pair(x), pair(src), dim % x.dim(), index))


def embedding(weight, indices, *_, **__):
    return weight.index_select(0, indices.reshape(-1)).reshape([*indices.shape, *weight.shape[1:]])


_ON_PAIRS = {
    aten.alias.default: _moved(aten.alias.default), aten.clone.default: clone,
    aten.detach.default: lambda x: as_complex(pair(x)), aten.lift_fresh_copy.default: lambda x: as_complex(pair(x).clone()),
    aten.expand.default: lambda x, size, implicit=False: as_complex(pair(x).expand([*size, 2])),
    aten.view.default: lambda x, size: as_complex(aten.view.default(pair(x), [*size, 2])),
    aten._unsafe_view.default: lambda x, size: as_complex(aten.view.default(pair(x), [*size, 2])),
    aten.reshape.default: lambda x, size: as_complex(pair(x).reshape([*size, 2])),
    aten.permute.default: lambda x, dims: as_complex(pair(x).permute([*_from_front(dims, x.dim()), x.dim()])),
    aten.transpose.int: transpose, aten.t.default: lambda x: transpose(x, 0, 1) if x.dim() > 1 else as_complex(pair(x)),
    aten.unsqueeze.default: lambda x, dim: as_complex(pair(x).unsqueeze(dim % (x.dim() + 1))),
    aten.squeeze.default: _moved(aten.squeeze.default), aten.squeeze.dim: _moved(aten.squeeze.dim, 1),
    aten.squeeze.dims: _moved(aten.squeeze.dims, 1), aten.select.int: _moved(aten.select.int, 1), aten.slice.Tensor: lambda x, dim=0, *where:
    as_complex(aten.slice.Tensor(pair(x), dim % x.dim(), *where)), aten.flip.default: _moved(aten.flip.default, 1),
    aten.repeat.default: lambda x, repeats: as_complex(pair(x).repeat([*repeats, 1])),
    aten.index_select.default: _moved(aten.index_select.default, 1), aten.index.Tensor: _moved(aten.index.Tensor),
    aten._unsafe_index.Tensor: _moved(aten.index.Tensor), aten.cat.default: joined_along, aten.stack.default: stacked,
    aten.split.Tensor: split, aten.split_with_sizes.default: split, aten.unbind.int: unbind, aten.as_strided.default: as_strided,
    aten._to_copy.default: to_copy, prims.convert_element_type.default: converted, aten.copy.default: copied, aten.view.dtype: viewed_as,
    aten.where.self: where, aten.masked_fill.Scalar: masked_fill, aten.masked_fill.Tensor: masked_fill, aten.index_put.default: index_put,
    aten._unsafe_index_put.default: index_put, aten.index_copy.default: index_copy, aten.slice_scatter.default: slice_scatter,
    aten.select_scatter.default: select_scatter, aten.embedding.default: embedding}


def _on_parts(op):
    """An op that does the same with the real parts as with the imaginary ones."""

    def decomposed(*args, **kwargs):
        dtype = kwargs.get("dtype")
        if dtype is not None:
            if not dtype.is_complex:
                return NotImplemented
            args = converted(args[0], dtype), *args[1:]
        tensors = [one for one in args if isinstance(one, torch.Tensor) and (one.is_complex() or one.is_floating_point())]
        dtype = functools.reduce(torch.promote_types, (one.dtype for one in tensors))
        parts = [op(*(_part(one, dtype, number) for one in args),
                    **{name: part_type(dtype) if name == "dtype" and one is not None else _part(one, dtype, number) for name, one in kwargs.items()})
                 for number in range(2)]
        return join(*parts)

    return decomposed


def _part(one, dtype, number):
    if isinstance(one, torch.Tensor) and (one.is_complex() or one.is_floating_point()):
        part = as_parts(one, dtype)[number]
        return torch.zeros_like(one.to(part_type(dtype))) if part is None else part
    return number_parts(one)[number] if isinstance(one, complex) else one


_ON_PARTS = (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.cumsum.default, aten.roll.default, aten.triu.default,
             aten.tril.default, aten.diagonal.default, aten.diagonal_scatter.default, aten.unfold.default, aten.gather.default,
             aten.scatter.src, aten.scatter_add.default, aten.index_add.default, aten.nan_to_num.default)


# Tensors that are made.


def full(size, value, *, dtype=None, layout=None, device=None, pin_memory=None):
    dtype = dtype or (torch.complex128 if torch.get_default_dtype() == torch.float64 else torch.complex64)
    if not dtype.is_complex:
        return NotImplemented
    return join(*(torch.full(size, part, dtype=part_type(dtype), device=device) for part in number_parts(value)))


def _filled(value):
    return lambda size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None: full(size, value, dtype=dtype, device=device)


def _filled_like(value=None):
    """`value` None: the op is given one."""

    def fill(x, *given, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        number, dtype = given[0] if value is None else value, dtype or x.dtype
        if not dtype.is_complex:
            return torch.full_like(as_parts(x)[0], number, dtype=dtype)
        like = as_parts(x)[0]
        return join(*(torch.full_like(like, part, dtype=part_type(dtype)) for part in number_parts(number)))

    return fill


def _new(value=None):
    """As `_filled_like`."""

    def fill(x, size, *given, dtype=None, layout=None, device=None, pin_memory=None):
        return torch.full(size, given[0] if value is None else value, dtype=dtype or x.dtype, device=x.device)

    return fill


def pad(x, padding, value=0):
    return join(*(aten.constant_pad_nd.default(part, padding, number) for part, number in zip(as_parts(x), number_parts(value))))


def scatter_number(x, dim, index, value):
    return join(*(aten.scatter.value(part, dim, index, number) for part, number in zip(as_parts(x), number_parts(value))))


_MADE = {
    aten.full.default: full, aten.zeros.default: _filled(0), aten.ones.default: _filled(1), aten.empty.memory_format: _filled(0),
    aten.empty_strided.default: lambda size, stride, **options: _filled(0)(size, **options),
    aten.scalar_tensor.default: lambda value, **options: full([], value, **options), aten.full_like.default: _filled_like(),
    aten.zeros_like.default: _filled_like(0), aten.ones_like.default: _filled_like(1), aten.empty_like.default: _filled_like(0),
    aten.fill.Scalar: _filled_like(), aten.fill.Tensor: lambda x, value: converted(value, x.dtype).expand(x.shape).clone(),
    aten.new_full.default: _new(), aten.new_zeros.default: _new(0), aten.new_ones.default: _new(1), aten.new_empty.default: _new(0),
    aten.new_empty_strided.default: lambda x, size, stride, **options: _new(0)(x, size, **options),
    aten.eye.default: lambda n, *, dtype=None, **options: converted(torch.eye(n, dtype=part_type(dtype)), dtype),
    aten.eye.m: lambda n, m, *, dtype=None, **options: converted(torch.eye(n, m, dtype=part_type(dtype)), dtype),
    aten.constant_pad_nd.default: pad, aten.scatter.value: scatter_number}


#: What torch.export keeps whole.
_TAKEN_APART = (aten.linalg_norm.default, aten.linalg_norm.ord_str, aten.linalg_matrix_norm.default, aten.linalg_matrix_norm.str_ord, aten.inner.default,
                aten.linalg_matmul.default, aten.frobenius_norm.dim)


def _on_truths(op):
    """An op that asks of each element whether it is 0."""
    return lambda *args: op(*(one != 0 if isinstance(one, torch.Tensor) and one.is_complex() else one for one in args))


_ON_TRUTHS = (aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims, aten.logical_not.default,
              aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default)
