"""Paths and fixtures of the tests of models."""
import sys

import pytest

from checkpoints import write_checkpoint
from paths import ROOT

sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "tiny-lm")]
import torchvision_stand_in  # noqa: E402, F401


@pytest.fixture
def checkpoint(tmp_path):
    return lambda config, state: write_checkpoint(tmp_path / "checkpoint", config, state)
