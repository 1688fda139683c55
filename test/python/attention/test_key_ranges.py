"""States of ranges of keys (`kv_split_size`) joined by `merge`: compiled by the linalg path they are the attention that they stand
for, within its bound, and the interpreter's."""
import numpy as np
import pytest

import diffattn
from diffattn.runtime import Executable, RunError

CASES = {
    # B, Hs, Hn, Hk1, Hk2, Hv, Tq, Tk, d, dv, split, attributes, has kv_len
    "plain": (2, 2, 2, 2, 2, 2, 3, 20, 8, 16, 7, "", False),
    "one range": (1, 2, 2, 2, 2, 2, 3, 20, 8, 16, 64, "", False),
    "causal from the end": (2, 4, 2, 2, 1, 2, 3, 20, 8, 16, 6, ", is_causal", True),
    "own values": (2, 4, 2, 4, 2, 4, 2, 17, 8, 24, 5, ", window = array<i64: 9, 2>", True),
    "softcap": (1, 2, 1, 1, 1, 1, 1, 33, 16, 8, 8, ", softcap = 3.0 : f32", False),
}


def module(b, hs, hn, hk1, hk2, hv, tq, tk, d, dv, split, attributes, has_length, ranges, with_sums=False):
    """`with_sums`: with sinks of both maps and the logarithms of their sums."""
    heads2 = hn if hn % hv == 0 else hs
    q1, q2, k1, k2, v = (f"tensor<?x{h}x?x{w}xf32>" for h, w in ((hs, d), (hn, d), (hk1, d), (hk2, d), (hv, dv)))
    rows = lambda lead, h: f"tensor<{lead}?x{h}x?xf32>"
    sums = lambda lead, h: f"tensor<{lead}?x{h}x?x{dv}xf32>"
    lines, empties = [], {}
    for lead in ("?x", ""):
        sizes = "%ranges, %b, %t" if lead else "%b, %t"
        for name, kind in (("m1", rows(lead, hs)), ("a1", sums(lead, hs)), ("m2", rows(lead, hn)), ("a2", sums(lead, heads2))):
            empties[name, lead] = kind
            lines.append(f"  %{name}{len(lead)} = tensor.empty({sizes}) : {kind}")
    types = lambda lead: [empties[n, lead] for n in ("m1", "m1", "a1", "m2", "m2", "a2")]
    many, one = types("?x"), types("")
    length = "kv_len(%n : tensor<?xi64>)" if has_length else ""
    text = "\n".join(lines)
    sinks = f", %s1: tensor<{hs}xf32>, %s2: tensor<{hn}xf32>" if with_sums else ""
    joined = (f"max1(%x#0 : {one[0]}) max2(%y#0 : {one[3]}) sink(%s1 : tensor<{hs}xf32>) sink2(%s2 : tensor<{hn}xf32>)" if with_sums else "")
    logarithms = f"lse1(%m10 : {one[0]}) lse2(%m20 : {one[3]})" if with_sums else ""
    results = [one[2], one[0], one[3]] if with_sums else [one[2]]
    returned = ", ".join(f"%o#{i}" for i in range(len(results)))
    return f"""func.func @f(%q1: {q1}, %k1: {k1}, %q2: {q2}, %k2: {k2}, %v: {v}, %n: tensor<?xi64>, %l: tensor<f32>{sinks}) -> ({", ".join(results)}) {{
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %ranges = arith.constant {ranges} : index
  %b = tensor.dim %q1, %c0 : {q1}
  %t = tensor.dim %q1, %c2 : {q1}
{text}
  %s:6 = diffattn.online_attention ins(%q1, %k1, %q2, %k2, %v : {q1}, {k1}, {q2}, {k2}, {v}) {length}
    outs(%m12, %m12, %a12, %m22, %m22, %a22 : {", ".join(many)})
    {{scale = 0.4 : f32, kv_split_size = {split}{attributes}}} -> {", ".join(many)}
  %x:3 = diffattn.merge ins(%s#0, %s#1, %s#2 : {", ".join(many[:3])}) outs(%m10, %m10, %a10 : {", ".join(one[:3])}) -> {", ".join(one[:3])}
  %y:3 = diffattn.merge ins(%s#3, %s#4, %s#5 : {", ".join(many[3:])}) outs(%m20, %m20, %a20 : {", ".join(one[3:])}) -> {", ".join(one[3:])}
  %o:{len(results)} = diffattn.finalize ins(%x#1, %x#2, %y#1, %y#2 : {one[1]}, {one[2]}, {one[4]}, {one[5]}) lambda(%l : tensor<f32>)
    {joined} outs(%a10 : {one[2]}) {logarithms} -> {", ".join(results)}
  return {returned} : {", ".join(results)}
}}"""


def operands(case, seed=0):
    b, hs, hn, hk1, hk2, hv, tq, tk, d, dv = case[:10]
    random = np.random.default_rng(seed)
    shapes = [(b, hs, tq, d), (b, hk1, tk, d), (b, hn, tq, d), (b, hk2, tk, d), (b, hv, tk, dv)]
    arrays = [random.standard_normal(shape, np.float32) for shape in shapes]
    return [*arrays, np.arange(b) * 5 + tk - 7, np.float32(0.7).reshape(())]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_ranges_are_the_attention(name, spare):
    case = CASES[name]
    tk, split, attributes, has_length = case[7], *case[10:]
    text = module(*case, ranges=-(-tk // split) + spare)
    code = Executable(text, cache=False)
    q1, k1, q2, k2, v, n, _ = given = operands(case)
    [got] = code.call("f", *given)
    options = {}
    if "is_causal" in attributes:
        options["is_causal"] = True
    if "window" in attributes:
        options["window"] = (9, 2)
    if "softcap" in attributes:
        options["softcap"] = 3.0
    if has_length:
        options["kv_len"] = n
    want = diffattn.attention(q1, k1, q2, k2, v, 0.7, scale=0.4, **options)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    judgement = code.judge(text, "f", given, [got])
    assert judgement, judgement.lines


@pytest.mark.parametrize("name", ["plain", "own values", "softcap"])
def test_a_sink_counts_once_over_all_ranges(name):
    case = CASES[name]
    b, hs, hn = case[:3]
    split, has_length = case[10], case[12]
    text = module(*case, ranges=-(-case[7] // split), with_sums=True)
    code = Executable(text, cache=False)
    sink, sink2 = np.linspace(-1, 3, hs, dtype=np.float32), np.linspace(2, -1, hn, dtype=np.float32)
    given = [*operands(case), sink, sink2]
    if has_length:
        given[5] = np.array([0, case[7] - 3])  # rows without keys
    got = code.call("f", *given)
    q1, k1, q2, k2, v, n = given[:6]
    options = {"own values": dict(window=(9, 2), kv_len=n), "softcap": dict(softcap=3.0)}.get(name, {})
    want = diffattn.attention(q1, k1, q2, k2, v, 0.7, scale=0.4, sink=sink, sink2=sink2, return_lse=True, **options)
    for one, other in zip(got, want):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
    if has_length:
        assert not got[0][0].any() and np.isneginf(got[1][0]).all() and np.isneginf(got[2][0]).all()
    judgement = code.judge(text, "f", given, got)
    assert judgement, judgement.lines


def test_too_few_ranges():
    case = CASES["plain"]
    with pytest.raises(RunError, match="expected .*size 3 or more.* of 7 .*got 2"):
        Executable(module(*case, ranges=2), cache=False).call("f", *operands(case))
