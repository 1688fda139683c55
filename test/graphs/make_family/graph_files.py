"""One graph of the family on disk: NAME.mlir, its inputs and results in NAME.npz, what is known of it in NAME.json.

NAME.npz holds in0, in1, ... (bfloat16 as its bits in uint16) and out0, out1, ... as the framework computed them.
NAME.json holds the route, the type, the number of attention ops to be raised, and the options that it was drawn with.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np


@dataclass
class Facts:
    """Facts of a graph in the manifest, but for the reason of a remark, which only the compiler knows."""

    name: str
    route: str
    dtype: str
    attention_ops: int
    options: dict


def write_graph(folder, facts, text, inputs, results):
    """Writes the three files of a graph; `inputs` and `results` are lists of NumPy arrays."""
    folder = Path(folder)
    arrays = {f"in{k}": array for k, array in enumerate(inputs)}
    arrays |= {f"out{k}": array for k, array in enumerate(results)}
    (folder / f"{facts.name}.mlir").write_text(text)
    np.savez_compressed(folder / f"{facts.name}.npz", **arrays)
    (folder / f"{facts.name}.json").write_text(json.dumps(asdict(facts)))


def read_facts(path):
    return Facts(**json.loads(Path(path).read_text()))


def run_tool(name, *arguments):
    """Runs a tool of this Python environment (iree-opt, iree-import-onnx) and returns what it printed."""
    tool = Path(sys.prefix) / "bin" / name
    if not tool.exists():
        raise FileNotFoundError(f"expected {name} in this environment (package iree-base-compiler), but {tool} is not there")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[:300]}")
    return done.stdout
