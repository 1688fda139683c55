"""Differential models in vLLM, out of its tree (docs/vllm.md): vLLM calls `register` in each of its processes, by the entry point
`vllm.general_plugins`.

Nothing of vLLM or PyTorch is imported here: the models and their attention are, when vLLM loads one.
"""

from __future__ import annotations

import importlib.metadata
import logging

#: Prefixes of the first and the last release that the models were tried with.
TRIED = ("0.32", "0.32")

#: The classes of models by the names that checkpoints have in "architectures".
ARCHITECTURES = {
    "DiffLlamaForCausalLM": "DiffLlamaForCausalLM",
    "DiffV1ForCausalLM": "DiffV1ForCausalLM",
    "DiffV2ForCausalLM": "DiffV2ForCausalLM",
    "MotifForCausalLM": "MotifForCausalLM",
}
#: The classes of configs by "model_type", of models that transformers does not have.
CONFIGS = {"diff_v1": "DiffV1Config", "diff_v2": "DiffV2Config", "motif": "MotifConfig"}

_log = logging.getLogger("vllm.diffattn")


def register() -> None:
    """Registers the models in vLLM. A failure is one line of the log, since vLLM has other models to serve."""
    try:
        version = installed_version()
        if not is_tried(version):
            _log.warning("diffattn: vLLM %s was not tried, as %s to %s were: compare the texts once (docs/vllm.md)", version, *TRIED)
        _register()
    except Exception as error:
        _log.warning("diffattn: its models are not there, because of %s: %s", type(error).__name__, error)


def installed_version() -> str:
    """vLLM's, of its distribution or of the builds that others make of it."""
    import vllm

    return str(getattr(vllm, "__version__", None) or importlib.metadata.version("vllm"))


def is_tried(version: str) -> bool:
    """Whether a release lies in the range of `TRIED`; what follows the second number does not count."""
    first, last, mine = (tuple(int(part) if part.isdigit() else -1 for part in text.split(".")[:2]) for text in (*TRIED, version))
    return first <= mine <= last


def _register() -> None:
    from vllm import ModelRegistry
    from vllm.transformers_utils import config

    from . import configs

    for architecture, name in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, f"{__name__}.models:{name}")
    for model_type, name in CONFIGS.items():
        config._CONFIG_REGISTRY[model_type] = getattr(configs, name)
