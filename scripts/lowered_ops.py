#!/usr/bin/env python3
"""Writes python/diffattn/torch/lowered_ops.json: which ATen ops are compiled, each lowered alone with the torch-mlir that is installed.

usage: lowered_ops.py [-o FILE] [--only NAME]

PyTorch's own list of ops with sample arguments (OpInfo) is traced, with our decompositions, to ATen ops of known and of symbolic sizes.
Each op of these graphs, by its overload, the types of its operands and whether sizes are symbols, is a graph of one node; a process of its
own lowers it, because some end it. An entry says for which types of the first operand all samples were lowered; what is not in the file was
in no sample. The partitioner reads it (python/diffattn/torch/partition.py).
"""
from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import pathlib
import sys
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
#: The types of elements that sample arguments have, by their short names.
TYPES = {"f32": "float32", "bf16": "bfloat16", "i64": "int64", "i1": "bool"}
#: Samples of each op and type; the seconds that one graph has.
SAMPLES, SECONDS = 2, 60


def infos(only: str | None):
    from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if only is None or info.name == only]


def graphs(info, name: str, symbolic: bool):
    """The graphs of some samples, traced with fake tensors."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from diffattn.torch.decompositions import table

    dtype = getattr(torch, TYPES[name])
    if not info.supports_dtype(dtype, "cpu"):
        return
    samples = iter(info.sample_inputs("cpu", dtype, requires_grad=False))
    for _ in range(SAMPLES):
        try:
            sample = next(samples)
        except (StopIteration, Exception):  # of many classes: some samples need more than PyTorch brings
            return
        args, tree = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [i for i, one in enumerate(args) if isinstance(one, torch.Tensor)]

        def call(*tensors):
            given = list(args)
            for place, tensor in zip(places, tensors):
                given[place] = tensor
            first, others, named = torch.utils._pytree.tree_unflatten(given, tree)
            return info.op(first, *others, **named)

        try:
            with torch.no_grad():
                yield make_fx(call, decomposition_table=table(), tracing_mode="symbolic" if symbolic else "fake")(*[args[i] for i in places])
        except Exception:  # of many classes: data that decides sizes, ops that fake tensors do not have
            continue


def alone(node):
    """A graph of this node, with inputs in the place of the others."""
    import torch

    graph, made = torch.fx.Graph(), {}
    for one in node.all_input_nodes:
        made[one] = graph.placeholder(one.name)
        made[one].meta = dict(one.meta)
    result = graph.node_copy(node, made.__getitem__)
    values = node.meta.get("val")
    if isinstance(values, (tuple, list)):
        import operator

        results = []
        for number, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                results.append(graph.call_function(operator.getitem, (result, number)))
                results[-1].meta = {"val": value}
        graph.output(tuple(results))
    else:
        graph.output((result,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def try_info(number: int, only: str | None, results) -> None:
    """Sends, for each op of an info's graphs, its key before it is lowered, and whether it was after that."""
    warnings.simplefilter("ignore")
    import torch

    from diffattn.errors import CompileError
    from diffattn.torch.graph import prepare
    from diffattn.torch.lowering import lower

    info, seen = infos(only)[number], collections.Counter()
    for name in TYPES:
        for symbolic in (False, True):
            for module in graphs(info, name, symbolic):
                for node in module.graph.nodes:
                    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace == "diffattn":
                        continue
                    first = next((one.meta["val"] for one in [*node.all_input_nodes, node] if isinstance(one.meta.get("val"), torch.Tensor)), None)
                    kind = next((short for short, long in TYPES.items() if first is not None and first.dtype == getattr(torch, long)), None)
                    key = (str(node.target), kind, symbolic)
                    if kind is None or seen[key] >= 2:
                        continue
                    seen[key] += 1
                    results.send((key, None))
                    try:
                        lower(prepare(alone(node)).module, {})
                        results.send((key, True))
                    except CompileError:
                        results.send((key, False))
                    except Exception:  # of a graph that one node cannot be
                        results.send((key, None))


def run(number: int, only: str | None, told: dict) -> None:
    """In a process of its own: a key that was begun and not ended is one that ended it."""
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=try_info, args=(number, only, send))
    process.start()
    send.close()
    begun = None
    while True:
        if not receive.poll(SECONDS):
            process.kill()
            break
        try:
            key, holds = receive.recv()
        except EOFError:
            begun = begun if process.exitcode or process.join() or process.exitcode else None
            break
        begun = key if holds is None and begun != key else None
        if holds is not None:
            told[key].append(holds)
    process.join()
    if begun is not None:
        told[begun].append(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", default=ROOT / "python/diffattn/torch/lowered_ops.json", type=pathlib.Path)
    parser.add_argument("--only", metavar="NAME", help="one op of PyTorch's list")
    args = parser.parse_args()
    import torch_mlir  # noqa: F401 - once for all processes

    told: dict = collections.defaultdict(list)
    count = len(infos(args.only))
    for number in range(count):
        run(number, args.only, told)
        print(f"\r{number + 1} of {count}: {len({key[0] for key in told})} ops", end="", file=sys.stderr)
    table: dict = collections.defaultdict(lambda: {"static": [], "symbolic": []})
    for (op, kind, symbolic), holds in sorted(told.items()):
        entry = table[op]["symbolic" if symbolic else "static"]
        if all(holds):
            entry.append(kind)
    lines = [f"  {json.dumps(op)}: {json.dumps(entry)}" for op, entry in table.items()]
    args.output.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"\n{args.output}: {len(table)} ops", file=sys.stderr)


if __name__ == "__main__":
    main()
