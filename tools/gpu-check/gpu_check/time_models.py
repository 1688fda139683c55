"""The part `models`, second half: a DiffLlama of some hundred million parameters against the same model in PyTorch, on the same random
weights and caches: prompts of two lengths and one token after contexts of two lengths.
"""
import tempfile
import time
from pathlib import Path

import torch

from . import safetensors_file, timing
from .check_models import open_model
from .journal import Journal
from .results import OURS
from .torch_decoder import TorchDecoder

# name, tokens of the call, context that it ends at, seconds of samples.
WORK = [("prefill 512", 512, 512, 6), ("prefill 2048", 2048, 2048, 6), ("decode at 512", 1, 512, 6), ("decode at 8k", 1, 8192, 6)]
SMALL = [("prefill 12", 12, 12, 1), ("decode at 24", 1, 24, 1)]
# Both errors against f32 are those of bf16, in other orders: so much larger than the peer's may ours be.
FACTOR = 1.5
# Seconds of opening it, and of a row beside its samples: references, and compilers of peers.
LIMIT = 90
AGAIN = "diffattn, one graph"
EAGER, GRAPH, COMPILED = "PyTorch, eager", "PyTorch, eager, CUDA graph", "PyTorch, compiled, CUDA graph"


def make_weights(header, path, seed, device):
    """Random weights of a header: written to `path`, and as tensors of bf16 on `device`, by name."""
    generator = torch.Generator(device=device).manual_seed(seed)
    tensors = {}
    with open(path, "wb") as file:
        file.write(header)
        for name, entry in safetensors_file.entries(header).items():
            values = torch.randn(entry["shape"], generator=generator, device=device)
            values = 1 + values / 10 if "norm" in name else values / 10 if "lambda" in name else values * entry["shape"][-1] ** -0.5
            tensors[name] = values.to(torch.bfloat16)
            file.write(tensors[name].cpu().view(torch.int16).numpy().tobytes())
    return tensors


def make_caches(model, capacity, seed, device):
    """Caches of the model's shapes with keys and values of unit size, as tensors."""
    generator = torch.Generator(device=device).manual_seed(seed)
    arguments, _ = model.executable.signature("decode")
    return [torch.randn([cache.shape[0], 1, capacity, *cache.shape[3:]], generator=generator, device=device).to(torch.bfloat16)
            for cache in arguments if cache.in_place]


def ours(model, ids, context, caches, graph):
    """A call as `generate` makes it: tokens and positions from the host, caches in place, logits to the host; with `graph` as one
    graph, as steps are launched and prompts whose length came before. Returns a function that makes it, and one that says, after a
    call, how its work was launched."""
    import numpy as np

    tokens = ids.cpu().numpy()
    if not ids.is_cuda:  # the simulator's memory is not PyTorch's
        from diffattn.arrays import as_array
        from diffattn.device import DeviceArray
        caches = [DeviceArray.from_host(model.executable, as_array(cache)) for cache in caches]
    call = ("prefill", tokens, np.array([context])) if tokens.shape[1] > 1 else ("decode", tokens[:, 0].copy(), np.array([context - 1]))
    if not graph:
        return lambda: torch.from_numpy(model.call(*call, *caches)[0]), lambda: "one by one"
    step = model.executable.capture(*call, *caches)
    return (lambda: torch.from_numpy(step()[0])), lambda: f"one by one: {step.fallback_reason}" if step.fallback_reason else "as one graph"


def theirs(peer, ids, context, caches, graph):
    """A function that makes the peer's step; with `graph` replayed from a CUDA graph where there is a GPU."""
    def step():
        return peer.step(ids, context - ids.shape[1], *caches)

    if not graph or not ids.is_cuda:
        return lambda: step().cpu()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        logits = step()

    def replay():
        captured.replay()
        return logits.cpu()
    return replay


def _relative(got, want):
    return float((got.double().cpu() - want).norm() / want.norm())


def _bytes_read(tensors, caches, context):
    """Bytes that a step must read: every weight once, and the caches up to the context."""
    return sum(t.nbytes for t in tensors.values()) + sum(c.nbytes // c.shape[2] * context for c in caches)


def measure(entry, model, peers, exact, tensors, clock, seed, device, deadline=None):
    """One row: ours and its peers on the same tokens and caches, as many as there is time for."""
    name, length, context, seconds = entry
    ids = torch.randint(0, peers[EAGER][0].embedding.shape[0], (1, length), generator=torch.Generator().manual_seed(seed)).to(device)
    caches = make_caches(model, context, seed, device)
    want = exact.step(ids, context - length, *[cache.float() for cache in caches]).double().cpu()
    contestants, errors, refused = {}, {}, {}
    run, launches = ours(model, ids, context, [c.clone() for c in caches], length == 1)
    calls = {OURS: lambda: run}
    if length > 1:
        again, launches_again = ours(model, ids, context, [c.clone() for c in caches], True)
        calls[AGAIN] = lambda: again
    for peer, (decoder, graph) in peers.items():
        calls[peer] = lambda decoder=decoder, graph=graph: theirs(decoder, ids, context, [c.clone() for c in caches], graph)
    for contestant, make in calls.items():
        if contestant not in (OURS, AGAIN, EAGER) and not timing.time_left(deadline, seconds):
            refused[contestant] = timing.NO_TIME
            continue
        try:
            contestants[contestant] = [make()]
            errors[contestant] = _relative(contestants[contestant][0](), want)
        except Exception as problem:
            if contestant in (OURS, AGAIN):
                raise
            contestants.pop(contestant, None)
            refused[contestant] = {"refused": f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"[:300]}
    if EAGER in refused:
        raise RuntimeError(f"{EAGER}: {refused[EAGER]['refused']}")
    worst = max(errors[mine] for mine in (OURS, AGAIN) if mine in errors)
    if not worst <= FACTOR * errors[EAGER]:
        raise RuntimeError(f"expected logits as near to f32 as PyTorch's, whose relative error is {errors[EAGER]:.3g}, but got {worst:.3g}")
    if length > 1 and launches_again() != "as one graph":
        raise RuntimeError(f"expected a prompt that is launched as one graph, but got one that is launched {launches_again()}")
    times = {**timing.compare(clock, contestants, seconds), **refused}
    read = _bytes_read(tensors, caches, context)
    for contestant, reading in times.items():
        if "median_s" in reading:
            reading.update(relative_error=errors[contestant], tokens_per_s=length / reading["median_s"], tb_per_s=read / reading["median_s"] / 1e12)
    return {"name": name, "tokens": length, "context": context, "bytes": read, "launches": launches(), "times": times}


def _open(entry, pack, opened, seed):
    """The model, its peers and their weights, and what is said of them."""
    device = "cpu" if opened else "cuda"
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        tensors = make_weights((pack.folder / entry["header"]).read_bytes(), Path(folder) / entry["file"], seed, device)
        made = time.monotonic()
        model = open_model(pack, entry, opened, weights=folder)
        facts = {"parameters": sum(t.numel() for t in tensors.values()), "weights_made_s": made - begin, "opened_s": time.monotonic() - made}
    eager = TorchDecoder(entry["config"], tensors, torch.bfloat16)
    # Without a GPU the code is tried, not timed: no compiler is needed then.
    compiled = eager.compiled("eager" if opened else "inductor")
    peers = {EAGER: (eager, False), GRAPH: (eager, True), COMPILED: (compiled, True)}
    return (model, peers, TorchDecoder(entry["config"], tensors, torch.float32), tensors), facts


def run(pack, opened, clock, seed, deadline=None, journal=None):
    """The rows, and what failed."""
    entry = next((e for e in pack.manifest["models"] if e["name"] == "decoder"), None)
    if entry is None:
        return {"rows": []}, []
    contestants, journal = [], journal or Journal()

    def open_once():
        """Not at all in a process that finds every row done."""
        if not contestants:
            contestants.append(_open(entry, pack, opened, seed))
        return contestants[0]

    facts, failures = journal.run("decoder", LIMIT, lambda: open_once()[1])
    rows, failed = journal.run_rows(
        [(work[0], work[3] + LIMIT, lambda work=work, of=seed + 1000 * number: measure(
            work, *open_once()[0], clock, of, "cpu" if opened else "cuda", deadline))
         for number, work in enumerate((SMALL if opened else WORK) if facts else [])], deadline)
    return {**(facts or {}), "rows": rows}, failures + failed
