"""The part `kernels`: every packed case against f64 and against PyTorch's composition, on fresh random inputs."""
import math
import time

from . import exact_attention, generated, operands

# layout, batch, queries, keys: tails of tiles; a projection's layout; strides that no 16-byte copy can read, or no tensor map; rows
# that see nothing; few queries, which decode.
PREFILL = [("dense", 2, 197, 333), ("bthd", 1, 256, 512), ("odd", 2, 70, 131), ("shared", 2, 70, 131), ("dense", 1, 90, 40),
           ("dense", 2, 3, 700), ("shared", 2, 3, 130), ("odd", 1, 5, 130)]
DECODE = [("dense", 2, 1, 700), ("bthd", 3, 1, 2049), ("odd", 1, 1, 513), ("shared", 2, 1, 300), ("dense", 1, 1, 1)]
SMALL_PREFILL = [("dense", 2, 19, 37), ("odd", 1, 6, 4)]
SMALL_DECODE = [("bthd", 1, 1, 530)]
# Against a peer that computes in the same type: what it may be worse by.
FACTOR = 1.1


def check(launcher, case, layout, batch, tq, tk, seed):
    """One call and what came of it."""
    tensors = operands.make(case, batch, tq, tk, layout, seed, launcher.torch_device)
    call = launcher.prepare(case, tensors)
    try:
        call.run()
        launcher.device.wait()
        got = call.fetch(tensors["o"])
    finally:
        call.close()
    known = operands.for_reference(case, tensors)
    want, m, composed = (operands.like_result(case, tensors, x)
                         for x in (*exact_attention.exact(case, known), exact_attention.composition(case, known)))
    error, ours = exact_attention.measured(got, want, m), exact_attention.relative(got, want)
    peer = exact_attention.relative(composed, want)
    gate = exact_attention.GATES[case.element]
    failures = []
    if not error <= gate:
        failures.append(f"error {error:.3g} of M, allowed {gate:g}")
    # f32: both are near the least error there can be, and which is nearer is chance.
    if case.element != "f32" and not ours <= FACTOR * peer:
        failures.append(f"relative error {ours:.3g}, {ours / max(peer, 1e-300):.2f} times PyTorch's")
    if not operands.stays_poisoned(got):
        failures.append("wrote beside its rows")
    return {"case": case.name, "layout": layout, "batch": batch, "queries": tq, "keys": tk, "seed": seed, "kernels": call.kernels,
            "error_over_m": error, "allowed": gate, "relative_error": ours, "peer_relative_error": peer, "failures": failures}


def check_generated(launcher, item, rows, aligned, seed):
    """One call of a generated kernel: its error as a part of what is allowed."""
    tensors, outputs = generated.make(item, rows, aligned, seed, launcher.torch_device)
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


def run(launcher, seed, deadline=None):
    """All cases by all kernels that the chip runs: those for it alone first. Stops with a failure at `deadline` (of time.monotonic)."""
    images = [_run_image(of, seed, deadline) for of in (launcher, launcher.plain) if of]
    return {"image": ", ".join(image["image"] for image in images), "seed": seed,
            **{key: sum(image[key] for image in images) for key in ("checks", "kernels")},
            **{key: [entry for image in images for entry in image[key]] for key in ("failures", "results")}}


def _run_image(launcher, seed, deadline):
    results, left_out = [], []
    image = f"{launcher.image['chip']} {launcher.image['format']}"
    for number, case in enumerate(launcher.cases.values()):
        if (case.use == "time" and launcher.simulated) or case.name not in launcher.functions:
            continue
        small = launcher.simulated
        shapes = (SMALL_DECODE if small else DECODE) if case.queries else (SMALL_PREFILL if small else PREFILL)
        if deadline and time.monotonic() > deadline:
            left_out.append(case.name)
            continue
        results += [check(launcher, case, *shape, seed + 101 * number + i) for i, shape in enumerate(shapes)]
    for number, item in enumerate(launcher.generated):
        if deadline and time.monotonic() > deadline:
            left_out.append(item.name)
            continue
        rows = 3 if launcher.simulated else 333
        results += [check_generated(launcher, item, rows, aligned, seed + 7 * number) for aligned in (True, False)]
    failed = [f"{r['case']} {r['layout']} {r['batch']}x{r['queries']}x{r['keys']}: {f}" for r in results for f in r["failures"]]
    failed += [f"{name}: not reached in time" for name in left_out]
    ran = {kernel for result in results for kernel in result["kernels"]}
    unused = [k["name"] for k in launcher.kernels if k["name"] not in ran]
    if unused and not launcher.simulated and not left_out:
        failed.append(f"no call chose {', '.join(unused)}")
    return {"image": image, "checks": len(results), "kernels": len(ran), "failures": [f"{image}: {f}" for f in failed],
            "results": [{"image": image, **r} for r in results]}
