"""How calls are timed: CUDA graphs over rotated inputs, contestants in turns, ours twice in each turn.

One sample is one replay of a graph. Differences below the spread of our own two medians are ties. The order of a turn is drawn
anew each time: a GPU at its power limit is faster after work that draws less.
"""
import random
import statistics
import time

import torch

from .nvidia_smi import smi

SAMPLE_SECONDS = 1e-3  # a sample lasts at least this long


class CudaClock:
    """Replays of graphs, timed by events."""

    name = "CUDA graphs, events"
    warm_up_calls, calls = 25, 100

    def prepare(self, calls):
        """`calls`: one function for each input set. Returns (replay, calls in a replay)."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in calls * 2:  # compiles, tunes, fills caches of plans
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        once = self._events(lambda: [call() for call in calls]) / len(calls)
        repeats = max(1, min(64, round(SAMPLE_SECONDS / max(once, 1e-6) / len(calls))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls * repeats:
                call()
        return graph.replay, len(calls) * repeats

    @staticmethod
    def _events(run):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def sample(self, replay):
        return self._events(replay)

    def clocks(self, replay):
        """Clocks and power while `replay` runs."""
        for _ in range(20):
            replay()
        values = smi("clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active")
        torch.cuda.synchronize()
        return values

    def free(self):
        torch.cuda.empty_cache()


class WallClock(CudaClock):
    """Calls as the host makes them, until the GPU is done: for whole models, where the host's part counts too."""

    name = "host, until the GPU is done"
    warm_up_calls, calls = 3, 40

    def prepare(self, calls):
        def replay():
            for call in calls:
                call()
        return replay, len(calls)

    def sample(self, replay):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        replay()
        torch.cuda.synchronize()
        return time.perf_counter() - begin


class CountingClock:
    """No clock: runs every call once and takes one second a call. For trying the code where there is no GPU."""

    name = "none: every call counts as one second"
    warm_up_calls, calls = 0, 1

    def prepare(self, calls):
        def replay():
            for call in calls:
                call()
            return float(len(calls))
        return replay, len(calls)

    def sample(self, replay):
        return replay()

    def clocks(self, replay):
        return {}

    def free(self):
        pass


def time_left(deadline, seconds):
    """Whether one more contestant can be made ready before `seconds` of samples. `deadline`: of time.monotonic, or None."""
    return deadline is None or time.monotonic() < deadline - seconds


NO_TIME = {"refused": "not reached in time"}


def input_sets(bytes_of_one, cache_bytes, free_bytes):
    """So many sets that no call finds its inputs in the cache: at least 3, if memory allows."""
    wanted = max(3, -(-2 * cache_bytes // max(1, bytes_of_one)))
    return int(max(1, min(wanted, 16, free_bytes // 2 // max(1, bytes_of_one))))


def summary(seconds):
    first, middle, last = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    return {"median_s": middle, "quartiles_s": [first, last], "least_s": min(seconds), "samples": len(seconds)}


def compare(clock, contestants, seconds):
    """`contestants`: name -> functions, one for each input set; ours first. About `seconds` of samples.

    Returns name -> summary of the seconds of one call, or {"refused": why}."""
    ready, results = {}, {}
    for name, calls in contestants.items():
        try:
            ready[name] = clock.prepare(calls)
        except Exception as error:  # a peer that does not take the shape must not end the others
            results[name] = {"refused": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
    if not ready:
        return results
    ours = next(iter(contestants))
    if ours not in ready:
        raise RuntimeError(f"{ours}: {results[ours]['refused']}")
    taken, again = {name: [] for name in ready}, []
    for replay, count in ready.values():
        for _ in range(-(-clock.warm_up_calls // count)):
            clock.sample(replay)
    # None: ours again.
    order, chance = [*ready, None], random.Random(0)
    begin = time.monotonic()
    while True:
        chance.shuffle(order)
        for name in order:
            replay, count = ready[name or ours]
            (taken[name] if name else again).append(clock.sample(replay) / count)
        enough = all(len(taken[name]) * count >= clock.calls for name, (_, count) in ready.items())
        if enough or time.monotonic() - begin > seconds:
            break
    clocks = clock.clocks(ready[ours][0])
    for name in ready:
        results[name] = {**summary(taken[name]), "calls": len(taken[name]) * ready[name][1]}
    second = summary(again)["median_s"]
    results[ours].update(again_median_s=second, spread=abs(second / results[ours]["median_s"] - 1), clocks=clocks)
    ready.clear()
    clock.free()
    return {name: results[name] for name in contestants}
