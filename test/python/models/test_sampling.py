"""Choosing tokens and turning them into text."""
import numpy as np
import pytest

from diffattn.errors import RunError
from diffattn.sampling import Sampler, uniform
from diffattn.tokenizer import TextStream

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))


def frequencies(sampler, count=4000):
    picks = [sampler.pick(LOGITS, step=step) for step in range(count)]
    return np.bincount(picks, minlength=4) / count


def test_greedy_takes_the_likeliest():
    assert Sampler().pick(LOGITS) == 0
    assert Sampler().pick(LOGITS[::-1]) == 3


def test_draws_from_the_softmax():
    np.testing.assert_allclose(frequencies(Sampler(temperature=1.0)), [0.5, 0.25, 0.15, 0.1], atol=0.03)


def test_temperature_sharpens():
    squares = np.array([0.5, 0.25, 0.15, 0.1]) ** 2
    np.testing.assert_allclose(frequencies(Sampler(temperature=0.5)), squares / squares.sum(), atol=0.03)


def test_top_k_and_top_p_keep_the_head():
    np.testing.assert_allclose(frequencies(Sampler(temperature=1.0, top_k=2)), [2 / 3, 1 / 3, 0, 0], atol=0.03)
    np.testing.assert_allclose(frequencies(Sampler(temperature=1.0, top_p=0.7)), [2 / 3, 1 / 3, 0, 0], atol=0.03)
    np.testing.assert_allclose(frequencies(Sampler(temperature=1.0, top_p=0.4)), [1, 0, 0, 0])


def test_top_k_takes_the_first_of_equal_ones():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 300):
        scores = np.append(rng.integers(0, 9, size).astype(np.float64), -np.inf)
        for k in (0, 1, 2, 5, size, size + 1, 1000):
            assert (Sampler(top_k=k)._head(scores) == np.argsort(-scores, kind="stable")[: k or None]).all()


def test_min_p_keeps_what_is_near_the_likeliest():
    np.testing.assert_allclose(frequencies(Sampler(temperature=1.0, min_p=0.4)), [2 / 3, 1 / 3, 0, 0], atol=0.03)
    np.testing.assert_allclose(frequencies(Sampler(temperature=1.0, min_p=0.6)), [1, 0, 0, 0])
    np.testing.assert_allclose(frequencies(Sampler(temperature=1.0, min_p=0.0)), [0.5, 0.25, 0.15, 0.1], atol=0.03)


def test_penalties_of_generated_tokens_and_biases():
    """With the prompt 0, 0 and the generated 0, 0, 1, tokens of the prompt do not count."""
    before = [0, 0, 0, 0, 1]

    def logits(**options):
        return Sampler(**options)._moved(LOGITS, before, 3) - LOGITS

    np.testing.assert_allclose(logits(presence_penalty=0.5), [-0.5, -0.5, 0, 0], atol=1e-7)
    np.testing.assert_allclose(logits(frequency_penalty=0.5), [-1.0, -0.5, 0, 0], atol=1e-7)
    np.testing.assert_allclose(logits(presence_penalty=-1, frequency_penalty=0.25, logit_bias={3: 2.0}), [0.5, 0.75, 0, 2], atol=1e-7)
    assert Sampler(logit_bias={2: 100}).pick(LOGITS) == 2 and LOGITS[2] < 0
    assert Sampler(presence_penalty=2).pick(LOGITS, [0, 0], generated=0) == 0
    assert Sampler(presence_penalty=2).pick(LOGITS, [1, 0], generated=1) == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-310, 5e-324])
def test_tiny_temperatures_take_the_likeliest(temperature):
    assert {Sampler(temperature).pick(np.array([1, 5, 3, -np.inf], np.float32), seed=seed) for seed in range(8)} == {1}


@pytest.mark.parametrize("logits", [[1, np.nan, 3], [1, np.inf, 3], [-np.inf, -np.inf, -np.inf]])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}])
def test_logits_that_are_no_numbers_are_an_error(logits, options):
    with pytest.raises(RunError, match="expected logits of which the largest is finite, but got"):
        Sampler(**options).pick(np.array(logits, np.float32))


def test_a_draw_depends_on_seed_choice_and_step():
    def picks(count=20, **request):
        return [Sampler(temperature=1.0).pick(LOGITS, step=step, **request) for step in range(count)]

    assert picks(seed=1) == picks(seed=1) == picks(seed=1, choice=0) == picks(seed=1)[:20]
    assert len({tuple(picks(seed=seed, choice=choice)) for seed in range(4) for choice in range(4)}) == 16


def test_uniform_numbers():
    """Even over [0, 1), and without a likeness between neighbours, which are counters and keys one apart."""
    numbers = np.array([[uniform(seed, choice, step) for step in range(400)] for seed, choice in ((0, 0), (0, 1), (1, 0), (2**63 - 1, 7))])
    assert (numbers >= 0).all() and (numbers < 1).all() and len(np.unique(numbers)) == numbers.size
    np.testing.assert_allclose(np.sort(numbers.ravel()), (np.arange(1600) + 0.5) / 1600, atol=0.05)
    assert (np.abs(np.corrcoef(numbers) - np.eye(4)) < 0.2).all()
    assert abs(np.corrcoef(numbers[0, 1:], numbers[0, :-1])[0, 1]) < 0.2


@pytest.mark.parametrize("options, message", [
    ({"temperature": -1.0}, "temperature: expected a finite number of at least 0, but got -1.0"),
    ({"temperature": float("nan")}, "temperature: expected"),
    ({"top_k": -1}, "top_k: expected an integer of at least 0"),
    ({"top_p": 0.0}, "top_p: expected a number above 0"),
    ({"top_p": 1.5}, "top_p: expected a number above 0 and at most 1, but got 1.5"),
    ({"repetition_penalty": 0.0}, "repetition_penalty: expected a finite number above 0"),
    ({"min_p": 1.5}, "min_p: expected a number from 0 to 1, but got 1.5"),
    ({"presence_penalty": float("inf")}, "presence_penalty: expected a finite number, but got inf"),
    ({"frequency_penalty": "a"}, "frequency_penalty: expected a finite number, but got 'a'"),
    ({"logit_bias": {-1: 2}}, "logit_bias: expected an integer of at least 0, but got -1"),
    ({"logit_bias": {5: None}}, r"logit_bias\[5\]: expected a finite number, but got None"),
])
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Sampler(**options)


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", errors="replace")


def test_characters_come_whole():
    stream = TextStream(Bytes(), [])
    pieces = [stream.push(b) for b in "aé€😀b".encode()]
    assert [p for p in pieces if p] == ["a", "é", "€", "😀", "b"]


class Fallback:
    """As Llama's: what is no word of the vocabulary, here the letters, is bytes, and a run of these that is no UTF-8 as a whole is lost."""

    def encode(self, text):
        return [number for letter in text for number in ([256 + ord(letter)] if letter.isascii() else letter.encode())]

    def decode(self, ids):
        text, run = "", b""
        for number in [*ids, 256]:
            if number < 256:
                run += bytes([number])
                continue
            try:
                text += run.decode()
            except UnicodeDecodeError:
                text += "\ufffd" * len(run)
            text, run = text + chr(number - 256), b""
        return text[:-1]


@pytest.mark.parametrize("prompt", ["", "a", "漢字漢", "a" * 20 + "漢字漢字漢字漢"])
@pytest.mark.parametrize("text", ["字", "漢字漢字漢字漢字漢字漢字", "é漢😀" * 9 + "b", "word after word after word é"])
def test_characters_that_are_bytes_come_whole(prompt, text):
    tokenizer = Fallback()
    stream = TextStream(tokenizer, tokenizer.encode(prompt))
    pieces = [stream.push(number) for number in tokenizer.encode(text)]
    assert [piece for piece in pieces if piece] == list(text) and stream.finish() == ""


def test_a_prompt_may_end_within_a_character():
    tokenizer = Fallback()
    ids = tokenizer.encode("a漢字b")
    for cut in (2, 3, 5, 6):
        stream = TextStream(tokenizer, ids[:cut])
        assert "".join(map(stream.push, ids[cut:])) == ("漢字b" if cut < 4 else "字b")


def test_stop_strings_never_come_out():
    stream = TextStream(Bytes(), b"so ", ["END", "\n\n"])
    out = ""
    for b in b"the E is not the ENough ENDing":
        out += stream.push(b)
        if stream.stopped:
            break
    assert out + stream.finish() == "the E is not the ENough "


def test_what_was_held_comes_at_the_end():
    stream = TextStream(Bytes(), [], ["END"])
    out = "".join(stream.push(b) for b in b"the EN")
    assert out == "the " and stream.finish() == "EN"
