"""The structures that Python's ctypes lay out are those of the C headers, field by field, by a C compiler's word."""
import ctypes
import importlib
import subprocess
import sys

import pytest
from paths import LLVM, ROOT

from diffattn import arrays, bundle, device, runtime

pytestmark = pytest.mark.oracle  # torch has its part of the package

sys.path.append(str(ROOT / "tools" / "gpu-check"))
checked = importlib.import_module("gpu_check.device")
facts = importlib.import_module("diffattn.torch.facts")

#: By header: each class with the structure that it stands for.
STRUCTURES = {
    "diffattn-c/DiffAttn.h": [(runtime._Diagnostic, "diffattn_diagnostic"), (arrays.Array, "diffattn_array"), (arrays.Type, "diffattn_type"),
                              (arrays.Result, "diffattn_result"), (device.Traffic, "diffattn_traffic"), (facts._Reader, "diffattn_object_reader"),
                              (runtime._Roof, "diffattn_roof")],
    "diffattn-c/Bundle.h": [(bundle._Options, "diffattn_bundle_options")],
    "DiffAttn/Runtime/ABI/Runtime.h": [(runtime.Counters, "diffattn_counters")],
    "DiffAttn/Runtime/ABI/Device.h": [
        (checked.Properties, "diffattn_device_properties"), (checked.Image, "diffattn_image"), (checked.Kernel, "diffattn_kernel"),
        (checked.Shape, "diffattn_launch_shape"), (checked.Tensor, "diffattn_tensor"), (checked.Product, "diffattn_product"),
        (checked.CudaOptions, "diffattn_cuda_options"), (checked.Table, "diffattn_device")],
}


def of_headers(header, pairs, folder):
    """Layouts that a C program prints: for each structure its size, and offsets and sizes of the fields that Python names."""
    lines = [f"#include <{header}>", "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for cls, name in pairs:
        lines.append(f'  printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'  printf("{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
                  for field in (entry[0] for entry in cls._fields_)]
    source = folder / "layout.c"
    source.write_text("\n".join([*lines, "  return 0;", "}", ""]))
    subprocess.run([LLVM / "clang", "-std=c11", "-I", ROOT / "include", source, "-o", folder / "layout"], check=True)
    return subprocess.run([folder / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()


def of_python(pairs):
    for cls, name in pairs:
        yield f"{name} {ctypes.sizeof(cls)}"
        for entry in cls._fields_:
            field = getattr(cls, entry[0])
            yield f"{entry[0]} {field.offset} {field.size}"


@pytest.mark.parametrize("header", STRUCTURES)
def test_layouts(header, tmp_path):
    assert list(of_python(STRUCTURES[header])) == of_headers(header, STRUCTURES[header], tmp_path)


def test_every_structure_is_listed():
    """Structures of the package and of gpu-check are listed; DLPack's have headers of their own."""
    listed = {cls for pairs in STRUCTURES.values() for cls, _ in pairs}
    declared = {cls for module in (runtime, arrays, bundle, device, checked, facts) for cls in vars(module).values()
                if isinstance(cls, type) and issubclass(cls, ctypes.Structure) and cls.__module__ == module.__name__}
    assert declared - listed == {arrays._DLTensor, facts._Exchange}
