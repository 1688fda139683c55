#!/usr/bin/env python3
"""Draws the graphs of family.zip and packs them: manifest.json, and NAME.mlir and NAME.npz of each graph.

    python test/graphs/make_family/pack.py family.zip --keep FOLDER      # needs build/bin/diffattn-opt

The reason in an entry is what diffattn-opt remarks today on a graph that stays; a graph that is not raised to as many
ops as expected stops the packing. The same packages and seeds make the same graphs.
"""

import argparse
import json
import sys
import tempfile
import warnings
import zipfile
from dataclasses import asdict
from pathlib import Path

import jax_family
import near_misses
import torch_family
from check import ROOT, emit, remarks
from graph_files import read_facts

#: Seeds of the random graphs in the archive. A seed draws its route too, fx or ONNX.
TORCH_SEEDS = [7, 103, 136, 139, 145, 147, 162, 163, 170, 172, 190, 195, 210, 215, 240, 247, 344, 351, 358, 363, 372, 404, 488,
               499, 519, 624, 644, 661, 686, 711]
JAX_SEEDS = [8, 12, 13, 18, 19, 24, 28, 39, 40, 48, 49, 50, 58]
#: Cases for check.py alone, which the archive does not hold.
LEFT_OUT = {"baddbmm", "baddbmm_bias", "mul_sum"}


def export_all(folder):
    for seed in TORCH_SEEDS:
        torch_family.export(seed, folder)
    for seed in JAX_SEEDS:
        jax_family.export(seed, folder)
    for name in near_misses.CASES:
        if name not in LEFT_OUT:
            near_misses.export(name, "fx", folder)


def entry_of(graph, opt):
    facts = read_facts(graph.with_suffix(".json"))
    ops = emit(graph.read_text(), "raised").decode().count("diffattn.attention")
    if ops != facts.attention_ops:
        sys.exit(f"{facts.name}: expected {facts.attention_ops} attention op(s), but got {ops}")
    reasons = remarks(opt, graph) if not ops else []
    if len(reasons) > 1:
        sys.exit(f"{facts.name}: expected one remark at most, but got {reasons}")
    known = asdict(facts)
    options = known.pop("options")
    return known | {"reason": "".join(reasons), "options": options}


def pack(folder, archive, opt):
    graphs = sorted(folder.glob("*.mlir"))
    contents = [("manifest.json", json.dumps([entry_of(graph, opt) for graph in graphs], indent=1).encode())]
    for graph in graphs:
        contents += [(path.name, path.read_bytes()) for path in (graph, graph.with_suffix(".npz"))]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for name, data in contents:
            # A fixed date, so that the same graphs make the same archive.
            out.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return len(graphs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the graphs there too, as files for check.py")
    parser.add_argument("--opt", type=Path, default=ROOT / "build/bin/diffattn-opt", help="default: of this checkout's build")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.mlir")):
            sys.exit(f"expected a folder without graphs, but {folder} has some")
        export_all(folder)
        print(f"{pack(folder, args.archive, args.opt)} graphs in {args.archive}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
