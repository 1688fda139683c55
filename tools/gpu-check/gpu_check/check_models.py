"""The part `models`, first half: the small models of the pack give what the CPU gave, decode steps what a prefill gives, and tiny-lm the
same tokens. Needs NumPy."""
import sys
from pathlib import Path

from .journal import Journal

ROOT = Path(__file__).resolve().parents[3]
# A greedy token of tiny-lm, whose matrices are bf16, is sure if it leads by this part of the logits' largest magnitude.
LEAD = 2e-2
# Seconds that a model takes at most; on the simulator nothing hangs.
LIMIT, SIMULATED_LIMIT = 40, 1200


def open_model(pack, entry, opened, weights=None):
    """A packed bundle. `opened`: the device table to run on, None for the GPU."""
    # The Python package of the source tree that this file is in.
    if str(ROOT / "python") not in sys.path:
        sys.path.append(str(ROOT / "python"))
    from diffattn import bundle
    if weights is None and "weights" in entry:
        weights = ROOT / entry["weights"]
    device = opened.pointer.value if opened else None
    return bundle.load(pack.folder / entry["folder"], weights=weights, device=device)


def farthest(got, want):
    """The largest error of a row, along the last axis, as a part of the row's norm."""
    import numpy as np

    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        return float("inf")
    error = (np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)).max()
    return float(error) if np.isfinite(error) else float("inf")


def _prefill(model, ids, lengths, capacity):
    import numpy as np

    padded = np.where(np.arange(int(lengths.max())) < lengths[:, None], ids[:, :int(lengths.max())], 0)
    logits, *caches = model.call("prefill", padded, lengths, *model.new_caches(len(ids), capacity))
    return logits, caches


def decoder_errors(model, answers):
    """(what, error) of a decoder: prefill of ragged prompts, steps after it, the same steps from a graph, and a prefill that goes as
    far as the steps did."""
    import numpy as np

    ids, lengths, expected = answers["inputs"], answers["lengths"], answers["expected"]
    rows, steps = np.arange(len(ids)), ids.shape[1] - int(lengths.max())
    logits, caches = _prefill(model, ids, lengths, ids.shape[1])
    yield "prefill", farthest(logits, expected[rows, lengths - 1])
    worst = 0.0
    for step in range(steps):
        logits, *caches = model.call("decode", ids[rows, lengths + step], lengths + step, *caches)
        worst = max(worst, farthest(logits, expected[rows, lengths + step]))
    yield "decode", worst
    _, caches = _prefill(model, ids, lengths, ids.shape[1])
    tokens, positions, worst = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), 0.0
    captured = model.executable.capture("decode", tokens, positions, *caches)
    for step in range(steps):
        tokens[:], positions[:] = ids[rows, lengths + step], lengths + step
        worst = max(worst, farthest(captured()[0], expected[rows, lengths + step]))
    if captured.fallback_reason:
        raise RuntimeError(f"expected decode to be captured, but got: {captured.fallback_reason}")
    yield "decode from a graph", worst
    again, _ = _prefill(model, ids, lengths + steps, ids.shape[1])
    yield "decode against prefill", farthest(logits, again)


def check_small(model, entry, answers):
    """One result for each thing that was compared."""
    inputs = answers["inputs"]
    errors = [("forward", farthest(model.forward(inputs), answers["expected"]))]
    errors += decoder_errors(model, answers) if entry["decoder"] else []
    return [{"model": entry["name"], "what": what, "error": error, "allowed": entry["allowed"]} for what, error in errors]


def check_tokens(model, entry, count=None):
    """tiny-lm's greedy tokens. A token that leads by less than the logits may be off ends the comparison of its prompt."""
    prompts = entry["prompts"]
    count = count or len(prompts[0]["tokens"])
    got = [[] for _ in prompts]
    for row, token in model.generate([prompt["ids"] for prompt in prompts], count):
        got[row].append(token)
    results = []
    for prompt, tokens in zip(prompts, got):
        sure = next((i for i, lead in enumerate(prompt["leads"]) if lead < LEAD), count)
        same = next((i for i, pair in enumerate(zip(tokens, prompt["tokens"])) if pair[0] != pair[1]), count)
        results.append({"model": "tiny-lm", "what": f"tokens after {prompt['text']!r}", "same": same, "of": count, "sure": min(sure, count)})
    return results


def failures_of(results):
    failures = []
    for result in results:
        name = f"{result['model']} {result['what']}"
        if "error" in result and not result["error"] <= result["allowed"]:
            failures.append(f"{name}: error {result['error']:.3g} of a row's norm, allowed {result['allowed']:g}")
        if "same" in result and result["same"] < result["sure"]:
            failures.append(f"{name}: {result['same']} of {result['of']} are the CPU's, and {result['sure']} had to be")
    return failures


def _check(pack, entry, opened, tokens):
    import numpy as np

    model = open_model(pack, entry, opened)
    if entry["name"] == "tiny-lm":
        return check_tokens(model, entry, tokens)
    return check_small(model, entry, np.load(pack.folder / entry["answers"]))


def run(pack, opened, tokens=None, journal=None):
    """Every model of the pack but the one that is timed; `tokens` of tiny-lm, by default all that were packed."""
    results, failures, journal = [], [], journal or Journal()
    for entry in pack.manifest["models"]:
        if entry["name"] == "decoder":
            continue
        outcome, failed = journal.run(entry["name"], SIMULATED_LIMIT if opened else LIMIT,
                                      lambda entry=entry: _check(pack, entry, opened, tokens))
        results += outcome or []
        failures += failed
    return results, failures + failures_of(results)
