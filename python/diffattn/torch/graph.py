"""An FX graph of ATen ops as torch-mlir's importer and compiled code take it: tensors and numbers go in and come out."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from .scattering import is_written_part
from .source import call_before, refusal
from .uniform import fold, round_numbers
from .views import spell_views

aten = torch.ops.aten


class Result(NamedTuple):
    """Result `number` of the compiled function; the axes of a tensor are then put into `order`."""

    number: int
    order: tuple[int, ...] | None


@dataclass
class Input:
    """An input of the compiled function, which is like `value`. `place` is the number of the graph's input; None: `constant` is what goes
    in. `written`: parts of it are changed, where it lies."""

    place: int | None
    name: str
    value: object
    constant: torch.Tensor | None = None
    written: bool = False


@dataclass
class Prepared:
    """`count`: how many inputs the graph had. `dtypes`: those of the compiled function's results; None: it is a number. `changes`: the
    numbers of inputs that the graph changes, with what they become."""

    module: torch.fx.GraphModule
    count: int
    inputs: list[Input] = field(default_factory=list)
    dtypes: list[torch.dtype | None] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    changes: list[tuple[int, Result]] = field(default_factory=list)


def prepare(module: torch.fx.GraphModule, changed: Sequence[int] = ()) -> Prepared:
    """Changes the graph of `module` in place, whose outputs are nodes that compute. The first ones are what its inputs with the numbers
    `changed` become."""
    graph = module.graph
    places = graph.find_nodes(op="placeholder")
    prepared = Prepared(module, len(places))
    for node in graph.nodes:
        # AOTAutograd makes it of floats that follow from sizes, behind all decompositions.
        node.target = aten.div.Tensor if node.target is aten.true_divide.Tensor else node.target
    spell_views(graph)
    round_numbers(graph)
    constants = _lift_constants(module)
    fold(graph, lambda node, value: _placeholder(node, value, constants))
    output = graph.output_node()
    written = {number for number, node in zip(changed, output.args[0]) if is_written_part(node, places[number])}
    results, prepared.dtypes = _results(output, len(changed))
    prepared.changes, prepared.results = list(zip(changed, results)), results[len(changed):]
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="placeholder"):
        value, place = node.meta.get("val"), places.index(node) if node in places else None
        if not node.users:
            graph.erase_node(node)
            continue
        if not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)):
            raise refusal(node, f"expected tensors and numbers as inputs of the graph, but got {value!r} for {node.name}")
        prepared.inputs.append(Input(place, node.name, value, constants.get(node), place in written))
    module.recompile()
    return prepared


def _lift_constants(module) -> dict:
    """Tensors that lie in the module become inputs; a single number stays in the graph, where raising can read it."""
    graph, constants = module.graph, {}
    for node in graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(module)
        if isinstance(value, torch.fx.GraphModule) and node.users:
            user = next(iter(node.users))
            raise refusal(user, f"expected ATen ops alone, but got {user.target}, which calls a function of the module; "
                                "fallback='eager' runs this graph in PyTorch")
        if not isinstance(value, torch.Tensor):
            raise refusal(node, f"expected tensors as constants, but got a {type(value).__name__} for {node.target}")
        node.meta.setdefault("val", value)
        node.replace_all_uses_with(number_node(node, value) if value.dim() == 0 else _placeholder(node, value, constants))
        graph.erase_node(node)
    return constants


def number_node(node, value, like=None):
    """The op that makes the 0-d tensor `value`, as `call_before`."""
    with unset_fake_temporarily():
        number = value.item()
    return call_before(node, aten.full.default, ([], number), {"dtype": value.dtype, "device": value.device, "pin_memory": False}, like=like)


def _placeholder(node, value, constants):
    with node.graph.inserting_before(next(one for one in node.graph.nodes if one.op != "placeholder")):
        made = node.graph.placeholder(f"constant_{len(constants)}")
    made.meta = dict(node.meta)
    constants[made] = value
    return made


def _results(output, changes: int) -> tuple[list[Result], list[torch.dtype | None]]:
    """How the outputs are made of the function's results, where equal outputs share one, and the types of the results. The
    first `changes` are copied, so that it does not matter how they lie."""
    made: list[torch.fx.Node] = []
    results = []
    for number, node in enumerate(output.args[0]):
        value = node.meta["val"]
        order = physical_order(value) if number >= changes and isinstance(value, torch.Tensor) else None
        if order is not None:
            node = call_before(output, aten.permute.default, (node, list(order)), like=node, value=value.permute(order))
        if node not in made:
            made.append(node)
        back = None if order is None else tuple(order.index(axis) for axis in range(len(order)))
        results.append(Result(made.index(node), back))
    output.args = (tuple(made),)
    return results, [getattr(node.meta["val"], "dtype", None) for node in made]


def physical_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The axes of a tensor in the order in which its elements lie; None: row-major, or with holes or repeated elements."""
    hints = [[hint(n) for n in numbers] for numbers in (value.shape, value.stride())]
    if None in hints[0] or None in hints[1]:
        return None
    sizes, strides = hints
    order = tuple(sorted(range(len(sizes)), key=lambda axis: (-strides[axis], -sizes[axis], axis)))
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    moved = [axis for axis in order if sizes[axis] != 1]
    return None if moved == sorted(moved) else order


def in_order_of(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`x` with its elements in the order of axes that a copy of `like` has, by ops."""
    with disable_proxy_modes_tracing():
        order = list(physical_order(torch.empty_like(like)) or range(x.dim()))  # also where `like` has holes
    return x.permute(order).contiguous().permute([order.index(axis) for axis in range(len(order))])


def hint(number) -> int | None:
    """The value that a number was traced with; None: data decides it."""
    return number if isinstance(number, int) else number.node.hint
