"""A module that gives what each of some functions gives."""
from torch import nn


class Each(nn.Module):
    """`functions`: by name."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *args):
        return {name: function(*args) for name, function in self.functions.items()}
