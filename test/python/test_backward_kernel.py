"""The kernel of gradients: random configurations under schedules of small blocks, which few queries and keys fill many of, and what must not
change a bit: threads, other batches, and what hidden keys hold.
"""
import numpy as np
import pytest

from diffattn import runtime
from kernel_library import runnable_isas
from test_attention_backward import HEADED, Signature, gradients, headed, judge, of
from test_attention_random import draw_signature

SIGNATURES = 24
# The f32 vectors of each ISA: `generic` is SSE2 or NEON.
LANES = {"generic": 4, "avx2": 8}


def schedule(isa, rng):
    """A schedule for `isa` whose blocks of queries and keys are few vectors, with or without room for all maps."""
    pick = lambda *options: int(options[rng.integers(len(options))])
    lanes = LANES.get(isa, 16)
    vectors, rows = pick(1, 2), pick(2, 4)
    return (f"#diffattn.cpu_backward<isa = \"{isa}\", lanes = {lanes}, q_block_size = {2 * lanes}, qk_tile = [4, {vectors}, 2], pv_tile = [{rows}, {pick(1, 2)}, 2], "
            f"kv_block_size = {pick(16, 32)}, two_pass_keys = {pick(0, 20, 1000)}, q_slice_size = {pick(2, 4, 16) * lanes}>")


class Scheduled(Signature):
    """A signature whose op has a schedule, and no gradient of a bias."""

    QUERIES, KEYS = [1, 5, 16, 33, 50, 70], [1, 16, 17, 40, 75]

    def __init__(self, rng, number, isa, sig=None):
        super().__init__(rng, number, sig)
        self.wanted = [name for name in self.wanted if name != "d_bias"] or ["d_v"]
        self.types.setdefault("d_v", "f32")
        self.schedule = schedule(isa, rng)

    def text(self, form, arrays):
        return super().text(form, arrays).replace("scale = ", f"schedules = [{self.schedule}], scale = ", 1)


@pytest.fixture(scope="module", params=runnable_isas())
def isa(request):
    return request.param


@pytest.fixture(scope="module")
def signatures(isa, full):
    rng = np.random.default_rng(31)
    drawn = [Scheduled(rng, number, isa) for number in range(SIGNATURES)]
    return drawn if full else drawn[runnable_isas().index(isa) % 2 :: 2]


@pytest.fixture(scope="module")
def executable(signatures):
    return runtime.Executable("".join(one.text("tensor", one.draw(0)) for one in signatures), cache=False)


def test_small_blocks(signatures, executable, full):
    for one in signatures:
        for seed in range(1 if one.isStatic else 20 if full else 3):
            arrays = one.draw(seed)
            judge(executable, one, arrays, executable.call(f"s{one.number}", *arrays.values()))
