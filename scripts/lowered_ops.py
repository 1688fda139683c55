#!/usr/bin/env python3
"""Writes python/diffattn/torch/lowered_ops.json: which ATen ops torch-mlir lowers, each by itself, with the release that is installed.

usage: lowered_ops.py [-o FILE] [--only NAME]

PyTorch's own list of ops with sample arguments (OpInfo) is traced, with our decompositions, to ATen ops of known and of symbolic sizes.
Each op of these graphs, by its overload, the type of its first operand and whether sizes are symbols, is a graph of one node; a process of
its own lowers it, because some end it. An entry is a list of three: the types that were tried, and those of which a sample was lowered, of
known sizes and of sizes that are symbols. An op that is not in the file was in no sample. The partitioner reads it
(python/diffattn/torch/partition.py). Beside the packages of the tests the script needs expecttest, and half an hour of two cores.
"""
from __future__ import annotations

import argparse
import collections
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import pathlib
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
#: The types of elements that sample arguments have, by their short names.
TYPES = {"f32": "float32", "bf16": "bfloat16", "i64": "int64", "i1": "bool"}
#: Samples of each op and type, those with the most axes of the first ones; the seconds that one graph has.
SAMPLES, CHOSEN_OF, SECONDS = 3, 12, 120
CONTEXT = multiprocessing.get_context("fork")


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
    samples = []
    try:
        samples += itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), CHOSEN_OF)
    except Exception:  # of many classes: some samples need more than PyTorch brings
        pass
    for sample in sorted(samples, key=lambda sample: -getattr(sample.input, "ndim", 0))[:SAMPLES]:
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


def try_info(number: int, only: str | None, outcomes: dict, results) -> None:
    """Sends, for each op of an info's graphs, its key before it is lowered, and whether it was after that. What others have lowered is
    known."""
    warnings.simplefilter("ignore")
    import torch

    from diffattn.errors import CompileError
    from diffattn.torch.graph import prepare
    from diffattn.torch.lowering import lower
    from diffattn.torch.refusals import why_not

    info, seen = infos(only)[number], collections.Counter()
    for name in TYPES:
        for symbolic in (False, True):
            for module in graphs(info, name, symbolic):
                for node in module.graph.nodes:
                    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace == "diffattn" or why_not(node):
                        continue
                    first = next((one.meta["val"] for one in [*node.all_input_nodes, node] if isinstance(one.meta.get("val"), torch.Tensor)), None)
                    kind = next((short for short, long in TYPES.items() if first is not None and first.dtype == getattr(torch, long)), None)
                    key = (str(node.target), kind, symbolic)
                    if kind is None or seen[key] >= SAMPLES or any(outcomes.get(key, ())):
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


class Attempt:
    """An op of PyTorch's list in a process of its own, which what it lowers may end."""

    def __init__(self, number: int, only: str | None, outcomes: dict):
        self.outcomes, self.begun, self.deadline = outcomes, None, time.monotonic() + SECONDS
        self.receive, send = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=try_info, args=(number, only, outcomes, send))
        self.process.start()
        send.close()

    def step(self) -> bool:
        """Takes what was sent. False: it has ended, or had its time."""
        try:
            while self.receive.poll():
                key, holds = self.receive.recv()
                self.begun, self.deadline = (key, time.monotonic() + SECONDS) if holds is None else (None, self.deadline)
                if holds is not None:
                    self.outcomes[key].append(holds)
        except EOFError:
            self.process.join()
            return self._end(failed=self.process.exitcode != 0)
        return self.deadline > time.monotonic() or self._end(failed=True)

    def _end(self, failed: bool) -> bool:
        self.process.kill()
        self.process.join()
        if failed and self.begun is not None:
            self.outcomes[self.begun].append(False)
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", default=ROOT / "python/diffattn/torch/lowered_ops.json", type=pathlib.Path)
    parser.add_argument("--only", metavar="NAME", help="one op of PyTorch's list")
    args = parser.parse_args()
    import torch  # noqa: F401
    import torch_mlir  # noqa: F401 - once for all processes

    outcomes: dict = collections.defaultdict(list)
    waiting, active, shown = list(range(len(infos(args.only)))), [], 0
    while waiting or active:
        active = [one for one in active if one.step()]
        while waiting and len(active) < os.cpu_count():
            active.append(Attempt(waiting.pop(), args.only, outcomes))
        left = len(waiting) + len(active)
        if left != shown and left % 20 == 0:
            print(f"{left} left: {len({key[0] for key in outcomes})} ops", file=sys.stderr, flush=True)
        shown = left
        time.sleep(0.02)
    table = {op: [sorted({kind for other, kind, of_symbols in outcomes if other == op and of_symbols == symbolic and any(outcomes[other, kind, of_symbols])})
                  for symbolic in (False, True)] for op in sorted({key[0] for key in outcomes})}
    tried = {op: sorted({kind for other, kind, _ in outcomes if other == op}) for op in table}
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in ("torch", "torch-mlir")}
    rows = {op: [" ".join(kinds) for kinds in (tried[op], *of)] for op, of in table.items()}
    entries = ",\n".join(f"  {json.dumps(op)}: {json.dumps(row)}" for op, row in rows.items())
    args.output.write_text(f'{{"versions": {json.dumps(versions)},\n "ops": {{\n{entries}\n}}}}\n')
    print(f"\n{args.output}: {len(table)} ops", file=sys.stderr)


if __name__ == "__main__":
    main()
