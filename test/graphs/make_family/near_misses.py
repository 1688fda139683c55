#!/usr/bin/env python3
"""Graphs a step away from differential attention, one by one: what must be left alone, and what only looks as if.

    python near_misses.py FOLDER                      # by torch-mlir's fx importer: FOLDER/fx_two_v.mlir, .npz, .json, and so on
    python near_misses.py FOLDER --route onnx --case two_v --case relu

The cases lie in near_miss_cases.py. All have one size, and results in f64 of the same function.
"""

import argparse
import warnings
from pathlib import Path

import torch
from graph_files import Facts, write_graph
from near_miss_cases import CASES, base_inputs
from torch_importers import ROUTES, as_numpy, in_f64


class Module(torch.nn.Module):
    """A function as the module that exporters want."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def export(name, route, folder):
    case = CASES[name]
    torch.manual_seed(1)
    inputs = base_inputs() + case.more_inputs()
    results = case.function(*in_f64(inputs))
    results = results if isinstance(results, tuple) else (results,)
    text = ROUTES[route](Module(case.function).eval(), inputs)
    facts = Facts(f"{route}_{name}", route, "f32", case.attention_ops, {})
    write_graph(folder, facts, text, [as_numpy(t) for t in inputs], [as_numpy(t) for t in results])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--route", choices=ROUTES, default="fx")
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help="a case by its name; without it, all")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.case or CASES:
        try:
            export(name, args.route, args.folder)
        except Exception as error:  # importers raise whatever they like
            print(f"{name} was not exported: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
