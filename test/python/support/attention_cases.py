"""Random calls of `diffattn.attention`: what is compiled is drawn once and called with several shapes, against f64."""
import ml_dtypes
import numpy as np

import diffattn
from attention_reference import attention as reference
from diffattn import attention_module
from diffattn.array_facts import ArrayType, facts_of

BF16 = ml_dtypes.bfloat16
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": BF16}
#: The gates of docs/numerics.md on |error| / M by the type of the operands, and half the distance of subnormal results.
BOUNDS = {"f32": 5e-5, "f16": 1.5e-3, "bf16": 1.2e-2}
HALF_STEP = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134}
QUERIES = [1, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 80]
KEYS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 130]


#: Positions at which sums in 32 or 64 bits wrap.
FAR = [2**28, 2**29 + 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1]


def module_of(arrays, attributes):
    """The module of an attention on arrays by their names, all of them, for callers that compile it themselves."""
    types = {name: memref(name, array) for name, array in arrays.items()}
    return attention_module.module(tuple(types.items()), attributes, False)


def memref(name, array):
    """The type that the array `name` is compiled for."""
    return attention_module.memref(name, ArrayType(facts_of(array, name)[0]))


def draw_lengths(rng, batch, keys):
    """Numbers of valid keys: mostly those of the cache, some beyond it, none below 0."""
    lengths = [int(rng.integers(0, keys + 1)) if rng.random() < 0.7 else int(rng.choice([0, keys + 3, *FAR])) for _ in range(batch)]
    return np.array(lengths, np.int64)


def draw_offsets(rng, batch, keys):
    """Positions of the first query: mostly among the keys, some so far that no sum with a window may wrap."""
    far = [x for y in FAR for x in (y, -y)] + [-(2**63)]
    offsets = [int(rng.integers(-3, keys + 1)) if rng.random() < 0.7 else far[rng.integers(len(far))] for _ in range(batch)]
    return np.array(offsets, np.int64)


def draw_segments(rng, batch, queries, keys, dtype):
    """Numbers of segments, (q_segments, kv_segments): packed in order, in any order, one for all, none in common."""
    ends = np.iinfo(dtype)
    names = rng.permutation(np.array([0, 1, -1, 7, 2**31 - 1, ends.min, ends.max, *([3 + 2**32, 3] if dtype == np.int64 else [5, 3])], dtype))
    kind = rng.integers(5)
    if kind <= 1:  # runs, where the last query stands beside the last key
        total = max(queries, keys)
        runs = np.repeat(np.arange(total), rng.integers(1, rng.choice([3, 40, 200]), total))[:total]
        whole = np.stack([np.roll(runs, int(rng.integers(0, 9))) for _ in range(batch)])
        whole = names[whole % len(names)] if kind else whole.astype(dtype)
        return whole[:, total - queries:].copy(), whole[:, total - keys:].copy()
    if kind == 2:
        few = names[:rng.integers(1, 4)]
        return rng.choice(few, (batch, queries)), rng.choice(few, (batch, keys))
    if kind == 3:
        return np.full((batch, queries), names[0]), np.full((batch, keys), names[0])
    return rng.choice(names[:4], (batch, queries)), rng.choice(names[3:], (batch, keys))


def draw_signature(rng, **fixed):
    """Everything that is fixed when a call is compiled."""
    pick = lambda *options: options[rng.integers(len(options))]
    divisor = lambda n: pick(*[x for x in range(1, n + 1) if n % x == 0])
    sig = dict(dtype=pick("bf16", "f16", "bf16", "f16", "f32"), causal=pick(False, True), window=None, softcap=None, mask=None, segments=None,
               kv_len=pick(False, False, True), q_offset=pick(False, False, True), lam=pick("number", "head", "signal", "noise"),
               sigmoid=pick(False, True), norm=pick(None, "rms"), eps=pick(1e-5, 0.0), eps_mode=pick("inside", "outside"), weight=None,
               out_scale=pick(1.0, 0.7), gate=pick(False, False, True), layout=pick("bhtd", "bthd", "split"),
               step=pick(1, 1, 1, 1, 2), noise=pick(1, 2),
               maps=2, widths=pick((32, 64), (64, 128), (64, 64), (128, 128), (96, 192), (128, 256), (16, 16), (20, 33), (8, 24), (2, 4), (192, 128)))
    sig["signal"] = sig["noise"] * pick(1, 1, 2, 3)
    sig["key1"], sig["key2"], sig["value"] = divisor(sig["signal"]), divisor(sig["noise"]), divisor(sig["signal"])
    sig["shared"] = sig["key1"] == sig["key2"] and pick(False, True)
    if pick(0, 0, 1):
        sig["window"] = (pick(-1, 0, 3, 20, 70, 2**29, 2**63 - 1), pick(-1, 0, 5, 2**62))
    if pick(0, 0, 0, 1):
        sig["softcap"] = pick(1e-40, 2.0, 30.0)
    if pick(0, 0, 1):
        sig["mask"] = pick("bool", "f32", sig["dtype"])
    if sig["norm"]:
        sig["weight"] = pick(None, "f32", sig["dtype"])
    sig["result"] = pick(None, None, "f32")
    sig["segments"] = pick(None, None, np.int64, np.int32)
    sig.update(sink=None, sink2=None, lse=False)
    sig.update(fixed)
    if sig["maps"] == 1:  # signal heads are their own noise heads
        sig.update(noise=sig["signal"], lam="number", sigmoid=False, shared=False, sink2=None)
    return sig


def plain_signature(**changed):
    """The least of everything, with `changed`."""
    sig = dict(dtype="bf16", causal=False, window=None, softcap=None, mask=None, kv_len=False, q_offset=False, lam="number",
               sigmoid=False, norm=None, eps=1e-5, eps_mode="inside", weight=None, out_scale=1.0, gate=False, layout="bhtd", step=1,
               signal=2, noise=2, key1=2, key2=2, value=2, shared=False, widths=(32, 64), result=None,
               segments=None, maps=2, sink=None, sink2=None, lse=False)
    unknown = set(changed) - set(sig)
    assert not unknown, unknown
    return {**sig, **changed}


class Call:
    """Operands of one call, in memory with NaN around what is used, and the keywords that go with them."""

    def __init__(self, rng, sig, *, batch=None, queries=None, keys=None, room=None):
        self.rng, self.sig = rng, sig
        pick = lambda options: int(options[rng.integers(len(options))])
        self.batch, self.queries, self.keys = batch or pick([1, 2]), queries or pick(QUERIES), keys or pick(KEYS)
        #: Elements behind each row: a multiple of 8 keeps rows aligned to 16 bytes, 1 does not.
        self.room = pick([0, 8, 8, 1, 3]) if room is None else room
        (d, dv), b, tq, tk = sig["widths"], self.batch, self.queries, self.keys
        make = self._make
        self.q1, self.q2 = make(sig["signal"], tq, d), make(sig["noise"], tq, d)
        self.k1, self.v = make(sig["key1"], tk, d), make(sig["value"], tk, dv)
        self.k2 = self.k1 if sig["shared"] else make(sig["key2"], tk, d)
        if sig["maps"] == 1:
            self.q2 = self.k2 = None
        shape = {"number": (), "head": (sig["signal"],), "signal": (b, tq, sig["signal"]), "noise": (b, tq, sig["noise"])}[sig["lam"]]
        self.lam = np.asarray(rng.normal(0.5, 0.4, shape), np.float32)
        self.options = dict(scale=0.17, is_causal=sig["causal"], window=sig["window"], softcap=sig["softcap"],
                            lam_activation="sigmoid" if sig["sigmoid"] else None, norm=sig["norm"],
                            norm_eps=sig["eps"], norm_eps_mode=sig["eps_mode"], out_scale=sig["out_scale"])
        if sig["mask"]:
            shape = (pick([1, b]), pick([1, sig["noise"]]), pick([1, tq]), tk)
            if sig["mask"] == "bool":
                mask = rng.random(shape) < pick([1, 6, 9]) / 10
            else:
                mask = rng.standard_normal(shape)
                mask[rng.random(shape) < 0.1] = -np.inf
                mask = mask.astype(TYPES[sig["mask"]])
            self.options["attn_mask"] = mask
        if sig["weight"]:
            self.options["norm_weight"] = rng.normal(1, 0.3, dv).astype(TYPES[sig["weight"]])
        if sig["gate"]:
            self.options["gate"] = make(sig["signal"], tq, dv)
        if sig["kv_len"]:
            self.options["kv_len"] = draw_lengths(rng, b, tk)
        if sig["q_offset"]:
            self.options["q_offset"] = draw_offsets(rng, b, tk)
        if sig["segments"]:
            self.options["segment_ids"] = draw_segments(rng, b, tq, tk, sig["segments"])
        for name, heads in (("sink", sig["signal"]), ("sink2", sig["noise"])):
            if sig[name]:  # near the scores, far above all of them, and none
                sinks = rng.normal(0, 2, heads) + rng.choice([0, 0, 0, 40, -np.inf], heads)
                self.options[name] = sinks.astype(TYPES[sig[name]])

    def _make(self, heads, length, width, dtype=None):
        """An array [B, H, T, w] as a view: [B, H, T, w], [B, T, H, w], or every second head of [B, T, 2H, w]."""
        layout, step = self.sig["layout"], self.sig["step"]
        order = {"bhtd": (self.batch, heads, length), "bthd": (self.batch, length, heads),
                 "split": (self.batch, length, 2 * heads)}[layout]
        memory = np.full((*order, width * step + self.room), np.nan, TYPES[dtype or self.sig["dtype"]])
        view = memory[..., : width * step : step]
        if layout == "split":
            view = view[:, :, 1::2]
        view[...] = self.rng.standard_normal(view.shape)
        return view if layout == "bhtd" else view.swapaxes(1, 2)

    @property
    def operands(self):
        """q1, k1, q2, k2, v and lam, of one map None for those of the second."""
        return self.q1, self.k1, self.q2, self.k2, self.v, self.lam if self.sig["maps"] == 2 else None

    def run(self, target):
        """The result of the call, or with sig["lse"] a tuple that begins with it."""
        out = None
        if self.sig["result"]:
            out = self._make(self.sig["signal"], self.queries, self.sig["widths"][1], self.sig["result"])
        if self.sig["maps"] == 1:
            options = {name: value for name, value in self.options.items() if name != "lam_activation"}
            return diffattn.plain_attention(self.q1, self.k1, self.v, **options, target=target, out=out, return_lse=self.sig["lse"])
        return diffattn.attention(*self.operands, **self.options, target=target, out=out, return_lse=self.sig["lse"])

    def reference(self):
        options = dict(self.options)
        options["bias"] = options.pop("attn_mask", None)
        options["q_segments"], options["kv_segments"] = options.pop("segment_ids", (None, None))
        options["lam_sigmoid"] = options.pop("lam_activation") == "sigmoid"
        # The op holds its numbers in f32.
        for name in ("scale", "softcap", "out_scale", "norm_eps"):
            if options[name] is not None:
                options[name] = float(np.float32(options[name]))
        return reference(*self.operands, **options, return_lse=self.sig["lse"])

    def describe(self):
        shapes = {name: (array.shape, tuple(s // array.itemsize for s in array.strides))
                  for name, array in zip(("q1", "k1", "q2", "k2", "v"), self.operands) if array is not None}
        return f"{self.sig} {shapes} " + str({n: v for n, v in self.options.items() if n in ("kv_len", "q_offset")})

    def allowed(self, expected, magnitude):
        return BOUNDS[self.sig["dtype"]] * (magnitude + np.abs(expected)) + HALF_STEP[self.sig["dtype"]] + 1e-30

    def _check_logarithms(self, target, logarithms, expected):
        """Scores and sums are f32, whose exponentials polynomials make: those of bf16's products have a degree less."""
        assert len(logarithms) == len(expected)
        bound = 5e-4 if self.sig["dtype"] == "bf16" else 2e-5
        for name, got, log in zip(("lse1", "lse2"), logarithms, expected):
            assert got.dtype == np.float32 and got.shape == log.shape
            np.testing.assert_allclose(got, log, rtol=bound, atol=bound, err_msg=f"{name} of {target}; {self.describe()}")

    def check(self, target):
        """Runs the call and compares with f64; returns what came out."""
        got, (expected, magnitude, *logs) = self.run(target), self.reference()
        if self.sig["lse"]:
            got, *logarithms = got
            self._check_logarithms(target, logarithms, logs)
        wide, allowed = got.astype(np.float64), self.allowed(expected, magnitude)
        assert got.dtype == TYPES[self.sig["result"] or self.sig["dtype"]] and got.shape == expected.shape
        wrong = ~(np.abs(wide - expected) <= allowed)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(f"{target}: {wrong.sum()} of {wrong.size} wrong, the first at {at}: got {wide[at]}, expected "
                                 f"{expected[at]}, allowed error {allowed[at]}; {self.describe()}")
        return got
