"""A graph as parts: what is compiled, and what stays PyTorch.

What compiled code does not take or give stays PyTorch in any case, without a word: inputs, constants and None as outputs, views of inputs,
tensors without elements, views between complex tensors and pairs, and arithmetic on sizes that torch-mlir does not know. All else is one
part where it can be. A refusal that names a node leaves that one to PyTorch, with the others of its kind, and the rest is cut into parts
(torch.fx.passes), and compiled again. Then a part without a product and without an attention stays PyTorch too: a call of compiled code
costs more than it gains there. What an input becomes is copied into it last, when everything is computed, but for rows that one part
writes into it and alone reads: that part changes it where it lies, as a cache that grows.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from ..errors import CompileError, IRError
from ..text import printable
from . import attention_node, grouped_node, refusals  # noqa: F401 - two register nodes
from .complex_numbers import AS_COMPLEX, AS_REAL, as_real, use_pairs
from .empty import join_others, touches_empty
from .graph import prepare
from .program import GraphProgram
from .scattering import is_written_part
from .source import ORIGIN, call_before, describe, line_of, op_name, refusal, sizes_of

aten, ours = torch.ops.aten, torch.ops.diffattn

#: Ops that make a part worth a call of compiled code.
_PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.linear.default, aten.matmul.default,
                       aten.convolution.default, ours._attention.default, ours._grouped_gemm.default})
#: Arithmetic on sizes that compiled code does.
_ON_SIZES = frozenset({aten.sym_size.int, operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg})
#: A graph is cut anew at most so often.
_MOST_CUTS = 16
_SOFTMAX = (aten._softmax.default, aten._safe_softmax.default)
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


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

    changed          the numbers of inputs of which the first outputs are the new contents; others are changed by `copy_` in the graph
    views            the numbers of outputs that must show the elements of an input, with its number
    weights          as of GraphProgram, with `options`
    names            what errors call inputs, by their numbers
    whole            whether a graph that is not compiled as one raises its CompileError or IRError
    """
    return _Cutter(module, set(weights), changed, views, names, whole, options).cut()


class _Support(OperatorSupportBase):
    def __init__(self, left: set[torch.fx.Node]):
        self._left = left

    def is_node_supported(self, submodules, node: torch.fx.Node) -> bool:
        is_result = node.target is operator.getitem and node.args[0] in self._left
        return node.op == "call_function" and node not in self._left and not is_result


class _Cutter:
    """Cuts one graph, again for each refusal."""

    def __init__(self, module, weights, changed, views, names, whole: bool, options: dict):
        self._module, self._weights, self._names, self._whole, self._options = module, weights, names, whole, options
        graph = self._graph = module.graph
        self._places = graph.find_nodes(op="placeholder")
        self._numbers = {node: number for number, node in enumerate(self._places)}
        #: For each symbol, the input that it is (axis None), or the input and axis whose size it is.
        self._symbols = {size.node.expr: (place, axis) for place in self._places for axis, size in sizes_of(place) if size.node.expr.is_symbol}
        self._output = graph.output_node()
        self._count = len(self._output.args[0]) - len(changed)
        self._changed = self._move_changes(changed)
        for number, base in views.items():
            self._show(number - len(changed), self._places[base])
        use_pairs(graph)
        join_others(graph)
        self._copy_constants()
        graph.eliminate_dead_code()
        for node in graph.nodes:
            node.meta[ORIGIN] = node.name
        self._nodes = {node.name: node for node in graph.nodes}
        #: Nodes that stay PyTorch, with what they are, or why; None: that is not worth a word.
        self._left: dict[torch.fx.Node, str | None] = {}
        for node in [node for node in graph.nodes if node.op == "call_function"]:
            reason = None if _is_plumbing(node) else refusals.why_not(node)
            if whole and reason:
                raise refusal(node, reason)
            if _is_plumbing(node):
                self._left[node] = None
            elif reason or not whole and node.target not in _PRODUCTS and not refusals.is_lowered(node):
                self._left[node] = f"{describe(node)}{op_name(node.target)}"
        for number in views:
            self._leave_view(self._output.args[0][number - len(changed)])

    # The output node lists the outputs first, then the new contents of inputs.

    @property
    def _outputs(self) -> list:
        return list(self._output.args[0][:self._count])

    @property
    def _changes(self) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
        """Inputs and what they become."""
        return list(zip(self._changed, self._output.args[0][self._count:]))

    def _move_changes(self, changed) -> list[torch.fx.Node]:
        """The inputs that change, of which the output lists the new contents from now on."""
        values, places = list(self._output.args[0]), [self._places[number] for number in changed]
        self._output.args = ((*values[len(changed):], *values[:len(changed)]),)
        for node in self._graph.find_nodes(op="call_function", target=aten.copy_.default):
            place, value = node.args[:2]
            places.append(place)
            node.replace_all_uses_with(value)
            self._graph.erase_node(node)
            self._output.args = ((*self._output.args[0], value),)
        return places

    def _show(self, number: int, place: torch.fx.Node) -> None:
        """Makes an output, if it can be, one view after the other of an input, whose new contents it shows too."""
        new = [value for changed, value in self._changes if changed is place]

        def show(node):
            if node is place or node in new:
                return place
            source = node.args[0] if node.op == "call_function" and node.args else None
            inner = show(source) if isinstance(source, torch.fx.Node) else None
            if inner is None:
                return None
            value = node.meta["val"]
            if _is_view(node):
                args, kwargs = torch.fx.node.map_arg((node.args[1:], node.kwargs), lambda one: one.meta["val"])
                try:
                    value = node.target(inner.meta["val"], *args, **kwargs)
                except RuntimeError:  # a view of a dense tensor alone
                    return None
                return call_before(self._output, node.target, (inner, *node.args[1:]), node.kwargs, like=node, value=value)
            # An op in place became this one: it changes the elements that its first operand shows.
            shown = inner.meta["val"]
            is_same = all(isinstance(one, torch.Tensor) for one in (value, shown)) and value.dtype == shown.dtype
            return inner if is_same and list(map(str, value.shape)) == list(map(str, shown.shape)) else None

        values = list(self._output.args[0])
        values[number] = show(values[number]) or values[number]
        self._output.args = (tuple(values),)

    def _copy_constants(self) -> None:
        """Copies the constants that are outputs, because callers may change an output."""
        for node in dict.fromkeys(one for one in self._outputs if isinstance(one, torch.fx.Node) and one.op == "get_attr"):
            self._output.replace_input_with(node, call_before(self._output, aten.clone.default, (node,), like=node))

    # Cutting.

    def cut(self) -> GraphProgram | PartitionedProgram:
        """Raises the error of a graph that is not compiled whole if that must be, or if it leaves an attention of ours, which PyTorch does
        not compute."""
        for number in range(_MOST_CUTS):
            parts, programs = self._propose(), []
            if self._whole and len(parts) > 1:
                raise self._parted(parts)
            whole = self._as_whole(parts)
            for part in [whole] if whole else parts:
                try:
                    programs.append(self._compile(part))
                except (CompileError, IRError) as error:
                    if self._whole:
                        raise
                    self._leave(error, part, rest=number >= _MOST_CUTS - 2)
                    break
            else:
                return programs[0] if whole else self._build(parts, programs)
        raise AssertionError("with nothing left to compile there is no error")

    def _leave(self, error, part: _Part, rest: bool) -> None:
        """Leaves nodes to PyTorch: those that an error names, or those of the part that it is about; `rest`: all that there are."""
        named = [] if rest else self._named(error)
        reasons = {node: f"{describe(node)}{op_name(node.target)}" for node in named}
        if not reasons:
            nodes = self._graph.nodes if rest else part.nodes
            reasons = dict.fromkeys(node for node in nodes if node.op == "call_function" and node not in self._left)
            reasons.update({node: str(error) for node in list(reasons)[:1]})
        if not reasons or any(node.target is ours._attention.default for node in reasons):
            raise error
        self._left.update(reasons)

    def _leave_memory(self) -> None:
        """Views that an `as_strided` that stays reads by their places in memory: what a part gives has no holes, and lies at the beginning of
        its own."""
        for node in [node for node in self._left if node.target is aten.as_strided.default]:
            self._leave_view(node.args[0])

    def _named(self, error) -> list[torch.fx.Node]:
        """The nodes that an error is about, but for those that stay PyTorch already: the one that it names and the others of its kind, what
        reads an input that it names, those of the line that it names, or those of an op that its text alone names, as torch-mlir's importer
        does of arguments that it cannot take."""
        node, trace = self._nodes.get(getattr(error, "node", "")), getattr(error, "trace", None)
        if node is None and trace:  # a node that took the place of one
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
        """Leaves to PyTorch a view that must share the memory of another tensor, with the views that it is a view of."""
        while _is_view(node):
            self._left[node] = None
            node = node.args[0]

    def _parted(self, parts: Sequence[_Part]) -> CompileError:
        inside = {node for part in parts for node in part.nodes}
        between = [node for node in self._left if set(node.users) & inside] or list(self._left)
        return refusal(between[-1], f"expected a graph that is compiled as one, but got {op_name(between[-1].target)} between its parts, which is not "
                                    "compiled there")

    def _propose(self) -> list[_Part]:
        self._leave_memory()
        proposed = CapabilityBasedPartitioner(self._module, _Support(set(self._left)), allows_single_node_partition=True).propose_partitions()
        order = {node: number for number, node in enumerate(self._graph.nodes)}
        parts = [_Part(sorted(one.nodes, key=order.__getitem__)) for one in proposed]
        for part in parts:
            self._connect(part)
        parts = [part for part in parts if part.outputs or part.changes]
        if len(parts) == 1 and not any(self._left.values()) or self._whole:
            return parts
        return [part for part in parts if any(node.target in _PRODUCTS for node in part.nodes)]

    def _connect(self, part: _Part) -> None:
        inside, changes = set(part.nodes), self._changes
        part.inputs = list(dict.fromkeys(node for one in part.nodes for node in one.all_input_nodes if node not in inside and node.op != "get_attr"))
        for place, value in changes:
            readers = {user for user in place.users if user.op != "output"}
            is_kept = place in self._outputs or any(other is place for _, other in changes)
            if value in inside and readers <= inside and not is_kept and self._changed.count(place) == 1 and is_written_part(value, place):
                part.changes.append((place, value))
        # A value that a part itself writes to an input is an output only if it is read elsewhere too; sizes follow from the graph's inputs.
        others = {value for place, value in changes if (place, value) not in part.changes}
        part.outputs = [node for node in part.nodes if not self._follows(node) and (node in self._outputs or node in others or any(
            user not in inside and user.op != "output" for user in node.users))]

    def _as_whole(self, parts: Sequence[_Part]) -> _Part | None:
        """The only part, with the inputs and outputs of the graph, if nothing but that makes these."""
        if len(parts) != 1:
            return None
        (part,), outputs = parts, self._outputs
        is_all = len(part.outputs) == len(outputs) and set(part.outputs) == set(outputs) and len(part.changes) == len(self._changed)
        if not is_all or any(node.op != "placeholder" for node in part.inputs):
            return None
        return _Part(part.nodes, self._places, outputs, part.changes)

    def _compile(self, part: _Part) -> GraphProgram:
        graph, made = torch.fx.Graph(), {}
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
        prepared = prepare(torch.fx.GraphModule(self._module, graph), [part.inputs.index(place) for place, _ in part.changes])
        for one in prepared.inputs:
            if one.place is not None:
                one.name = self._names.get(self._numbers.get(part.inputs[one.place]), one.name)
        return GraphProgram(prepared, weights, **self._options)

    # The graph with one call in the place of each part.

    def _follows(self, node: torch.fx.Node) -> bool:
        """Whether a node is arithmetic on sizes of the graph's inputs."""
        value = node.meta.get("val")
        return isinstance(value, _NUMBERS) and value.node.expr.free_symbols <= self._symbols.keys()

    def _size(self, graph: torch.fx.Graph, made: dict, expression):
        """Adds the ops that compute `expression` from the sizes in `made`; returns the last."""
        tracer = torch.fx.proxy.GraphAppendingTracer(graph)
        for symbol in expression.free_symbols:
            place, axis = self._symbols[symbol]
            if symbol not in made:
                made[symbol] = made[place] if axis is None else graph.call_function(aten.sym_size.int, (made[place], axis))
        result = sympy_interp(PythonReferenceAnalysis, {symbol: torch.fx.Proxy(made[symbol], tracer) for symbol in expression.free_symbols}, expression)
        return result.node if isinstance(result, torch.fx.Proxy) else result

    def _build(self, parts: list[_Part], programs: list[GraphProgram]) -> PartitionedProgram:
        graph, made = torch.fx.Graph(), {}
        part_of = {node: part for part in parts for node in part.nodes}
        names = {id(part): f"part_{number}" for number, part in enumerate(parts)}

        def make(node: torch.fx.Node) -> None:
            """Copies a node behind the nodes that it reads."""
            waiting = [node]
            while waiting:
                node = waiting[-1]
                part = part_of.get(node)
                if part is not None and self._follows(node):
                    made[node] = self._size(graph, made, node.meta["val"].node.expr)
                needed = [one for one in (part.inputs if part else node.all_input_nodes) if one not in made]
                if node in made:
                    waiting.pop()
                elif needed:
                    waiting += needed
                elif part is None:
                    made[node] = graph.node_copy(node, made.__getitem__)
                    made[node].target = as_real if node.target is AS_REAL else node.target
                    waiting.pop()
                else:
                    call = graph.call_module(names[id(part)], tuple(made[one] for one in part.inputs))
                    for one in part.nodes:
                        if not self._follows(one):
                            made[one] = call
                    for number, one in enumerate(part.outputs):
                        made[one] = graph.call_function(operator.getitem, (call, number))

        for place in self._places:
            made[place] = graph.node_copy(place)
        for part in parts:  # some parts only change what they are given
            make(next(node for node in part.nodes if not self._follows(node)))
        inside = {place for part in parts for place, _ in part.changes}
        last = [(place, value) for place, value in self._changes if place not in inside]
        results = (*self._outputs, *(value for _, value in last))
        for value in results:
            if isinstance(value, torch.fx.Node):
                make(value)
        graph.output(torch.fx.node.map_arg(results, made.__getitem__))
        for part, program in zip(parts, programs):
            self._module.add_module(names[id(part)], _Call(program))
        outer = torch.fx.GraphModule(self._module, graph)
        reasons = list(dict.fromkeys(reason for reason in self._left.values() if reason))  # each op of a line once
        return PartitionedProgram(outer, programs, [self._numbers[place] for place, _ in last], reasons, self._cut_attentions(part_of) if reasons else [])

    def _cut_attentions(self, part_of) -> list[str]:
        """The places of softmaxes of which the way to the next product leaves their part."""
        cut = []
        for node in self._graph.nodes:
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


def _is_view(node: torch.fx.Node) -> bool:
    return node.target is operator.getitem or getattr(node.target, "is_view", False)


def _is_plumbing(node: torch.fx.Node) -> bool:
    """Whether a node stays PyTorch in any case."""
    is_on_sizes = isinstance(node.meta.get("val"), _NUMBERS) and not isinstance(node.target, torch._ops.OpOverload)
    return node.target in (AS_REAL, AS_COMPLEX) or touches_empty(node) or is_on_sizes and node.target not in _ON_SIZES


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
    """A program like GraphProgram, but parts of the graph are compiled and the others run in PyTorch, about which one warning is given.

    changed   the numbers of inputs that the last outputs of `module` are copied into
    left      what stays PyTorch: ops with their lines, or why that is
    cut       where attentions are that are not within one part
    """

    def __init__(self, module: torch.fx.GraphModule, programs: Sequence[GraphProgram], changed: Sequence[int], left: Sequence[str], cut: Sequence[str]):
        self._module, self._programs, self._changed = module, list(programs), list(changed)
        #: The ops that run in PyTorch, with their lines.
        self.uncompiled = list(left)
        #: How many parts are compiled.
        self.num_parts = len(self._programs)
        self.mlir = "\n// -----\n\n".join(program.mlir for program in self._programs)
        self.diagnostics = [one for program in self._programs for one in program.diagnostics]
        self.applied = [one for program in self._programs for one in program.applied]
        if left:
            attention = f"; this cuts the attention at {_listed(cut)}, which is not fused" if cut else ""
            what = f"these ops of a graph run in PyTorch: {_listed(left)}{attention}" if programs else f"a graph runs in PyTorch, because of {_listed(left)}"
            warnings.warn(f"{what}; whole=True makes this an error", RuntimeWarning, stacklevel=3)

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
