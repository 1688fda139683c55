"""`torch.compile(module, backend="diffattn")`: Dynamo's graphs, made functional by AOTAutograd, compiled."""

from __future__ import annotations

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import OutputType
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode

from ..errors import CompileError, DiffAttnError, IRError
from . import tensors
from .decompositions import kept_whole, table
from .flex import spell_flex
from .options import Options, require, warn_of_fallback
from .partition import compile_graph
from .graph_reports import record
from .source import plain


def backend(module: torch.fx.GraphModule, example_inputs, *, options=None, mode=None):
    """Compiles a graph of Dynamo; the entry point "diffattn" of torch_dynamo_backends.

    options   dict with the fields of `Options`: target, threads, cache, batch_invariant, fallback, whole

    An error is raised by the call of the compiled function, as it is, and not in the wrapping of Dynamo's own.
    """
    try:
        chosen = Options.of(options)
        require()
        _refuse_inputs(example_inputs)
        return _compile(module, example_inputs, chosen)
    except DiffAttnError as raised:
        error = plain(raised)
        if options and options.get("fallback") == "eager" and isinstance(error, (CompileError, IRError)):
            warn_of_fallback(error)
            return module.forward
        return _raising(error)


def _compile(module, example_inputs, options: Options):
    def infer(graph: torch.fx.GraphModule, _):
        metadata = torch._guards.TracingContext.get().fw_metadata
        mutated = {i for i, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata}
        weights = [i for i in metadata.static_input_indices if i not in mutated]
        program = compile_graph(graph, weights, views=_views(metadata), whole=options.whole, **options.of_code)
        record(module.graph, program)

        def run(arguments):
            values = list(arguments)
            arguments.clear()
            return program(values)

        run._boxed_call = True
        return run

    def train(graph: torch.fx.GraphModule, _):
        raise CompileError("expected a graph without gradients, because no gradient flows back through compiled code, but an input or a "
                           "parameter requires one; to train, use torch.compile(model), by which torch.ops.diffattn.attention stays one node with its "
                           "gradients; to infer, call under torch.no_grad(), and eval() the module")

    spell_flex(module)
    _without_inference_mode(module)
    with kept_whole():
        return aot_autograd(fw_compiler=train, inference_compiler=infer, decompositions=table(device=options.on_device),
                            keep_inference_input_mutations=True)(module, example_inputs)


def _without_inference_mode(module: torch.fx.GraphModule) -> None:
    """Replaces torch.inference_mode() within a function by no_grad: AOTAutograd fails at views, in that mode, of tensors that were made
    outside of it."""
    modes = [torch.is_grad_enabled()]
    for node in module.graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            modes[-1] = node.args[0]
        elif node.target in (_enter_inference_mode, _exit_inference_mode):
            modes = [*modes, not node.args[0]] if node.target is _enter_inference_mode else modes[:-1]
            node.target, node.args = torch._C._set_grad_enabled, (modes[-1],)
    module.recompile()


def _views(metadata) -> dict[int, int]:
    """The numbers of the graph's outputs that show elements of an input, with its number: where they lie is what AOTAutograd makes views
    of that input by, and all that it takes of them."""
    changed = metadata.mutated_inp_runtime_indices
    views = {number: i for number, i in enumerate(changed)
             if metadata.input_info[i].mutates_metadata and not metadata.input_info[i].mutates_data}
    views.update((number, info.base_idx) for number, info in enumerate(metadata.output_info, len(changed))
                 if info.output_type == OutputType.alias_of_input)
    return views


def _refuse_inputs(example_inputs) -> None:
    """Refuses tensors whose memory does not hold the elements that they show, or is elsewhere."""
    for number, value in enumerate(example_inputs):
        if isinstance(value, torch.Tensor):
            tensors.check_memory(f"input {number} of the graph", value, value.is_neg() or value.is_conj(), CompileError)


def _raising(error: DiffAttnError):
    def fail(*_):
        raise type(error)(*error.args)

    return fail
