"""`online_attention`, `merge`, `finalize` and products on sizes known only at run time, called with sizes that lie."""
import numpy as np

from diffattn.runtime import Executable
from guarded import Fence
from judge import Tally

CALLS = 12


class Form:
    """One op: its operands with their axes, which of them are updated, what fits, and the exact answer."""

    def __init__(self, axes, updated, text, fits, exact):
        self.axes, self.updated, self.text, self.fits, self.exact = axes, updated, text, fits, exact


def _merge(a):
    top = np.maximum(a["m0"], a["m1"])
    scale0, scale1 = (np.where(np.isneginf(m), 0, np.exp(m - np.where(np.isneginf(top), 0, top))) for m in (a["m0"], a["m1"]))
    heads = a["a0"].shape[1] // a["m0"].shape[1]
    wide = lambda s: np.repeat(s, heads, axis=1)[..., None]
    return top, a["s0"] * scale0 + a["s1"] * scale1, a["a0"] * wide(scale0) + a["a1"] * wide(scale1)


def _finalize(a):
    quotient = lambda acc, total: np.where(total == 0, 0, acc / np.where(total == 0, 1, total))
    second = quotient(a["acc2"], np.repeat(a["sum2"], a["acc2"].shape[1] // a["sum2"].shape[1], axis=1)[..., None])
    second = np.repeat(second, a["acc1"].shape[1] // second.shape[1], axis=1)
    return (quotient(a["acc1"], a["sum1"][..., None]) - a["lam"][None, :, None, None] * second,)


def _state_fits(a, m, s, acc):
    return a[m] == a[s] and a[acc][0] == a[m][0] and a[acc][2] == a[m][2] and a[m][1] and a[acc][1] % a[m][1] == 0 and a[acc][1] > 0


def _online(a):
    # From the empty state, online attention and a division are attention on each map alone.
    results = []
    for q, k, heads in (("q1", "k1", a["m1"].shape[1]), ("q2", "k2", a["m2"].shape[1])):
        scores = 0.25 * np.einsum("bhid,bhjd->bhij", a[q], np.repeat(a[k], heads // a[k].shape[1], axis=1))
        values = np.repeat(a["v"], heads // a["v"].shape[1], axis=1)
        top = scores.max(-1, initial=-np.inf)
        e = np.exp(scores - np.where(np.isneginf(top), 0, top)[..., None])
        results += [top, e.sum(-1), e @ values]
    return tuple(results)


def _online_fits(a):
    b, hs, tq, d = a["q1"]
    hn, tk, dv = a["q2"][1], a["k1"][2], a["v"][3]
    if 0 in (hs, hn, a["k1"][1], a["k2"][1], a["v"][1], d, dv) or any(hs % a[n][1] for n in ("q2", "k1", "v")) or hn % a["k2"][1]:
        return False
    return (a["k1"][::2] == (b, tk) and a["k2"][::2] == (b, tk) and a["v"][::2] == (b, tk) and a["q2"][::2] == (b, tq)
            and {a[n][3] for n in ("k1", "q2", "k2")} == {d}
            and a["m1"] == a["s1"] == (b, hs, tq) and a["m2"] == a["s2"] == (b, hn, tq) and a["a1"] == (b, hs, tq, dv)
            and a["a2"] == (b, hn if hn % a["v"][1] == 0 else hs, tq, dv))


FORMS = dict(
    merge=Form(dict(m0=("B", "4", "T"), s0=("B", "4", "T"), a0=("B", "4", "T", "D"), m1=("B", "4", "T"), s1=("B", "4", "T"), a1=("B", "4", "T", "D")),
               ("m1", "s1", "a1"), "diffattn.merge ins(%m0, %s0, %a0 : {m0}, {s0}, {a0}) outs(%m1, %s1, %a1 : {m1}, {s1}, {a1})",
               lambda a: a["m0"] == a["m1"] and a["s0"] == a["s1"] and a["a0"] == a["a1"] and _state_fits(a, "m0", "s0", "a0"), _merge),
    finalize=Form(dict(sum1=("B", "4", "T"), acc1=("B", "4", "T", "8"), sum2=("B", "2", "T"), acc2=("B", "2", "T", "8"), lam=("4",),
                       init=("B", "4", "T", "8")), ("init",),
                  "diffattn.finalize ins(%sum1, %acc1, %sum2, %acc2 : {sum1}, {acc1}, {sum2}, {acc2}) lambda(%lam : {lam}) outs(%init : {init})",
                  lambda a: a["init"] == a["acc1"] and a["sum1"] == a["acc1"][:3] and a["lam"] == (a["acc1"][1],) and a["acc2"][0] == a["acc1"][0]
                  and a["acc2"][2:] == a["acc1"][2:] and a["sum2"][0] == a["acc1"][0] and a["sum2"][2] == a["acc1"][2]
                  and a["acc2"][1] in (a["sum2"][1], a["acc1"][1]), _finalize),
    online=Form(dict(q1=("B", "4", "T", "D"), k1=("B", "2", "K", "D"), q2=("B", "2", "T", "D"), k2=("B", "1", "K", "D"), v=("B", "2", "K", "8"),
                     m1=("B", "4", "T"), s1=("B", "4", "T"), a1=("B", "4", "T", "8"), m2=("B", "2", "T"), s2=("B", "2", "T"), a2=("B", "2", "T", "8")),
                ("m1", "s1", "a1", "m2", "s2", "a2"),
                "diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : {q1}, {k1}, {q2}, {k2}, {v}) outs(%m1, %s1, %a1, %m2, %s2, %a2 : "
                "{m1}, {s1}, {a1}, {m2}, {s2}, {a2}) {{scale = 0.25 : f32}}", _online_fits, _online),
    matmul=Form(dict(x=("T", "D"), y=("D", "K"), z=("T", "K")), ("z",), "linalg.matmul ins(%x, %y : {x}, {y}) outs(%z : {z})",
                lambda a: a["x"][1] == a["y"][0] and a["z"] == (a["x"][0], a["y"][1]), lambda a: (a["z"] + a["x"] @ a["y"],)),
    batch_matmul=Form(dict(x=("B", "T", "D"), y=("B", "D", "K"), z=("B", "T", "K")), ("z",), "linalg.batch_matmul ins(%x, %y : {x}, {y}) outs(%z : {z})",
                      lambda a: a["x"][0] == a["y"][0] and a["x"][2] == a["y"][1] and a["z"] == (a["x"][0], a["x"][1], a["y"][2]),
                      lambda a: (a["z"] + a["x"] @ a["y"],)),
    matvec=Form(dict(x=("T", "D"), y=("D",), z=("T",)), ("z",), "linalg.matvec ins(%x, %y : {x}, {y}) outs(%z : {z})",
                lambda a: a["x"][1] == a["y"][0] and a["z"][0] == a["x"][0], lambda a: (a["z"] + a["x"] @ a["y"],)),
    add=Form(dict(x=("B", "T"), y=("B", "T"), z=("B", "T")), ("z",), "linalg.add ins(%x, %y : {x}, {y}) outs(%z : {z})",
             lambda a: a["x"] == a["y"] == a["z"], lambda a: (a["x"] + a["y"],)),
    transpose=Form(dict(x=("B", "T", "D"), z=("D", "B", "T")), ("z",), "linalg.transpose ins(%x : {x}) outs(%z : {z}) permutation = [2, 0, 1]",
                   lambda a: a["z"] == (a["x"][2], a["x"][0], a["x"][1]), lambda a: (a["x"].transpose(2, 0, 1),)),
    broadcast=Form(dict(x=("B", "D"), z=("B", "T", "D")), ("z",), "linalg.broadcast ins(%x : {x}) outs(%z : {z}) dimensions = [1]",
                   lambda a: (a["z"][0], a["z"][2]) == a["x"], lambda a: (np.broadcast_to(a["x"][:, None], a["z"].shape),)),
    reduce=Form(dict(x=("B", "T", "D"), z=("B", "D")), ("z",), "linalg.reduce {{ arith.addf }} ins(%x : {x}) outs(%z : {z}) dimensions = [1]",
                lambda a: a["z"] == (a["x"][0], a["x"][2]), lambda a: (a["z"] + a["x"].sum(1),)),
    softmax=Form(dict(x=("B", "T"), z=("B", "T")), ("z",), "linalg.softmax dimension(1) ins(%x : {x}) outs(%z : {z})", lambda a: a["x"] == a["z"],
                 lambda a: (np.exp(a["x"]) / np.exp(a["x"]).sum(1, keepdims=True),)),
)


def run(seed: int) -> Tally:
    rng = np.random.default_rng([seed, 3])
    pick = lambda options: options[rng.integers(len(options))]
    form = FORMS[list(FORMS)[seed % len(FORMS)]]
    base = dict(B=pick([1, 2]), T=pick([1, 5, 9]), D=pick([4, 8]), K=pick([3, 17]))
    size_of = lambda axis, sizes: sizes[axis] if axis in sizes else int(axis)
    # Upstream's verifiers of these take an open size for one that differs.
    chance = 1.0 if any(op in form.text for op in ("broadcast", "transpose", "reduce")) else pick([0.4, 1.0])
    # Numbers of heads stay known where the op asks for it, which the letterless axes stand for.
    free = {n: [axis in base and rng.random() < chance for axis in axes] for n, axes in form.axes.items()}
    types = {n: "tensor<" + "".join(("?" if f else str(size_of(a, base))) + "x" for f, a in zip(free[n], axes)) + "f32>" for n, axes in form.axes.items()}
    results = ", ".join(types[n] for n in form.updated)
    count = len(form.updated)
    names = ", ".join(["%r"] if count == 1 else [f"%r#{i}" for i in range(count)])
    module = (f"func.func @f({', '.join(f'%{n}: {t}' for n, t in types.items())}) -> ({results}) {{\n"
              f"  %r{f':{count}' if count > 1 else ''} = {form.text.format(**types)}{'' if 'transpose' in form.text or 'broadcast' in form.text or 'reduce' in form.text else ' -> ' + results}\n"
              f"  return {names} : {results}\n}}")
    code = Executable(module, cache=False, target=pick(["cpu", "cpu", "cpu:avx2", "cpu:generic"]))
    tally = Tally()
    for number in range(CALLS):
        fence, sizes = Fence(rng), dict(base)
        for letter in base:
            if all(f for n, axes in form.axes.items() for f, a in zip(free[n], axes) if a == letter):
                sizes[letter] = pick([0, 1, 2, 7, 20])
        shapes = {n: [size_of(a, sizes) for a in axes] for n, axes in form.axes.items()}
        if number % 2:
            name = pick(list(shapes))
            at = rng.integers(len(shapes[name]))
            shapes[name][at] = pick([0, 1, 3, shapes[name][at] + 1, max(shapes[name][at] - 1, 0), 2 * shapes[name][at]])
        shapes = {n: tuple(s) for n, s in shapes.items()}
        as_typed = all(f or s == size_of(a, base) for n, axes in form.axes.items() for f, s, a in zip(free[n], shapes[n], axes))
        arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        for n in arrays:
            if n.startswith(("s0", "s1", "s2", "sum")):
                arrays[n] = np.abs(arrays[n])
        if "q1" in arrays:  # the state that has seen nothing
            for n in form.updated:
                arrays[n][...] = -np.inf if n.startswith("m") else 0
        right = as_typed and form.fits(shapes)
        wide = {n: a.astype(np.float64) for n, a in arrays.items()}
        arrays = {n: fence.copy(a) for n, a in arrays.items()}

        def judge(got):
            fence.check()
            with np.errstate(all="ignore"):
                exact = form.exact(wide)
            for name, one, want in zip(form.updated, got, exact):
                assert one.shape == want.shape, f"{name}: shape {one.shape}, expected {want.shape}"
                assert np.allclose(one, want, rtol=2e-4, atol=2e-5, equal_nan=True), f"{name}: off by {np.nanmax(np.abs(one - want))}"

        tally.attempt(lambda: code.call("f", *arrays.values()), judge, must="take" if right else "refuse", what=f"{shapes}\n{module}")
    return tally
