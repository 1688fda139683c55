"""The parts `forward`, `decode` and `module`: times of the packed ops and of peers, on the same tensors in the same process."""
import functools
import sys
import typing

import torch

from . import exact_attention, operands, peers, timing
from .journal import Journal
from .results import BLOCKS, BOTH_BLOCKS, BOTH_PERSISTENT, CLUSTERS, DENSE, ONE_MAP, OURS, OVERLAPPED, PERSISTENT, PLAIN

# Rows of the reference that are compared before anything is timed.
ROWS = 64
# Beyond this a contestant computes something else.
AGREES = 2e-2
# Seconds of a row beside its samples: references, and compilers of peers.
LIMIT = 90

#: Peers of a row.
FORWARD = ("flash x4, kernels alone", "flash x4, eager tail", "cuDNN x2, kernels alone", "cuDNN x2, eager tail", "cuDNN x2, compiled tail",
           "cuDNN x4, eager tail", "PyTorch's choice x2, eager tail", "Triton, both maps")
WIDER = ("cuDNN x2, kernels alone", "cuDNN x2, eager tail", "PyTorch's choice x2, eager tail")
DECODE = ("cuDNN x2, eager tail", "cuDNN x4, eager tail", "flash x4, eager tail", "PyTorch's choice x2, eager tail")
SINGLE = ("flash x1", "cuDNN x1", "PyTorch's choice x1")
MODULE = ("naive, eager", "PyTorch's choice x2, eager tail", "Triton, both maps")


class Row(typing.NamedTuple):
    """A timed case, the seconds of its samples, and its peers."""
    name: str
    case: str
    batch: int
    queries: int
    keys: int
    seconds: float
    peers: tuple
    others: tuple = ()  # contestants that are ours too: name, and a case that computes the same


WORK = {
    "forward": [
        Row("full 4k", "time_full", 4, 4096, 4096, 6, FORWARD,
            ((PERSISTENT, "time_full_persistent"), (ONE_MAP, "time_full_one_map"))),
        Row("full 16k", "time_full", 1, 16384, 16384, 7, FORWARD,
            ((OVERLAPPED, "time_full_overlap"), (BOTH_PERSISTENT, "time_full_persistent"), (BOTH_BLOCKS, "time_full_blocks"))),
        Row("causal 4k", "time_causal", 4, 4096, 4096, 6, FORWARD,
            ((OVERLAPPED, "time_causal_overlap"), (BLOCKS, "time_causal_blocks"), (ONE_MAP, "time_causal_one_map"))),
        Row("causal 16k", "time_causal", 1, 16384, 16384, 6, FORWARD,
            ((BOTH_PERSISTENT, "time_causal_persistent"), (BOTH_BLOCKS, "time_causal_blocks"))),
        Row("causal 2k with tail", "time_causal_tail", 8, 2048, 2048, 6, FORWARD),
        Row("(128,256) full 16k", "time_wide", 1, 16384, 16384, 4, WIDER,
            ((CLUSTERS, "time_wide_clusters"), (PERSISTENT, "time_wide_persistent"))),
        Row("(128,128) one K, full 16k", "time_one_k", 1, 16384, 16384, 4, WIDER, ((BLOCKS, "time_one_k_blocks"),)),
        Row("(128,128) one K, causal 16k", "time_one_k_causal", 1, 16384, 16384, 4, WIDER),
        Row("(128,128) of a single map, full 16k", "time_single", 1, 16384, 16384, 4, SINGLE),
        Row("(128,128) of a single map, causal 16k", "time_single_causal", 1, 16384, 16384, 4, SINGLE)],
    "decode": [Row("B32, 8k", "time_decode", 32, 1, 8192, 6, DECODE), Row("B1, 128k", "time_decode", 1, 1, 131072, 4, DECODE),
               Row("B32, 8k, pages of 64", "time_decode_pages", 32, 1, 8192, 4, (), ((DENSE, "time_decode"),)),
               Row("(128,256) B32, 8k", "time_decode_wide", 32, 1, 8192, 4, DECODE[:1] + DECODE[-1:]),
               Row("(128,128) of a single map, B32, 8k", "time_single_decode", 32, 1, 8192, 4, SINGLE)],
    "module": [Row("causal 4k with tail", "time_causal_tail", 1, 4096, 4096, 7, MODULE)],
}
SMALL = {"forward": [Row("causal 48", "time_causal", 1, 48, 48, 1, FORWARD)], "decode": [Row("B2, 40", "time_decode", 2, 1, 40, 1, DECODE),
                    Row("B2, 128, pages of 64", "time_decode_pages", 2, 1, 128, 1, (), ((DENSE, "time_decode"),))],
         "module": [Row("causal 20 with tail", "time_causal_tail", 1, 20, 20, 1, MODULE)]}
# Operands that a call reads or writes once.
READ = ("q1", "k1", "q2", "k2", "v", "o")


def nominal_flop(case, batch, tq, tk):
    """The products of the maps with K and V, for each head or pair of heads; half of it if causal. Of two maps with dv = 2 d, 6 units of
    2 * Tq * Tk * d."""
    whole = (1 if case.one_map else 2) * 2 * tq * tk * (case.d + case.dv) * case.heads[0] * batch
    return whole // 2 if case.causal and tq > 1 else whole


def bytes_moved(case, tensors):
    """Bytes that a call must read or write: each operand and the result once, and of pages those that keys are in."""
    in_pages = tensors["block_table"].numel() / tensors["v"].shape[0] if case.paged else 1
    return int(sum(tensors[name].nbytes * (in_pages if name in operands.BEHIND else 1)
                   for name in READ if name in tensors and (name != "k2" or not case.shared_keys)))


def agrees(got, want, rows):
    if isinstance(got, list):  # kernels alone: nothing to compare
        return None
    return exact_attention.relative(got[:, :, rows], want)


def measure(launcher, clock, row, seed, settings, deadline=None):
    """One row of the table: ours and its peers, as many as there is time for. Without ours there is none; another contestant of ours
    that fails is a failure of the row, which has the others all the same."""
    case, device, (batch, tq, tk) = launcher.cases[row.case], launcher.torch_device, row[2:5]
    first = operands.make(case, batch, tq, tk, "dense", seed, device)
    bytes_of_one = bytes_moved(case, first)
    cache, free = settings["cache_bytes"], settings["free_bytes"]()
    count = 2 if launcher.simulated else timing.input_sets(bytes_of_one, cache, free)
    sets = [first] + [operands.make(case, batch, tq, tk, "dense", seed + i, device) for i in range(1, count)]
    rows = torch.randperm(tq, device=device)[:ROWS].sort().values
    want = exact_attention.exact(case, operands.for_reference(case, first), rows).result
    contestants, errors, refused, calls, failures = {}, {}, {}, [], []
    ours = [(OURS, launcher, case, sets), (PLAIN, launcher.plain, case, sets)]
    ours += [(name, launcher, launcher.cases[other], [operands.for_reference(case, tensors) for tensors in sets])
             for name, other in row.others if other in launcher.functions]
    for name, of, what, inputs in ours:
        if not of:
            continue
        try:
            mine = [of.prepare(what, tensors) for tensors in inputs]
            calls += mine
            mine[0].run()
            launcher.device.wait()
            errors[name] = agrees(mine[0].fetch(inputs[0]["o"]), want, rows)
            if not errors[name] <= AGREES:
                raise RuntimeError(f"expected a result near f64's, but its relative error is {errors[name]:.3g}")
        except Exception as problem:
            if name == OURS:
                raise
            refused[name] = {"refused": f"{type(problem).__name__}: {problem}"[:300]}
            failures.append(f"{row.name}, {name}: {refused[name]['refused']}")
            continue
        contestants[name] = [call.run for call in mine]
    for peer in row.peers:
        maker, which = peers.PEERS[peer]
        which = settings["backends"].get(peer, which)
        if not timing.time_left(deadline, row.seconds):
            refused[peer] = timing.NO_TIME
            continue
        try:
            functions = [maker(case, tensors, which) for tensors in sets]
            errors[peer] = agrees(functions[0](), want, rows)
        except Exception as problem:  # a peer that does not take the shape must not end the others
            refused[peer] = {"refused": f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"[:300]}
            continue
        if errors[peer] is not None and not errors[peer] <= AGREES:
            refused[peer] = {"refused": f"its relative error is {errors[peer]:.3g}"}
            continue
        contestants[peer] = functions
    times = {**timing.compare(clock, contestants, row.seconds), **refused}
    for call in calls:
        call.close()
    flop = nominal_flop(case, batch, tq, tk)
    for contestant, entry_times in times.items():
        if "median_s" in entry_times:
            entry_times.update(nominal_tflops=flop / entry_times["median_s"] / 1e12, relative_error=errors.get(contestant),
                               tb_per_s=bytes_of_one / entry_times["median_s"] / 1e12)
    return {"name": row.name, "case": row.case, "batch": batch, "queries": tq, "keys": tk, "input_sets": count,
            "bytes": bytes_of_one, "nominal_flop": flop, "times": times, "failures": failures}


def run(launcher, clock, part, seed, settings, deadline=None, journal=None):
    work = SMALL[part] if launcher.simulated else WORK[part]
    rows, failures = (journal or Journal()).run_rows(
        [(row.name, row.seconds + LIMIT, functools.partial(measure, launcher, clock, row, seed + 1000 * number, settings, deadline))
         for number, row in enumerate(work)], deadline)
    # Imported by the peer that uses it; not there without Triton.
    triton = sys.modules.get("triton_diff_attention")
    return {"clock": clock.name, "seed": seed, "triton_cuts": triton.chosen() if triton else {}, "rows": rows, "failures": failures}
