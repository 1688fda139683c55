"""One case of the fuzzer: a drawn graph, changed at random in two of five cases, with the line that the comparing program reads."""
import dataclasses
import math
import random

import family
import mutation
from expressions import FLOATS
from graph import Generic, literal


@dataclasses.dataclass
class Case:
    seed: int
    text: str
    inputs: list
    #: Changes, by construction or by chance, that make it no differential attention.
    changes: list
    half: bool

    def header(self, dump=""):
        return f"// seed={self.seed} changed={int(bool(self.changes))} inputs={','.join(self.inputs)}" + (f" dump={dump}" if dump else "")

    def module(self, dump=""):
        return f"{self.header(dump)}\n// {'; '.join(self.changes) or 'as drawn'}\n{self.text}\n"


def round_numbers(graph) -> None:
    """To numbers that both 16-bit types hold, towards zero: rounding them further changes nothing, so that interpreting in f64 is exact."""
    for node in [part for node in graph.nodes for part in (node.body if isinstance(node, Generic) else [node])]:
        kind = node.type and node.type.removesuffix(">").split("x")[-1].split("<")[-1]
        if node.form.startswith("{r} = arith.constant") and kind in FLOATS and not node.attr.startswith("0x"):
            mantissa, exponent = math.frexp(float(node.attr))
            node.attr = literal(math.ldexp(int(mantissa * 256) / 256, exponent), kind)


def draw(seed: int) -> Case:
    drawn = family.draw(seed)
    if drawn.half:
        round_numbers(drawn.graph)
    changes = sorted(drawn.misses)
    rng = random.Random(f"mutation {seed}")
    if rng.random() < 0.4:
        changes += mutation.mutate(drawn.graph, rng)
    return Case(seed, drawn.graph.text(), drawn.graph.inputs, changes, bool(drawn.half))
