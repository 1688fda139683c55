"""From a PyTorch module to a graph of linalg on tensors, by the two routes that torch models take."""

import tempfile
from pathlib import Path

import torch
from graph_files import run_tool

#: Passes of iree-opt behind its ONNX importer, and large constants as text, which any MLIR reads.
ONNX_TO_LINALG = ["--torch-onnx-to-torch-backend-pipeline", "--torch-backend-to-linalg-on-tensors-backend-pipeline",
                  "--mlir-print-elementsattrs-with-hex-if-larger=-1"]


def by_fx(module, inputs, dynamic_shapes=None):
    """torch.export, then torch-mlir's fx importer."""
    from torch_mlir import fx

    with torch.no_grad():
        program = torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic_shapes)
        return str(fx.export_and_import(program, output_type="linalg-on-tensors", func_name="main", decomposition_table=None))


def by_onnx(module, inputs, dynamic_shapes=None):
    """torch.onnx.export, then the ONNX importer and lowering of torch-mlir that IREE carries."""
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        program = torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False, opset_version=18,
                                    dynamic_shapes=dynamic_shapes)
        model, imported = Path(folder) / "model.onnx", Path(folder) / "model.mlir"
        program.save(str(model))
        run_tool("iree-import-onnx", model, "-o", imported)
        return run_tool("iree-opt", *ONNX_TO_LINALG, imported)


ROUTES = {"fx": by_fx, "onnx": by_onnx}


def as_numpy(tensor):
    """The array of a tensor; bfloat16, which NumPy lacks, as its bits."""
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def in_f64(tensors):
    return [t.double() if t.is_floating_point() else t for t in tensors]
