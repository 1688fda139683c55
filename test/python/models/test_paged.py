"""Caches in pages: sequences that come and go have the bits of contiguous caches, pages are counted, equal prefixes are shared."""
import functools
import random
import re

import numpy as np
import pytest
from checkpoints import write_checkpoint
from kernel_library import runnable_isas
from test_builders import SMALL, opt  # noqa: F401

import diffattn
from diffattn import models
from diffattn.errors import ConfigError, InputError, RunError
from diffattn.models import likelihood
from diffattn.models.likelihood import LIKELIEST
from diffattn.runtime import Executable
from diffattn.serving import model as paged_model
from diffattn.serving.pages import PagePool
from diffattn.serving.sequences import CHUNK, UNIT, Sequences

CONFIG = SMALL | {"vocab_size": 90, "head_dim": 16, "num_hidden_layers": 2}
#: Layers of each kind, and a window that is a page which steps read where it lies.
OWN = {"phi4flash": {"num_hidden_layers": 8, "sliding_window": 64}}
CAPACITY = 640
SLOTS = 12


def same(a, b):
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.fixture(scope="session")
def load(tmp_path_factory):
    """The model with contiguous caches and the one with pages."""
    def make(kind, dtype, target="cpu", **more):
        config = CONFIG | {"model_type": kind} | OWN.get(kind, {}) | more
        rng = np.random.default_rng(8)
        weights = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, (shape, _) in models.build(config).file_types().items()}
        folder = write_checkpoint(tmp_path_factory.mktemp("model") / kind, config, weights)
        plain = diffattn.load(folder, dtype=dtype, target=target if target.startswith("cpu") else "cpu", batch_invariant=True, threads=1)
        return plain, paged_model.load(folder, target, dtype, threads=2)
    return make


@pytest.fixture(scope="session")
def paged_once(load):
    """Models with pages, each compiled once, for tests that leave it as it is."""
    return functools.cache(lambda kind: load(kind, "f32")[1])


class Alone:
    """One sequence in contiguous caches: a whole prompt and steps after it."""

    def __init__(self, model, prompt):
        self.model, self.position = model, len(prompt)
        self.caches = model.new_caches(1, CAPACITY)
        self.logits = model.executable.call("prefill", np.array([prompt]), np.array([len(prompt)]), *self.caches)[0][0].copy()

    def step(self, token):
        self.logits = self.model.executable.call("decode", np.array([token]), np.array([self.position]), *self.caches)[0][0].copy()
        self.position += 1
        return self.logits


class Schedule:
    """Random admissions, parts of prompts, steps of some of the sequences, forks and ends, each compared with a sequence alone."""

    def __init__(self, plain, sequences, rng):
        self.plain, self.sequences, self.rng = plain, sequences, rng
        self.waiting, self.active = [], []
        texts = [[rng.randrange(90) for _ in range(CAPACITY)] for _ in range(2)]
        #: Prompts begin alike more often than not.
        self.prompt = lambda: rng.choice(texts)[: rng.choice([1, 63, 64, 65, 191, 192, 193, 384, 400, rng.randint(1, 500)])] + [
            rng.randrange(90) for _ in range(rng.choice([0, 0, 1, 70]))]

    def admit(self):
        prompt, more, choices = self.prompt(), self.rng.randint(1, 60), self.rng.choice([1, 1, 1, 3])
        held, promised = self.sequences.pool.used, self.sequences.needed(len(prompt), more, choices)
        sequence = self.sequences.admit(prompt, more, choices)
        if sequence is None:
            assert promised > self.sequences.pool.unpromised or self.slots() + choices > SLOTS
        assert self.sequences.pool.used == held
        if sequence is not None:
            self.waiting.append((sequence, more, choices))

    def extend(self):
        if not self.waiting:
            return
        sequence, more, choices = self.rng.choice(self.waiting)
        if (logits := self.sequences.extend(sequence)) is None:
            return
        self.waiting.remove((sequence, more, choices))
        for other in [sequence, *(self.sequences.fork(sequence, more) for _ in range(choices - 1))]:
            alone = Alone(self.plain, sequence.prompt)
            assert same(alone.logits, logits)
            self.active.append([other, alone, more - 1])

    def decode(self):
        rows = self.rng.sample(self.active, self.rng.randint(0, len(self.active)))
        rows = [row for row in rows if row[2]]
        if not rows:
            return
        tokens = [self.rng.randrange(90) for _ in rows]
        before = [state.copy() for state in self.states()]
        logits = self.sequences.decode([row[0] for row in rows], tokens)
        others = sorted(set(range(SLOTS)) - {row[0].slots[0] for row in rows if row[0].slots})
        assert all(same(old[:, others], new[:, others]) for old, new in zip(before, self.states()))
        for row, token, got in zip(rows, tokens, logits):
            assert same(row[1].step(token), got)
            row[2] -= 1

    def free(self):
        for group in (self.waiting, self.active):
            if group and self.rng.random() < 0.5:
                self.sequences.free(group.pop(self.rng.randrange(len(group)))[0])

    def states(self):
        return self.sequences._caches[2:]

    def slots(self):
        """How many are held, each by one sequence."""
        held = [slot for row in self.waiting + self.active for slot in row[0].slots]
        assert len(set(held)) == len(held)
        return len(held)

    def count(self):
        """The pages in use are those that sequences hold, each of which has just as many as its tokens need, and slots are held as long."""
        held = [row[0] for row in self.waiting + self.active]
        if self.states():
            assert len(self.sequences._free_slots) == SLOTS - self.slots()
        assert self.sequences.pool.used == len({page for sequence in held for page in sequence.pages})
        for sequence in held:
            assert len(sequence.pages) == -(-sequence.done // self.sequences.rows)

    def run(self, turns):
        for _ in range(turns):
            self.rng.choice([self.admit, self.extend, self.extend, self.decode, self.decode, self.free])()
            self.count()
        for row in self.waiting + self.active:
            self.sequences.free(row[0])
        assert self.sequences.pool.used == 0 and self.sequences.pool.unpromised == self.sequences.pool.pages
        assert not self.states() or len(self.sequences._free_slots) == SLOTS


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", models.DECODERS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_random_schedules(kind, dtype, load, full):
    """1,250 of them in the long form. The caches are never cleared between them."""
    plain, paged = load(kind, dtype)
    sequences = Sequences(paged, 40, CAPACITY, SLOTS)
    for seed in range(125 if full else 15):
        Schedule(plain, sequences, random.Random(seed)).run(40)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_parts_of_prompts_have_the_bits_of_the_whole(isa, dtype, load):
    """On each instruction set: where its blocks of queries begin decides where sums are cut."""
    plain, paged = load("diff_v1", dtype, f"cpu:{isa}")
    prompt = np.random.default_rng(3).integers(0, 90, CAPACITY - 1).tolist()
    for length in (UNIT + 1, CHUNK + 5, CAPACITY - 1):
        sequences = Sequences(paged, 12, CAPACITY)
        sequence = sequences.admit(prompt[:length], 1)
        while (logits := sequences.extend(sequence)) is None:
            pass
        assert same(logits, Alone(plain, prompt[:length]).logits)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("window", [5, 300])
def test_windows_in_parts_of_prompts(window, load):
    """Narrower than a page, and wider than a part of a prompt; a fork goes on from the states of its prompt."""
    plain, paged = load("phi4flash", "bf16", sliding_window=window)
    sequences = Sequences(paged, 40, 1200, 4)
    prompt = np.random.default_rng(3).integers(0, 90, 1100).tolist()
    for length in (64, CHUNK, UNIT + 1, 2 * CHUNK + 5, 1100):
        one = sequences.admit(prompt[:length], 20, 2)
        while (logits := sequences.extend(one)) is None:
            pass
        both = [one, sequences.fork(one, 20)]
        caches = plain.new_caches(1, 1200)
        alone = plain.executable.call("prefill", np.array([prompt[:length]]), np.array([length]), *caches)[0][0]
        assert same(logits, alone)
        for step in range(7):
            got = sequences.decode(both, [step, step])
            alone = plain.executable.call("decode", np.array([step]), np.array([length + step]), *caches)[0][0]
            assert same(got[0], alone) and same(got[1], alone)
        for sequence in both:
            sequences.free(sequence)


def test_prompts_of_models_with_states_are_computed_whole(load):
    """Pages that others have left of the same prompt are not taken, as the states that belong to them are gone. Slots run out before pages do."""
    _, paged = load("phi4flash", "f32")
    calls, call = [], paged.call
    paged.call = lambda entry, *arrays: calls.append((entry, arrays[0].shape)) or call(entry, *arrays)
    sequences, prompt = Sequences(paged, 30, CAPACITY, 3), list(range(80)) * 3
    one, two = (sequences.admit(prompt, 4) for _ in range(2))
    assert same(sequences.extend(one), sequences.extend(two)) and calls == [("extend", (1, 240))] * 2
    assert not set(one.pages) & set(two.pages) and not set(one.slots) & set(two.slots)
    assert sequences.admit([1], 1, 2) is None and sequences.admit([1], 1) is not None and sequences.admit([1], 1) is None
    with pytest.raises(ValueError, match="slots: expected an integer of at least 1, but got 0"):
        Sequences(paged, 30, CAPACITY)


def test_equal_prefixes_are_computed_once(load):
    _, paged = load("diff_v2", "f32")
    calls, call = [], paged.call
    paged.call = lambda entry, *arrays: calls.append((entry, arrays[0].shape)) or call(entry, *arrays)
    sequences = Sequences(paged, 30, CAPACITY)
    prompt = np.random.default_rng(4).integers(0, 90, 2 * UNIT).tolist()

    def run(prompt):
        sequence = sequences.admit(prompt, 4)
        while (logits := sequences.extend(sequence)) is None:
            pass
        return sequence, logits

    first, one = run(prompt)
    assert sequences.pool.used == 6
    second, two = run(prompt)  # its last token has to be computed
    assert same(one, two) and calls == [("extend", (1, CHUNK)), ("extend", (1, UNIT))]
    assert first.pages == second.pages and sequences.pool.used == 6
    longer, _ = run(prompt + [1, 2, 3])
    assert longer.pages[:6] == first.pages and len(longer.pages) == 7 and calls[-1] == ("extend", (1, 9))
    other, _ = run([prompt[0] + 1, *prompt[1:]])
    assert not set(other.pages) & set(first.pages)
    for sequence in (first, second, longer, other):
        sequences.free(sequence)
    assert sequences.pool.used == 0
    again, three = run(prompt)  # what nobody holds is kept until pages run out
    assert again.pages == first.pages or same(one, three) and calls[-1] == ("extend", (1, UNIT))
    sequences.free(again)


def test_kept_pages_are_taken_back_oldest_first():
    pool = PagePool(8, 4, 2)
    texts = {name: [number] * 4 for number, name in enumerate("abc")}
    for name in "abc":
        assert pool.promise(2)
        pages = [pool.take(), pool.take()]
        pool.remember(texts[name], pages)
        pool.release(pages)
    assert pool.used == 0 and pool.unpromised == 8
    assert pool.promise(2)
    pool.release(pool.adopt(texts["a"], 0))  # used again, so b is the oldest
    assert pool.promise(4) and not pool.promise(5)
    pages = [pool.take() for _ in range(4)]
    assert pool.used == 4
    assert pool.promise(2) and pool.adopt(texts["b"], 0) == []
    assert len(pool.adopt(texts["a"], 0)) == 2
    pool.release(pages)
    with pytest.raises(RunError, match="expected a promised page, but none is left of the promise"):
        pool.take()


def test_who_computed_the_same_at_once_shares_it_then():
    pool = PagePool(8, 4, 2)
    assert pool.promise(8)
    one, two = [pool.take(), pool.take()], [pool.take(), pool.take()]
    pool.remember([1, 2, 3, 4], one)
    pool.remember([1, 2, 3, 4], two)
    assert one == two and pool.used == 2
    pool.release(one)
    assert pool.used == 2
    pool.release(two)
    assert pool.used == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", models.DECODERS)
def test_scores(kind, load):
    """Log-probabilities of the prompt's tokens against the logits of the whole, in parts of a prompt and of rows."""
    plain, paged = load(kind, "f32")
    prompt = np.random.default_rng(5).integers(0, 90, CHUNK + 70).tolist()
    sequences = Sequences(paged, 12, CAPACITY, 1)
    sequence, parts, logits = sequences.admit(prompt, 1), [], None
    while logits is None:
        scores, logits = sequences.score(sequence)
        parts.append(scores)
    assert same(Alone(plain, prompt).logits, logits)
    whole = plain.forward([prompt])[0]
    # phi4flash attends with the last token alone in some layers, which splits keys (docs/numerics.md).
    if kind == "phi4flash":
        np.testing.assert_allclose(logits, whole[-1], rtol=1e-5, atol=1e-5)
    else:
        assert same(whole[-1], logits)
    exact = whole.astype(np.float64)
    exact -= exact.max(-1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    log_p, likely, likely_log_p = (np.concatenate([getattr(part, name) for part in parts]) for name in ("log_p", "likely", "likely_log_p"))
    np.testing.assert_allclose(log_p, exact[np.arange(len(prompt) - 1), prompt[1:]], atol=2e-5)
    order = np.argsort(-whole[:-1], axis=-1, kind="stable")[:, :LIKELIEST]
    assert (likely == order).all()
    np.testing.assert_allclose(likely_log_p, np.take_along_axis(exact[:-1], order, -1), atol=2e-5)
    # A token is known as the likeliest by one number, not by two that were rounded apart.
    at = np.arange(len(log_p))
    for rank in range(LIKELIEST):
        known = likely[:, rank] == prompt[1:]
        assert (log_p[known] == likely_log_p[at[known], rank]).all()
    assert (likely[:, 0] == prompt[1:]).any()


@pytest.mark.parametrize("vocab, order", [(90, [3, 7, 20, 21, 89]), (3, [1, 2, 0])])
def test_equal_likelihoods_come_in_the_order_of_ids(vocab, order, monkeypatch):
    """Tokens whose rows of the head are equal, and zeros of both signs; of a small vocabulary all are told."""
    monkeypatch.setenv("DIFFATTN_QUICK_CODE", "0")  # vectors shorten sums, which are as near as this only then
    m = models.Module(None)
    f = m.function("rank")
    h, targets = f.argument("h", "f32", [None, vocab]), f.argument("targets", "i64", [None])
    f.ret(*likelihood.of_targets(f, h, targets, vocab, lambda part: part, ranked=True))
    logits = np.full((70, vocab), -9, np.float32)
    if vocab == 90:
        logits[:, [7, 3]], logits[:, [20, 89]], logits[:, 21], logits[:, 60] = 5, -0.0, 0.0, -1
    else:
        logits[:, 0], logits[:, 1] = -np.inf, 2
    log_p, likely, likely_log_p = Executable(str(m)).call("rank", logits, np.full(70, order[1]))
    assert (likely == order).all() and likely_log_p.shape == (70, len(order))
    exact = logits[0].astype(np.float64) - logits[0].max()
    exact -= np.log(np.exp(exact).sum())
    np.testing.assert_allclose(likely_log_p, np.tile(exact[order], (70, 1)), rtol=1e-6, atol=1e-7)
    assert (log_p == likely_log_p[:, 1]).all()


@pytest.mark.parametrize("kind", models.DECODERS)
def test_caches_are_updated_in_place(kind, opt):  # noqa: F811
    text = str(models.build(CONFIG | {"model_type": kind} | OWN.get(kind, {}), page_rows=64))
    text = re.sub(r"(diffattn.layer_weight|ml_program.global_load_const) @\"[^\"]*\"(\[%\w+\])? :", "bufferization.alloc_tensor() :", text)
    text = re.sub(r"  ml_program.global private .*\n", "", text)
    out = opt(text, "--empty-tensor-to-alloc-tensor", "--cse", "--one-shot-bufferize=bufferize-function-boundaries=1 "
              "function-boundary-type-conversion=identity-layout-map", "--drop-equivalent-buffer-results", "--cse", "--canonicalize", "--cse")
    copies = [line for line in out.splitlines() if "memref.copy" in line]
    # A step stores a row of keys and one of values, scores come in parts of three results, and their ranks leave four columns. Pages are
    # written where they lie. Of phi4flash a step stores a row in rings too, and both states of a Mamba layer go back to their slots.
    assert sum("strided" in line for line in copies) == {"phi4flash": 13}.get(kind, 9), copies
    assert not any(re.search(r"memref<\d+x\?x(64|\d)x\d+x", line) for line in copies), copies


@pytest.mark.parametrize("entry, change, message", [
    ("extend", {"table": [[0, 3]]}, "expected every entry of block_table to be a page of the caches, for all keys that a sequence has"),
    ("extend", {"table": [[0, -1]]}, "expected every entry of block_table to be a page"),
    ("extend", {"table": [[0]]}, "expected every position to be at least 0, and positions and lengths to end within the pages"),
    ("extend", {"table": [[0, 1]] * 2}, "expected the batches of ids and block_table to be equal"),
    ("extend", {"positions": [0, 0]}, "expected the batches of ids, lengths or positions, and caches to be equal"),
    ("decode", {"positions": [0, 0]}, "expected the batches of ids, lengths or positions, and caches to be equal"),
    ("extend", {"positions": [-1]}, "expected every position to be at least 0"),
    ("extend", {"positions": [120]}, "end within the pages that block_table has place for"),
    ("extend", {"lengths": [0]}, "expected every length to be at least 1"),
    ("extend", {"values": 2}, "expected the caches to have equally many pages"),
    ("decode", {"table": [[0, 3]], "positions": [64]}, "expected every entry of block_table to be a page"),
    ("decode", {"positions": [128]}, "end within the pages that block_table has place for"),
    ("decode", {"positions": [-1]}, "expected every position to be at least 0"),
    ("score", {"targets": [[1] * 9]}, "expected targets of the shape of ids"),
    ("score", {"targets": [[90] * 10]}, "expected every token id to be at least 0 and below 90"),
    ("score", {"targets": [[-1] * 10]}, "expected every token id to be at least 0 and below 90"),
])
def test_wrong_arguments(entry, change, message, paged_once):
    """A call that fails writes nothing."""
    paged = paged_once("diff_v1")
    caches = [*paged.new_caches(3)]
    caches[1] = caches[1][:, : change.get("values", 3)].copy()
    given = {"positions": [60], "table": [[0, 1]], "lengths": [10], "targets": [[1] * 10]} | change
    positions, lengths, table, targets = (np.array(given[name]) for name in ("positions", "lengths", "table", "targets"))
    ids = np.ones((1, 10), np.int64)
    arguments = {"extend": (ids, lengths, positions), "score": (ids, targets, lengths, positions), "decode": (ids[0, :1].copy(), positions)}
    with pytest.raises(RunError, match=message):
        paged.call(entry, *arguments[entry], table, *caches)
    assert not any(cache.any() for cache in caches) or message.startswith("expected every token id")


@pytest.mark.parametrize("entry", ["extend", "score", "decode"])
@pytest.mark.parametrize("change, message", [
    ({"slots": [3]}, "expected every slot to be at least 0 and below the number of slots"),
    ({"slots": [-1]}, "expected every slot to be at least 0 and below the number of slots"),
    ({"slots": [0, 1]}, "expected the batches of ids and slots to be equal"),
    ({"slots": []}, "expected the batches of ids and slots to be equal"),
    ({"rows": 2, "slots": [1, 1]}, "expected a slot of its own for each sequence"),
    ({"states": 2}, "expected the caches of states to have equally many slots"),
    ({"table": [[0, 3]]}, "expected every entry of block_table to be a page of the caches, for all keys that a sequence has"),
    ({"positions": [128]}, "within the pages that block_table has place for"),
])
def test_wrong_slots(entry, change, message, paged_once):
    """A call that fails writes no state and no key."""
    paged = paged_once("phi4flash")
    caches = paged.new_caches(3, 3)
    caches[4] = caches[4][:, : change.get("states", 3)].copy()
    for cache in caches:
        cache[:] = 7
    rows = change.get("rows", 1)
    given = {"positions": [60] * rows, "table": [[0, 1], [2, 2]][:rows], "slots": [1]} | change
    positions, table, slots = (np.array(given[name], np.int64) for name in ("positions", "table", "slots"))
    ids = np.ones((rows, 10), np.int64)
    first = {"extend": (ids, np.array([10] * rows)), "score": (ids, ids, np.array([10] * rows)), "decode": (ids[:, 0].copy(),)}[entry]
    if entry == "decode" and "table" in change:
        positions[:] = 64
    with pytest.raises(RunError, match=message):
        paged.call(entry, *first, positions, table, slots, *caches)
    assert all((cache == 7).all() for cache in caches)


def test_entries_behind_the_keys_may_be_anything(paged_once):
    paged = paged_once("diff_v1")
    ids, at = np.ones((1, 10), np.int64), (np.array([10]), np.array([0]))
    one, *_ = paged.call("extend", ids, *at, np.array([[2, -7]]), *paged.new_caches(3))
    two, *_ = paged.call("extend", ids, *at, np.array([[0, 1 << 40]]), *paged.new_caches(3))
    assert same(one, two)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["diff_v1", "phi4flash"])
def test_on_a_simulated_gpu(kind, load, tmp_path):
    """Near what a CPU computes; a fork computes the page that it does not share, and states."""
    results = []
    for paged in (load(kind, "f32")[1], load(kind, "f32", "cuda-sim:sm_80")[1]):
        sequences, prompt = Sequences(paged, 8, 256, 3), list(range(70))
        one = sequences.admit(prompt, 4, 2)
        logits = sequences.extend(one)
        both = [one, sequences.fork(one, 4)]
        steps = [sequences.decode(both, tokens) for tokens in ([5, 6], [7, 7])]
        assert both[0].pages[:1] == both[1].pages[:1] and not set(both[0].pages[1:]) & set(both[1].pages[1:])
        scores, again = sequences.score(sequences.admit(prompt, 1))
        results.append([logits, *steps, scores.log_p, again])
    for exact, near in zip(*results):
        np.testing.assert_allclose(near, exact, atol=2e-4 * np.abs(exact).max())


def test_what_cannot_have_pages():
    with pytest.raises(ConfigError, match="expected 'model_type' to be one of diff_v1, .*, whose caches lie in pages, but got 'diff_multihead'"):
        models.build(CONFIG | {"model_type": "diff_multihead"}, page_rows=64)
    with pytest.raises(ConfigError, match="expected a 'rope_type' whose angles follow from positions alone, .* but got 'dynamic'"):
        models.build(CONFIG | {"model_type": "diffllama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, page_rows=64)
    with pytest.raises(ValueError, match="page_rows: expected an integer from 1 to 65536, but got 0"):
        models.build(CONFIG | {"model_type": "diff_v1"}, page_rows=0)


def test_pages_that_do_not_fit_the_units(tmp_path):
    text = str(models.build(CONFIG | {"model_type": "diff_v1"}, page_rows=100))
    write_checkpoint(tmp_path / "m", CONFIG | {"model_type": "diff_v1"}, {"w": np.zeros(1)})
    with pytest.raises(InputError, match="expected pages of a divisor of 192 tokens, but got 100"):
        Sequences(paged_model.PagedModel(Executable(text), tmp_path / "m", CONFIG | {"model_type": "diff_v1"}), 4, 100)
