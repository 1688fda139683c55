#!/usr/bin/env python3
"""Checks that every layer uses only the layers that docs/architecture.md lets it use.

The attention core's layers have an order: a file may include headers of its own layer and of those before it. The layers of `Model` stand
on all of the core, in an order of their own, and on its public headers alone; the core knows neither them nor `Testing`. The runtime's
layers have an order too. Compiler and runtime meet in `Runtime/ABI` alone, which both see. `Compiler` and what stands on it may use all.
Some layers have rules of their own: the runtime knows neither MLIR nor LLVM and has a namespace of its own, the reference has no passes,
only code generators and conversions know the dialects of one machine. Prints one line for each breach and exits with 1.
"""
import pathlib
import re
import sys

CORE = ["IR", "Analysis", "Target", "Schedule", "RuntimeCalls", "Semantics", "Transforms", "Codegen", "Codegen/CPU", "Codegen/NVVM",
        "Conversion", "Pipelines"]
MODEL = ["Model", *(f"Model/{name}" for name in ("Schedule", "Math", "Tensors", "Checks", "Weights", "Products", "Loops", "Buffers",
                                                 "Conversion", "NVVM", "Pipelines"))]
COMPILER = [*CORE, *MODEL]
RUNTIME = ["Runtime/ABI", "Runtime/Support", "Runtime/Kernels", "Runtime/Device", "Runtime/Program", "Runtime/Bundle"]
BOTH = ["Compiler", "CAPI", "Plugin"]
#: Layers in neither order.
USES = {"Testing/Reference": [], "Testing/Interpreter": ["IR", "Testing/Reference"],
        "Testing/Simulator": ["Target", "Runtime/ABI", "Runtime/Device"]}
LAYERS = [*COMPILER, *RUNTIME, *USES, *BOTH]
FORBIDDEN = {
    "Runtime": (r'^(mlir|llvm)/', "the runtime knows neither MLIR nor LLVM"),
    "Analysis": (r'^mlir/(Pass|Transforms|Rewrite|IR/(Builders|PatternMatch))', "an analysis reads and rewrites nothing"),
    "Testing/Reference": (r'^mlir/(Pass|Transforms|Dialect)', "the reference has no passes and no dialects"),
    "Testing/Interpreter": (r'^mlir/(Pass|Transforms)/', "the interpreter has no passes"),
    "Testing/Simulator": (r'^mlir/', "the simulator takes LLVM IR and knows no MLIR"),
    "Target": (r'^mlir/(Pass|Dialect|IR)', "a target states facts and knows no IR"),
}
#: Layers that know the dialects of one machine.
MACHINES = ("Codegen", "Conversion", "Model/Products", "Model/Loops", "Model/Conversion", "Model/NVVM")
#: A function of the runtime, spelt as a text.
RUNTIME_NAME = re.compile(r'"diffattn_(rt_|weights"|release_constants")')
MACHINE = re.compile(r'^mlir/Dialect/(AMX|X86Vector|NVGPU|AMDGPU|ArmSME|ArmNeon)/|^mlir/Dialect/LLVMIR/(NVVM|ROCDL)')


def layer_of(parts):
    """The layer of the folders under lib or include/DiffAttn; None for what lies in neither."""
    for length in (2, 1):
        if "/".join(parts[:length]) in LAYERS:
            return "/".join(parts[:length])
    return parts[0] if parts else None


def allowed(layer):
    if layer in BOTH:
        return LAYERS
    if layer in USES:
        return [layer, *USES[layer]]
    if layer in RUNTIME:
        return RUNTIME[:RUNTIME.index(layer) + 1]
    return [*COMPILER[:COMPILER.index(layer) + 1], "Runtime/ABI"]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    breaches = []
    files = [p for top in ("lib", "include/DiffAttn") for p in (root / top).rglob("*") if p.suffix in (".h", ".cpp", ".td")]
    for path in sorted(files):
        parts = path.relative_to(root).parts[:-1]
        layer = layer_of(parts[1:] if parts[0] == "lib" else parts[2:])
        if layer is None:
            continue
        if layer not in LAYERS:
            breaches.append(f"{path.relative_to(root)}: expected a layer of {LAYERS}, but got {layer}")
            continue
        rule, reason = FORBIDDEN.get(layer) or FORBIDDEN.get(layer.split("/")[0], (None, None))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if layer in COMPILER and layer != "RuntimeCalls" and RUNTIME_NAME.search(line):
                breaches.append(f"{path.relative_to(root)}:{number}: expected the names of the runtime in Runtime/ABI alone, but got "
                                f"{line.strip()}")
            if layer in RUNTIME and re.search(r'\bmlir::|^namespace mlir\b', line):
                breaches.append(f"{path.relative_to(root)}:{number}: expected the namespace diffattn_rt in the runtime, but got mlir")
            match = re.match(r'\s*#?include\s+["<]([^">]+)[">]', line)
            if not match:
                continue
            header = match.group(1)
            where = f"{path.relative_to(root)}:{number}"
            other = layer_of(header.split("/")[1:-1]) if header.startswith("DiffAttn/") else None
            if header.startswith("../"):
                other = layer_of((path.parent / header).resolve().relative_to(root.resolve()).parts[1:-1])
                if layer in MODEL and other in CORE:
                    breaches.append(f"{where}: expected a public header of the core, but got {header}")
            if other and other not in allowed(layer):
                breaches.append(f"{where}: {layer} may not use {other}")
            if rule and re.match(rule, header):
                breaches.append(f"{where}: {reason}, but got {header}")
            if not layer.startswith(MACHINES) and MACHINE.match(header):
                breaches.append(f"{where}: only code generators and conversions know the dialects of one machine, but got {header}")
    print("\n".join(breaches) if breaches else f"{len(files)} files keep the order of the layers")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
