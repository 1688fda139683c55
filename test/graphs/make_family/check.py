#!/usr/bin/env python3
"""Graphs of a folder through diffattn: raised to as many ops as expected, and right against f64, fused and as they are.

    python test/graphs/make_family/check.py FOLDER [FOLDER...]      # build/bin/diffattn-opt says why a graph stays

Takes what torch_family.py, jax_family.py and near_misses.py write. Exits with 1 where a graph fails.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from graph_files import read_facts

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "python"))
from diffattn.runtime import DiffAttnError, Executable, emit  # noqa: E402

#: Relative and absolute, against the mean magnitude of a result.
BOUNDS = {"f32": (2e-4, 2e-5), "f16": (2e-2, 4e-3), "bf16": (1e-1, 3e-2)}
RAISE = "--pass-pipeline=builtin.module(func.func(diffattn-fuse-differential))"


def remarks(opt, graph):
    """Why diffattn-opt left products of a graph alone."""
    done = subprocess.run([opt, graph, "--remarks-filter=diffattn.*", "--remark-format=emitRemark", RAISE, "-o", "/dev/null"],
                          capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{opt} failed on {graph}: {done.stderr[:400]}")
    return re.findall(r'Reason="([^"]*)"', done.stderr)


def faults_of_run(text, arrays, dtype, raised):
    """One line for each result that is off."""
    inputs = [arrays[f"in{k}"] for k in range(sum(name.startswith("in") for name in arrays))]
    inputs = [x.view(ml_dtypes.bfloat16) if x.dtype == np.uint16 else x for x in inputs]
    executable = Executable(text, cache=False, raise_attention=raised)
    relative, absolute = BOUNDS[dtype]
    how = "fused" if raised else "as it is"
    for k, result in enumerate(executable.call(executable.entries[0], *inputs)):
        want, result = arrays[f"out{k}"].astype(np.float64), result.astype(np.float64)
        if result.shape != want.shape:
            yield f"result {k} {how}: expected shape {want.shape}, but got {result.shape}"
            continue
        error = np.abs(result - want)
        if not (error <= absolute + relative * np.maximum(np.abs(want), np.abs(want).mean())).all():
            yield f"result {k} {how}: off by {error.max():.3g} of {np.abs(want).max():.3g}"


def faults_of(graph, facts, opt):
    text = graph.read_text()
    try:
        ops = emit(text, "raised").decode().count("diffattn.attention")
        if ops != facts.attention_ops:
            yield f"expected {facts.attention_ops} attention op(s), but got {ops}; {remarks(opt, graph) or 'no remark'}"
        with np.load(graph.with_suffix(".npz")) as arrays:
            for raised in (True, False):
                yield from faults_of_run(text, arrays, facts.dtype, raised)
    except DiffAttnError as error:
        yield f"{type(error).__name__}: {error}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--opt", type=Path, default=ROOT / "build/bin/diffattn-opt", help="default: of this checkout's build")
    args = parser.parse_args()
    graphs = [graph for folder in args.folders for graph in sorted(folder.glob("*.mlir"))]
    if not graphs:
        sys.exit(f"expected graphs (*.mlir), but found none in {', '.join(map(str, args.folders))}")
    failed = expected = 0
    for graph in graphs:
        facts = read_facts(graph.with_suffix(".json"))
        expected += facts.attention_ops
        faults = list(faults_of(graph, facts, args.opt))
        failed += bool(faults)
        for fault in faults:
            print(f"{facts.name}: {fault} {facts.options or ''}", flush=True)
    print(f"{len(graphs)} graphs of {expected} attention ops, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
