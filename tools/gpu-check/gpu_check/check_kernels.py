"""The part `kernels`: every packed case against f64 and against PyTorch's composition, on fresh random inputs; gradients by
gradients.py."""
import math
import time

import torch

from . import exact_attention, generated, gradients, operands
from .journal import Journal

# layout, batch, queries, keys: tails of tiles; a projection's layout; strides that no 16-byte copy can read, or no tensor map; rows
# that see nothing; few queries, which decode; many keys, for which there are kernels of their own.
PREFILL = [("dense", 2, 197, 333), ("bthd", 1, 256, 512), ("odd", 2, 70, 131), ("shared", 2, 70, 131), ("dense", 1, 90, 40),
           ("dense", 2, 3, 700), ("shared", 2, 3, 130), ("odd", 1, 5, 130), ("dense", 1, 9, 8200)]
DECODE = [("dense", 2, 1, 700), ("bthd", 3, 1, 2049), ("odd", 1, 1, 513), ("shared", 2, 1, 300), ("dense", 1, 1, 1)]
SMALL_PREFILL = [("dense", 2, 19, 37), ("odd", 1, 6, 4)]
SMALL_DECODE = [("bthd", 1, 1, 530)]
# Against a peer that computes in the same type: what it may be worse by.
FACTOR = 1.1
# A case takes a second or two on a GPU; on the simulator nothing hangs.
LIMIT, SIMULATED_LIMIT = 20, 600


def check(launcher, case, layout, batch, tq, tk, seed):
    """One call and what came of it."""
    tensors = operands.make(case, batch, tq, tk, layout, seed, launcher.torch_device)
    call = launcher.prepare(case, tensors)
    try:
        call.run()
        launcher.device.wait()
        got = call.fetch(tensors["o"])
        saved = [(name, call.fetch(tensors[name])) for name in ("x", "o2") if name in tensors]
        logarithms = [(name, call.fetch(tensors[name])) for name in case.sums if name.startswith("lse")]
    finally:
        call.close()
    # In the usual layout, of which alone PyTorch's products are sure: with one query and odd rows, cuBLAS reads at odd addresses.
    known = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in operands.for_reference(case, tensors).items()}
    exact = exact_attention.exact(case, known)
    placed = lambda parts: [operands.like_result(case, tensors, part) for part in parts]
    expected = {name: exact_attention.Exact(*placed(parts)) for name, parts in (("x", exact.before), ("o2", exact.second)) if parts}
    exact = exact_attention.Exact(*placed(exact[:3]), placed(exact.logarithms))
    composed = operands.like_result(case, tensors, exact_attention.composition(case, known))
    error, ours = exact_attention.measured(got, exact, tensors["q1"].dtype), exact_attention.relative(got, exact.result)
    peer = exact_attention.relative(composed, exact.result)
    gate = exact_attention.GATES[case.element]
    failures = []
    if not error <= gate:
        failures.append(f"error {error:.3g} of M, allowed {gate:g}")
    # f32: both are near the least error there can be, and which is nearer is chance.
    if case.element != "f32" and not ours <= FACTOR * peer:
        failures.append(f"relative error {ours:.3g}, {ours / max(peer, 1e-300):.2f} times PyTorch's")
    for name, rows in saved:
        if not (off := exact_attention.measured(rows, expected[name], tensors["q1"].dtype)) <= gate:
            failures.append(f"{name}: error {off:.3g} of M, allowed {gate:g}")
    for name, log in logarithms:
        off = exact_attention.log_error(log, exact.logarithms[name == "lse2"])
        if not off <= exact_attention.LOG_GATES[case.element]:
            failures.append(f"{name}: error {off:.3g} of 1 + |lse|, allowed {exact_attention.LOG_GATES[case.element]:g}")
    if not operands.stays_poisoned(got):
        failures.append("wrote beside its rows")
    return {"case": case.name, "layout": layout, "batch": batch, "queries": tq, "keys": tk, "seed": seed, "kernels": call.kernels,
            "error_over_m": error, "allowed": gate, "relative_error": ours, "peer_relative_error": peer, "failures": failures}


def check_generated(launcher, item, rows, aligned, seed):
    """One call of a generated kernel: its error as a part of what is allowed."""
    tensors = generated.make(item, rows, aligned, seed, launcher.torch_device)
    outputs = generated.expected(item, tensors)
    call = launcher.prepare_function(item.name, tensors, offsets=False)
    try:
        call.run()
        launcher.device.wait()
        errors = []
        for place, want, allowed in outputs:
            got = call.fetch_result(operands.TYPES[item.element]) if place is None else call.fetch(tensors[place])
            errors.append(float(((got.double() - want).abs() / allowed).nan_to_num(math.inf).max()))
    finally:
        call.close()
    failures = [] if max(errors) <= 1 else [f"error {max(errors):.3g} times what is allowed"]
    return {"case": item.name, "layout": "aligned" if aligned else "not aligned", "batch": 1, "queries": rows, "keys": item.width,
            "seed": seed, "kernels": call.kernels, "error_over_m": max(errors), "allowed": 1.0, "failures": failures}


def run(launcher, seed, deadline=None, journal=None):
    """All cases by all kernels that the chip runs: those for it alone first. Stops with a failure at `deadline` (of time.monotonic)."""
    journal = journal or Journal()
    images = [_run_image(of, seed, deadline, journal) for of in (launcher, launcher.plain) if of]
    return {"image": ", ".join(image["image"] for image in images), "seed": seed,
            **{key: sum(image[key] for image in images) for key in ("checks", "kernels")},
            **{key: [entry for image in images for entry in image[key]] for key in ("failures", "results")}}


def _units(launcher, seed):
    """Name -> a function that checks one case in all its shapes."""
    small = launcher.simulated
    for number, case in enumerate(launcher.cases.values()):
        if (case.use == "time" and small) or case.name not in launcher.functions:
            continue
        shapes = (SMALL_DECODE if small else DECODE) if case.queries else (SMALL_PREFILL if small else PREFILL)
        yield case.name, lambda case=case, shapes=shapes, first=seed + 101 * number: [
            check(launcher, case, *shape, first + i) for i, shape in enumerate(shapes)]
    for number, case in enumerate(launcher.gradients.values()):
        if case.use == "time" and small:
            continue
        yield case.name, lambda case=case, first=seed + 103 * number: [
            gradients.check(launcher, case, *shape, first + i) for i, shape in enumerate(gradients.SMALL_SHAPES if small else gradients.SHAPES)]
    for number, item in enumerate(launcher.generated):
        yield item.name, lambda item=item, of=seed + 7 * number: [
            check_generated(launcher, item, 3 if small else 333, aligned, of) for aligned in (True, False)]


def _run_image(launcher, seed, deadline, journal):
    results, failed, left_out = [], [], []
    image = f"{launcher.image['chip']} {launcher.image['format']}"
    for name, unit in _units(launcher, seed):
        if deadline and time.monotonic() > deadline and f"{image}: {name}" not in journal.done:
            left_out.append(name)
            continue
        outcome, failures = journal.run(f"{image}: {name}", SIMULATED_LIMIT if launcher.simulated else LIMIT, unit)
        results += outcome or []
        failed += failures
    failed += [f"{image}: {r['case']} {r['layout']} {r['batch']}x{r['queries']}x{r['keys']}: {f}" for r in results for f in r["failures"]]
    failed += [f"{image}: {name}: not reached in time" for name in left_out]
    ran = {kernel for result in results for kernel in result["kernels"]}
    unused = [k["name"] for k in launcher.kernels if k["name"] not in ran]
    if unused and not launcher.simulated and not failed:
        failed.append(f"{image}: no call chose {', '.join(unused)}")
    return {"image": image, "checks": len(results), "kernels": len(ran), "failures": failed, "results": [{"image": image, **r} for r in results]}
