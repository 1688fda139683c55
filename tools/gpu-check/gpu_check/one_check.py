"""Launches a few cases once, for compute-sanitizer to watch; without PyTorch, whose start under the tool takes longer than all of it.

    python3 tools/gpu-check one-check PACK CASE[,CASE...]

Each operand is an allocation of just its size, so that an access beyond it is seen. Without cases, memory is allocated and
filled: the probe that tells whether the tool works here at all."""

import argparse
from pathlib import Path

from . import cases, gradient_cases, host_program
from .device import Device, Pack

ELEMENT_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
LAYOUTS = ("dense", "odd")
# In every byte: small numbers in each type.
FILL = 0x3C
PLAIN = "@plain"


def operand(case, name, batch, tq, tk):
    """Sizes and bytes of an element."""
    hs, hn, hk1, hk2, hv = case.heads
    lam = (batch, tq, hs) if case.sigmoid else (hs,) if "heads" in case.extra else ()
    sizes = {"q1": (batch, hs, tq, case.d), "k1": (batch, hk1, tk, case.d), "q2": (batch, hn, tq, case.d), "k2": (batch, hk2, tk, case.d),
             "v": (batch, hv, tk, case.dv), "o": (batch, hs, tq, case.dv), "x": (batch, hs, tq, case.dv), "o2": (batch, hs, tq, case.dv), "gate": (batch, hs, tq, case.dv), "lambda": lam,
             "d_out": (batch, hs, tq, case.dv), "weight": (case.dv,), "sink": (hs,), "sink2": (hn,), "lse1": (batch, hs, tq), "lse2": (batch, hn, tq)}
    of = name if name in sizes else name.removeprefix("d_")
    if of not in sizes:
        raise SystemExit(f"expected a case with operands of {', '.join(sizes)}, but {case.name} has {name}")
    return sizes[of], 4 if of in ("lambda", "sink", "sink2", "lse1", "lse2") else ELEMENT_BYTES[case.element]


def place(device, sizes, element_bytes, layout, name):
    """A buffer of a tensor; with the layout odd, rows are one element longer and begin at the second."""
    odd = layout == "odd" and len(sizes) == 4
    strides, step = [], 1
    for axis, size in reversed(list(enumerate(sizes))):
        strides.insert(0, step)
        step *= size + (odd and axis == len(sizes) - 1)
    address = device.allocate(step * element_bytes, name)
    device.fill(address, FILL, step * element_bytes)
    return host_program.Buffer(address, sizes, strides, int(odd))


def launch(device, module, host, case, layout, batch, tq, tk):
    """The kernels that ran."""
    numbers = {kernel["name"]: number for number, kernel in enumerate(host["kernels"])}
    buffers, workspaces, maps = {}, [], []

    def allocate(size):
        workspaces.append(device.allocate(size, "workspace"))
        return workspaces[-1]

    def encode_map(*values):
        maps.append(device.tensor_map(*values))
        return maps[-1].address

    for name in case.operands():
        same = name == "k2" and case.shared_keys
        buffers[name] = buffers["k1"] if same else place(device, *operand(case, name, batch, tq, tk), layout, name)
    launches, _ = host_program.evaluate(host["functions"][case.name], list(buffers.values()), allocate, encode_map)
    for step in launches:
        if isinstance(step, host_program.Fill):
            device.fill(*step)
            continue
        kernel, grid, block, shared, arguments = step
        device.launch(module, numbers[kernel], grid, block, shared, arguments)
    device.wait()
    for address in [*workspaces, *{buffer.address for buffer in buffers.values()}]:
        device.release(address)
    return [step[0] for step in launches if not isinstance(step, host_program.Fill)]


def run(folder, names, simulator=None, chip="sm_80"):
    """`names`: of cases; one that ends in @plain runs the kernels that are not for this chip alone."""
    pack = Pack(folder)
    device = Device.simulated(simulator, chip) if simulator else Device.cuda(pack.folder / pack.manifest["runtime"])
    address = device.allocate(4096)
    device.fill(address, FILL, 4096)
    device.wait()
    device.release(address)
    known = {fields["name"]: cases.from_json(fields) for fields in pack.manifest["cases"]}
    known.update({fields["name"]: gradient_cases.from_json(fields) for fields in pack.manifest["gradients"]})
    if missing := [name for name in names if name.removesuffix(PLAIN) not in known]:
        raise SystemExit(f"expected cases of the pack, but got {', '.join(missing)}")
    chosen = {tied: pack.choose(device.properties()["chip"], simulator is not None, tied) for tied in (True, False)}
    modules = {}
    for name in names:
        case, tied = known[name.removesuffix(PLAIN)], not name.endswith(PLAIN)
        image, host = chosen[tied]
        if not tied and image["chip"] == chosen[True][0]["chip"]:
            print(f"{name}: the same kernels on this chip", flush=True)
            continue
        if tied not in modules:
            modules[tied] = device.load(image, host["kernels"])
        for layout in LAYOUTS:
            ran = launch(device, modules[tied], host, case, layout, 1, case.queries or 70, 131)
            print(f"{name} {layout}: {', '.join(ran)}", flush=True)
    for module in modules.values():
        device.unload(module)
    device.close()
    print("checks done")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("cases", nargs="?", default="", metavar="CASE[,CASE...]", help="with @plain: not by what this chip alone has")
    parser.add_argument("--simulator", type=Path, help="the library with the simulator, for a simulated GPU")
    parser.add_argument("--chip", default="sm_80", help="that is simulated")
    args = parser.parse_args()
    run(args.pack, [name for name in args.cases.split(",") if name], args.simulator, args.chip)
    return 0
