#!/usr/bin/env python3
"""Looks for schedules that ptxas assembles without a spill: the rows of lib/Schedule/GpuSchedule.cpp come from here.

For each (d,dv), chip and feature every sensible schedule is emitted and assembled, one module for a feature. Prints those that do
not spill, with registers and shared memory, fewest registers first; with --all also the others.
"""
import argparse
import itertools
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from ptxas_report import CHIPS, attention, occupancy, report  # noqa: E402

FEATURES = {"none": ([], []), "bias": ([], ["bias"]), "mask": ([], ["mask"]), "softcap": (["softcap = 30.0 : f32"], []),
            "both": (["softcap = 30.0 : f32"], ["bias"])}


def schedules():
    for placement, (warps, tiles), keys, registers in itertools.product(
            ("both", "pair", "apart"), ((4, 1), (8, 1), (8, 2)), (16, 32, 64), ("true", "false")):
        if placement == "both" and tiles == 2:
            continue
        yield f"placement = {placement}, warps = {warps}, row_tiles = {tiles}, keys = {keys}, q_in_registers = {registers}"


def shared_bytes(schedule, d, dv):
    """What a block would take: only to leave out schedules that the chip refuses."""
    fields = dict(part.split(" = ") for part in schedule.split(", "))
    warps, tiles, keys = int(fields["warps"]), int(fields["row_tiles"]), int(fields["keys"])
    d, dv = -(-d // 32) * 32, -(-dv // 32) * 32
    rows = 16 * tiles * (warps if fields["placement"] == "both" else warps // 2)
    queries, ring = 4 * rows * d, 4 * keys * (2 * d + dv)
    total = max(queries, ring) if fields["q_in_registers"] == "true" else queries + ring
    if fields["placement"] == "pair":
        total += warps * 32 * tiles * (keys + 8)
    return max(total, rows * dv * 4) if fields["placement"] == "apart" else total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("d", type=int)
    parser.add_argument("dv", type=int)
    parser.add_argument("--opt", default=os.path.join(os.path.dirname(__file__), "../build/bin/diffattn-opt"))
    parser.add_argument("--chips", default="sm_80,sm_86,sm_90")
    parser.add_argument("--types", default="bf16")
    parser.add_argument("--features", default="none", help="of " + ", ".join(FEATURES))
    parser.add_argument("--all", action="store_true", help="print schedules that spill too")
    args = parser.parse_args()
    for chip, feature, element in itertools.product(args.chips.split(","), args.features.split(","), args.types.split(",")):
        attrs, operands = FEATURES[feature]
        functions = []
        for number, schedule in enumerate(schedules()):
            if shared_bytes(schedule, args.d, args.dv) + 1024 > CHIPS[chip][2]:
                continue
            variant = ("search", args.d, args.dv, (2, 2, 2, 2, 2), False,
                       ["is_causal", f"diffattn.gpu_schedule = #diffattn.gpu_schedule<{schedule}>", *attrs], operands)
            functions.append(attention(f"f{number}", element, variant, "?"))
        with tempfile.TemporaryDirectory() as folder:
            rows = [r for r in report(args.opt, chip, "".join(functions), folder) if "anystride" not in r[0]]
        for name, registers, spills, shared, threads in sorted(rows, key=lambda r: (r[2] > 0, r[1])):
            if spills and not args.all:
                continue
            print(f"{chip} {feature:8} {registers:4} registers {spills:5} spilled {shared:7} shared "
                  f"{occupancy(chip, registers, shared, threads)} blocks  {name}")


if __name__ == "__main__":
    main()
