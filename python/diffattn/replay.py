"""The older name of `diffattn.graph_capture`."""
from .graph_capture import CapturedGraph as Replay  # noqa: F401
