"""The engine: a request gets bit for bit what it gets alone, whatever comes beside it, and leaves nothing behind."""
import random
import shutil
import threading
import time

import numpy as np
import pytest
from paths import ROOT
from test_paged import CONFIG, load  # noqa: F401

import diffattn
from diffattn.errors import InputError, RunError
from diffattn.sampling import Sampler
from diffattn.serving import model as paged_model
from diffattn.serving.engine import Engine
from diffattn.serving.requests import (ChoiceEnded, ClosedError, OverloadedError, PromptScored, Request, RequestEnded, RequestFailed,
                                       TokenDrawn)

TINY = ROOT / "examples" / "tiny-lm"
CAPACITY = 640


@pytest.fixture(scope="module")
def tiny():
    return paged_model.load(TINY, threads=1)


@pytest.fixture
def engine(tiny):
    made = []

    def make(**options):
        made.append(Engine(tiny, **({"pages": 200, "capacity": CAPACITY} | options)))
        return made[-1]

    yield make
    for one in made:
        one.close(finish=False)
        assert one.sequences.pool.used == 0 and one.sequences.pool.unpromised == one.sequences.pool.pages


def plain(event):
    """An event as what can be compared bit for bit."""
    if isinstance(event, PromptScored):
        return tuple(values.tobytes() for values in (event.scores.log_p, event.scores.likely, event.scores.likely_log_p))
    return repr(event)


def by_choice(events):
    """Events of each choice in their order; between choices there is none."""
    result = {}
    for event in events:
        result.setdefault(getattr(event, "choice", None), []).append(plain(event))
    return result


def random_request(rng, tokenizer, texts):
    prompt = rng.choice(texts)[: rng.choice([1, 8, 9, 63, 64, 65, 192, 193, rng.randint(1, 420)])]
    prompt = prompt + [rng.randrange(2000) for _ in range(rng.choice([0, 0, 1, 30]))]
    sampler = rng.choice([
        Sampler(), Sampler(temperature=0.8), Sampler(1.2, top_k=20, top_p=0.9), Sampler(1.0, min_p=0.05, repetition_penalty=1.2),
        Sampler(0.9, presence_penalty=0.5, frequency_penalty=0.3, logit_bias={5: 2.0, 40: -100.0})])
    scores = rng.random() < 0.2
    return Request(tuple(prompt), rng.randint(0 if scores else 1, 24), sampler, rng.randrange(1 << 40), rng.choice([1, 1, 1, 2, 4]),
                   rng.choice([frozenset(), frozenset([17, 44])]), rng.choice([(), (" the", "LORD")]), rng.choice([None, 0, 3]), scores)


@pytest.fixture(scope="module")
def requests():
    rng = random.Random(7)
    tokenizer = paged_model.load(TINY).tokenizer
    text = tokenizer.encode((TINY / "heldout.txt").read_text()[:20000])
    texts = [text[at : at + CAPACITY] for at in (0, 900)]
    return [random_request(rng, tokenizer, texts) for _ in range(60)]


def test_what_comes_beside_a_request_changes_no_bit(engine, requests):
    """Sixty requests from eight threads, in a row each and with pauses, with few pages and rows, against the same ones alone."""
    alone_engine = engine(rows=4)
    alone = [by_choice(alone_engine.events(request)) for request in requests]
    assert any("'stop'" in repr(events) for events in alone) and any("'length'" in repr(events) for events in alone)
    busy = Engine(paged_model.load(TINY, threads=2), pages=60, capacity=CAPACITY, rows=12)
    got, most = {}, []

    def client(number):
        rng = random.Random(number)
        for at in rng.sample(range(len(requests)), len(requests))[:20] + list(range(number, len(requests), 8)):
            time.sleep(rng.choice([0, 0, 0.01]))
            events = by_choice(busy.events(requests[at]))
            most.append(busy.writing)
            got.setdefault(at, []).append(events)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    busy.close()
    assert sorted(got) == list(range(len(requests)))
    for at, runs in got.items():
        for events in runs:
            assert events == alone[at], f"request {at}"
    assert max(most) > 4 and busy.statistics.shared_tokens > 0
    assert busy.sequences.pool.used == 0 and busy.sequences.pool.unpromised == 60


def test_models_with_states(load):  # noqa: F811
    """Rings and states of phi4flash: one request after the other, and all at once, with slots that come back."""
    _, paged = load("phi4flash", "bf16")
    rng, asked = random.Random(3), []
    for number in range(40):
        scores = number % 5 == 0
        asked.append(Request(tuple(rng.randrange(90) for _ in range(rng.choice([1, 8, 64, 65, 193, rng.randint(1, 450)]))), rng.randint(0 if scores else 1, 20),
                             rng.choice([Sampler(), Sampler(0.9, top_k=20)]), number, rng.choice([1, 1, 3]), likely=2, scores=scores, want_text=False))
    one = Engine(paged, pages=60, capacity=CAPACITY, rows=3)
    alone = [by_choice(one.events(request)) for request in asked]
    one.close()
    assert one.statistics.shared_tokens == 0
    busy = Engine(paged, pages=60, capacity=CAPACITY, rows=9)
    together, left = [[] for _ in asked], []
    for request, events in zip(asked, together):
        busy.submit(request, events.append)
        left.append(busy.submit(Request(request.prompt, 100, want_text=False), lambda event: None))
    for ticket in left[::2]:
        ticket.cancel()
    busy.close()
    assert [by_choice(events) for events in together] == alone
    assert busy.statistics.steps < busy.statistics.new_tokens / 3 and len(busy.sequences._free_slots) == 9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_quantized_weights(tmp_path, bits):
    """One after the other, and all at once, which fill products of more rows."""
    diffattn.quantize(TINY, tmp_path / "narrow", bits)
    one = Engine(paged_model.load(tmp_path / "narrow"), pages=100, capacity=300)
    asked = [Request(tuple(range(start, start + 150)), 12, Sampler(temperature=1.0), seed=start, likely=1) for start in range(100, 112)]
    alone = [list(map(plain, one.events(request))) for request in asked]
    together = [[] for _ in asked]
    for request, events in zip(asked, together):
        one.submit(request, events.append)
    one.close()
    assert [list(map(plain, events)) for events in together] == alone and one.statistics.steps < 2 * 12 * 11


def test_it_is_what_generate_gives(engine):
    model = diffattn.load(TINY, batch_invariant=True)
    for prompt, options in (("In the beginning", {}), ("And the king said", {"temperature": 0.8, "top_k": 30}), ("x" * 300, {"top_p": 0.9, "temperature": 1.0})):
        ids = tuple(model.tokenizer.encode(prompt))
        request = Request(ids, 40, Sampler(**options), seed=5, stop=("\n",))
        events = list(engine().events(request))
        text = "".join(event.text for event in events if isinstance(event, (TokenDrawn, ChoiceEnded)))
        assert text == "".join(model.generate(prompt, 40, seed=5, stop="\n", **options))
        ids_only = [event.token for event in engine().events(Request(ids, 40, Sampler(**options), seed=5, want_text=False))
                    if isinstance(event, TokenDrawn)]
        assert ids_only == list(model.generate(list(ids), 40, seed=5, **options))


def test_log_probabilities(engine):
    """Log-probabilities of drawn tokens and of the prompt agree with the logits of the whole."""
    model = diffattn.load(TINY, batch_invariant=True)
    prompt = model.tokenizer.encode((TINY / "heldout.txt").read_text()[:2000])[:450]
    scored, *events, _, _ = engine().events(Request(tuple(prompt), 5, likely=3, scores=True))
    tokens = [event.token for event in events]
    logits = model.forward([prompt + tokens])[0].astype(np.float64)
    log_p = logits - logits.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    np.testing.assert_allclose(scored.scores.log_p, log_p[np.arange(449), prompt[1:]], atol=2e-5)
    for row, event in zip(log_p[449:], events):
        # Steps and whole sequences are other forms of attention, in bf16 here.
        assert abs(event.likelihood.log_p - row[event.token]) < 0.1
        assert event.likelihood.likely[0] == (event.token, event.likelihood.log_p) and len(event.likelihood.likely) == 3
        assert [p for _, p in event.likelihood.likely] == sorted((p for _, p in event.likelihood.likely), reverse=True)


def test_scores_need_no_new_tokens(engine):
    first, last = engine().events(Request((1, 2, 3), 0, scores=True))
    assert isinstance(first, PromptScored) and len(first.scores.log_p) == 2 and last == RequestEnded(cancelled=False)
    assert len(next(engine().events(Request((1,), 0, scores=True))).scores.log_p) == 0


def test_choices_share_the_prompt(engine):
    one = engine()
    prompt = tuple(range(100, 300))  # three pages, and eight tokens of the next
    events = one.events(Request(prompt, 30, Sampler(1.0), choices=8))
    for event in events:
        if getattr(event, "choice", 0) == 7:
            break
    assert one.sequences.pool.used == 3 + 8
    rest = list(events)
    assert len([event for event in rest if isinstance(event, ChoiceEnded)]) == 8
    written = by_choice([event for event in rest if isinstance(event, TokenDrawn)])
    assert len({tuple(event.split("token=")[1] for event in events) for events in written.values()}) == 8
    assert one.statistics.prompt_tokens == 200


@pytest.mark.parametrize("when", ["waiting", "prefilling", "writing"])
def test_cancelled_requests_free_their_pages(engine, when, monkeypatch):
    one = engine(rows=1)
    go_on = threading.Event()
    if when == "prefilling":
        extend = one.sequences.extend
        monkeypatch.setattr(one.sequences, "extend", lambda sequence: go_on.wait(10) and extend(sequence))
    events, began = [], threading.Event()
    blocker = one.submit(Request((1, 2, 3), 600), lambda event: (events.append(event), began.set()))
    if when == "waiting":
        began.wait(10)
        other = []
        waiting = one.submit(Request((4, 5), 600), other.append)
        waiting.cancel()
        while not other:
            time.sleep(0.001)
        assert other == [RequestEnded(cancelled=True)]
        assert not any(isinstance(event, RequestEnded) for event in events)
    elif when == "writing":
        began.wait(10)
    blocker.cancel()
    go_on.set()
    while not events or not isinstance(events[-1], RequestEnded):
        time.sleep(0.001)
    assert events[-1].cancelled and len(events) < 600
    assert one.sequences.pool.used == 0 and one.statistics.cancelled == (2 if when == "waiting" else 1)


def test_a_generator_that_is_left_cancels(engine):
    one = engine()
    events = one.events(Request((1, 2, 3), 600))
    next(events)
    events.close()
    while one.writing:
        time.sleep(0.001)
    assert one.statistics.cancelled == 1 and one.sequences.pool.used == 0


def test_limits(engine):
    one = engine(rows=2, waiting=3, pages=12)
    events = []
    tickets = [one.submit(Request((1, 2, 3), 600), events.append) for _ in range(2)]  # each needs ten of twelve pages
    while not events:
        time.sleep(0.001)
    tickets += [one.submit(Request((1, 2, 3), 5), events.append) for _ in range(2)]
    with pytest.raises(OverloadedError, match="expected at most 3 requests to wait, but got one more") as caught:
        one.submit(Request((1, 2, 3), 5), events.append)
    assert caught.value.retry_after >= 1 and one.waiting == 3
    for request, message in ((Request((1,) * 600, 41), "expected at most 640 tokens, but got a prompt of 600 and max_tokens of 41"),
                             (Request((1, 2048), 1), "prompt: expected token ids to be at least 0 and below 2048, but got 2048"),
                             (Request((-1,), 1), "prompt: expected token ids to be at least 0"),
                             (Request((1, 2.5), 1), "prompt: expected token ids, which are integers, but got float64"),
                             (Request((1,), 1, Sampler(logit_bias={2048: 1})), "logit_bias: expected token ids below 2048, but got 2048"),
                             (Request((1,), 1, choices=3), "expected at most 2 choices, but got 3"),
                             (Request((1,) * 70, 570, choices=2), "expected a request for at most 12 pages of 64 tokens, but got one for 19")):
        with pytest.raises(InputError, match=message):
            one.submit(request, events.append)
    for ticket in tickets:
        ticket.cancel()


@pytest.mark.parametrize("options, message", [
    ({"prompt": ()}, "prompt: expected at least one token, but got none"),
    ({"max_tokens": 0}, "max_tokens: expected an integer of at least 1, but got 0"),
    ({"choices": 0}, "choices: expected an integer from 1 to 128, but got 0"),
    ({"likely": 21}, "likely: expected an integer from 0 to 20, but got 21"),
    ({"seed": -1}, "seed: expected an integer of at least 0, but got -1"),
    ({"stop": ("a",), "want_text": False}, "stop: expected none without text"),
])
def test_bad_requests(options, message):
    with pytest.raises(ValueError, match=message):
        Request(**({"prompt": (1,), "max_tokens": 1} | options))


def test_closing(engine):
    one, events = engine(), []
    one.submit(Request((1, 2, 3), 30, ends=frozenset()), events.append)
    one.close()
    assert events[-1] == RequestEnded(cancelled=False) and sum(isinstance(event, TokenDrawn) for event in events) == 30
    with pytest.raises(ClosedError, match="expected an engine that takes requests, but it ends"):
        one.submit(Request((1, 2, 3), 30), events.append)
    other, events = engine(), []
    tickets = [other.submit(Request((1, 2, 3), 600), events.append) for _ in range(3)]
    other.close(finish=False)
    assert events.count(RequestEnded(cancelled=True)) == len(tickets)


def test_a_request_that_fails_leaves_others_alone(engine, monkeypatch):
    """A sampler that finds no number, and a call of the model that fails: the second ends all that were in it, and no later one."""
    one = engine()
    bad = Request((1, 2, 3), 40, Sampler(logit_bias={3: 1e308}))
    pick = Sampler.pick
    monkeypatch.setattr(Sampler, "pick", lambda self, logits, *rest, **more: pick(
        self, logits * np.float32("nan") if self.logit_bias and more["step"] == 2 else logits, *rest, **more))
    good = one.events(Request((1, 2, 3), 300))
    next(good)
    *_, last = one.events(bad)
    assert isinstance(last, RequestFailed) and "expected logits of which the largest is finite" in str(last.error)
    assert isinstance(next(good), TokenDrawn)
    decode = one.sequences.decode
    monkeypatch.setattr(one.sequences, "decode", lambda *_: (_ for _ in ()).throw(RunError("no more memory")))
    *_, last = good
    assert isinstance(last, RequestFailed) and str(last.error) == "no more memory"
    monkeypatch.setattr(one.sequences, "decode", decode)
    assert list(one.events(Request((1, 2, 3), 3)))[-1] == RequestEnded(cancelled=False)
    assert one.statistics.failed == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_engine_is_told_to_all(engine, monkeypatch):
    one, events = engine(rows=1), []
    one.submit(Request((1, 2, 3), 600), events.append)
    one.submit(Request((1, 2, 3), 600), events.append)
    monkeypatch.setattr(one, "_decode", lambda: 1 // 0)
    one._thread.join(10)
    failed = [event for event in events if isinstance(event, RequestFailed)]
    assert len(failed) == 2 and "expected the engine to run on, but got ZeroDivisionError" in str(failed[0].error)
    with pytest.raises(ClosedError):
        one.submit(Request((1,), 1), events.append)
    one.sequences = type(one.sequences)(one.model, 200, CAPACITY)  # this engine runs no more


def test_without_a_tokenizer(tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(TINY / name, tmp_path / name)
    one = Engine(paged_model.load(tmp_path), pages=20, capacity=200)
    with pytest.raises(InputError, match="expected a tokenizer.json, as the request wants text"):
        one.submit(Request((1, 2), 3), print)
    assert sum(isinstance(event, TokenDrawn) for event in one.events(Request((1, 2), 3, want_text=False))) == 3
    one.close()
