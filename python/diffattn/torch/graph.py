"""An FX graph of ATen ops as torch-mlir's importer and compiled code take it: nothing but tensors and numbers go in and come out.

What a graph also returns (an input as it is, None, a constant, one tensor twice) and the strides that PyTorch expects are kept
beside it, as a recipe for its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from .complex_graph import as_pairs, give_pairs, is_complex, take_out
from .empty import is_empty, leave_out
from .layouts import Empty, View
from .source import refusal
from .symbols import simplify
from .uniform import fold
from .views import spell_views
from .write_node import is_written_part

aten = torch.ops.aten


@dataclass
class Result:
    """How a result of the graph is made: by `kind` "input" it is input number `value`, by "constant" it is `value`, by "made" `value` makes
    it of the inputs, by "result" it is result number `value` of the compiled function: a number, or a tensor of `dtype` (of a complex one
    pairs of real numbers) whose axes are then put into `order`."""

    kind: str
    value: object
    dtype: torch.dtype | None = None
    order: tuple[int, ...] | None = None


@dataclass
class Input:
    """An input of the compiled function, which is like `value`. `place` is the number of the graph's input; None: `constant` is what goes
    in. `written`: parts of it are changed, where it lies. `given`: what a call gives, which may be complex, where `value` is pairs of real
    numbers."""

    place: int | None
    name: str
    value: object
    constant: torch.Tensor | None = None
    written: bool = False
    given: object = None


@dataclass
class Prepared:
    """`count`: how many inputs the graph had. `changes`: the numbers of those that the graph changes, with what they become."""

    module: torch.fx.GraphModule
    count: int
    inputs: list[Input] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    changes: list[tuple[int, Result]] = field(default_factory=list)


def prepare(module: torch.fx.GraphModule, changed: Sequence[int] = (), *, views: Mapping[int, int] = MappingProxyType({}),
            empty_apart: bool = True) -> Prepared:
    """Changes the graph of `module` in place. Its first outputs are what its inputs with the numbers `changed` become; others are changed by
    `copy_` in the graph. Outputs without elements are left out of it if `empty_apart`, and so are `views`: numbers of outputs that must
    show the elements of an input, with its number. Raises CompileError for ops that draw random numbers and for types of elements that
    compiled code does not have."""
    graph = module.graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    prepared = Prepared(module, len(places))
    made = _views(graph, places, views)
    _refuse_random(graph)
    take_out(graph)
    simplify(graph)
    spell_views(graph)
    constants = _lift_constants(module, places[-1] if places else None)
    after = places[-1] if places else None

    def add_constant(node, value):
        return _placeholder(graph, node, value, after, constants)

    fold(graph, add_constant)
    changes = _changes(graph, places, changed)
    # What is made without elements, as by padding, may be one number, too.
    for replaced in (leave_out(graph, add_constant), fold(graph, add_constant)):
        changes = [(number, replaced.get(node, node)) for number, node in changes if not is_empty(node.meta["val"])]
    prepared.results, prepared.changes = _results(graph, places, changes, made, empty_apart)
    changes = [(number, as_pairs(graph, node) if node not in places else node) for number, node in changes]
    # What is also given back, or to another input, as it was: that would be read when it is written.
    kept = {one.value for one in [*prepared.results, *(new for _, new in prepared.changes)] if one.kind == "input"}
    graph.eliminate_dead_code()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    given = {node: node.meta.get("val") for node in inputs}
    for node in filter(is_complex, inputs):
        give_pairs(graph, node)
    written = {number for number, node in changes if number not in kept and is_written_part(node, places[number])}
    for node in inputs:
        value, place = node.meta.get("val"), places.index(node) if node in places else None
        if not node.users:
            graph.erase_node(node)
            continue
        if not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)):
            raise refusal(node, f"expected tensors and numbers as inputs of the graph, but got {value!r} for {node.name}")
        prepared.inputs.append(Input(place, node.name, value, constants.get(node), place in written, given[node]))
    module.recompile()
    return prepared


def _refuse_random(graph) -> None:
    for node in graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and node.users:
            raise refusal(node, f"expected a graph without random numbers, but got {node.target}; call eval() on the "
                                "module first, so that its dropout does nothing, and pass no dropout_p")


def _lift_constants(module, after) -> dict:
    """Tensors that lie in the module become inputs; a single number stays in the graph, where raising can read it."""
    graph, constants = module.graph, {}
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        value = module
        for part in node.target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.fx.GraphModule) and node.users:
            user = next(iter(node.users))
            raise refusal(user, f"expected ATen ops alone, but got {user.target}, which calls a function of the module; "
                                "fallback='eager' runs this graph in PyTorch")
        if not isinstance(value, torch.Tensor):
            raise refusal(node, f"expected tensors as constants, but got a {type(value).__name__} for {node.target}")
        node.meta.setdefault("val", value)
        node.replace_all_uses_with(number_node(graph, node, value) if value.dim() == 0 and not value.is_complex() else
                                   _placeholder(graph, node, value, after, constants))
        graph.erase_node(node)
    return constants


def number_node(graph, node, value):
    """The op that makes the 0-d tensor `value`, before `node`, whose metadata it gets."""
    with unset_fake_temporarily():
        number = value.item()
    with graph.inserting_before(node):
        made = graph.call_function(aten.full.default, ([], number), {"dtype": value.dtype, "device": value.device,
                                                                          "pin_memory": False})
    made.meta = dict(node.meta)
    return made


def _placeholder(graph, node, value, after, constants):
    first = next(iter(graph.nodes))
    with graph.inserting_after(after) if after is not None else graph.inserting_before(first):
        made = graph.placeholder(f"constant_{len(constants)}")
    made.meta = dict(node.meta)
    constants[made] = value
    return made


def _changes(graph, places, changed) -> list:
    """The numbers of inputs that the graph changes, with the nodes that they become, which are no outputs from here on."""
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    changes = list(zip(changed, output.args[0]))
    output.args = (tuple(output.args[0][len(changes):]),)
    for node in [node for node in graph.nodes if node.target is aten.copy_.default]:
        place, value = node.args[:2]
        changes.append((places.index(place), value))
        node.replace_all_uses_with(value)
        graph.erase_node(node)
    return changes


def _views(graph, places, views) -> dict[int, Result]:
    """Those outputs among `views` that are made of the inputs alone; PyTorch makes the others of what it knows of them."""
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    made = {}
    for number, base in views.items():
        node = output.args[0][number]
        value, view = node.meta["val"], View.of(node, base, places)
        if view is not None:
            made[number] = Result("made", view)
        elif any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset())):
            raise refusal(node, f"expected a result of sizes {tuple(value.shape)} that is a view of an input to be made by "
                                "views alone, of sizes that follow from the inputs; return a copy, or fallback='eager' runs this graph in PyTorch")
    return made


def _results(graph, places, changes, made, empty_apart) -> tuple:
    """How the outputs are made, those apart that are in `made`, and the new contents of inputs."""
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    results: list = []

    def recipe(node, *, strided: bool) -> Result:
        if not isinstance(node, torch.fx.Node):
            return Result("constant", node)
        if node in places:
            return Result("input", places.index(node))
        value = node.meta["val"]
        empty = Empty.of(value, places) if empty_apart and is_empty(value) else None
        if empty is not None:
            return Result("made", empty)
        node = as_pairs(graph, node)
        order = physical_order(node.meta["val"]) if strided and isinstance(value, torch.Tensor) else None
        if order is not None:
            node = _permuted(graph, output, node, order)
        if node not in results:
            results.append(node)
        back = None if order is None else tuple(order.index(axis) for axis in range(len(order)))
        return Result("result", results.index(node), value.dtype if isinstance(value, torch.Tensor) else None, back)

    recipes = [made.get(number) or recipe(node, strided=True) for number, node in enumerate(output.args[0])]
    new = [(number, recipe(node, strided=False)) for number, node in changes]
    output.args = (tuple(results),)
    return recipes, new


def _permuted(graph, output, node, order):
    with graph.inserting_before(output):
        made = graph.call_function(aten.permute.default, (node, list(order)))
    made.meta = {"val": node.meta["val"].permute(order), "stack_trace": node.meta.get("stack_trace")}
    return made


def physical_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The axes of a tensor in the order in which its elements lie; None: row-major, or with holes or repeated elements."""
    hints = [[_hint(n) for n in numbers] for numbers in (value.shape, value.stride())]
    if None in hints[0] or None in hints[1]:
        return None
    sizes, strides = hints
    order = tuple(sorted(range(len(sizes)), key=lambda axis: (-strides[axis], -sizes[axis], axis)))
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    return None if _is_row_major(order, sizes) else order


def in_order_of(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`x` with its elements in the order of axes that a copy of `like` has, by ops."""
    with disable_proxy_modes_tracing():
        order = list(physical_order(torch.empty_like(like)) or range(x.dim()))  # of one with holes, too
    return x.permute(order).contiguous().permute([order.index(axis) for axis in range(len(order))])


def _is_row_major(order, sizes) -> bool:
    moved = [axis for axis in order if sizes[axis] != 1]
    return moved == sorted(moved)


def _hint(number) -> int | None:
    return number if isinstance(number, int) else number.node.hint
