"""Representatives of the kernels that are generated for everything but attention: those of ptxas_report.py, with what they compute."""
import dataclasses
import re

from . import ptxas_report as shipped

ELEMENTS, WIDTHS = ("bf16", "f16"), (64, 4096)
ROUNDOFF = {"bf16": 2.0 ** -8, "f16": 2.0 ** -11}
# Relative error of a few operations in f32, some of them approximate.
SMALL = 2.0 ** -18


@dataclasses.dataclass(frozen=True)
class Generated:
    name: str  # of the function: op, element, width
    op: str
    element: str
    width: int

    def text(self):
        """The function in MLIR."""
        functions = re.split(r"^(?=func\.func)", shipped.OTHERS, flags=re.M)
        chosen = next(f for f in functions if f.startswith(f"func.func @{self.op}_ELEMENT_N("))
        return chosen.replace("ELEMENT", self.element).replace("N", str(self.width))


def listed():
    names = re.findall(r"func\.func @(\w+)_ELEMENT_N\(", shipped.OTHERS)
    return [Generated(f"{op}_{element}_{width}", op, element, width) for element in ELEMENTS for width in WIDTHS for op in names]


def make(item, rows, aligned, seed, device):
    """The operands in order; those that the function writes are NaN."""
    import torch

    from .operands import TYPES
    generator = torch.Generator(device=device).manual_seed(seed)
    element, width = TYPES[item.element], item.width
    # A product whose rows are not aligned is the library's.
    skip = 0 if aligned or item.op == "project" else 1

    def place(values):
        """The values in memory that begins at, or one element behind, a multiple of 16 bytes."""
        storage = torch.empty(values.numel() + skip, dtype=values.dtype, device=device)
        storage[skip:] = values.reshape(-1)
        return storage[skip:].view(values.shape)

    def normal(*shape, dtype=torch.float32):
        return place(torch.randn(shape, generator=generator, device=device).to(dtype))

    def poison(*shape, dtype=element):
        return place(torch.full(shape, float("nan"), dtype=dtype, device=device))

    if item.op == "row_norm":
        return [normal(rows, width), normal(width)]
    if item.op == "gate":
        return [normal(rows, width), normal(rows, width), poison(rows, width)]
    if item.op == "turn":
        return [normal(rows, 8, 2, width), normal(rows, width), normal(rows, width), poison(rows, 8, 2, width)]
    if item.op == "project":
        return [normal(3, width, dtype=element), normal(321, width, dtype=element), normal(3, 321)]
    if item.op == "angles":
        at, f = place(torch.randint(0, 200, (rows,), generator=generator, device=device)), normal(width)
        return [at, f, poison(rows, width, dtype=torch.float32), normal(7, width, dtype=element), place(torch.zeros(width, dtype=element, device=device))]
    raise ValueError(f"expected an op of {', '.join(sorted({i.op for i in listed()}))}, but got {item.op}")


def expected(item, operands):
    """Expected outputs of a call, computed before it: (number of the operand, or None for the result, exact, allowed error) of each."""
    import torch

    unit = ROUNDOFF[item.element]

    def rounded(want, terms=None):
        """One rounding, and some operations on numbers as large as `terms`."""
        return unit * want.abs() + SMALL * (want.abs() if terms is None else terms) + 2.0 ** -24

    given = [operand.double() for operand in operands]
    if item.op == "row_norm":
        x, w = given
        want = x * torch.rsqrt(x.square().sum(-1, keepdim=True)) * w
        return [(None, want, rounded(want))]
    if item.op == "gate":
        x, y, _ = given
        want = x * torch.sigmoid(x) * y
        return [(2, want, rounded(want))]
    if item.op == "turn":
        first, second, c, s = given[0][:, :, 0], given[0][:, :, 1], given[1][:, None], given[2][:, None]
        want = torch.stack([first * c - second * s, second * c + first * s], 2)
        terms = torch.stack([(first * c).abs() + (second * s).abs(), (second * c).abs() + (first * s).abs()], 2)
        return [(3, want, rounded(want, terms))]
    if item.op == "project":
        x, w, before = given
        return [(2, before + x @ w.T, SMALL * (before.abs() + x.abs() @ w.abs().T))]
    at, f, _, x, _ = given
    angle = at[:, None] * f
    return [(2, torch.cos(angle), SMALL + 2.0 ** -23 * angle.abs()), (4, x.sum(0), 7 * unit * x.abs().sum(0))]
