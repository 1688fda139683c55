"""Where a node of an FX graph comes from in the user's code."""

from __future__ import annotations

import os
import re

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def line_of(node: torch.fx.Node) -> str:
    """"file.py:12" of the innermost line outside of PyTorch; empty: it is not known."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    return ":".join(own[-1]) if own else ""


def describe(node: torch.fx.Node) -> str:
    """The line as the beginning of a message."""
    line = line_of(node)
    return line and f"{line}: "

