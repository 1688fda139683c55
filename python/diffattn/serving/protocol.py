"""Bodies of OpenAI's requests, checked. An option that this server does not have is refused by its name, never passed over."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Union  # pydantic evaluates them, also on Python 3.9

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import InputError
from ..generation_config import GenerationDefaults
from ..models.likelihood import LIKELIEST
from ..sampling import Sampler
from ..text import printable_name, shown
from .requests import MOST_CHOICES, MOST_LIKELY

#: Keys of requests that change no text, and are taken and left aside.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
MOST_STOPS = 16
MOST_PROMPTS = 64


class BodyError(InputError):
    """A body that cannot be answered. `parameter` is the key that is wrong."""

    def __init__(self, message: str, parameter: Optional[str] = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: bool = False


class Body(BaseModel):
    """Fields of both completions and chat completions. None: as the model's makers say, else OpenAI's default."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    max_tokens: Optional[int] = Field(None, ge=0)
    n: Optional[int] = Field(1, ge=1, le=MOST_CHOICES)
    seed: Optional[int] = None
    stop: Optional[Union[str, List[str]]] = None
    stream: Optional[bool] = False
    stream_options: Optional[StreamOptions] = None
    temperature: Optional[float] = Field(None, ge=0, le=100)
    top_p: Optional[float] = Field(None, gt=0, le=1)
    top_k: Optional[int] = None
    min_p: Optional[float] = Field(None, ge=0, le=1)
    repetition_penalty: Optional[float] = Field(None, gt=0)
    presence_penalty: Optional[float] = Field(0, ge=-2, le=2)
    frequency_penalty: Optional[float] = Field(0, ge=-2, le=2)
    logit_bias: Optional[Dict[str, float]] = None

    def check(self) -> None:
        """Raises a BodyError for keys that do not go together."""

    def sampler(self, defaults: GenerationDefaults, has_defaults: bool) -> Sampler:
        """The sampler of a body. `has_defaults`: whether the model's makers give defaults, which are without min_p."""
        temperature = self.temperature
        if temperature is None:
            temperature = defaults.temperature if has_defaults else 1.0
        top_k = defaults.top_k if self.top_k is None else max(self.top_k, 0)  # -1, as others have it, is none too
        if temperature == 0:
            top_k = 0
        return Sampler(temperature, top_k, defaults.top_p if self.top_p is None else self.top_p,
                       defaults.repetition_penalty if self.repetition_penalty is None else self.repetition_penalty,
                       self.min_p or 0.0, self.presence_penalty or 0.0, self.frequency_penalty or 0.0, self._biases())

    def stops(self, defaults: GenerationDefaults) -> tuple[str, ...]:
        stop = defaults.stop if self.stop is None else [self.stop] if isinstance(self.stop, str) else self.stop
        if len(stop) > MOST_STOPS or not all(stop):
            raise BodyError(f"stop: expected at most {MOST_STOPS} texts that are not empty, but got {shown(stop)}", "stop")
        return tuple(stop)

    def _biases(self) -> dict[int, float]:
        biases = {}
        for token, bias in (self.logit_bias or {}).items():
            if not (token.isascii() and token.isdigit() and len(token) <= 10) or not -100 <= bias <= 100:
                raise BodyError(f"logit_bias: expected token ids and numbers from -100 to 100, but got {shown(token)}: {bias}", "logit_bias")
            biases[int(token)] = bias
        return biases


class CompletionBody(Body):
    prompt: Union[str, List[str], List[int], List[List[int]]]
    echo: Optional[bool] = False
    logprobs: Optional[int] = Field(None, ge=0, le=MOST_LIKELY)
    best_of: Optional[int] = None

    def prompts(self) -> list[str | list[int]]:
        """Each a text, or ids."""
        prompt: Any = self.prompt
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            prompt = [prompt]
        if not 1 <= len(prompt) <= MOST_PROMPTS:
            raise BodyError(f"prompt: expected from 1 to {MOST_PROMPTS} prompts, but got {len(prompt)}", "prompt")
        return prompt

    def check(self) -> None:
        if self.best_of not in (None, self.n):
            raise BodyError(f"best_of: expected none, or the n of {self.n}, but got {self.best_of}", "best_of")
        if self.echo and (self.logprobs or 0) > LIKELIEST:
            raise BodyError(f"logprobs: expected at most {LIKELIEST} with echo, but got {self.logprobs}", "logprobs")
        if self.max_tokens == 0 and not self.echo:
            raise BodyError("max_tokens: expected at least 1 without echo, but got 0", "max_tokens")


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: str
    content: Union[str, List[Dict[str, Any]], None] = None
    name: Optional[str] = None

    def plain(self) -> dict[str, str]:
        """The message as templates take it: text alone."""
        content = self.content
        if isinstance(content, list):
            for part in content:
                if part.get("type") != "text" or not isinstance(part.get("text"), str):
                    raise BodyError(f"messages: expected content of text, but got a part of type {shown(part.get('type'))}", "messages")
            content = "".join(part["text"] for part in content)
        message = {"role": self.role, "content": content or ""}
        return message if self.name is None else message | {"name": self.name}


class ChatBody(Body):
    messages: List[Message] = Field(min_length=1)
    max_completion_tokens: Optional[int] = Field(None, ge=1)
    logprobs: Optional[bool] = False
    top_logprobs: Optional[int] = Field(None, ge=0, le=MOST_LIKELY)

    def check(self) -> None:
        if self.top_logprobs is not None and not self.logprobs:
            raise BodyError("top_logprobs: expected logprobs of true with it, but got false", "top_logprobs")
        if self.max_tokens == 0:
            raise BodyError("max_tokens: expected at least 1, but got 0", "max_tokens")


#: OpenAI's options that no request may use here; null, and the value beside each, asks for nothing.
_REFUSED = {"tools": [], "tool_choice": "none", "functions": [], "function_call": "none", "response_format": {"type": "text"}, "suffix": "",
            "modalities": ["text"], "audio": None, "prediction": None, "reasoning_effort": "none", "web_search_options": None,
            "parallel_tool_calls": True, "verbosity": None}


def parse(kind: type[Body], body: bytes) -> Any:
    """The body of a request as one of these, else a BodyError that names what is wrong."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BodyError(f"expected a body of JSON, but got: {printable_name(str(error))[:200]}") from None
    if not isinstance(values, dict):
        raise BodyError(f"expected an object as the body, but got {type(values).__name__}")
    for name, nothing in _REFUSED.items():
        if name in values and name not in kind.model_fields and values.pop(name) not in (None, nothing):
            raise BodyError(f"{name}: expected none, because this server does not have it, but got some", name)
    try:
        parsed = kind.model_validate({name: value for name, value in values.items() if name not in IGNORED})
    except ValidationError as error:
        raise _body_error(error) from None
    parsed.check()
    return parsed


def _body_error(error: ValidationError) -> BodyError:
    """The first complaint of pydantic, in our words."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    # A union has an error for each of its parts.
    name = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "missing":
        return BodyError(f"{printable_name(place)}: expected it in the body, but it is missing", name)
    if first["type"] == "extra_forbidden":
        lacks = "route" if name in {**CompletionBody.model_fields, **ChatBody.model_fields} else "server"
        return BodyError(f"{printable_name(place)}: expected none, because this {lacks} does not have it, but got {shown(first['input'])}", name)
    several = [other for other in error.errors(include_url=False) if other["loc"][:1] == first["loc"][:1]]
    expected = " or ".join(dict.fromkeys(other["msg"].replace("Input should be ", "").replace("Value error, ", "") for other in several[:4]))
    return BodyError(f"{printable_name(name if len(several) > 1 else place)}: expected {expected}, but got {shown(first['input'])}", name)
