"""Gradients of a case: operands, those of f64 by the formulas of docs/spec.md, and those of two fused calls under autograd, which round
what they keep to the type of the operands."""
import math

import torch

from . import cases, exact_attention, operands

#: |error| / |gradient|, norms over all of a gradient, by the type of the operands.
GATES = {"f32": 2e-5, "f16": 1.5e-3, "bf16": 1e-2}
#: Against two fused calls: what a gradient's relative error may be worse by.
FACTOR = 1.25
#: Tails of tiles; a projection's layout; strides that no 16-byte copy can read; queries that see no key.
SHAPES = [("dense", 2, 197, 333), ("bthd", 1, 256, 512), ("odd", 2, 70, 131), ("dense", 1, 90, 40), ("odd", 1, 5, 130)]
SMALL_SHAPES = [("dense", 1, 19, 37), ("odd", 1, 8, 7)]


def make(case, batch, tq, tk, layout="dense", seed=0, device="cpu"):
    """The operands by name: those of operands.make, d_out, and full of NaNs what a forward call saves and the gradients, with the strides
    of what these are of."""
    tensors = operands.make(case, batch, tq, tk, layout, seed, device)
    generator = torch.Generator(device=device).manual_seed(seed + 1)
    result = tensors["o"]
    poisoned = lambda like: operands.place(*like.shape, layout, lambda *shape: torch.full(shape, math.nan, dtype=like.dtype, device=device))
    tensors["d_out"] = poisoned(result).copy_(torch.randn(result.shape, generator=generator, device=device))
    # Without an end, x is the result itself.
    tensors["x"] = poisoned(result) if case.norm or "gate" in case.extra else result
    tensors["lse1"] = torch.full(result.shape[:3], math.nan, device=device)
    if not case.one_map:
        tensors["o2"], tensors["lse2"] = poisoned(result), torch.full(tensors["q2"].shape[:3], math.nan, device=device)
    for name in case.results():
        of = tensors[name.removeprefix("d_")]
        tensors[name] = poisoned(of) if of.ndim == 4 else torch.full_like(of, math.nan)
    return tensors


def save_exact(case, tensors):
    """Writes what a forward call of f64 saves."""
    exact = exact_attention.exact(case, operands.for_reference(case, tensors))
    saved = {"x": exact.before[0], "lse1": exact.logarithms[0]}
    if not case.one_map:
        saved |= {"o2": exact.second[0], "lse2": exact.logarithms[1]}
    for name, rows in saved.items():
        tensors[name].copy_(operands.like_result(case, tensors, rows))


def compute(case, tensors, rounded=None):
    """Gradients by name in f64, and for each what its error is a part of: itself, but of lambda, where terms cancel, the sum of their
    magnitudes. `rounded`: the type to which two fused calls and the ops behind them round each result."""
    parts = _compute(case, operands.for_reference(case, tensors), rounded)
    if not case.packed:
        return parts

    def gather(name, x):
        of = tensors[name.removeprefix("d_")]
        if of.ndim < 3:  # all sequences have it
            return x
        bounds = tensors["cu_seqlens_k" if name in ("d_k1", "d_k2", "d_v") else "cu_seqlens_q"]
        return operands.together(x, bounds, axis=2 if of.ndim == 4 else 1)

    return tuple({name: gather(name, x) for name, x in part.items()} for part in parts)


def _compute(case, tensors, rounded):
    """That of batches: rows behind the end of a sequence have a gradient of zeros, and keys there are hidden."""
    step = (lambda x: x) if rounded is None else lambda x: x.to(rounded).double()
    heads, tq = case.heads[0], tensors["q1"].shape[2]
    rows = torch.arange(tq, device=tensors["q1"].device)
    seen = exact_attention.visible(case, tensors, rows)
    some = seen.any(-1, keepdim=True)
    wide = lambda name: exact_attention.spread(tensors[name], heads).double()
    gathered = lambda x, count: x.unflatten(1, (count, -1)).sum(2)
    values = wide("v")

    def weigh(q, k):
        """Weights of a map, and what is left of a score's gradient below the softcap."""
        scores = wide(q) @ wide(k).transpose(-1, -2) * cases.SCALE
        slope = None
        if case.softcap:
            part = torch.tanh(scores / case.softcap)
            scores, slope = case.softcap * part, 1 - part.square()
        if "bias" in tensors:
            scores = scores + tensors["bias"].double()
        scores = scores.masked_fill(~seen, -math.inf)
        return torch.where(some, torch.softmax(scores, -1), 0.0), slope

    maps = [weigh("q1", "k1")] if case.one_map else [weigh("q1", "k1"), weigh("q2", "k2")]
    outputs = [step(weights @ values) for weights, _ in maps]
    x = outputs[0]
    if not case.one_map:
        raw = exact_attention.lambdas(case, tensors, rows, heads).double()
        lam = torch.sigmoid(raw) if case.sigmoid else raw
        x = step(x - step(lam * outputs[1]))
    results, d_out = {}, tensors["d_out"].double()
    normal, root = x, None
    if case.norm:
        root = torch.sqrt(x.square().mean(-1, keepdim=True) + cases.EPS)
        normal = step(x / root)
    weight = case.out_scale * (tensors["weight"].double() if "weight" in tensors else 1.0)
    d_end = d_out
    if "gate" in tensors:
        gate = torch.sigmoid(tensors["gate"].double())
        results["d_gate"] = step(d_out * weight * normal * gate * (1 - gate))
        d_end = step(d_out * gate)
    if "weight" in tensors:
        results["d_weight"] = step((case.out_scale * d_end * normal).sum((0, 1, 2)))
    d_x = step(weight * d_end)
    if case.norm:
        d_x = step((d_x - normal * (d_x * normal).mean(-1, keepdim=True)) / root)
    sizes = {}
    if not case.one_map:
        terms = -d_x * outputs[1] * (lam * (1 - lam) if case.sigmoid else 1.0)
        like_lambda = lambda x: (x.sum() if tensors["lambda"].ndim == 0 else x.sum((0, 2, 3)) if tensors["lambda"].ndim == 1
                                 else x.sum(3).transpose(1, 2))
        results["d_lambda"], sizes["d_lambda"] = like_lambda(terms), like_lambda(terms.abs())
    results["d_v"] = 0.0
    for number, ((weights, slope), output) in enumerate(zip(maps, outputs), 1):
        d_output = step(-lam * d_x) if number == 2 else d_x
        d_scores = weights * (d_output @ values.transpose(-1, -2) - (d_output * output).sum(-1, keepdim=True))
        d_scores = step(d_scores if slope is None else d_scores * slope)
        of_keys = gathered(step(cases.SCALE * d_scores.transpose(-1, -2) @ wide(f"q{number}")), tensors[f"k{number}"].shape[1])
        name = "d_k1" if case.shared_keys else f"d_k{number}"
        results[name] = results.get(name, 0.0) + step(of_keys)
        results[f"d_q{number}"] = step(gathered(step(cases.SCALE * d_scores @ wide(f"k{number}")), tensors[f"q{number}"].shape[1]))
        results["d_v"] = results["d_v"] + step(gathered(step(step(weights).transpose(-1, -2) @ d_output), tensors["v"].shape[1]))
    results = {name: results[name] if name == "d_lambda" else step(results[name]) for name in case.results()}
    return results, {**results, **sizes}


def relative(got, want, sizes):
    """The norm of the error over that of `sizes`; infinite where something is not finite."""
    error = float((got.double() - want).norm() / sizes.norm().clamp_min(1e-300))
    return error if math.isfinite(error) else math.inf


def check(launcher, case, layout, batch, tq, tk, seed):
    """One call and what came of it: as check_kernels.check, with the worst gradient's error."""
    tensors = make(case, batch, tq, tk, layout, seed, launcher.torch_device)
    save_exact(case, tensors)
    call = launcher.prepare(case, tensors)
    try:
        call.run()
        launcher.device.wait()
        got = {name: call.fetch(tensors[name]).clone() for name in case.results()}
        poison = all(operands.stays_poisoned(tensors[name]) for name in case.results() if tensors[name].ndim == 4)
        call.run()
        launcher.device.wait()
        again = {name: call.fetch(tensors[name]) for name in case.results()}
        changed = [name for name in case.results() if not torch.equal(got[name], again[name])]
    finally:
        call.close()
    exact, sizes = compute(case, tensors)
    peer, _ = compute(case, tensors, operands.TYPES[case.element])
    gate = GATES[case.element]
    failures, errors, peers = [], {}, {}
    for name in case.results():
        errors[name], peers[name] = (relative(of[name], exact[name], sizes[name]) for of in (got, peer))
        if not errors[name] <= gate:
            failures.append(f"{name}: relative error {errors[name]:.3g}, allowed {gate:g}")
        # Terms of lambda cancel; f32's errors are of sums, in orders that differ.
        if name != "d_lambda" and case.element != "f32" and not errors[name] <= FACTOR * peers[name]:
            failures.append(f"{name}: relative error {errors[name]:.3g}, {errors[name] / max(peers[name], 1e-300):.2f} times that of two calls")
    failures += [f"{name}: other bits in a second call" for name in changed]
    if not poison:
        failures.append("wrote beside its rows")
    worst = max(errors, key=errors.get)
    return {"case": case.name, "layout": layout, "batch": batch, "queries": tq, "keys": tk, "seed": seed, "kernels": call.kernels,
            "error_over_m": errors[worst], "allowed": gate, "relative_error": errors[worst], "peer_relative_error": peers[worst],
            "errors": errors, "peer_errors": peers, "failures": failures}
