"""Which rows of a checkpoint's projections are whose: the maps of a model in the order in which a rank of tensor parallelism has them.

Here a head is `width` rows of a projection. A rank gets key-value heads whole, with the signal and noise heads that they serve:

    q_proj     its signal heads, then its noise heads
    k_proj     the keys of map 1, then those of map 2; or keys that both maps share
    v_proj     value heads, each as wide as one or two heads
    o_proj     stays as it is: the columns of a rank's signal heads lie side by side

So the maps, in queries and in pages, are slices. No vLLM is needed for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from ..models import diff_v1, diff_v2, diffllama, motif
from ..models.config import Config


@dataclass(frozen=True)
class Heads:
    """Heads of a whole model: the places, in a checkpoint's projections, of signal and noise heads, of the keys of both maps (`keys2` empty:
    they are those of map 1), and of the parts of values. Lists that belong together are in the same order, and a key-value head serves an
    equal share of each, side by side."""

    width: int
    signals: tuple[int, ...]
    noises: tuple[int, ...]
    keys1: tuple[int, ...]
    keys2: tuple[int, ...]
    values: tuple[int, ...]

    @property
    def groups(self) -> int:
        """Number of key-value heads, which move whole."""
        return len(self.keys1)

    @property
    def value_width(self) -> int:
        return self.width * len(self.values) // self.groups

    def check_ranks(self, ranks: int) -> None:
        """Raises UsageError where `ranks` do not divide the key-value heads."""
        if self.groups % ranks:
            sizes = [str(size) for size in range(1, self.groups + 1) if self.groups % size == 0]
            raise UsageError(f"tensor_parallel_size: expected one that divides the {self.groups} key-value heads, whose two maps stay on one rank "
                             f"({', '.join(sizes)}), but got {ranks}")

    def order(self, projection: str, ranks: int) -> list[int]:
        """The heads of `projection`, one of q, k and v, as they are laid out: those of rank 0, then those of rank 1, ..."""
        lists = {"q": (self.signals, self.noises), "k": (self.keys1, self.keys2), "v": (self.values,)}[projection]
        return [head for rank in range(ranks) for heads in lists for head in _share(heads, rank, ranks)]


def _share(heads: Sequence[int], rank: int, ranks: int) -> Sequence[int]:
    count = len(heads) // ranks
    return heads[rank * count:(rank + 1) * count]


def diffllama_heads(config: Mapping[str, Any]) -> Heads:
    """Map j is paired with map j + H/2, and so are keys and the halves of values."""
    maps, kv_maps, width = diffllama.read_maps(Config(config))
    half, kv_half = maps // 2, kv_maps // 2
    return Heads(width, tuple(range(half)), tuple(range(half, maps)), tuple(range(kv_half)), tuple(range(kv_half, kv_maps)),
                 tuple(head for pair in range(kv_half) for head in (pair, pair + kv_half)))


def diff_v1_heads(config: Mapping[str, Any]) -> Heads:
    """Maps 2j and 2j + 1 are head j."""
    heads, kv_heads, width = diff_v1.read_heads(Config(config))
    return Heads(width, *_adjacent(heads), *_adjacent(kv_heads), tuple(range(2 * kv_heads)))


def diff_v2_heads(config: Mapping[str, Any]) -> Heads:
    """Maps 2j and 2j + 1 are head j; keys and values are shared by both."""
    heads, kv_heads, width = diff_v2.read_heads(Config(config))
    return Heads(width, *_adjacent(heads), tuple(range(kv_heads)), (), tuple(range(kv_heads)))


def motif_heads(config: Mapping[str, Any]) -> Heads:
    """Groups of signal maps and one noise map; keys of signal and noise are adjacent, and so are the halves of values."""
    checked = Config(config)
    motif.check_fixed(checked)
    groups, signals, kv_heads = motif.read_groups(checked)
    width = checked.integer("head_dim", checked.integer("hidden_size") // (groups * (signals + 1)))
    group = signals + 1
    return Heads(width, tuple(g * group + i for g in range(groups) for i in range(signals)), tuple(g * group + signals for g in range(groups)),
                 *_adjacent(kv_heads), tuple(range(2 * kv_heads)))


def _adjacent(heads: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(range(0, 2 * heads, 2)), tuple(range(1, 2 * heads, 2))


def in_order(name: str, weight: Any, plan: Heads, ranks: int) -> Any:
    """The rows of a projection of queries, keys or values, or its bias, in the order in which ranks have them; other weights as they are.
    `weight` is a tensor of PyTorch."""
    projection = name.rpartition("self_attn.")[2].partition(".")[0]
    if projection not in ("q_proj", "k_proj", "v_proj"):
        return weight
    return weight.unflatten(0, (-1, plan.width))[plan.order(projection[0], ranks)].flatten(0, 1)
