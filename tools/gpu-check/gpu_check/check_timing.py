"""The parts `forward`, `decode` and `module`: times of the packed ops and of peers, on the same tensors in the same process."""
import sys
import time

import torch

from . import exact_attention, operands, peers, timing

# Rows of the reference that are compared before anything is timed.
ROWS = 64
# Beyond this a contestant computes something else.
AGREES = 2e-2

# name, case, batch, queries, keys, seconds of samples.
WORK = {
    "forward": [
        ("full 4k", "time_full", 4, 4096, 4096, 6), ("full 16k", "time_full", 1, 16384, 16384, 7),
        ("causal 4k", "time_causal", 4, 4096, 4096, 6), ("causal 16k", "time_causal", 1, 16384, 16384, 6),
        ("causal 2k with tail", "time_causal_tail", 8, 2048, 2048, 6)],
    "decode": [("B32, 8k", "time_decode", 32, 1, 8192, 6), ("B1, 128k", "time_decode", 1, 1, 131072, 4)],
    "module": [("causal 4k with tail", "time_causal_tail", 1, 4096, 4096, 7)],
}
CONTESTANTS = {
    "forward": ["flash x4, kernels alone", "flash x4, eager tail", "cuDNN x2, eager tail", "cuDNN x2, compiled tail",
                "cuDNN x4, eager tail", "PyTorch's choice x2, eager tail", "Triton, both maps"],
    "decode": ["cuDNN x2, eager tail", "cuDNN x4, eager tail", "flash x4, eager tail", "PyTorch's choice x2, eager tail"],
    "module": ["naive, eager", "PyTorch's choice x2, eager tail", "Triton, both maps"],
}
SMALL = {"forward": [("causal 48", "time_causal", 1, 48, 48, 1)], "decode": [("B2, 40", "time_decode", 2, 1, 40, 1)],
         "module": [("causal 20 with tail", "time_causal_tail", 1, 20, 20, 1)]}
# Operands that a call reads or writes once.
READ = ("q1", "k1", "q2", "k2", "v", "o")


def nominal_flop(case, batch, tq, tk):
    """6 units of 2 * Tq * Tk * d for each pair of heads; half of it if causal."""
    whole = 6 * 2 * tq * tk * case.d * case.heads[0] * batch
    return whole // 2 if case.causal and tq > 1 else whole


def agrees(got, want, rows):
    if isinstance(got, list):  # kernels alone: nothing to compare
        return None
    return exact_attention.relative(got[:, :, rows], want)


def measure(launcher, clock, part, entry, seed, settings, deadline=None):
    """One row of the table: ours and its peers, as many as there is time for."""
    name, case_name, batch, tq, tk, seconds = entry
    case, device = launcher.cases[case_name], launcher.torch_device
    first = operands.make(case, batch, tq, tk, "dense", seed, device)
    bytes_of_one = sum(first[n].nbytes for n in READ)
    cache, free = settings["cache_bytes"], settings["free_bytes"]()
    count = 2 if launcher.simulated else timing.input_sets(bytes_of_one, cache, free)
    sets = [first] + [operands.make(case, batch, tq, tk, "dense", seed + i, device) for i in range(1, count)]
    calls = [launcher.prepare(case, tensors) for tensors in sets]
    rows = torch.randperm(tq, device=device)[:ROWS].sort().values
    want = exact_attention.exact(case, first, rows)[0]
    calls[0].run()
    launcher.device.wait()
    error = agrees(calls[0].fetch(first["o"]), want, rows)
    if not error <= AGREES:
        raise RuntimeError(f"{name}: expected our result near f64's, but its relative error is {error:.3g}")
    contestants, errors = {"diffattn": [call.run for call in calls]}, {"diffattn": error}
    refused = {}
    for peer in CONTESTANTS[part]:
        maker, which = peers.PEERS[peer]
        which = settings["backends"].get(peer, which)
        if not timing.time_left(deadline, seconds):
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
    times = {**timing.compare(clock, contestants, seconds), **refused}
    for call in calls:
        call.close()
    flop = nominal_flop(case, batch, tq, tk)
    for contestant, entry_times in times.items():
        if "median_s" in entry_times:
            entry_times.update(nominal_tflops=flop / entry_times["median_s"] / 1e12, relative_error=errors.get(contestant),
                               tb_per_s=bytes_of_one / entry_times["median_s"] / 1e12)
    return {"name": name, "case": case_name, "batch": batch, "queries": tq, "keys": tk, "input_sets": count,
            "bytes": bytes_of_one, "nominal_flop": flop, "times": times}


def run(launcher, clock, part, seed, settings, deadline=None):
    work = SMALL[part] if launcher.simulated else WORK[part]
    rows, failures = [], []
    for number, entry in enumerate(work):
        if deadline and time.monotonic() > deadline:
            failures.append(f"{entry[0]}: not reached in time")
            continue
        try:
            rows.append(measure(launcher, clock, part, entry, seed + 1000 * number, settings, deadline))
        except Exception as problem:
            failures.append(f"{entry[0]}: {type(problem).__name__}: {problem}"[:500])
    # Imported by the peer that uses it; not there without Triton.
    triton = sys.modules.get("triton_diff_attention")
    return {"clock": clock.name, "seed": seed, "triton_cuts": triton.chosen() if triton else {}, "rows": rows, "failures": failures}
