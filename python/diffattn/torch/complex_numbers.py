"""Rotary embeddings by complex numbers (`freqs_cis`): what ATen ops compute of complex tensors, by real ones.

A complex tensor stays one between these ops, as `aten.view_as_complex` of a real tensor whose last axis holds both parts; `use_pairs` takes
such views out of the finished graph. So each rule is a decomposition like the others. There are rules for what rotary embeddings do: angles
as complex numbers of length 1, parts of such a table, and products. Other ops on complex tensors stay PyTorch.

A real factor of a product scales both parts, infinite or not, where PyTorch's own kernels take it for complex and multiply with 0 too.
"""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_leaves

from .graph import physical_order
from .source import call_before, tensors_of

aten = torch.ops.aten
AS_REAL, AS_COMPLEX = aten.view_as_real.default, aten.view_as_complex.default

def takes_part(value) -> bool:
    """Whether a complex tensor, number or type is among arguments."""
    return any(one.is_complex() if isinstance(one, torch.Tensor) else one.is_complex if isinstance(one, torch.dtype) else isinstance(one, complex)
               for one in tree_leaves(value))


def _complex(pairs: torch.Tensor) -> torch.Tensor:
    lies_so = statically_known_true(pairs.stride(-1) == 1) and all(statically_known_true(n % 2 == 0)
                                                                   for n in (*pairs.stride()[:-1], pairs.storage_offset()))
    return torch.view_as_complex(pairs if lies_so else pairs.contiguous())


def _parts(x, dtype: torch.dtype) -> tuple:
    """The real and the imaginary part of a tensor, or number, in what is computed in the complex type `dtype`. None: it has none."""
    if not takes_part(x):
        return (x.to(dtype.to_real()) if isinstance(x, torch.Tensor) else x), None
    return torch.view_as_real(x).to(dtype.to_real()).unbind(-1) if isinstance(x, torch.Tensor) else (x.real, x.imag)


def joined(re, im) -> torch.Tensor:
    """The complex tensor of these parts. Its elements lie in the order of axes that the parts' have."""
    re, im = torch.broadcast_tensors(re, im)
    order = list(physical_order(re) or physical_order(im) or range(re.dim()))
    pairs = torch.stack([part.permute(order) for part in (re, im)], -1)
    return _complex(pairs.permute([*(order.index(axis) for axis in range(re.dim())), re.dim()]))


def mul(x, y):
    dtype = torch.result_type(x, y)
    (a, b), (c, d) = _parts(x, dtype), _parts(y, dtype)
    if b is None or d is None:
        return joined(a * c, a * d if b is None else b * c)
    return joined(a * c - b * d, a * d + b * c)


def polar(length, angle):
    return joined(length * torch.cos(angle), length * torch.sin(angle))


def exp(x):
    re, im = _parts(x, x.dtype)
    return polar(torch.exp(re), im)


def conj(x):
    re, im = _parts(x, x.dtype)
    return joined(re, -im)


def _moved(op):
    """An op that moves whole elements, on pairs: its axes are counted from the front, and the sizes that it is given have one more."""
    names = [argument.name for argument in op._schema.arguments][1:]

    def on_pairs(name, value, x):
        rank = x.dim() + (op is aten.unsqueeze.default)
        if name in ("dim", "dim0", "dim1"):
            return value % rank if rank else 0
        if name == "dims":
            return [*(axis % rank for axis in value), rank]
        return [*value, 2] if name == "size" else value

    return lambda x, *args, **kwargs: _complex(op(torch.view_as_real(x), *(on_pairs(name, value, x) for name, value in zip(names, args)), **kwargs))


#: The decompositions by op, of complex operands.
RULES = {
    aten.mul.Tensor: mul, aten.mul.Scalar: mul, aten.exp.default: exp, aten._conj.default: conj, aten._conj_physical.default: conj,
    aten.detach.default: _moved(aten.alias.default),
    **{op: _moved(op) for op in (
        aten.alias.default, aten.clone.default, aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default,
        aten.transpose.int, aten.unsqueeze.default, aten.select.int, aten.slice.Tensor, aten.index_select.default, aten.index.Tensor)}}


# Finished graphs.


def is_complex(node: torch.fx.Node) -> bool:
    return any(one.is_complex() for one in tensors_of(node))


def use_pairs(graph: torch.fx.Graph) -> None:
    """Takes out, in place, what makes complex tensors of pairs where these are made pairs again."""
    for node in list(graph.nodes):
        if node.target is aten._assert_tensor_metadata.default and is_complex(node.args[0]):
            graph.erase_node(node)
        elif node.target is aten.lift_fresh_copy.default and is_complex(node):  # a copy of a constant, which nothing changes
            _replace(graph, node, node.args[0])
        elif node.target is aten.sym_size.int and node.args[0].target is AS_COMPLEX:
            node.replace_input_with(node.args[0], node.args[0].args[0])
        elif node.target is AS_REAL and node.args[0].target is AS_COMPLEX:
            _replace(graph, node, node.args[0].args[0])
    graph.eliminate_dead_code()


def as_real(x: torch.Tensor) -> torch.Tensor:
    """The pairs of a tensor that PyTorch may have conjugated without computing it."""
    return torch.view_as_real(x.resolve_conj().resolve_neg())


def give_pairs(graph: torch.fx.Graph) -> None:
    """Makes complex inputs and outputs, in place, pairs: what a program without PyTorch takes and gives."""
    for node in list(graph.nodes):
        if node.target is AS_REAL and node.args[0].op == "placeholder":
            node.args[0].meta["val"] = node.meta["val"]
            node.args[0].meta.pop("tensor_meta", None)
            _replace(graph, node, node.args[0])
        elif node.target is AS_COMPLEX:
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op == "output")
    graph.eliminate_dead_code()


def _replace(graph, node, by) -> None:
    """Outputs are tensors of their own."""
    if by.op == "placeholder" and any(user.op == "output" for user in node.users):
        node.replace_all_uses_with(call_before(node, aten.clone.default, (by,)), delete_user_cb=lambda user: user.op == "output")
    node.replace_all_uses_with(by)
    graph.erase_node(node)
