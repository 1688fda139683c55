"""A choice of a request while it is written: its sequence, its random numbers, its text."""

from __future__ import annotations

import numpy as np

from ..sampling import log_probabilities
from ..tokenizer import TextStream, Tokenizer
from .requests import ChoiceEnded, Event, Likelihood, Request, TokenDrawn
from .sequences import Prompted


def likelihood_of(logits: np.ndarray, token: int, likely: int) -> Likelihood:
    """Likelihood of a token by the logits `[V]` before it; among equal ones those with low ids come first."""
    log_p = log_probabilities(logits)
    first: np.ndarray | tuple = ()
    if likely:
        likely = min(likely, len(log_p))
        least = np.partition(log_p, -likely)[-likely]
        first = np.flatnonzero(log_p >= least)
        first = first[np.argsort(-log_p[first], kind="stable")][:likely]
    return Likelihood(float(log_p[token]), tuple((int(id_), float(log_p[id_])) for id_ in first))


class Row:
    """One choice of a request while it is written. `take` gives it the next token."""

    def __init__(self, request: Request, choice: int, sequence: Prompted, tokenizer: Tokenizer | None) -> None:
        self.request, self.choice, self.sequence = request, choice, sequence
        self.tokens: list[int] = []
        self.has_ended = False
        self._before = list(request.prompt)
        self._text = TextStream(tokenizer, request.prompt, request.stop) if tokenizer is not None and request.want_text else None

    def take(self, logits: np.ndarray) -> list[Event]:
        """Draws a token from the logits `[V]`, and says what came of it."""
        request, step = self.request, len(self.tokens)
        token = request.sampler.pick(logits, self._before, generated=step, seed=request.seed, choice=self.choice, step=step)
        self.tokens.append(token)
        self._before.append(token)
        stops, text = token in request.ends, ""
        if self._text is not None and not stops:
            text = self._text.push(token)
            stops = self._text.stopped
        likelihood = None if request.likely is None else likelihood_of(logits, token, request.likely)
        events: list[Event] = [TokenDrawn(self.choice, token, text, likelihood)]
        if stops or len(self.tokens) >= request.max_tokens:
            self.has_ended = True
            rest = self._text.finish() if self._text is not None else ""
            events.append(ChoiceEnded(self.choice, "stop" if stops else "length", rest))
        return events
