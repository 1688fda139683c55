"""The name "diffattn" for `torch.compile` where pip has not installed the package: on PYTHONPATH there is no metadata with the entry point.

PyTorch asks `importlib.metadata` for entry points once, when a backend that it does not know is named. Until then a finder of metadata
waits for it: importing torch._dynamo for the name would take longer than importing PyTorch.
"""

from __future__ import annotations

import importlib.metadata
import sys

from .. import __version__

_FILES = {"METADATA": f"Metadata-Version: 2.1\nName: diffattn\nVersion: {__version__}\n",
          "entry_points.txt": "[torch_dynamo_backends]\ndiffattn = diffattn.torch.backend:backend\n"}


class _Metadata(importlib.metadata.Distribution):
    """The metadata of this package as far as entry points need it."""

    def read_text(self, filename):
        return _FILES.get(filename)

    def locate_file(self, path):
        raise FileNotFoundError(path)


class _Finder(importlib.metadata.DistributionFinder):
    """Gives the metadata to searches of all packages, where pip did not install this one: a search by the name goes past this finder, so
    that it says whether pip did."""

    def find_spec(self, fullname, path=None, target=None):
        return None

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        return [] if context.name is not None or _is_installed() else [_Metadata()]


def _is_installed() -> bool:
    """Whether pip's metadata of this package is there."""
    return any(True for _ in importlib.metadata.distributions(name="diffattn"))


def register_name() -> None:
    """Makes `torch.compile(backend="diffattn")` known, without importing what compiles."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
    registry = sys.modules.get("torch._dynamo.backends.registry")
    # It may have asked already. What pip installed it finds by itself, and may be loading now: it refuses a name that is there.
    if hasattr(registry, "register_backend") and not _is_installed():
        try:
            registry.register_backend(_backend, name="diffattn")
        except AssertionError:  # by an earlier call
            pass


def _backend(module, example_inputs, **options):
    from .backend import backend

    return backend(module, example_inputs, **options)
