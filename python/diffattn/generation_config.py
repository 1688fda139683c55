"""generation_config.json: how a model's makers want text drawn from it, where the caller does not say.

The keys mean what they mean in transformers. Those that are not honoured here and would change the text are named in a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import files
from .checkpoint import read_json
from .errors import ConfigError, InputError
from .models.config import Config
from .sampling import Sampler
from .text import printable_name

NAME = "generation_config.json"
#: Number of new tokens of `generate` where neither the caller nor the file says it.
NEW_TOKENS = 128
#: top_k of transformers when it samples and the file names none.
SAMPLED_TOP_K = 50
MOST_TOKENS = (1 << 31) - 1

HONOURED = {"bos_token_id", "eos_token_id", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "max_new_tokens",
            "max_length", "stop_strings"}
#: Keys that say nothing about which tokens come.
OF_NO_EFFECT = {"transformers_version", "pad_token_id", "use_cache", "cache_implementation", "cache_config", "max_time",
                "return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
                "decoder_start_token_id", "prefill_chunk_size", "compile_config", "disable_compile", "low_memory",
                "return_legacy_cache", "is_assistant", "chat_format"}
#: Values of other keys with which they change nothing; null, false and what is empty never do.
NEUTRAL = {"num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "length_penalty": 1, "diversity_penalty": 0,
           "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1, "typical_p": 1,
           "epsilon_cutoff": 0, "eta_cutoff": 0, "min_p": 0, "min_length": 0, "min_new_tokens": 0, "guidance_scale": 1,
           "top_h": 1, "penalty_alpha": 0, "num_assistant_tokens": 20, "assistant_confidence_threshold": 0.4,
           "num_assistant_tokens_schedule": "constant", "target_lookbehind": 10, "assistant_lookbehind": 10}


def token_ids(config: Config, key: str) -> list[int]:
    """The ids under a key: one, a list of them, or none."""
    value = config.values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(i) is not int or not 0 <= i <= MOST_TOKENS for i in ids):
        raise config.fail(key, "a token id or a list of them", value)
    return ids


@dataclass(frozen=True)
class GenerationDefaults:
    """Options that `generate` uses where its caller gives none."""

    bos: int | None = None
    ends: frozenset[int] = frozenset()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    new_tokens: int | None = None
    length: int | None = None
    stop: list[str] = field(default_factory=list)

    def sampler(self, temperature=None, top_k=None, top_p=None, repetition_penalty=None) -> Sampler:
        """The sampler with these options; None: as the file says."""
        if temperature == 0 and (top_k or (top_p is not None and top_p != 1)):
            warnings.warn("top_k and top_p have no effect at temperature 0, where the likeliest token is taken")
        return Sampler(self.temperature if temperature is None else temperature, self.top_k if top_k is None else top_k,
                       self.top_p if top_p is None else top_p,
                       self.repetition_penalty if repetition_penalty is None else repetition_penalty)

    def limit(self, longest: int) -> int:
        """Number of tokens to generate after prompts of at most `longest`."""
        if self.new_tokens is not None:
            return self.new_tokens
        if self.length is None:
            return NEW_TOKENS
        if self.length <= longest:
            raise InputError(f"expected max_new_tokens, because a prompt of {longest} tokens leaves no room in the max_length of "
                             f"{self.length} that {NAME} sets")
        return self.length - longest


def read_defaults(directory: Path, config: Mapping[str, Any]) -> GenerationDefaults:
    """The defaults of generation_config.json, and where it has none of config.json."""
    own = Config(config, str(directory / "config.json"))
    path = directory / NAME
    values = read_json(path) if files.exists(path) else {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected an object, but got {type(values).__name__}")
    given = Config(values, str(path))
    _warn_of_others(given)
    tokens = {key: token_ids(given, key) or token_ids(own, key) for key in ("bos_token_id", "eos_token_id")}
    vocabulary = own.values.get("vocab_size")
    if isinstance(vocabulary, int) and any(token >= vocabulary for token in tokens["bos_token_id"]):
        source = given if token_ids(given, "bos_token_id") else own
        raise source.fail("bos_token_id", f"below the vocab_size of {vocabulary}", tokens["bos_token_id"][0])
    samples = given.flag("do_sample", False)
    temperature = given.number("temperature", 1.0)
    if temperature < 0:
        raise given.fail("temperature", "at least 0", temperature)
    top_p = given.number("top_p", 1.0, above=0)
    if top_p > 1:
        raise given.fail("top_p", "at most 1", top_p)
    stop = values.get("stop_strings")
    stop = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop):
        raise given.fail("stop_strings", "a text or a list of texts that are not empty", stop)
    return GenerationDefaults(
        bos=tokens["bos_token_id"][0] if tokens["bos_token_id"] else None, ends=frozenset(tokens["eos_token_id"]),
        temperature=temperature if samples else 0.0,
        top_k=given.integer("top_k", SAMPLED_TOP_K if samples else 0, minimum=0, maximum=MOST_TOKENS), top_p=top_p,
        repetition_penalty=given.number("repetition_penalty", 1.0, above=0),
        new_tokens=given.integer("max_new_tokens", None, maximum=MOST_TOKENS),
        length=given.integer("max_length", None, maximum=MOST_TOKENS), stop=stop)


def _warn_of_others(config: Config) -> None:
    def changes(key: str, value: Any) -> bool:
        return bool(value) and not (key in NEUTRAL and value == NEUTRAL[key])

    others = sorted(key for key, value in config.values.items()
                    if key not in HONOURED | OF_NO_EFFECT and not key.startswith("_") and changes(key, value))
    if others:
        warnings.warn(f"{config.source}: not honoured: {', '.join(map(printable_name, others))}")


