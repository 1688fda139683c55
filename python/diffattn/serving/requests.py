"""Requests to the engine, and its answers: events, one after the other, from the thread that owns the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Union

from .. import checks
from ..errors import InputError, RunError
from ..sampling import Sampler
from .sequences import Scores

MOST_CHOICES = 128
#: Log-probabilities of so many tokens beside the one that was drawn.
MOST_LIKELY = 20


class OverloadedError(RunError):
    """The queue is full; `retry_after` is the number of seconds after which there may be room."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ClosedError(RunError):
    """The engine ends, and takes no more requests."""


@dataclass(frozen=True)
class Request:
    """`choices` texts of at most `max_tokens` tokens that follow a prompt.

    A choice ends at one of the tokens `ends`, or where its text has one of `stop`, which needs a tokenizer. `likely` asks for the
    log-probability of each token, and of so many likeliest ones; `scores` for those of the prompt, for which `max_tokens` may be 0.
    Log-probabilities are those of the model, before temperature, penalties and biases. `want_text` is whether events have text.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    choices: int = 1
    ends: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    likely: int | None = None
    scores: bool = False
    want_text: bool = True

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InputError("prompt: expected at least one token, but got none")
        checks.integer("max_tokens", self.max_tokens, 0 if self.scores else 1)
        checks.integer("seed", self.seed)
        checks.integer("choices", self.choices, 1, MOST_CHOICES)
        if self.likely is not None:
            checks.integer("likely", self.likely, 0, MOST_LIKELY)
        if self.stop and not self.want_text:
            raise InputError("stop: expected none without text, but got some")


@dataclass(frozen=True)
class Likelihood:
    """The log-probability of a token, and ids and log-probabilities of the likeliest ones, those first."""

    log_p: float
    likely: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class PromptScored:
    """Likelihoods of the tokens of the prompt, from the second on. The first event of a request with `scores`."""

    scores: Scores


@dataclass(frozen=True)
class TokenDrawn:
    """A token of a choice, and the text that is certain with it, which may be that of several tokens, or of none yet."""

    choice: int
    token: int
    text: str
    likelihood: Likelihood | None


@dataclass(frozen=True)
class ChoiceEnded:
    """A choice is over. `reason` is `stop` (an end token or a text of `stop` came) or `length`; `text` is what was held back."""

    choice: int
    reason: str
    text: str


@dataclass(frozen=True)
class RequestFailed:
    """The last event of a request that could not be computed."""

    error: Exception


@dataclass(frozen=True)
class RequestEnded:
    """The last event of every other request, also of one that was cancelled."""

    cancelled: bool


Event = Union[PromptScored, TokenDrawn, ChoiceEnded, RequestFailed, RequestEnded]  # Python 3.9 has no | of types
Deliver = Callable[[Event], None]
