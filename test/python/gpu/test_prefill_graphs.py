"""Prefills of `generate` on a device: one graph where prompts of the same shape come again."""
import pytest
from paths import ROOT

import diffattn
from diffattn import prefill
from diffattn.errors import RunError
from diffattn.graph_capture import CapturedGraph

TARGET = "cuda-sim:sm_80"


@pytest.fixture(scope="module")
def loaded():
    return diffattn.load(ROOT / "examples" / "tiny-lm", target=TARGET)


@pytest.fixture
def tiny(loaded):
    """The model as if no prompt had come yet."""
    loaded._prefills = prefill.Prefills(loaded.executable)
    return loaded


def prefill_launches(model, prompt):
    """The first token that `generate` gives after a prompt, and the number of launches for both."""
    before = model.executable.traffic().launches
    (token,) = model.generate(prompt, 1)
    return token, model.executable.traffic().launches - before


def test_prefills_of_a_shape_that_comes_again_are_one_launch(tiny):
    plain, captured, *others = (prefill_launches(tiny, [1, 2, 3 + i]) for i in range(4))
    assert plain[1] == captured[1] > 40 and [launches for _, launches in others] == [1, 1]
    other = prefill_launches(tiny, [1, 2, 3, 4])
    assert other[1] == plain[1]  # another shape, which may not come again
    for i, (token, _) in enumerate((plain, captured, *others)):
        tiny._prefills = prefill.Prefills(tiny.executable)
        assert prefill_launches(tiny, [1, 2, 3 + i]) == (token, plain[1])


def test_texts_that_are_generated_at_once_have_caches_of_their_own(tiny):
    prompts = [[5, 6], [7, 8], [9, 10]]
    alone = [list(tiny.generate(prompt, 3)) for prompt in prompts]
    assert len(tiny._prefills._idle) == 1
    # The first of them has the graph that waits; a generator that is left early gives its graph back.
    streams = [tiny.generate(prompt, 3) for prompt in prompts]
    together = [[next(stream)] for stream in streams]
    assert not tiny._prefills._idle
    for _ in range(2):
        for text, stream in zip(together, streams):
            text.append(next(stream))
    assert together == alone
    streams[0].close()
    assert len(tiny._prefills._idle) == 1
    assert list(tiny.generate(prompts[0], 3)) == alone[0]


def test_few_prefills_are_kept(tiny, monkeypatch):
    monkeypatch.setattr(prefill, "MOST_GRAPHS", 1)
    monkeypatch.setattr(prefill, "MOST_SHAPES", 2)
    for length in (1, 2, 1, 2):
        list(tiny.generate(list(range(length)), 1))
    assert list(tiny._prefills._idle) == [(1, 2)] and list(tiny._prefills._shapes) == [(1, 1), (1, 2)]
    list(tiny.generate([1, 2, 3], 1))
    assert list(tiny._prefills._shapes) == [(1, 2), (1, 3)]


def test_a_prefill_that_finds_no_room_to_be_captured_is_plain(tiny, monkeypatch):
    def full(*_):
        raise RunError("expected 1 GB of memory, but got none")

    expected = list(tiny.generate([1, 2, 3], 1))
    monkeypatch.setattr(tiny.executable, "capture", full)
    with pytest.warns(UserWarning, match="prefills are launched kernel by kernel, not as one graph: expected 1 GB of memory, but got none"):
        assert list(tiny.generate([1, 2, 3], 1)) == expected
    assert list(tiny.generate([1, 2, 3], 1)) == expected and not tiny._prefills._idle


def test_generation_says_that_prefills_are_not_captured(tiny, monkeypatch):
    monkeypatch.setattr(CapturedGraph, "fallback_reason", property(lambda _: "expected a graph, but the driver says no"))
    with pytest.warns(UserWarning) as caught:
        texts = [list(tiny.generate([1, 2, 3], 1)) for _ in range(3)]
    assert texts[0] == texts[1] == texts[2] and not tiny._prefills._idle
    # Once, though the shape has come twice again.
    assert [str(warning.message) for warning in caught] == [
        "prefills are launched kernel by kernel, not as one graph: expected a graph, but the driver says no"]
