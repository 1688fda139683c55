"""A graph as parts: what is compiled, and what stays PyTorch.

A graph is compiled whole where it can be. A refusal that names a node leaves that one to PyTorch, with the others of its kind, and the
rest is cut into parts (torch.fx.passes), and compiled again. A part without a product and without an attention stays PyTorch too: a call of
compiled code costs more than it gains there. What an input becomes is copied into it last, when everything is computed, but for an input
that one part alone reads: that part changes it where it lies, as a cache that grows.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from ..errors import CompileError, IRError
from ..runtime import Diagnostic
from ..text import printable
from . import attention_node, grouped_node  # noqa: F401 - they register nodes
from .graph import prepare
from .program import GraphProgram
from .source import ORIGIN, describe, line_of, op_name
from .views import VIEWS

aten, ours = torch.ops.aten, torch.ops.diffattn

#: Ops that make a part worth a call of compiled code.
_PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.linear.default, aten.matmul.default,
                       aten.convolution.default, ours._attention.default, ours._grouped_gemm.default})
#: A graph is cut anew at most so often.
_MOST_CUTS = 16
_SOFTMAX = (aten._softmax.default, aten._safe_softmax.default)


@dataclass
class _Part:
    """Nodes that are compiled together, in their order: what they take, what they give, and the inputs of the graph that they change, each
    with its new value."""

    nodes: list[torch.fx.Node]
    inputs: list[torch.fx.Node] = field(default_factory=list)
    outputs: list[torch.fx.Node] = field(default_factory=list)
    changes: list[tuple[torch.fx.Node, torch.fx.Node]] = field(default_factory=list)


def compile_graph(module: torch.fx.GraphModule, weights: Sequence[int] = (), *, changed: Sequence[int] = (),
                  views: Mapping[int, int] = MappingProxyType({}), names: Mapping[int, str] = MappingProxyType({}), whole: bool, **options):
    """A program for the graph of `module`, with its inputs and outputs: a GraphProgram or a PartitionedProgram.

    changed, views   as of `prepare`
    weights          as of GraphProgram, with `options`
    names            what errors call inputs, by their numbers
    whole            whether a graph that is not compiled as one raises its CompileError or IRError
    """

    def compile_one(part: torch.fx.GraphModule, weights, changed, views, names) -> GraphProgram:
        prepared = prepare(part, changed, views=views)
        for one in prepared.inputs:
            one.name = names.get(one.place, one.name)
        return GraphProgram(prepared, weights, **options)

    if whole:
        return compile_one(module, weights, changed, views, names)
    for node in module.graph.nodes:
        node.meta[ORIGIN] = node.name
    given = _copy(module)
    try:
        return compile_one(module, weights, changed, views, names)
    except (CompileError, IRError) as error:
        return _Cutter(given, set(weights), changed, views, names, compile_one).cut(error)


def _copy(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """With nodes of its own: a graph that is prepared changes."""
    graph = torch.fx.Graph()
    nodes: dict = {}
    output = graph.graph_copy(module.graph, nodes)
    graph.output(output)
    return torch.fx.GraphModule(module, graph)


class _Support(OperatorSupportBase):
    def __init__(self, left: set[torch.fx.Node]):
        self._left = left

    def is_node_supported(self, submodules, node: torch.fx.Node) -> bool:
        is_result = node.target is operator.getitem and node.args[0] in self._left
        return node.op == "call_function" and node not in self._left and not is_result


class _Cutter:
    """Cuts one graph, again for each refusal."""

    def __init__(self, module, weights, changed, views, names, compile_one: Callable[..., GraphProgram]):
        self._module, self._weights, self._names, self._compile = module, weights, names, compile_one
        self._places = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._numbers = {node: number for number, node in enumerate(self._places)}
        self._nodes = {node.name: node for node in module.graph.nodes}
        output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
        values = list(output.args[0])
        #: Inputs and what they become: the first outputs, or what is copied into them.
        self._changes = [(self._places[number], value) for number, value in zip(changed, values)]
        self._outputs = values[len(self._changes):]
        for node in [node for node in module.graph.nodes if node.target is aten.copy_.default]:
            self._changes.append(node.args[:2])
            node.replace_all_uses_with(node.args[1])
            module.graph.erase_node(node)
            self._outputs = [node.args[1] if one is node else one for one in self._outputs]
        output.args = ((*self._outputs, *(value for _, value in self._changes)),)
        #: Nodes that stay PyTorch, with what they are, or why; None: that follows from others.
        self._left: dict[torch.fx.Node, str | None] = {}
        for number in views:
            self._leave_view(values[number])

    def cut(self, error: CompileError | IRError) -> PartitionedProgram:
        """`error`: why the graph is not compiled whole. Raises it if it leaves an attention of ours, which PyTorch does not compute."""
        part = None
        for number in range(_MOST_CUTS):
            self._leave(error, part, whole=number == _MOST_CUTS - 1)
            parts = self._propose()
            try:
                return self._build(parts, [self._compile_part(part) for part in parts])
            except _PartError as refused:
                error, part = refused.error, refused.part
        raise error  # with nothing left to compile there is none

    def _leave(self, error, part: _Part | None, whole: bool) -> None:
        """To PyTorch: the nodes that an error names, or those of the part that it is about; `whole`: all that there are."""
        named = [] if whole else self._named(error)
        reasons = {node: f"{describe(node)}{op_name(node.target)}" for node in named}
        if not reasons:
            nodes = part.nodes if part is not None and not whole else self._module.graph.nodes
            reasons = dict.fromkeys(node for node in nodes if node.op == "call_function" and node not in self._left)
            reasons.update({node: str(error) for node in list(reasons)[:1]})
        if not reasons or any(node.target is ours._attention.default for node in reasons):
            raise error
        self._left.update(reasons)
        for node in [node for node in self._left if node.target is aten.as_strided.default]:
            self._leave_memory(node.args[0])

    def _leave_memory(self, node: torch.fx.Node) -> None:
        """What `as_strided` reads by its place in memory: what a part gives has no holes, and lies at the beginning of its own."""
        while isinstance(node, torch.fx.Node) and node.op == "call_function" and not _lies_alone(node.meta["val"]):
            self._left[node] = None
            node = node.args[0]

    def _named(self, error) -> list[torch.fx.Node]:
        """The nodes that an error is about, but for those that stay PyTorch already: the one that it names and the others of its kind, what
        reads an input that it names, those of the line that it names, or those of an op that its text alone names, as torch-mlir's importer
        does of arguments that it cannot take."""
        node, trace = self._nodes.get(getattr(error, "node", "")), getattr(error, "trace", None)
        if node is None and trace:  # which took the place of one
            named = [one for one in self._nodes.values() if one.meta.get("stack_trace") == trace]
        elif node is None:
            ops = set(re.findall(r"\baten\.\w+\.\w+", str(error)))
            named = [one for one in self._nodes.values() if str(one.target) in ops]
        elif node.op == "placeholder":
            named = list(node.users)
        else:
            named = [node] if node.target in _PRODUCTS else [one for one in self._nodes.values() if one.target is node.target]
        return [one for one in named if one.op == "call_function" and one not in self._left]

    def _leave_view(self, node) -> None:
        """An output that must show the elements of an input, as PyTorch's own views do."""
        while isinstance(node, torch.fx.Node) and node.op == "call_function":
            self._left[node] = None
            node = node.args[0] if node.target in VIEWS else None

    def _propose(self) -> list[_Part]:
        found = CapabilityBasedPartitioner(self._module, _Support(set(self._left)), allows_single_node_partition=True).propose_partitions()
        order = {node: number for number, node in enumerate(self._module.graph.nodes)}
        parts = [_Part(sorted(one.nodes, key=order.__getitem__)) for one in found if any(node.target in _PRODUCTS for node in one.nodes)]
        for part in parts:
            inside = set(part.nodes)
            part.inputs = list(dict.fromkeys(node for one in part.nodes for node in one.all_input_nodes if node not in inside and node.op != "get_attr"))
            for place, value in self._changes:
                readers = {user for user in place.users if user.op != "output"}
                is_kept = place in self._outputs or any(other is place for _, other in self._changes)
                if value in inside and readers <= inside and not is_kept and [old for old, _ in self._changes].count(place) == 1:
                    part.changes.append((place, value))
            # A value that an input becomes is given only if it is read beside that.
            new = {value for _, value in part.changes}
            part.outputs = [node for node in part.nodes if (node in new and node in self._outputs) or any(
                user not in inside and not (node in new and user.op == "output") for user in node.users)]
        return parts

    def _compile_part(self, part: _Part) -> GraphProgram:
        graph, made = torch.fx.Graph(), {}
        changed = [place for place, _ in part.changes]
        for node in part.inputs:
            made[node] = graph.placeholder(node.name)
            made[node].meta = dict(node.meta)
        for node in part.nodes:
            for constant in node.all_input_nodes:
                if constant.op == "get_attr" and constant not in made:
                    made[constant] = graph.node_copy(constant)
            made[node] = graph.node_copy(node, made.__getitem__)
        graph.output((*(made[value] for _, value in part.changes), *(made[node] for node in part.outputs)))
        weights = [number for number, node in enumerate(part.inputs) if self._numbers.get(node) in self._weights]
        names = {number: self._names.get(self._numbers.get(node), node.name) for number, node in enumerate(part.inputs)}
        try:
            return self._compile(torch.fx.GraphModule(self._module, graph), weights, [part.inputs.index(place) for place in changed], {}, names)
        except (CompileError, IRError) as error:
            raise _PartError(part, error) from None

    def _build(self, parts: list[_Part], programs: list[GraphProgram]) -> PartitionedProgram:
        """The graph with one call in the place of each part."""
        graph, made = torch.fx.Graph(), {}
        part_of = {node: part for part in parts for node in part.nodes}
        names = {id(part): f"part_{number}" for number, part in enumerate(parts)}

        def make(node: torch.fx.Node) -> None:
            """In an order in which everything is there that is read."""
            waiting = [node]
            while waiting:
                node = waiting[-1]
                part = part_of.get(node)
                needed = [one for one in (part.inputs if part else node.all_input_nodes) if one not in made]
                if node in made:
                    waiting.pop()
                elif needed:
                    waiting += needed
                elif part is None:
                    made[node] = graph.node_copy(node, made.__getitem__)
                    waiting.pop()
                else:
                    call = graph.call_module(names[id(part)], tuple(made[one] for one in part.inputs))
                    for one in part.nodes:
                        made[one] = call
                    for number, one in enumerate(part.outputs):
                        made[one] = graph.call_function(operator.getitem, (call, number))

        for place in self._places:
            made[place] = graph.node_copy(place)
        for node in self._module.graph.nodes:
            if node.op not in ("placeholder", "output", "get_attr") and (node.users or node in part_of):
                make(node)
        inside = {place for part in parts for place, _ in part.changes}
        last = [(place, value) for place, value in self._changes if place not in inside]

        def result(value):
            if not isinstance(value, torch.fx.Node):
                return value
            make(value)
            return made[value]

        graph.output((*map(result, self._outputs), *(result(value) for _, value in last)))
        calls = {names[id(part)]: _Call(program) for part, program in zip(parts, programs)}
        outer = torch.fx.GraphModule({**_attributes(self._module, graph), **calls}, graph)
        return PartitionedProgram(outer, programs, [self._numbers[place] for place, _ in last], self._reasons(), self._cut_attentions(part_of))

    def _reasons(self) -> list[str]:
        """What stays PyTorch, each op of a line once."""
        return list(dict.fromkeys(reason for reason in self._left.values() if reason))

    def _cut_attentions(self, part_of) -> list[str]:
        """The places of softmaxes of which the way to the next product leaves their part."""
        cut = []
        for node in self._module.graph.nodes:
            if node.target not in _SOFTMAX:
                continue
            waiting, seen = [node], {node}
            while waiting:
                one = waiting.pop()
                if part_of.get(one) is None or part_of.get(one) is not part_of.get(node):
                    cut.append(line_of(node.meta.get("stack_trace") or "") or node.name)
                    break
                if one.target not in _PRODUCTS:
                    waiting += [user for user in one.users if user not in seen and user.op != "output"]
                    seen.update(one.users)
        return list(dict.fromkeys(cut))


def _lies_alone(value) -> bool:
    """Whether a tensor certainly is all of its memory, in row-major order."""
    size, known = 1, []
    for count, step in zip(reversed(value.shape), reversed(value.stride())):
        known.append(statically_known_true(count == 1) or statically_known_true(step == size))
        size = size * count
    return all(known) and statically_known_true(value.untyped_storage().nbytes() == size * value.element_size())


def _attributes(module, graph) -> dict:
    """What the nodes of `graph` read of `module`."""
    return {node.target: operator.attrgetter(node.target)(module) for node in graph.nodes if node.op == "get_attr"}


class _PartError(Exception):
    def __init__(self, part: _Part, error: CompileError | IRError):
        super().__init__(str(error))
        self.part, self.error = part, error


class _Call(torch.nn.Module):
    """A part as a module of a graph."""

    def __init__(self, program: GraphProgram):
        super().__init__()
        self._program = program

    def forward(self, *values):
        return self._program(values)


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(printable(one)[:400] for one in texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")


class PartitionedProgram:
    """As a GraphProgram: parts of the graph are compiled, the others run in PyTorch, which one warning says.

    changed   the numbers of inputs that the last outputs of `module` are copied into
    left      what stays PyTorch: ops with their lines, or why that is
    cut       where attentions are that are not within one part
    """

    def __init__(self, module: torch.fx.GraphModule, programs: Sequence[GraphProgram], changed: Sequence[int], left: Sequence[str], cut: Sequence[str]):
        self._module, self._programs, self._changed = module, list(programs), list(changed)
        #: The ops that run in PyTorch, with their lines.
        self.uncompiled = list(left)
        self.mlir = "\n// -----\n\n".join(program.mlir for program in self._programs if program.mlir)
        attention = f"; this cuts the attention at {_listed(cut)}, which is not fused" if cut else ""
        what = f"these ops of a graph run in PyTorch: {_listed(left)}{attention}" if self._programs else f"a graph runs in PyTorch, because of {_listed(left)}"
        warnings.warn(f"{what}; whole=True makes this an error", RuntimeWarning, stacklevel=3)

    @property
    def num_parts(self) -> int:
        """How many parts are compiled."""
        return len(self._programs)

    @property
    def diagnostics(self) -> list[Diagnostic]:
        return [one for program in self._programs for one in program.diagnostics]

    @property
    def applied(self) -> list[Diagnostic]:
        return [one for program in self._programs for one in program.applied]

    def refresh(self) -> None:
        for program in self._programs:
            program.refresh()

    def __call__(self, values: Sequence) -> list:
        with torch.no_grad():
            results = list(self._module(*values))
            count = len(results) - len(self._changed)
            # All are computed before one is changed; what lies in the memory of another one is read before that changes.
            memory = {values[number].untyped_storage().data_ptr() for number in self._changed}
            new = [one.clone() if one.untyped_storage().data_ptr() in memory else one for one in results[count:]]
            for number, value in zip(self._changed, new):
                if values[number] is not value:
                    values[number].copy_(value)
        return results[:count]
