"""Models near the end of lowering: one kernel a layer, no rearranged heads; and the allocations of a decode step."""
import re

import numpy as np
import pytest
from paths import ROOT
from test_builders import ATTENTIONS, SMALL

import diffattn
from diffattn import models, runtime

# Moves of data that must be: values of a prompt into the cache, and the key and value rows of a decode step and of a further chunk.
# Of phi4flash: a convolution's inputs behind those before them, a step's rows into rings, and its and other calls' into the cache.
COPIES = dict.fromkeys(models.DECODERS, 5) | {"phi4flash": 7}
# A picture's patches are cut out once; nothing else moves.
MOVES = {kind: 1 for kind in models.BUILDERS if kind.startswith("vit")}


@pytest.mark.parametrize("kind", [*models.DECODERS, "edifice_diff_transformer", "diff_attention",
                                  "vit_dwee_patch16_reg1_gap_256", "vit_dpwee_patch16_reg1_gap_256"])
def test_no_copy_of_heads_is_made(kind):
    text = runtime.emit(str(models.build(SMALL | {"model_type": kind})), "bufferized").decode()
    assert text.count("diffattn.attention ins") == ATTENTIONS.get(kind, 1)
    copies = [line for line in text.splitlines() if re.search(r"(memref|linalg)\.copy", line)]
    wide = [line for line in copies if re.search(r"memref<\S*x\S*x\S*[,>]", line)]
    assert len(wide) == COPIES.get(kind, 0), wide
    # A generic with nothing in its body moves elements; those over heads have four loops or more.
    bodies = re.findall(r"linalg\.generic [^\n]*iterator_types = \[([^\]]*)\][^\n]*\n\s*\^bb0[^\n]*\n\s*linalg\.yield", text)
    assert sum(kinds.count('"') >= 8 for kinds in bodies) == MOVES.get(kind, 0)
    assert "linalg.transpose" not in text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", models.DECODERS)
def test_every_product_is_a_library_call(kind):
    text = runtime.emit(str(models.build(SMALL | {"model_type": kind})), "llvm").decode()
    # In each of the four layer functions; of phi4flash in eight with attention, a Mamba layer and a gated memory unit.
    products = {"diff_v2": 4 * 8, "phi4flash": 8 * 4 + 6 + 4}.get(kind, 4 * 7)
    # And the logits of the five entries.
    assert len(re.findall(r"llvm\.call @diffattn_rt_gemm\w*\(", text)) == products + 5
    assert "linalg." not in text


# A layer has seven products; two of them and their gate are one call where there are tiles.
@pytest.mark.parametrize("target, products", [("cpu:avx2", 7), ("cpu:amx-emulated", 6)])
def test_a_decode_step_allocates_nothing_and_copies_no_cache(target, products):
    model = diffattn.load(ROOT / "examples" / "tiny-lm", target, threads=1, batch_invariant=True)
    caches = model.new_caches(2, 64)
    lengths, token = np.array([9, 4]), np.array([5, 6])
    addresses = [c.ctypes.data for c in caches]
    _, *caches = model.executable.call("prefill", np.ones((2, 9), np.int64), lengths, *caches)
    model.executable.call("decode", token, lengths, *caches)
    stored = [c.copy() for c in caches]
    runtime.reset_counters()
    for step in range(1, 4):
        before = runtime.counters()
        _, *results = model.executable.call("decode", token, lengths + step, *caches)
        assert all(a is b for a, b in zip(results, caches))
        # And one attention; the logits are one more product.
        now = runtime.counters()
        assert now.gemm_calls == before.gemm_calls + 4 * products + 1
        assert now.parallel_calls - before.parallel_calls >= 4 * (products + 1) + 1
    counters = runtime.counters()
    assert counters.arena_grows == 0 and counters.packs == 0
    assert [c.ctypes.data for c in results] == addresses
    # Rows that were stored before stay bit for bit; in each sequence only the three new places changed.
    for old, new in zip(stored, caches):
        for row in range(2):
            changed = (old[:, row] != new[:, row]).reshape(4, 64, -1).any((0, 2))
            assert set(np.flatnonzero(changed)) <= set(range(lengths[row] + 1, lengths[row] + 4))
