"""The ops of gradients that are packed: those of every shipped kernel for the checks, and those that are timed.

Each comes behind a forward call, whose results it reads: the logarithms of sums, x and, of two maps, o2."""
import dataclasses

from . import gradient_ops
from . import ptxas_report as shipped
from .cases import PAIRS, SOFTCAP, Case


@dataclasses.dataclass(frozen=True)
class GradientCase(Case):
    """Gradients of the op that a Case describes: of its norm weight, gate and lambda too, where it has them. Extra operands are those of
    gradient_ops.text."""
    forward: str = ""  # the case that saves what this one reads, where both are timed

    @property
    def variant(self):
        attributes = [shipped.CAUSAL] * self.causal + [shipped.RMS] * self.norm + [shipped.SIGMOID] * self.sigmoid
        if self.window:
            attributes.append(f"window = array<i64: {self.window[0]}, {self.window[1]}>")
        if self.softcap:
            attributes.append(f"softcap = {self.softcap} : f32")
        return self.name, self.d, self.dv, self.heads, self.shared_keys, attributes, list(self.extra)

    def text(self):
        """The function in MLIR."""
        return gradient_ops.text(self.name, self.element, self.variant)

    def operands(self):
        """Names of the arguments, in order."""
        return gradient_ops.operands(self.variant)

    def results(self):
        """Names of those that are written."""
        return gradient_ops.results(self.variant)


def from_json(fields):
    return GradientCase(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


def _shipped(element, variant):
    name, d, dv, heads, shared, attributes, extra = variant
    window = next((a for a in attributes if a.startswith("window")), None)
    return GradientCase(name=f"{name.replace('-', '_')}_{element}", element=element, d=d, dv=dv, heads=heads, shared_keys=shared,
                        causal=shipped.CAUSAL in attributes, norm=shipped.RMS in attributes, sigmoid=shipped.SIGMOID in attributes,
                        window=tuple(int(n) for n in window.split(":")[1].strip(" >").split(",")) if window else (),
                        softcap=SOFTCAP if shipped.SOFTCAP in attributes else 0.0, extra=tuple(extra))


def checked():
    """Every shipped kernel."""
    plain = [_shipped("f32", variant) for variant in gradient_ops.PLAIN]
    return [_shipped(element, variant) for element in ("bf16", "f16") for variant in gradient_ops.VARIANTS] + plain


def timed():
    """bf16, with the heads of cases.timed, behind forward calls that save what they read."""
    def pair(name, **fields):
        fields = dict(element="bf16", use="time", **fields)
        forward = Case(f"{name}_saved", extra=("lse1", "lse2", "o2"), **fields)
        return forward, GradientCase(f"{name}_gradients", forward=forward.name, **fields)

    narrow, one_k = dict(d=64, dv=128, heads=(PAIRS,) * 5), dict(d=128, dv=128, heads=(PAIRS,) * 5, shared_keys=True)
    pairs = [pair("time_full", **narrow), pair("time_causal", causal=True, **narrow), pair("time_one_k", **one_k),
             pair("time_one_k_causal", causal=True, **one_k)]
    return [forward for forward, _ in pairs], [gradients for _, gradients in pairs]
