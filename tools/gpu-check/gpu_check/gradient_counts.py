"""Counts what the kernels of gradients execute for a tile: products, cycles of shared memory, and registers.

A row for each shipped op and kernel. Products are in units of 2 * rows * columns * d: of two K and dv = 2 d, 8 and 6. Cycles of shared
memory are those of ldmatrix, or of operands that wgmma reads there, and of the copies that fill a stage, 128 bytes each, for each cycle
that the products take of the tensor cores: 2048 operations of an sm_80, and 4096 by wgmma, whose kernels are those of --chip sm_90a.
Counted in PTX, whose loops over tiles have a tile in each turn. Of kernels that store a part of the gradients ptxas leaves products out,
so these have no row. A row with more than 1.05 times the products that are meant ends with status 1.
"""
import argparse
import pathlib
import re
import tempfile

from . import gradient_ops, ptxas_report

#: Operations of an mma.sync of 16 x 8 x 16; bytes of an ldmatrix of four matrices; what a multiprocessor does in a cycle.
FLOP_OF_PRODUCT, MATRIX_BYTES = 2 * 16 * 8 * 16, 512
FLOP_OF_CYCLE, SHARED_OF_CYCLE = 2048, 128
#: Products by wgmma: rows and columns of A, warpgroups that multiply, their warps, operations in a cycle.
WGMMA_ROWS, WGMMA_DEPTH, GROUPS, WGMMA_WARPS, WGMMA_FLOP_OF_CYCLE = 64, 16, 2, 8, 4096
#: More of the products that are meant.
FACTOR = 1.05
KERNEL = re.compile(r"diffattn_(keys|queries)_(\d+)x(\d+)_\w+?_(?:w(\d+)|wgmma)_t(\d+)s\d+")
#: Columns of a product by warpgroups, and whether A comes from registers, whose list is the second one.
WGMMA = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\S* \{[^}]*\}, (\{?)")


def kernels(ptx):
    """Name -> text, of the entries of a module."""
    parts = re.split(r"(?m)^\.visible \.entry (\w+)", ptx)
    return dict(zip(parts[1::2], parts[2::2]))


def padded(width, to=32):
    """Columns in shared memory."""
    return -(-width // to) * to


def count(name, text):
    """Units of products of a tile, those that are meant, and cycles of shared memory for a cycle of the tensor cores."""
    kind, d, dv, warps, columns = (int(part) if part and part.isdigit() else part for part in KERNEL.match(name).groups())
    maps, keys = (1, 1) if "_onemap" in name else (2, 1 if "_onekey" in name else 2)
    if warps:
        flop, flop_of_cycle, step = text.count("mma.sync.aligned.m16n8k16") * FLOP_OF_PRODUCT * warps, FLOP_OF_CYCLE, 32
        read = text.count("ldmatrix.sync.aligned.m8n8.x4") * MATRIX_BYTES * warps
    else:
        products = [(int(n), bool(registers)) for n, registers in WGMMA.findall(text)]
        flop = sum(2 * WGMMA_ROWS * n * WGMMA_DEPTH for n, _ in products) * GROUPS
        read = sum(2 * WGMMA_DEPTH * (n + (0 if registers else WGMMA_ROWS)) for n, registers in products) * GROUPS
        warps, flop_of_cycle, step = WGMMA_WARPS, WGMMA_FLOP_OF_CYCLE, WGMMA_DEPTH
    unit = 2 * 16 * warps * columns * d
    # Scores and gradients of heads of each map, dX with values and, of keys, with both maps.
    meant = 2 * maps * padded(d, step) / d + (2 if kind == "keys" else 1) * padded(dv, step) / d
    stage = 2 * columns * ((maps if kind == "keys" else keys) * padded(d, step) + padded(dv, step))
    return flop / unit, meant, (read + stage) / SHARED_OF_CYCLE / (flop / flop_of_cycle)


def rows_of(opt, chip, variant, element, folder):
    """Counts of what a variant's kernels execute: (kernel, registers, units, units that are meant, cycles of shared memory a tensor cycle)."""
    text = gradient_ops.text("counted", element, variant)
    # Gradients that a kernel of either kind stores.
    stored = {kind: {n for n in gradient_ops.results(variant) if n[:3] in names}
              for kind, names in (("keys", ("d_k", "d_v")), ("queries", ("d_q",)))}
    registers = {name: number for name, number, *_ in ptxas_report.report(opt, chip, text, folder)}
    bodies = kernels((pathlib.Path(folder) / f"{chip}.ptx").read_text())
    return [(name, registers[name], *count(name, bodies[name])) for name in sorted(bodies)
            if (kernel := KERNEL.match(name)) and "anystride" not in name
            and all(f"_{gradient.replace('_', '')}{element}" in name for gradient in stored[kernel[1]])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opt", default=str(pathlib.Path(__file__).resolve().parents[3] / "build/bin/diffattn-opt"))
    parser.add_argument("--chip", default="sm_80")
    parser.add_argument("--type", default="bf16", choices=("bf16", "f16"))
    parser.add_argument("--variants", default="", help="only these, by name")
    args = parser.parse_args()
    names = [name for name in args.variants.split(",") if name]
    if unknown := set(names) - {variant[0] for variant in gradient_ops.VARIANTS}:
        parser.error(f"expected variants of {', '.join(v[0] for v in gradient_ops.VARIANTS)}, but got {', '.join(sorted(unknown))}")
    bad = 0
    print(f"{'variant':26} {'registers':>9} {'products':>8} {'meant':>6} {'shared/tensor':>13}  kernel")
    with tempfile.TemporaryDirectory() as folder:
        for variant in gradient_ops.VARIANTS:
            if names and variant[0] not in names:
                continue
            for name, registers, units, meant, shared in rows_of(args.opt, args.chip, variant, args.type, folder):
                failed = units > FACTOR * meant
                bad += failed
                print(f"{variant[0]:26} {registers:9} {units:8.2f} {meant:6.2f} {shared:13.2f}  {name}{'  FAILED' * failed}")
    return 1 if bad else 0
