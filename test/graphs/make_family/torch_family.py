#!/usr/bin/env python3
"""Differential attention as random PyTorch modules, exported by torch-mlir's fx importer or by ONNX.

    python torch_family.py FOLDER 100-149 300      # seeds: FOLDER/fx_00100.mlir or onnx_00100.mlir, .npz, .json, and so on

A seed decides the options, the weights, the inputs and the route. Results are of the same module in f64.
"""

import random
import warnings

import torch
from graph_files import Facts, write_graph
from seeds import export_seeds
from torch_importers import ROUTES, as_numpy, in_f64
from torch_module import DTYPES, DifferentialAttention, token_inputs
from torch_options import BASE, draw, dynamic_axes


def dynamic_shapes(options):
    """As torch.export takes them: one dict for each argument, in the one tuple of *tensors."""
    axes = dynamic_axes(options)
    if axes is None:
        return None
    from torch.export import Dim

    sizes = {"B": Dim("B", min=2, max=64), "T": Dim("T", min=2, max=4096)}
    return (tuple({axis: sizes[size] for axis, size in argument.items()} for argument in axes),)


def widened(module, options):
    """The module in f64, with the weights that it has."""
    wide = DifferentialAttention(options).eval().double()
    state = module.state_dict()
    wide.load_state_dict(dict(zip(state, in_f64(state.values()))))
    return wide


def export(seed, folder):
    options, route = draw(random.Random(seed))
    torch.manual_seed(seed)
    module = DifferentialAttention(options).eval()
    inputs = token_inputs(options, torch.Generator().manual_seed(seed))
    module = module.to(DTYPES[options["dtype"]])
    with torch.no_grad():
        result = widened(module, options)(*in_f64(inputs))
    text = ROUTES[route](module, inputs, dynamic_shapes(options))
    changed = {axis: value for axis, value in options.items() if axis != "extra" and value != BASE[axis]}
    facts = Facts(f"{route}_{seed:05d}", route, options["dtype"], 1, changed)
    write_graph(folder, facts, text, [as_numpy(t) for t in inputs], [as_numpy(result)])


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    export_seeds(__doc__, export)
