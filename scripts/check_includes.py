#!/usr/bin/env python3
"""Checks that every layer of the compiler uses only the layers above it.

The order is the table of docs/architecture.md. A file of layer L may include headers of L and of layers before it. Some layers
have rules of their own: the runtime knows neither MLIR nor LLVM, the reference has no passes, only conversions know the
dialects of one machine. Prints one line for each breach and exits with 1.
"""
import pathlib
import re
import sys

LAYERS = ["IR", "Analysis", "Reference", "Interpreter", "Target", "Schedule", "Kernel", "Transforms", "Conversion", "Pipelines", "Runtime",
         "Host", "Bundle", "Simulator", "Execution", "CAPI", "Plugin"]
FORBIDDEN = {
    "Runtime": (r'^(mlir|llvm)/', "the runtime knows neither MLIR nor LLVM"),
    "Host": (r'^(mlir|llvm)/', "what calls compiled code knows neither MLIR nor LLVM"),
    "Bundle": (r'^(mlir|llvm)/', "the loader of bundles knows neither MLIR nor LLVM"),
    "Analysis": (r'^mlir/(Pass|Transforms|Rewrite|IR/(Builders|PatternMatch))', "an analysis reads and rewrites nothing"),
    "Reference": (r'^mlir/(Pass|Transforms|Dialect)', "the reference has no passes and no dialects"),
    "Interpreter": (r'^mlir/(Pass|Transforms)/|^DiffAttn/(?!IR/|Reference/|Interpreter/)',
                    "the interpreter uses IR and Reference and has no passes"),
    "Simulator": (r'^mlir/', "the simulator takes LLVM IR and knows no MLIR"),
    "Target": (r'^mlir/(Pass|Dialect|IR)', "a target states facts and knows no IR"),
}
MACHINE = re.compile(r'^mlir/Dialect/(AMX|X86Vector|NVGPU|AMDGPU|ArmSME|ArmNeon)/|^mlir/Dialect/LLVMIR/(NVVM|ROCDL)')


def layer_of(path, root):
    parts = path.relative_to(root).parts
    if parts[0] == "lib":
        return parts[1]
    return parts[2] if len(parts) > 3 else None


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    breaches = []
    files = [p for top in ("lib", "include/DiffAttn") for p in (root / top).rglob("*") if p.suffix in (".h", ".cpp", ".td")]
    for path in sorted(files):
        layer = layer_of(path, root)
        if layer is None:
            continue
        if layer not in LAYERS:
            breaches.append(f"{path}: expected a layer of {LAYERS}, but got {layer}")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.match(r'\s*#?include\s+["<]([^">]+)[">]', line)
            if not found:
                continue
            header = found.group(1)
            where = f"{path.relative_to(root)}:{number}"
            ours = re.match(r'DiffAttn/(\w+)/', header)
            if ours and ours.group(1) in LAYERS and LAYERS.index(ours.group(1)) > LAYERS.index(layer):
                breaches.append(f"{where}: {layer} may not use {ours.group(1)}, which lies below it")
            if layer == "Runtime" and ours and ours.group(1) != "Runtime":
                breaches.append(f"{where}: the runtime uses no other layer, but got {header}")
            if layer in FORBIDDEN and re.match(FORBIDDEN[layer][0], header):
                breaches.append(f"{where}: {FORBIDDEN[layer][1]}, but got {header}")
            if layer != "Conversion" and MACHINE.match(header):
                breaches.append(f"{where}: only conversions know the dialects of one machine, but got {header}")
    print("\n".join(breaches) if breaches else f"{len(files)} files keep the order of the layers")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
