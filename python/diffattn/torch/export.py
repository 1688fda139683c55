"""`diffattn.compile(module, args)`: a module by torch.export, compiled ahead of its calls."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from .. import checks
from ..errors import CompileError, DiffAttnError, InputError, IRError
from ..explain import Explanation
from ..explain_times import explain_function
from ..text import shown
from . import tensors
from .decompositions import decompose, exporting
from .flex import spell_flex
from .graph import number_node
from .options import Options, warn_of_fallback
from .partition import compile_graph
from .sizes import Sizes
from .source import describe, plain


def compile_module(module, args, kwargs, dynamic_shapes, options: Options):
    """Compiles a module as `diffattn.compile`, whose arguments it checks."""
    if not isinstance(module, torch.nn.Module):
        raise checks.wrong("module", "a torch.nn.Module", module)
    if not isinstance(args, (tuple, list)):
        raise checks.wrong("args", "a tuple of example arguments", args)
    if not (kwargs is None or isinstance(kwargs, dict)):
        raise checks.wrong("kwargs", "a dict of example arguments, or None", kwargs)
    _check_devices(module, args, kwargs)
    args, kwargs = _apart(module, tuple(args), dict(kwargs or {}))
    try:
        return CompiledModule(module, args, kwargs, dynamic_shapes, options)
    except (CompileError, IRError) as error:
        if options.fallback != "eager":
            raise
        warn_of_fallback(error)
        return module


def _check_devices(module, args, kwargs) -> None:
    named = [*module.named_parameters(), *module.named_buffers()]
    for what, given in (("args", args), ("kwargs", kwargs)):
        named += [(what + pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(given)[0]]
    for name, value in named:
        if isinstance(value, torch.Tensor):
            tensors.check(name, value, value.dtype, None)


def _apart(module, args, kwargs) -> tuple:
    """The examples, with no tensor in two places: torch.export would take these for one argument in all calls."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    seen = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            leaves[i] = leaf.detach()
        if isinstance(leaf, torch.Tensor) and leaf.is_complex():
            leaves[i] = leaves[i].resolve_conj().resolve_neg()
        seen.add(id(leaf))
    return pytree.tree_unflatten(leaves, spec)


class _Held:
    """Parameters, buffers and constants of a module, as a call of its exported graph needs them, looked up anew each time.
    `specs`: the inputs of the graph; `constants` by their names."""

    def __init__(self, module, specs, constants):
        self._module, self._empty = module, [None] * len(specs)
        #: The numbers of inputs that come with a call.
        self.given = [i for i, spec in enumerate(specs) if spec.kind == InputKind.USER_INPUT]
        self._by_owner: dict[tuple[str, ...], list[tuple[str, int]]] = {}
        for i, spec in enumerate(specs):
            if spec.kind == InputKind.CONSTANT_TENSOR:
                self._empty[i] = constants[spec.target]
            elif spec.kind != InputKind.USER_INPUT:
                *path, name = spec.target.split(".")
                self._by_owner.setdefault(tuple(path), []).append((name, i))

    def values(self, leaves) -> list:
        """All inputs of the graph, `leaves` being those of the call."""
        result = self._empty.copy()
        for i, leaf in zip(self.given, leaves):
            result[i] = leaf
        for path, names in self._by_owner.items():
            owner = self._module
            for part in path:
                owner = owner._modules.get(part) if owner is not None else None
            parameters, buffers = (owner._parameters, owner._buffers) if owner is not None else ({}, {})
            for name, i in names:
                tensor = parameters.get(name)
                result[i] = buffers.get(name) if tensor is None else tensor
                if result[i] is None:
                    raise InputError(f"{'.'.join((*path, name))}: expected the tensor that the module had when it was compiled, but it has "
                                     "none of that name; compile it anew")
        return result


#: Types that pytrees do not take apart.
_LEAVES = (torch.Tensor, int, float, str, type(None))


class CompiledModule:
    """A module compiled by `diffattn.compile`: call it like the module."""

    def __init__(self, module, args, kwargs, dynamic_shapes, options: Options):
        self._module = module
        program = _export(module, args, kwargs, dynamic_shapes, options.on_device)
        signature, graph = program.graph_signature, program.graph_module
        _refuse_effects(graph)
        self._in_spec, self._out_spec = program.call_spec.in_spec, program.call_spec.out_spec
        places, names = self._in_spec.children()
        self._num_args, self._wanted = places.num_children, list(names.context)
        self._is_flat = all(child.is_leaf() for child in [*places.children(), *names.children()])
        self._names = list(inspect.signature(module.forward).parameters)
        specs, places = signature.input_specs, graph.graph.find_nodes(op="placeholder")
        constants = {spec.target: program.constants[spec.target] for spec in specs if spec.kind == InputKind.CONSTANT_TENSOR}
        self._held = _Held(module, specs, constants)
        self._leaves = [(spec, node.meta.get("val")) for spec, node in zip(specs, places) if spec.kind == InputKind.USER_INPUT]
        self._input_names = [spec.target or spec.arg.name for spec in specs]
        self._needs_gradient: dict[tuple[bool, ...], bool] = {}
        self._sizes = Sizes(program, [places[i] for i in self._held.given])
        changes = _changes(signature)
        weights = {i for i, spec in enumerate(specs) if spec.kind != InputKind.USER_INPUT} - set(changes)
        inline_numbers(graph, places, specs, constants)
        # As the module calls them.
        names = {i: specs[i].target for i in weights if specs[i].kind != InputKind.CONSTANT_TENSOR}
        self._program = compile_graph(graph, weights, changed=changes, names=names, whole=options.whole, name=type(module).__name__, **options.of_code)
        #: Why attention was not fused or is no kernel, and what was: as of `diffattn.runtime.Executable`.
        self.diagnostics, self.applied = self._program.diagnostics, self._program.applied
        #: The ops that run in PyTorch, with their lines: none where the module is compiled as one graph.
        self.uncompiled = self._program.uncompiled
        #: The module that was compiled, as text of MLIR.
        self.mlir = self._program.mlir

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """A table of what each attention was compiled to (docs/python.md). With the arguments of a call, makes that call several times, and adds
        how long each product and attention takes, beside what this machine reaches (docs/seeing.md)."""
        return explain_function(self, args, kwargs)

    def refresh(self) -> None:
        """Reads all weights anew at the next call. Needed only for weights that are tensors of inference mode, or that were written to
        behind PyTorch's back (by NumPy, or through `.data`): they have no version that would tell."""
        self._program.refresh()

    def __reduce__(self):
        raise TypeError("expected what can be copied, but got a compiled module; copy the module, and compile the copy")

    def __call__(self, *args, **kwargs):
        values = self._held.values(self._flatten(args, kwargs))
        if torch.is_grad_enabled():
            self._refuse_gradient(values, args, kwargs)
        return pytree.tree_unflatten(self._program(values), self._out_spec)

    def _refuse_gradient(self, values, args, kwargs) -> None:
        """The rule of `torch.compile(backend="diffattn")`: an error where a result of the module itself would require a gradient."""
        required = tuple(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
        if not any(required):
            return
        if required not in self._needs_gradient:
            self._needs_gradient[required] = gives_gradient(self._module, args, kwargs)
        if self._needs_gradient[required]:
            # An argument of the call is named rather than a weight of the module.
            number = min((i for i, requires in enumerate(required) if requires), key=lambda i: (i not in self._held.given, i))
            raise InputError(f"{self._input_names[number]}: expected a tensor without gradient, because no gradient flows back "
                             "through compiled code, but it requires one; call under torch.no_grad()")

    def _flatten(self, args, kwargs) -> list:
        args, kwargs = self._arranged(args, kwargs)
        leaves = [*args, *kwargs.values()]
        spec = self._in_spec
        # Where nothing is nested, the structure is plain to see.
        if not (self._is_flat and len(args) == self._num_args and list(kwargs) == self._wanted
                and all(isinstance(leaf, _LEAVES) for leaf in leaves)):
            leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec is not self._in_spec and spec != self._in_spec:
            raise InputError(f"expected arguments of the structure that the module was compiled for, {_structure(self._in_spec)}, but "
                             f"got {_structure(spec)}")
        for leaf, (expected, value) in zip(leaves, self._leaves):
            name = expected.arg.name
            if isinstance(value, torch.Tensor):
                tensors.check(name, leaf, value.dtype, [n if isinstance(n, int) else None for n in value.shape])
            elif isinstance(expected.arg, ConstantArgument) and (type(leaf) is not type(expected.arg.value)
                                                                 or leaf != expected.arg.value):
                raise InputError(f"{name}: expected {shown(expected.arg.value)}, the value that the module was compiled for, but got "
                                 f"{shown(leaf)}")
        self._sizes.check(leaves)
        return leaves

    def _arranged(self, args, kwargs) -> tuple:
        """Arguments by place and by name as they were when the module was compiled."""
        known, wanted = self._num_args, self._wanted
        if len(args) == known and list(kwargs) == wanted:
            return args, kwargs
        given = dict(zip(self._names, args))
        if len(args) <= len(self._names) and not set(given) & set(kwargs):
            given.update(kwargs)
            if set(given) == {*self._names[:known], *wanted}:
                return tuple(given[name] for name in self._names[:known]), {name: given[name] for name in wanted}
        return args, kwargs


def _changes(signature) -> list[int]:
    """The inputs of the graph that its first outputs are written to, in the order of these."""
    by_name = {spec.arg.name: i for i, spec in enumerate(signature.input_specs)}
    of_module = {spec.target: i for i, spec in enumerate(signature.input_specs) if spec.kind != InputKind.USER_INPUT}
    return [(by_name if spec.kind == OutputKind.USER_INPUT_MUTATION else of_module)[spec.target] for spec in signature.output_specs
            if spec.kind != OutputKind.USER_OUTPUT]


def _hold_once(module, program) -> None:
    """Makes one input of what torch.export took for two: a parameter or buffer of `module`, and the same tensor as it met it elsewhere
    (in a list, say, or in an object that is no module), which it keeps as a constant."""
    specs = program.graph_signature.input_specs
    names = {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    of_module = {spec.target: nodes[spec.arg.name] for spec in specs if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)}
    for spec in [spec for spec in specs if spec.kind == InputKind.CONSTANT_TENSOR]:
        known = of_module.get(names.get(id(program.constants[spec.target])))
        if known is not None:
            nodes[spec.arg.name].replace_all_uses_with(known)
            program.graph.erase_node(nodes[spec.arg.name])
            specs.remove(spec)
            del program.constants[spec.target]
    program.graph_module.recompile()


def _export(module, args, kwargs, dynamic_shapes, device):
    try:
        with exporting():
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
            _hold_once(module, program)
            spell_flex(program.graph_module)
            return decompose(program, device=device)
    except DiffAttnError as error:  # raised by a decomposition
        raise plain(error) from None
    except Exception as error:  # torch.export raises many classes, most of them private
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if lines and "Constraints violated" in lines[0]:
            lines = ["torch.export.Dim.DYNAMIC in dynamic_shapes, in place of a named size, takes such a guard and has it checked in each "
                     "call:", *lines]
        raise CompileError(f"expected a module that torch.export exports, but it gave {type(error).__name__}: "
                           f"{' '.join(lines)[:600]}") from error


def gives_gradient(module, args, kwargs) -> bool:
    """Whether a result of the module itself would require a gradient, in this mode: not if it is detached, or made under torch.no_grad().
    torch.export traces the call for it, which changes nothing; a call that it does not trace is taken to give one."""
    requires: list[bool] = []
    handle = module.register_forward_hook(lambda _, __, result: requires.append(any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(result))))
    try:
        with warnings.catch_warnings():  # they were given when it was compiled
            warnings.simplefilter("ignore")
            torch.export.export(module, tuple(args), kwargs, strict=False)
    except Exception:  # torch.export raises many classes, most of them private
        return True
    finally:
        handle.remove()
    return any(requires)


def _refuse_effects(graph) -> None:
    """Refuses ops that must run in a given order, such as checks of matrices that may be singular."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.higher_order.with_effects:
            raise CompileError(f"{describe(node)}expected ops without effects, but got {node.args[1]}; fallback='eager' runs this module in "
                               "PyTorch")


def inline_numbers(graph, places, specs, constants) -> None:
    """Constants of one number stay in the graph, where raising can read them."""
    for node, spec in zip(places, specs):
        value = constants.get(spec.target)
        if spec.kind == InputKind.CONSTANT_TENSOR and value is not None and value.dim() == 0 and not value.is_complex() and node.users:
            following = next(n for n in graph.graph.nodes if n.op not in ("placeholder", "get_attr"))
            node.replace_all_uses_with(number_node(following, value, like=node))


def _structure(spec) -> str:
    args, kwargs = pytree.tree_unflatten(["*"] * spec.num_leaves, spec)
    return "(" + ", ".join([str(one).replace("'*'", "*") for one in args] + [f"{k}={str(v)}".replace("'*'", "*") for k, v in kwargs.items()]) + ")"
