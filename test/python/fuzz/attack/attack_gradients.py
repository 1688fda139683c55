"""Gradients of attention with every option, sizes that lie, empty batches, and arrays between fences; judged by the oracle."""
import numpy as np

from diffattn import runtime
from guarded import Fence
from judge import Tally
from test_attention_backward import HEADED, Signature, of

CALLS = 5


class Attacked(Signature):
    QUERIES, KEYS = [0, 1, 3, 9, 33, 70], [0, 1, 5, 16, 40]


def run(seed: int) -> Tally:
    rng = np.random.default_rng([seed, 8])
    pick = lambda options: options[rng.integers(len(options))]
    # Sizes of an even number are known.
    one = Attacked(rng, 2 * seed + 1)
    text = one.text("tensor", one.draw(0))
    executable = runtime.Executable(text, threads=pick([1, 2]), cache=False)
    tally = Tally()
    for call in range(CALLS):
        fence = Fence(rng)
        arrays = {name: fence.copy(array) for name, array in one.draw(call).items()}
        must = "take"
        if pick([0, 0, 1]):
            must = _spoil(rng, pick, one, arrays)
        values = list(arrays.values())
        before = [array.tobytes() for array in values]

        def judge(results):
            fence.check()
            assert [array.tobytes() for array in values] == before, "an argument has changed"
            judgement = executable.judge(text, f"s{one.number}", values, results)
            assert judgement, judgement.lines

        tally.attempt(lambda: executable.call(f"s{one.number}", *values), judge, must=must,
                      what=f"{one.wanted} {one.sig} " + str({name: array.shape for name, array in arrays.items()}))
    return tally


def _spoil(rng, pick, one, arrays) -> str:
    """Gives one array a size more, or elements of another type."""
    name = pick([name for name in arrays if arrays[name].ndim and name != "bias"])
    array = arrays[name]
    if pick([0, 0, 1]):
        arrays[name] = array.astype(np.float64)
        return "refuse"
    axis = rng.integers(array.ndim)
    if name == "lambda" and axis == 2:  # lambdas of noise heads or of signal heads
        axis = 0
    if of(name) in HEADED:  # more heads of keys may be as right, and widths may be known to the module
        axis = pick([0, 2 if one.layouts[HEADED[of(name)]] == "bhtd" else 1])
    arrays[name] = np.concatenate([array, np.zeros_like(array, shape=[1 if i == axis else n for i, n in enumerate(array.shape)])], axis)
    return "refuse"
