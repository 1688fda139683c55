"""A graph without complex numbers: the pairs of real ones that decompositions made of them (complex_numbers.py) are all that is left of
complex tensors, and what comes in or goes out as such is a pair at this boundary."""

from __future__ import annotations

import torch

from .source import refusal

aten = torch.ops.aten
AS_REAL, AS_COMPLEX = aten.view_as_real.default, aten.view_as_complex.default
#: What is left of complex tensors.
_KEPT = (AS_REAL, AS_COMPLEX, aten.copy_.default, aten.sym_size.int)
_ASSERTS = (aten._assert_tensor_metadata.default,)


def take_out(graph: torch.fx.Graph) -> None:
    """Leaves, in place, complex tensors as inputs, outputs, what inputs become, and as views between these and pairs alone. Raises
    CompileError for an op on complex tensors that has no decomposition."""
    if not any(is_complex(node) for node in graph.nodes):
        return
    for node in list(graph.nodes):
        if node.target in _ASSERTS and any(map(is_complex, node.all_input_nodes)):
            graph.erase_node(node)
        elif node.target is aten.lift_fresh_copy.default and is_complex(node):  # of a constant, which nothing changes
            _replace(graph, node, node.args[0])
        elif node.target is aten.sym_size.int and node.args[0].target is AS_COMPLEX:
            node.replace_input_with(node.args[0], node.args[0].args[0])
        elif node.target is AS_REAL and node.args[0].target is AS_COMPLEX:
            _replace(graph, node, node.args[0].args[0])
        elif node.target is aten.select.int:
            part = _part(node)
            if part is not None:  # but for outputs, which are tensors of their own
                node.replace_all_uses_with(part, delete_user_cb=lambda user: user.op != "output")
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.op == "call_function" and node.target not in _KEPT and any(map(is_complex, (node, *node.all_input_nodes))):
            raise refusal(node, f"expected an op that is compiled for complex numbers, but got {node.target}; write it with "
                                "real ones, or fallback='eager' runs this graph in PyTorch")


def as_pairs(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """The pairs that a complex node shows; another node itself."""
    if not is_complex(node):
        return node
    if node.target is AS_COMPLEX:
        return node.args[0]
    with graph.inserting_after(node):
        made = graph.call_function(AS_REAL, (node,))
    made.meta = {"val": torch.view_as_real(node.meta["val"]), "stack_trace": node.meta.get("stack_trace")}
    return made


def give_pairs(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Makes a complex input, of which nothing but its pairs is used, one of pairs."""
    for user in [user for user in node.users if user.target is AS_REAL]:
        _replace(graph, user, node)
    node.meta["val"] = torch.view_as_real(node.meta["val"])
    node.meta.pop("tensor_meta", None)


def is_complex(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return any(isinstance(one, torch.Tensor) and one.is_complex() for one in (value if isinstance(value, (tuple, list)) else (value,)))


def _part(node):
    """What `node` selects of two parts that were joined before; None: it is something else."""
    source, axis, number = node.args[:3]
    rank = source.meta["val"].dim()
    if source.target is not aten.cat.default or axis % rank != rank - 1 or number not in (0, 1):
        return None
    parts, along = source.args[0], source.args[1] if len(source.args) > 1 else 0
    if len(parts) != 2 or along % rank != rank - 1 or not all(part.target is aten.unsqueeze.default and part.args[1] % rank == rank - 1
                                                              for part in parts):
        return None
    part = parts[number].args[0]
    return part if part.meta["val"].dtype == source.meta["val"].dtype else None


def _replace(graph, node, by) -> None:
    """Outputs are tensors of their own."""
    if by.op == "placeholder" and any(user.op == "output" for user in node.users):
        with graph.inserting_before(node):
            copy = graph.call_function(aten.clone.default, (by,))
        copy.meta = dict(node.meta)
        node.replace_all_uses_with(copy, delete_user_cb=lambda user: user.op == "output")
    node.replace_all_uses_with(by)
    graph.erase_node(node)
