"""The attention ops that are packed: every shipped kernel for the checks, and the ops that are timed.

Shipped kernels are the list of ptxas_report.py. A case is data alone, so it is written into the manifest of the pack.
"""
import dataclasses

from . import ptxas_report as shipped

SCALE, OUT_SCALE, EPS, SOFTCAP = 0.125, 0.8, 1e-5, 30.0
PAIRS = 16  # heads of the ops that are timed: those of the first differential transformer with d = 64 and 2048 channels


@dataclasses.dataclass(frozen=True)
class Case:
    """One op: [B,H,T,d] queries and keys, [B,H,T,dv] values. `heads` are those of Q1, Q2, K1, K2 and V; with one map there are none of
    Q2 and K2."""
    name: str
    element: str
    d: int
    dv: int
    heads: tuple
    shared_keys: bool = False
    causal: bool = False
    window: tuple = ()
    norm: bool = False
    sigmoid: bool = False  # a lambda of each token and head, through a sigmoid; else one number
    softcap: float = 0.0
    extra: tuple = ()      # weight, bias, mask, gate, kv_len, q_offset, segments, segments-i64, sequences, pages, sink, sink2, x, lse1, lse2, o2, heads, f32
    queries: int = 0       # 0: any
    use: str = "check"     # or time
    schedule: str = ""     # the attribute, where it is not the one that the pass chooses
    chip: str = ""         # the one that has that schedule

    @property
    def one_map(self):
        return not self.heads[1]

    @property
    def out_scale(self):
        return OUT_SCALE if self.norm else 1.0

    @property
    def segments(self):
        """The type of their numbers, or None."""
        return "i64" if "segments-i64" in self.extra else "i32" if "segments" in self.extra else None

    @property
    def packed(self):
        """Whether sequences follow one another, in one batch."""
        return "sequences" in self.extra

    @property
    def paged(self):
        return "pages" in self.extra

    def text(self):
        """The function in MLIR."""
        attributes = []
        if self.causal:
            attributes.append(shipped.CAUSAL)
        if self.window:
            attributes.append(f"window = array<i64: {self.window[0]}, {self.window[1]}>")
        if self.norm:
            attributes.append(shipped.RMS)
        if self.sigmoid:
            attributes.append(shipped.SIGMOID)
        if self.schedule:
            attributes.append(self.schedule)
        if self.softcap:
            attributes.append(f"softcap = {self.softcap} : f32")
        variant = (self.name, self.d, self.dv, self.heads, self.shared_keys, attributes, list(self.extra))
        return shipped.attention(self.name, self.element, variant, self.queries or "?")

    def operands(self):
        """Names of the arguments, in order."""
        order = ["mask", "bias", "weight", "gate", "kv_len", "q_offset"]
        segments = ["q_segments", "kv_segments"] if self.segments else []
        tables = (["cu_seqlens_q"] if self.packed else []) + (["block_table"] if self.paged else ["cu_seqlens_k"] if self.packed else [])
        given = {*self.extra, *(["kv_len"] if self.paged else [])}
        maps = ["q1", "k1", "v", "o"] if self.one_map else ["q1", "k1", "q2", "k2", "v", "lambda", "o"]
        return maps + [name for name in order if name in given] + segments + tables + [name for name in shipped.LAST if name in self.extra]

    @property
    def sums(self):
        """Operands that join the sums of rows, and results with the logarithms of these."""
        return [name for name in shipped.SUMS if name in self.extra]


def from_json(fields):
    return Case(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


def _shipped(element, variant, queries=0):
    name, d, dv, heads, shared, attributes, extra = variant
    window = next((a for a in attributes if a.startswith("window")), None)
    return Case(name=f"{name.replace('-', '_')}_{element}" + ("_decode" if queries else ""), element=element, d=d, dv=dv, heads=heads,
                shared_keys=shared, causal=shipped.CAUSAL in attributes, norm=shipped.RMS in attributes,
                window=tuple(int(n) for n in window.split(":")[1].strip(" >").split(",")) if window else (),
                sigmoid=shipped.SIGMOID in attributes, softcap=SOFTCAP if any("softcap" in a for a in attributes) else 0.0,
                extra=tuple(extra), queries=queries)


def checked():
    """Every shipped kernel, and the forms of lambda, lengths and positions that are arguments of kernels."""
    general = [(f"{n}-{d}-{dv}", d, dv, *rest) for n, d, dv, *rest in shipped.general_variants()]
    v1 = next(v for v in shipped.VARIANTS if v[0] == "v1")
    arguments = [("v1-lengths", *v1[1:6], ["weight", "kv_len"]), ("v1-positions", *v1[1:6], ["weight", "kv_len", "q_offset"]),
                 ("v1-heads", *v1[1:6], ["weight", "heads"])]
    cases = []
    for element in ("bf16", "f16"):
        cases += [_shipped(element, v) for v in shipped.VARIANTS + general + arguments]
        # Packed sequences of any lengths decode where there are few queries.
        cases += [_shipped(element, v, 1) for v in shipped.VARIANTS + arguments
                  if v[0] in [*shipped.DECODE, "v1-lengths"] and "sequences" not in v[-1]]
    one_map = next(v for v in shipped.VARIANTS if v[0] == "one-map")
    return cases + [_shipped("f32", ("plain", *v1[1:])), _shipped("f32", ("plain-one-map", *one_map[1:]))]


def timed():
    """bf16, heads that make 2048 channels of values: d 64 and dv 128, twice as wide, and 128 and 128 with one K for both maps, and of one
    map."""
    common = dict(element="bf16", use="time")
    narrow = dict(d=64, dv=128, heads=(PAIRS,) * 5, **common)
    wide = dict(d=128, dv=256, heads=(PAIRS // 2,) * 5, **common)
    one_k = dict(d=128, dv=128, heads=(PAIRS,) * 5, shared_keys=True, **common)
    single = dict(d=128, dv=128, heads=(PAIRS, 0, PAIRS, 0, PAIRS), **common)
    return [Case("time_full", **narrow), Case("time_full_overlap", schedule=shipped.OVERLAP, chip="sm_90a", **narrow),
            Case("time_full_persistent", schedule=shipped.PERSISTENT, chip="sm_90a", **narrow),
            Case("time_full_blocks", schedule=shipped.A_BLOCK_A_TILE["v1"], chip="sm_90a", **narrow),
            Case("time_full_one_map", schedule=shipped.ONE_MAP, chip="sm_90a", **narrow),
            Case("time_causal", causal=True, **narrow),
            Case("time_causal_overlap", causal=True, schedule=shipped.OVERLAP, chip="sm_90a", **narrow),
            Case("time_causal_persistent", causal=True, schedule=shipped.PERSISTENT, chip="sm_90a", **narrow),
            Case("time_causal_blocks", causal=True, schedule=shipped.A_BLOCK_A_TILE["v1"], chip="sm_90a", **narrow),
            Case("time_causal_one_map", causal=True, schedule=shipped.ONE_MAP, chip="sm_90a", **narrow),
            Case("time_causal_tail", causal=True, norm=True, extra=("weight",), **narrow),
            Case("time_wide", **wide), Case("time_wide_clusters", schedule=shipped.CLUSTER, chip="sm_90a", **wide),
            Case("time_wide_persistent", schedule=shipped.PERSISTENT_WIDE, chip="sm_90a", **wide),
            Case("time_one_k", **one_k), Case("time_one_k_blocks", schedule=shipped.A_BLOCK_A_TILE["v2"], chip="sm_90a", **one_k),
            Case("time_one_k_causal", causal=True, **one_k),
            Case("time_single", **single), Case("time_single_causal", causal=True, **single), Case("time_single_decode", queries=1, **single),
            Case("time_decode", queries=1, **narrow), Case("time_decode_wide", queries=1, **wide),
            Case("time_decode_pages", queries=1, extra=("pages",), **narrow)]
