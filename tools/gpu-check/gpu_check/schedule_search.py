"""Looks for schedules that ptxas assembles without a spill: the rows of lib/Schedule/GpuSchedule.cpp come from here.

For two widths (d, dv), of two maps or with --one-map of one, every sensible schedule is emitted and assembled with every feature that needs registers, and a row is printed
for each: registers (the most of all chips and types; 0 where it spills) plain and with a result in f32, with a softcap, a bias, a mask,
segments, and with copies by element. --table assembles the rows of the table instead, and ends with status 1 where the file promises fewer
registers than ptxas takes, or no spill where there is one.
"""
import argparse
import itertools
import pathlib
import re
import subprocess
import sys
import tempfile

from .ptxas_report import CHIPS, HEADS, RMS, attention, occupancy, report, table_rows

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOFTCAP = "softcap = 30.0 : f32"
# The part of a kernel's name (and more, where that is no difference) -> attributes, operands.
FEATURES = {"": ([], []), "softcap": ([SOFTCAP], []), "bias": ([], ["bias"]), "softcap_bias": ([SOFTCAP], ["bias"]),
            "biasmask": ([], ["mask"]), "softcap_biasmask": ([SOFTCAP], ["mask"]), "to_f32": ([], ["f32"]),
            # Without a norm some take more than with it.
            "segmentmaski32 alone": ([], ["segments"]),
            "segmentmaski32": ([RMS], ["segments", "weight"]), "segmentmaski64": ([RMS], ["segments-i64", "weight"]),
            "softcap_segmentmaski32": ([SOFTCAP, RMS], ["segments", "weight"]),
            "softcap_segmentmaski64": ([SOFTCAP, RMS], ["segments-i64", "weight"])}
COLUMNS = ("plain", "softcap", "bias", "mask", "segments", "elements", "biased elements")


def column(feature, elementwise):
    """The column that says what a kernel takes; None: the table never chooses it."""
    if "segmentmask" in feature:
        return None if elementwise else "segments"
    if elementwise:
        return "biased elements" if "bias" in feature else "elements"
    return {"": "plain", "to_f32": "plain", "softcap": "softcap"}.get(feature, "mask" if feature.endswith("mask") else "bias")


def fits(chip, shared):
    """Whether a block of so many bytes of shared memory runs on a chip, which takes 1 KB of its own."""
    return shared <= CHIPS[chip][2] - 1024


def schedules(maps):
    for placement, (warps, tiles), keys, registers in itertools.product(
            ("both", "pair", "apart") if maps == 2 else ("both",), ((4, 1), (8, 1), (8, 2)) if maps == 2 else ((4, 1), (4, 2), (8, 1)),
            (16, 32, 64), ("true", "false")):
        if maps == 2 and placement == "both" and tiles == 2:
            continue
        yield placement, warps, tiles, keys, 2, registers, maps


def shared_bytes(opt, wanted):
    """(d, dv, schedule), of which the last part is the number of maps -> what a block takes, as the compiler says: to leave out what a chip refuses."""
    text = "".join(functions(f"f{n}", d, dv, s, "bf16", [""]) for n, (d, dv, s) in enumerate(wanted))
    done = subprocess.run([opt, "-", "--diffattn-select-gpu-schedule", "--remark-format=emitRemark", "--remarks-filter=diffattn-gpu"],
                          input=text, capture_output=True, text=True)
    sizes = re.findall(r'SharedMemory="(\d+) bytes', done.stderr)
    if done.returncode or len(sizes) != len(wanted):
        sys.exit(f"expected the shared memory of {len(wanted)} schedules, but got {len(sizes)}: {done.stderr[-4000:]}")
    return dict(zip(wanted, map(int, sizes)))


def functions(name, d, dv, schedule, element, features):
    placement, warps, tiles, keys, stages, in_registers, maps = schedule
    body = (f"#diffattn.gpu_forward<placement = {placement}, warps = {warps}, row_tiles = {tiles}, kv_block_size = {keys}, "
            f"stages = {stages}, q_in_registers = {in_registers}>")
    text = ""
    for number, feature in enumerate(features):
        attrs, operands = FEATURES[feature]
        variant = ("search", d, dv, HEADS[maps], False, ["is_causal", f"schedules = [{body}]", *attrs], operands)
        text += attention(f"{name}_{number}", element, variant, "?")
    return text


def assemble(opt, wanted, chips, types, features):
    """(d, dv, schedule) -> column -> registers, over all chips and types; and the shared memory of each."""
    result, shared = {}, shared_bytes(opt, wanted)
    keys = {(d, dv, f"{s[0]}{s[1]}x{s[2]}_k{s[3]}s{s[4]}{'q' if s[5] == 'true' else ''}", s[6]): (d, dv, s) for d, dv, s in wanted}
    for chip, element in itertools.product(chips, types):
        text = "".join(functions(f"f{n}", d, dv, s, element, features) for n, (d, dv, s) in enumerate(wanted)
                       if fits(chip, shared[d, dv, s]))
        with tempfile.TemporaryDirectory() as folder:
            rows = report(opt, chip, text, folder)
        for name, registers, spills, _, _ in rows:
            d, dv, written, schedule, one, feature = re.fullmatch(
                r"diffattn_forward_(\d+)x(\d+)_b?f16_(to_f32)?_?(\w+?_k\d+s\dq?)(_onemap)?_?(\w*)", name).groups()
            elementwise = feature.endswith("anystride")
            feature = written or re.sub(r"_?anystride|_weightb?f16|b?f16", "", feature)
            if which := column(feature, elementwise):
                cell = result.setdefault(keys[int(d), int(dv), schedule, 1 if one else 2], {}).setdefault(which, [])
                cell.append(0 if spills else registers)
    return {key: {c: max(v) if min(v) else 0 for c, v in cells.items()} for key, cells in result.items()}, shared


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("widths", type=int, nargs="*", metavar="d dv")
    parser.add_argument("--table", action="store_true", help="assemble the rows of the table")
    parser.add_argument("--opt", default=str(ROOT / "build/bin/diffattn-opt"))
    parser.add_argument("--chips", default="sm_80,sm_86,sm_90")
    parser.add_argument("--types", default="bf16")
    parser.add_argument("--one-map", action="store_true", help="schedules for one map, of the widths that are given")
    parser.add_argument("--plain", action="store_true", help="without the features: faster")
    args = parser.parse_args()
    if args.table == bool(args.widths) or len(args.widths) not in (0, 2):
        parser.error("expected d and dv, or --table")
    known = {}
    if args.table:
        for maps, d, dv, placement, warps, tiles, keys, stages, registers, cells in table_rows():
            schedule = (placement.lower(), int(warps), int(tiles), int(keys), int(stages), registers, maps)
            known[int(d), int(dv), schedule] = dict(zip(COLUMNS, map(int, cells.split(", "))))
    wanted = list(known) or [(*args.widths, s) for s in schedules(1 if args.one_map else 2)]
    cells_by_schedule, shared = assemble(args.opt, wanted, args.chips.split(","), args.types.split(","), [""] if args.plain else list(FEATURES))
    wrong = 0
    print(f"{'schedule':58} " + " ".join(f"{c:>{max(8, len(c))}}" for c in COLUMNS) + f" {'shared':>7} blocks")
    for (d, dv, s), cells in cells_by_schedule.items():
        if not any(cells.values()):
            continue
        blocks = "/".join(str(occupancy(chip, cells.get("plain") or 255, shared[d, dv, s], 32 * s[1])) for chip in args.chips.split(","))
        name = f"{{{d}, {dv}, k{s[0].capitalize()}, {s[1]}, {s[2]}, {s[3]}, {s[4]}, {s[5]}, ...}}"
        name += " of one map" * (s[6] == 1)
        expected = known.get((d, dv, s), cells)
        differs = any(cells[c] != expected[c] for c in cells)
        broken = any(expected[c] and not 0 < cells[c] <= expected[c] for c in cells)
        wrong += broken
        print(f"{name:58} " + " ".join(f"{cells.get(c, '-'):>{max(8, len(c))}}" for c in COLUMNS) + f" {shared[d, dv, s]:7} {blocks}"
              + (f"  {'WRONG in' if broken else 'not'} the file: {list(expected.values())}" if differs else ""))
    fitting = [key for key in known if any(fits(chip, shared[key]) for chip in args.chips.split(","))]
    if args.table and len(cells_by_schedule) != len(fitting):
        sys.exit(f"expected {len(fitting)} rows, but assembled {len(cells_by_schedule)}")
    return 1 if wrong else 0

