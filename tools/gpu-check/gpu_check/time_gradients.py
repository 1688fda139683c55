"""The part `backward`: times of the packed gradients, and of PyTorch's attention under autograd on the same tensors in the same process.

Rows come in the order of their value: what there is no time for is at the end."""
import contextlib
import dataclasses
import functools
import typing

import torch

from . import cases, check_timing, exact_attention, gradients, peers, timing
from .journal import Journal
from .results import OURS, PLAIN

#: Seconds of a row beside its samples: the reference, and plans of peers.
LIMIT = 90
#: Tensors that a call reads or writes once.
MOVED = ("q1", "k1", "q2", "k2", "v", "d_out", "x", "o2")
#: Gradients that every contestant makes.
COMPARED = ("d_q1", "d_k1", "d_q2", "d_k2", "d_v")


class Row(typing.NamedTuple):
    """A timed case, the seconds of its samples, and its peers. `whole`: the forward call as well."""
    name: str
    case: str
    batch: int
    length: int
    seconds: float
    peers: tuple
    whole: bool = False


class Peer(typing.NamedTuple):
    """Calls of scaled_dot_product_attention by a backend: two, or four on halves of V. `tail`: their difference belongs to it, else each has
    the gradient of its own output."""
    backend: str
    halves: bool = False
    deterministic: bool = False
    tail: bool = False


PEERS = {
    "cuDNN x2, kernels alone": Peer("cudnn"),
    "cuDNN x2, kernels alone, deterministic": Peer("cudnn", deterministic=True),
    "flash x4, kernels alone": Peer("flash", halves=True),
    "flash x4, kernels alone, deterministic": Peer("flash", halves=True, deterministic=True),
    "flash x2, kernels alone": Peer("flash"),
    "flash x2, kernels alone, deterministic": Peer("flash", deterministic=True),
    "cuDNN x2, eager tail": Peer("cudnn", tail=True),
    "flash x4, eager tail": Peer("flash", halves=True, tail=True),
}
WIDER = ("cuDNN x2, kernels alone", "flash x4, kernels alone", "flash x4, kernels alone, deterministic", "cuDNN x2, kernels alone, deterministic")
ONE_K = tuple(name.replace("flash x4", "flash x2") for name in WIDER)
WHOLE = ("cuDNN x2, kernels alone", "cuDNN x2, eager tail", "flash x4, kernels alone", "flash x4, eager tail")
WORK = [
    Row("causal 16k", "time_causal_gradients", 1, 16384, 8, WIDER), Row("full 16k", "time_full_gradients", 1, 16384, 8, WIDER),
    Row("(128,128) one K, causal 16k", "time_one_k_causal_gradients", 1, 16384, 6, ONE_K),
    Row("causal 4k, forward and backward", "time_causal_gradients", 4, 4096, 6, WHOLE, whole=True),
    Row("(128,128) one K, full 16k", "time_one_k_gradients", 1, 16384, 6, ONE_K),
    Row("causal 4k", "time_causal_gradients", 4, 4096, 6, WIDER),
    Row("causal 2k, forward and backward", "time_causal_gradients", 8, 2048, 6, WHOLE, whole=True)]
SMALL = [Row("causal 20", "time_causal_gradients", 1, 20, 1, WIDER),
         Row("(128,128) one K, causal 9, forward and backward", "time_one_k_causal_gradients", 1, 9, 1, ("cuDNN x2, eager tail",), whole=True)]


class EventClock(timing.CudaClock):
    """Calls as the host makes them, timed by events: autograd's are not captured. Each call takes the GPU longer than the host."""

    name = "events around calls"
    warm_up_calls, calls = 6, 50

    def prepare(self, calls):
        def replay():
            for call in calls:
                call()
        replay()
        torch.cuda.synchronize()
        return replay, len(calls)


@contextlib.contextmanager
def deterministic_algorithms(wanted):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def peer_call(peer, case, tensors, backend, whole):
    """A function that makes the gradients of q1, k1, q2, k2 and v, of the halves of V where these are operands of their own."""
    leaves = [tensors[name].detach().requires_grad_() for name in ("q1", "k1", "q2")]
    leaves.append(leaves[1] if case.shared_keys else tensors["k2"].detach().requires_grad_())
    half = case.dv // 2 if peer.halves else case.dv
    values = [tensors["v"][..., at:at + half].contiguous().detach().requires_grad_() for at in range(0, case.dv, half)]
    q1, k1, q2, k2 = leaves
    lam, d_out = tensors["lambda"].to(q1.dtype), tensors["d_out"]
    parts = d_out.split(half, -1)
    ends = [d_out] if peer.tail else [part.contiguous() for part in parts] + [(-lam * part).contiguous() for part in parts]
    wanted = [*leaves[:3], *([] if case.shared_keys else [k2]), *values]

    def forward():
        with peers.backend(backend):
            rows = [peers.sdpa(q, k, v, is_causal=case.causal, scale=cases.SCALE) for q, k in ((q1, k1), (q2, k2)) for v in values]
        if not peer.tail:
            return rows
        first, second = (torch.cat(of, -1) if peer.halves else of[0] for of in (rows[:len(values)], rows[len(values):]))
        return [first - lam * second]

    made = None if whole else forward()

    def call():
        with deterministic_algorithms(peer.deterministic):
            gradients = torch.autograd.grad(forward() if whole else made, wanted, ends, retain_graph=not whole)
        of_maps = gradients[:len(gradients) - len(values)]
        names = [name for name in COMPARED if not (case.shared_keys and name == "d_k2")]
        return dict(zip(names, [*of_maps, gradients[len(of_maps):]], strict=True))

    return call


def of_head(case, tensors, batch, head):
    """The case of one head of each operand, and its operands."""
    one = {name: t[batch:batch + 1, head:head + 1] if t.ndim == 4 else t for name, t in tensors.items() if not name.startswith("lse")}
    return dataclasses.replace(case, heads=(1,) * 5), one


def error_of(got, want, batch, head):
    """The worst gradient's relative error."""
    whole = {name: torch.cat(list(g), -1) if isinstance(g, (tuple, list)) else g for name, g in got.items()}
    return max(exact_attention.relative(g[batch:batch + 1, head:head + 1], want[name]) for name, g in whole.items())


def repeats(call):
    """Whether two calls give the same bits."""
    flat = lambda result: [g.clone() for of in result.values() for g in (of if isinstance(of, (tuple, list)) else [of])]
    return all(torch.equal(a, b) for a, b in zip(flat(call()), flat(call()), strict=True))


def nominal_flop(case, batch, length, whole):
    """The products of each map with its keys, its queries and dX, and of dX with values and both maps' weights; half of it if causal. Of
    two maps with dv = 2 d, 10 units of 2 * T * T * d."""
    products = 2 * length * length * (6 * case.d + 2 * case.dv) * case.heads[0] * batch
    flop = products // 2 if case.causal else products
    return flop + check_timing.nominal_flop(case, batch, length, length) if whole else flop


def _ours(launcher, case, tensors, whole, calls):
    """A function that makes ours, behind a forward call that has saved what it reads. Gradients, where that is on the host, are fetched."""
    forward = launcher.prepare(launcher.cases[case.forward], tensors)
    forward.run()
    launcher.device.wait()
    for name in launcher.cases[case.forward].operands():
        if name in ("o", "lse1", "lse2", "o2"):
            forward.fetch(tensors[name])
    backward = launcher.prepare(case, tensors)
    calls += [forward, backward]

    def run():
        if whole:
            forward.run()
        backward.run()

    def call():
        run()
        launcher.device.wait()
        return {name: backward.fetch(tensors[name]) for name in case.results() if name in COMPARED}
    return run, call


def measure(launcher, clock, row, seed, settings, deadline=None):
    """One row of the table: ours and its peers, as many as there is time for."""
    case, device = launcher.gradients[row.case], launcher.torch_device
    first = gradients.make(case, row.batch, row.length, row.length, "dense", seed, device)
    moved = {**{name: first[name] for name in MOVED}, **{name: first[name] for name in case.results()}}
    bytes_of_one = sum(t.nbytes for name, t in moved.items() if not (name == "k2" and case.shared_keys))
    count = 2 if launcher.simulated else timing.input_sets(bytes_of_one, settings["cache_bytes"], settings["free_bytes"]())
    sets = [first] + [gradients.make(case, row.batch, row.length, row.length, "dense", seed + i, device) for i in range(1, count)]
    generator = torch.Generator().manual_seed(seed)
    place = [int(torch.randint(size, (), generator=generator)) for size in first["q1"].shape[:2]]
    want, _ = gradients.compute(*of_head(case, first, *place))
    contestants, errors, same, refused, calls, failures = {}, {}, {}, {}, [], []
    for name, of in ((OURS, launcher), (PLAIN, launcher.plain)):
        if not of:
            continue
        mine = [_ours(of, case, tensors, row.whole, calls) for tensors in sets]
        errors[name], same[name] = error_of(mine[0][1](), want, *place), repeats(mine[0][1])
        if not errors[name] <= check_timing.AGREES:
            raise RuntimeError(f"expected gradients near f64's, but the relative error of {name} is {errors[name]:.3g}")
        if not same[name]:
            failures.append(f"{row.name}, {name}: other bits in a second call")
        contestants[name] = [run for run, _ in mine]
    for name in row.peers:
        peer = PEERS[name]
        if not timing.time_left(deadline, row.seconds):
            refused[name] = timing.NO_TIME
            continue
        try:
            made = [peer_call(peer, case, tensors, settings["backends"].get(name, peer.backend), row.whole) for tensors in sets]
            errors[name], same[name] = error_of(made[0](), want, *place), repeats(made[0])
        except Exception as problem:  # a peer that does not take the shape must not end the others
            refused[name] = {"refused": f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"[:300]}
            continue
        if not errors[name] <= check_timing.AGREES:
            refused[name] = {"refused": f"its relative error is {errors[name]:.3g}"}
            continue
        contestants[name] = made
    times = {**timing.compare(clock, contestants, row.seconds), **refused}
    for call in calls:
        call.close()
    flop = nominal_flop(case, row.batch, row.length, row.whole)
    for name, entry in times.items():
        if "median_s" in entry:
            entry.update(nominal_tflops=flop / entry["median_s"] / 1e12, relative_error=errors[name], same_bits=same[name],
                         tb_per_s=bytes_of_one / entry["median_s"] / 1e12)
    return {"name": row.name, "case": row.case, "batch": row.batch, "queries": row.length, "keys": row.length, "input_sets": count,
            "bytes": bytes_of_one, "nominal_flop": flop, "times": times, "failures": failures}


def run(launcher, clock, seed, settings, deadline=None, journal=None):
    work = SMALL if launcher.simulated else WORK
    rows, failures = (journal or Journal()).run_rows(
        [(row.name, row.seconds + LIMIT, functools.partial(measure, launcher, clock, row, seed + 1000 * number, settings, deadline))
         for number, row in enumerate(work)], deadline)
    return {"clock": clock.name, "seed": seed, "rows": rows, "failures": failures}
