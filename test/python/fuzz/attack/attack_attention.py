"""`diffattn.attention` with every option at its extremes, arrays of any strides, arrays that share memory, and types that do not fit."""
import ml_dtypes
import numpy as np

import diffattn
from guarded import Fence
from judge import Tally, attention_error, exact_visible

TYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
CALLS = 6
SIDES = [-1, 0, 1, 3, 70, 2**31 - 1, 2**31, 2**62, 2**63 - 2, 2**63 - 1]
OFFSETS = [0, 1, -1, 5, 60, -60, 2**20, 2**29 - 1, 2**29, -(2**29), 2**31, -(2**31), 2**40, -(2**40), 2**62, -(2**62), 2**63 - 1, -(2**63)]
SCALES = [0.17, 0.17, 1.0, -0.3, 0.0, 1e-38, 1e-45, 1e4, 1e30, 2.4e38, -2.6e38, 3.4e38]
SOFTCAPS = [None, None, None, 2.0, 30.0, 1e-45, 1e-40, 1e-37, 1e20, 3.4e38]
EPS = [1e-5, 1e-5, 0.0, 1e-45, 1e-30, 1e30]
FACTORS = [1.0, 0.8, 0.0, -1.0, 1e-40, 1e30]
#: Options with values that are never right, one at a time.
WRONG = [("window", (1.7, 2)), ("window", (0, float("nan"))), ("window", (-2, 0)), ("window", 3), ("window", (1, 2, 3)), ("window", (2**63, 0)),
         ("softcap", 0.0), ("softcap", -1.0), ("softcap", float("nan")), ("softcap", float("inf")), ("scale", float("nan")),
         ("scale", float("inf")), ("scale", 1e39), ("norm_eps", -1.0), ("norm_eps", float("nan")), ("out_scale", float("inf")),
         ("norm", "layer"), ("norm_eps_mode", "beside"), ("lam_activation", "tanh"), ("kv_len", 1.5), ("kv_len", float("nan")), ("kv_len", -1),
         ("kv_len", 2**64 - 1), ("q_offset", 0.5), ("q_offset", 2**64), ("q_offset", [1, 2, 3, 4, 5]), ("q_offset", "0"), ("target", "cpu:mmx"),
         ("target", "gpu"), ("is_causal", "no"), ("scale", "0.5"), ("softcap", "2"), ("out", "here"), ("attn_mask", np.ones((2, 2, 2), np.float64))]


def run(seed: int) -> Tally:
    rng = np.random.default_rng([seed, 1])
    pick = lambda options: options[rng.integers(len(options))]
    divisor = lambda n: pick([x for x in range(1, n + 1) if n % x == 0])
    tally = Tally()
    dtype, (d, dv) = pick(TYPES), pick([(16, 16), (64, 128), (1, 1), (3, 5), (8, 24), (33, 17)])
    hn = pick([1, 2])
    hs = hn * pick([1, 2, 3])
    hk1, hv = divisor(hs), divisor(hs)
    hk2 = divisor(hn)
    window = pick([None, None, (pick(SIDES), pick(SIDES))])
    options = dict(scale=pick(SCALES), is_causal=bool(pick([0, 1])), window=window, softcap=pick(SOFTCAPS),
                   norm=pick([None, "rms"]), norm_eps=pick(EPS), norm_eps_mode=pick(["inside", "outside"]), out_scale=pick(FACTORS),
                   lam_activation=pick([None, "sigmoid"]))
    mask_kind, has_weight, has_gate = pick([None, None, "bool", "float"]), bool(pick([0, 1])), not pick([0, 1, 2])
    has_len, has_offset = not pick([0, 1, 2]), bool(pick([0, 1]))
    # attention_c16 of docs/spec.md
    extreme = abs(options["scale"]) > 2.0**64
    # A simulated GPU takes milliseconds a row, so it gets few and short calls.
    target = pick(["cpu", "cpu", "cpu:avx2", "cpu:generic", "cuda-sim:sm_80"])
    simulated = target.startswith("cuda")
    for _ in range(2 if simulated else CALLS):
        fence = Fence(rng)
        batch, tq, tk = pick([0, 1, 1, 2]), pick([0, 1, 2, 8, 9, 33]), pick([0, 1, 5, 33] if simulated else [0, 1, 5, 33, 64, 130])
        amount = pick([1.0, 1.0, 1.0, 0.0, 1e-20, 1e3])

        def make(heads, length, width):
            layout = pick(["dense", "dense", "heads last", "backwards", "every second", "one for all"])
            draw = lambda *shape: fence.copy((amount * rng.standard_normal(shape)).astype(dtype))
            if layout == "heads last":
                return draw(batch, length, heads, width).swapaxes(1, 2)
            if layout == "backwards":
                return draw(batch, heads, length, width)[:, ::-1, ::-1]
            if layout == "every second":
                return draw(batch, heads, length, 2 * width)[..., ::2]
            if layout == "one for all":
                return np.broadcast_to(draw(1, 1, length, width), (batch, heads, length, width))
            return draw(batch, heads, length, width)

        q1, q2, k1, v = make(hs, tq, d), make(hn, tq, d), make(hk1, tk, d), make(hv, tk, dv)
        k2 = k1 if hk1 == hk2 and pick([0, 1]) else make(hk2, tk, d)
        lam_shape = pick([(), (hs,), (batch, tq, hs), (batch, tq, hn)])
        lam = fence.copy((pick([0.0, 0.5, 0.5, 1.0, -3.0, 1e10]) + rng.standard_normal(lam_shape) * pick([0, 0.3])).astype(np.float32))
        given = dict(options)
        if mask_kind:
            shape = (pick([1, batch]), pick([1, hn]), pick([1, tq]), tk)
            mask = rng.random(shape) < pick([0.0, 0.3, 1.0]) if mask_kind == "bool" else rng.standard_normal(shape).astype(np.float32)
            if mask_kind == "float" and mask.size:
                mask[rng.random(shape) < 0.3] = pick([-np.inf, -3.4e38, -1e9, 80.0])
            given["attn_mask"] = fence.copy(mask)
        if has_weight and options["norm"]:
            given["norm_weight"] = fence.copy(rng.standard_normal(dv).astype(pick([dtype, np.dtype(np.float32)])))
        if has_gate:
            given["gate"] = make(hs, tq, dv)
        kv_len = q_offset = None
        may_refuse = extreme
        if has_len:
            kv_len = rng.integers(0, tk + 1, batch) if pick([0, 1]) else np.full(batch, pick([0, tk, tk + 3, 2**31, 2**62]))
            given["kv_len"] = kv_len
            may_refuse |= bool((kv_len > tk).any())
        if has_offset:
            q_offset = rng.integers(-3, tk + 1, batch) if pick([0, 1]) else np.full(batch, pick(OFFSETS), np.int64)
            # At the very end of i64 the limits of a window say nothing any more.
            if window and max(window) > 2**62 and batch and max(abs(int(x)) for x in q_offset) > 2**62:
                q_offset = q_offset // 4
            given["q_offset"] = q_offset
            may_refuse |= bool((np.abs(q_offset.astype(float)) > 2.0**40).any())
        must = None if may_refuse else "take"
        if pick([0, 0, 1]):
            given["out"] = fence.copy(np.zeros((batch, hs, tq, dv), dtype))
        if (options["norm"] or "gate" in given) and not simulated and pick([0, 1]):
            given["x"] = fence.copy(np.zeros((batch, hs, tq, dv), pick([dtype, np.dtype(np.float32)])))
        call = [q1, k1, q2, k2, v, lam]
        if pick([0, 0, 0, 0, 1]):
            must = _spoil(rng, pick, call, given, batch * tq * tk * d > 1)
        visible = np.stack([exact_visible(tq, tk, given["is_causal"] is True, window, None if kv_len is None else int(kv_len[b]),
                                          None if q_offset is None else int(q_offset[b])) for b in range(batch)]) if batch else np.zeros((0, tq, tk), bool)

        def judge(got):
            f32 = lambda x: None if x is None else float(np.float32(x))
            def error(array, **end):
                return attention_error(array, (q1, k1, q2, k2, v, lam), visible, scale=f32(options["scale"]), softcap=f32(options["softcap"]),
                                       bias=given.get("attn_mask"), lam_sigmoid=options["lam_activation"] == "sigmoid", **end)

            judged = error(got, norm=options["norm"], norm_eps=f32(options["norm_eps"]), norm_eps_mode=options["norm_eps_mode"],
                           out_scale=f32(options["out_scale"]), norm_weight=given.get("norm_weight"), gate=given.get("gate"))
            if "x" in given:
                judged = max(judged, error(given["x"].astype(dtype)))
            fence.check()
            return judged

        given.setdefault("target", target)
        shapes = f"{dtype} q1 {q1.shape} k1 {k1.shape} q2 {q2.shape} k2 {k2.shape} v {v.shape} lam {lam.shape} {given['target']} " + str(
            {k: x.shape if isinstance(x, np.ndarray) and x.ndim > 1 else x for k, x in given.items()})
        tally.attempt(lambda: diffattn.attention(*call, **given), judge, must=must, what=shapes)
    return tally


def _spoil(rng, pick, call, given, has_elements) -> str:
    """Makes the call one that must be refused."""
    how = pick(["type", "shape", "rank", "option", "option", "option", "shared", "frozen"]) if has_elements else "option"
    if how == "option":
        name, value = pick(WRONG)
        given[name] = value
        if name.startswith("norm_eps"):
            given["norm"] = "rms"
    elif how == "type":
        at = rng.integers(5)
        call[at] = call[at].astype(pick([t for t in (*TYPES, np.dtype(np.float64), np.dtype(np.int32), np.dtype(np.complex64)) if t != call[at].dtype]))
    elif how == "shape":
        at = pick([1, 2, 4])
        call[at] = np.concatenate([call[at], call[at][:, :, :1]], axis=2)
    elif how == "rank":
        at = rng.integers(5)
        call[at] = call[at][0]
    elif how == "shared":
        given["out"] = call[0]  # the shape is right or not
    else:
        out = np.zeros((*call[0].shape[:3], call[4].shape[3]), call[0].dtype)
        out.flags.writeable = False
        given["out"] = out
    return "refuse"
