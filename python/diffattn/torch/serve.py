"""`transformers serve` with models whose attention runs by the operator (docs/serving.md#transformers-serve):

    python -m diffattn.torch.serve MODEL --continuous-batching

Arguments are that command's own, which has no place for plugins: every model that it loads is patched (`diffattn.patch`) as soon as it
is there.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Sequence

import transformers

from ..output import tell
from .patch import patch


@contextlib.contextmanager
def patched_models() -> Iterator[None]:
    """Patches each model that `from_pretrained` of a class of transformers gives in it, on any thread, and says so on standard error.
    `from_pretrained` raises UsageError where a model has no attention that is patched."""
    original = transformers.PreTrainedModel.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls, *arguments, **options):
        loaded = original(cls, *arguments, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info
        names = patch(model)
        tell(f"diffattn: patched {len(names)} attention modules of {type(model).__name__}")
        return loaded

    transformers.PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    try:
        yield
    finally:
        transformers.PreTrainedModel.from_pretrained = classmethod(original)


def main(arguments: Sequence[str] | None = None) -> None:
    """`arguments` are those of `transformers serve`, by default the process's."""
    from transformers.cli.transformers import app

    with patched_models():
        app(["serve", *(sys.argv[1:] if arguments is None else arguments)], prog_name="transformers")


if __name__ == "__main__":
    main()
