"""Modules with `diffattn.attention` and products on sizes known only at run time, called with sizes that lie."""
import numpy as np

from diffattn.runtime import Executable
from guarded import Fence
from judge import Tally, attention_error, exact_visible

CALLS = 12
#: Axes of each operand in layout bhtd.
AXES = dict(q1=("B", "Hs", "Tq", "d"), k1=("B", "Hk1", "Tk", "d"), q2=("B", "Hn", "Tq", "d"), k2=("B", "Hk2", "Tk", "d"), v=("B", "Hv", "Tk", "dv"),
            bias=("Bb", "Hb", "Tb", "Tk"), norm_weight=("dv",), gate=("B", "Hs", "Tq", "dv"), kv_len=("B",), q_offset=("B",),
            init=("B", "Hs", "Tq", "dv"))
LAMBDA = [(), ("Hs",), ("B", "Tq", "Hs"), ("B", "Tq", "Hn")]
ELEMENT = dict(lam="f32", kv_len="i64", q_offset="i64")


def draw_sizes(pick):
    divisor = lambda n: pick([x for x in range(1, n + 1) if n % x == 0])
    hn = pick([1, 2])
    hs = hn * pick([1, 2])
    sizes = dict(B=pick([1, 2]), Hs=hs, Hn=hn, Hk1=divisor(hs), Hk2=divisor(hn), Hv=divisor(hs), Tq=pick([1, 3, 9, 17]), Tk=pick([1, 8, 33, 70]),
                 d=pick([4, 16]), dv=pick([8, 16, 33]))
    return dict(sizes, Bb=pick([1, sizes["B"]]), Hb=pick([1, hn]), Tb=pick([1, sizes["Tq"]]))


def fits(shapes) -> bool:
    """The constraints of docs/spec.md on sizes, for shapes that the call gives."""
    q1, k1, q2, k2, v = (shapes[n] for n in ("q1", "k1", "q2", "k2", "v"))
    b, hs, tq, d = q1
    hn, tk, dv = q2[1], k1[2], v[3]
    if 0 in (hs, hn, k1[1], k2[1], v[1], d, dv):
        return False
    if any(x[0] != b for x in (k1, q2, k2, v)) or q2[2] != tq or any(x[2] != tk for x in (k2, v)) or any(x[3] != d for x in (k1, q2, k2)):
        return False
    if hs % hn or hs % k1[1] or hn % k2[1] or hs % v[1] or shapes["init"] != (b, hs, tq, dv):
        return False
    if "bias" in shapes:
        given = shapes["bias"]
        if given[3] != tk or any(n not in (1, m) for n, m in zip(given, (b, hn, tq))):
            return False
    lam = shapes["lam"]
    if len(lam) == 1 and lam != (hs,) or len(lam) == 3 and (lam[:2] != (b, tq) or lam[2] not in (hs, hn)):
        return False
    wanted = dict(norm_weight=(dv,), gate=(b, hs, tq, dv), kv_len=(b,), q_offset=(b,))
    return all(shapes[name] == shape for name, shape in wanted.items() if name in shapes)


def run(seed: int) -> Tally:
    rng = np.random.default_rng([seed, 2])
    pick = lambda options: options[rng.integers(len(options))]
    base, memrefs = draw_sizes(pick), bool(pick([0, 0, 1]))
    names = ["q1", "k1", "q2", "k2", "v", "lam"] + [n for n in ("bias", "norm_weight", "gate", "kv_len", "q_offset") if pick([0, 1])] + ["init"]
    axes = {n: AXES.get(n) for n in names}
    axes["lam"] = pick(LAMBDA)
    open_share = pick([0.3, 0.7, 1.0])
    is_open = {n: [rng.random() < open_share for _ in axes[n]] for n in names}
    boolean = bool(pick([0, 1]))
    attributes = dict(causal=bool(pick([0, 1])), window=pick([None, None, (3, 1), (-1, 5)]), norm="norm_weight" in names or bool(pick([0, 1])))

    kind = "memref" if memrefs else "tensor"

    def type_of(name):
        element = "i1" if name == "bias" and boolean else ELEMENT.get(name, "f32")
        return f"{kind}<" + "".join(("?" if free else str(base[axis])) + "x" for free, axis in zip(is_open[name], axes[name])) + element + ">"

    types = {n: type_of(n) for n in names}
    ins = ("q1", "k1", "q2", "k2", "v")
    clauses = [f"ins({', '.join('%' + n for n in ins)} : {', '.join(types[n] for n in ins)})", f"lambda(%lam : {types['lam']})"]
    clauses += [f"{n}(%{n} : {types[n]})" for n in ("bias", "norm_weight", "gate", "kv_len", "q_offset") if n in names]
    text = ["scale = 0.25 : f32"] + ["is_causal"] * attributes["causal"] + ["norm = #diffattn.norm<rms>"] * attributes["norm"]
    if attributes["window"]:
        text.append("window = array<i64: {}, {}>".format(*attributes["window"]))
    result = "" if memrefs else f" -> {types['init']}"
    module = (f"func.func @f({', '.join(f'%{n}: {types[n]}' for n in names)}){result} {{\n  {'' if memrefs else '%o = '}diffattn.attention "
              f"{' '.join(clauses)} outs(%init : {types['init']}) {{{', '.join(text)}}}{result}\n  return{'' if memrefs else ' %o : ' + types['init']}\n}}")
    code = Executable(module, cache=False, target=pick(["cpu", "cpu", "cpu:avx2", "cpu:generic"]))
    tally = Tally()
    for number in range(CALLS):
        fence, sizes = Fence(rng), dict(base)
        # Sizes that are open everywhere change together, which is right; then perhaps one lies.
        for axis in ("B", "Tq", "Tk"):
            if all(free for n in names for free, a in zip(is_open[n], axes[n]) if a == axis):
                sizes[axis] = pick([0, 1, 2, 5, 18])
        sizes.update(Bb=pick([1, sizes["B"]]), Hb=pick([1, sizes["Hn"]]), Tb=pick([1, sizes["Tq"]]))
        shapes = {n: [sizes[a] if free or a not in ("Bb", "Hb", "Tb") else base[a] for free, a in zip(is_open[n], axes[n])] for n in names}
        if number % 2:
            name = pick([n for n in names if axes[n]])
            at = rng.integers(len(axes[name]))
            shapes[name][at] = pick([0, 1, 2, shapes[name][at] + 1, max(shapes[name][at] - 1, 0), 2 * shapes[name][at], 40])
        shapes = {n: tuple(s) for n, s in shapes.items()}
        as_typed = all(free or size == base[axis] for n in names for free, size, axis in zip(is_open[n], shapes[n], axes[n]))
        arrays = {}
        for n in names:
            if n == "bias" and boolean:
                value = rng.random(shapes[n]) < 0.7
            elif n == "kv_len":
                value = rng.integers(0, shapes["k1"][2] + 2, shapes[n])
            elif n == "q_offset":
                value = rng.integers(-3, shapes["k1"][2] + 2, shapes[n])
            else:
                value = rng.standard_normal(shapes[n]).astype(np.float32)
            arrays[n] = fence.copy(value)
        arrays["init"][...] = np.nan

        def judge(results):
            fence.check()
            batch, _, tq, _ = shapes["q1"]
            tk = shapes["k1"][2]
            got = arrays["init"] if memrefs else results[0]
            assert got.shape == shapes["init"]
            number_of = lambda n, b: int(arrays[n][b]) if n in arrays else None
            visible = [exact_visible(tq, tk, attributes["causal"], attributes["window"], number_of("kv_len", b), number_of("q_offset", b))
                       for b in range(batch)]
            return attention_error(got, [arrays[n] for n in (*ins, "lam")], np.stack(visible) if batch else np.zeros((0, tq, tk), bool), scale=0.25,
                                   bias=arrays.get("bias"), norm="rms" if attributes["norm"] else None, norm_weight=arrays.get("norm_weight"),
                                   gate=arrays.get("gate"))

        tally.attempt(lambda: code.call("f", *arrays.values()), judge, must="take" if as_typed and fits(shapes) else "refuse",
                      what=f"{shapes}\n{module}")
    return tally
