"""Answers to clients: OpenAI's objects, made of the engine's events. One `Answer` a request of a client, which may have several prompts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Optional

from ..tokenizer import Tokenizer
from .requests import ChoiceEnded, Event, Likelihood, PromptScored, TokenDrawn


class TokenTexts:
    """Texts of single tokens, as they read behind the token before them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, token: int, before: Optional[int] = None) -> str:
        if before is None:
            return self._tokenizer.decode([token])
        return self._tokenizer.decode([before, token])[len(self._tokenizer.decode([before])):]


@dataclass
class ChoiceParts:
    """A choice as far as it is written: what has not been sent is in `text` and `tokens`."""

    last: int  # the token before the next one
    text: str = ""
    tokens: list[tuple[int, Optional[int], Optional[Likelihood]]] = field(default_factory=list)
    count: int = 0
    reason: Optional[str] = None
    sent: int = 0  # characters of token texts, which offsets count


class Answer:
    """The choices of `prompts` with `n` each, whose numbers are prompt · n + choice. `likely`: number of ids that are given with each token's
    log-probability; None: no log-probabilities."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, model: str, fingerprint: str, seed: int, prompts: Sequence[Sequence[int]], n: int, tokenizer: Tokenizer,
                 likely: Optional[int], prompt_texts: Sequence[str] = ()) -> None:
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model,
                     "system_fingerprint": fingerprint}
        self.seed, self.n, self.likely = seed, n, likely
        self.prompts, self._text_of = prompts, TokenTexts(tokenizer)
        self.choices = [ChoiceParts(prompt[-1]) for prompt in prompts for _ in range(n)]
        for number, text in enumerate(prompt_texts):  # with echo
            for choice in self._of_prompt(number):
                choice.text = text

    def _of_prompt(self, number: int) -> list[ChoiceParts]:
        return self.choices[number * self.n : (number + 1) * self.n]

    def take(self, prompt: int, event: Event) -> Optional[int]:
        """Takes an event of a prompt's request. The number of the choice that has more to say; None if none has."""
        if isinstance(event, PromptScored):
            for choice in self._of_prompt(prompt):
                choice.tokens += self._scored(self.prompts[prompt], event)
            return None
        if not isinstance(event, (TokenDrawn, ChoiceEnded)):
            return None
        number = prompt * self.n + event.choice
        choice = self.choices[number]
        choice.text += event.text
        if isinstance(event, TokenDrawn):
            choice.count += 1
            choice.tokens.append((event.token, choice.last, event.likelihood))
            choice.last = event.token
        else:
            choice.reason = event.reason
        return number

    def _scored(self, prompt: Sequence[int], event: PromptScored) -> list[tuple[int, Optional[int], Optional[Likelihood]]]:
        """The tokens of a prompt; of the first nothing is known."""
        scores = event.scores
        result: list[tuple[int, Optional[int], Optional[Likelihood]]] = [(prompt[0], None, None)]
        for at, (token, before) in enumerate(zip(prompt[1:], prompt)):
            likely = zip(scores.likely[at].tolist(), scores.likely_log_p[at].tolist())
            result.append((token, before, Likelihood(float(scores.log_p[at]), tuple(islice(likely, self.likely or 0)))))
        return result

    # ---- objects ----------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        return self.head | {"object": self.kind, "seed": self.seed, "usage": self.usage(),
                            "choices": [self._choice(number) for number in range(len(self.choices))]}

    def chunk(self, number: int) -> dict[str, Any]:
        """A chunk with the text of a choice that was not sent yet."""
        return self.head | {"object": self.chunk_kind, "seed": self.seed, "choices": [self._part(number)]}

    def last_chunk(self) -> dict[str, Any]:
        """The one that has the usage."""
        return self.head | {"object": self.chunk_kind, "seed": self.seed, "choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        given, new = sum(map(len, self.prompts)), sum(choice.count for choice in self.choices)
        return {"prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new}

    def _choice(self, number: int) -> dict[str, Any]:
        choice = self.choices[number]
        # With max_tokens of 0 nothing was drawn, and the length is why it ended.
        return {"index": number, "text": choice.text, "logprobs": self._take_logprobs(choice), "finish_reason": choice.reason or "length"}

    def _part(self, number: int) -> dict[str, Any]:
        choice = self.choices[number]
        part = {"index": number, "text": choice.text, "logprobs": self._take_logprobs(choice), "finish_reason": choice.reason}
        choice.text = ""
        return part

    def _take_logprobs(self, choice: ChoiceParts) -> Optional[dict[str, Any]]:
        tokens, choice.tokens = choice.tokens, []
        if self.likely is None:
            return None
        result: dict[str, list] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, before, likelihood in tokens:
            text = self._text_of(token, before)
            result["tokens"].append(text)
            result["token_logprobs"].append(None if likelihood is None else likelihood.log_p)
            result["top_logprobs"].append(None if likelihood is None else self._likely(token, before, likelihood))
            result["text_offset"].append(choice.sent)
            choice.sent += len(text)
        return result

    def _likely(self, token: int, before: Optional[int], likelihood: Likelihood) -> dict[str, float]:
        """The token itself is among them, as in OpenAI's answers; where two tokens read alike the likelier one stays."""
        result: dict[str, float] = {}
        for other, log_p in (*likelihood.likely, (token, likelihood.log_p)):
            result.setdefault(self._text_of(other, before), log_p)
        return result


class ChatAnswer(Answer):
    """The answer to a chat completion, as messages of an assistant."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def first_chunk(self, number: int) -> dict[str, Any]:
        """The chunk that names the role of who answers."""
        delta = {"role": "assistant", "content": ""}
        return self.head | {"object": self.chunk_kind, "seed": self.seed,
                            "choices": [{"index": number, "delta": delta, "logprobs": None, "finish_reason": None}]}

    def _choice(self, number: int) -> dict[str, Any]:
        choice = self.choices[number]
        return {"index": number, "message": {"role": "assistant", "content": choice.text}, "logprobs": self._take_logprobs(choice),
                "finish_reason": choice.reason}

    def _part(self, number: int) -> dict[str, Any]:
        choice = self.choices[number]
        delta = {"content": choice.text} if choice.text else {}
        choice.text = ""
        return {"index": number, "delta": delta, "logprobs": self._take_logprobs(choice), "finish_reason": choice.reason}

    def _take_logprobs(self, choice: ChoiceParts) -> Optional[dict[str, Any]]:
        tokens, choice.tokens = choice.tokens, []
        if self.likely is None:
            return None

        def entry(token: int, before: Optional[int], log_p: float) -> dict[str, Any]:
            text = self._text_of(token, before)
            return {"token": text, "logprob": log_p, "bytes": list(text.encode())}

        return {"content": [entry(token, before, likelihood.log_p) | {
            "top_logprobs": [entry(other, before, log_p) for other, log_p in likelihood.likely]}
            for token, before, likelihood in tokens if likelihood is not None], "refusal": None}
