"""ONNX's Attention: masks of all forms with caches, lengths, soft caps and windows, against onnx's own reference."""
import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import load, model, node  # noqa: F401

from diffattn import errors

pytestmark = pytest.mark.oracle

NAMES = ("q", "k", "v", "mask", "past_key", "past_value", "lengths")
#: Elements, and how far results may be away: the reference rounds to them at every step.
TYPES = [(np.float32, 2e-5)] * 3 + [(np.float16, 1e-2), (ml_dtypes.bfloat16, 8e-2), (np.float64, 1e-5)]


def attention_model(given, sizes, opset, results=("y",), **options):
    """A model of one Attention node; `sizes` are those of inputs that are not as `given` has them."""
    names = [name if name in given else "" for name in NAMES]
    while not names[-1]:
        names.pop()
    kind = helper.np_dtype_to_tensor_dtype(given["q"].dtype)
    inputs = [(name, helper.np_dtype_to_tensor_dtype(array.dtype), sizes.get(name, array.shape)) for name, array in given.items()]
    outputs = [(name, kind, [None] * (given["q"].ndim if name == "y" else 4)) for name in results if name]
    return model([node("Attention", names, [*results], name="own", **options)], inputs, outputs, opset=opset)


def wanted(made, given, options):
    """The reference takes the number of queries from the mask where it is causal, so that a mask of one row for all must be given as many;
    and it gives scores with the soft cap where those without it are asked for, which are not asked for here."""
    mask = given.get("mask")
    if mask is not None and options.get("is_causal") and mask.shape[-2] == 1:
        given = {**given, "mask": np.repeat(mask, given["q"].shape[-2], -2)}
    return [array for array in ReferenceEvaluator(made).run(None, given) if array is not None]


class Drawn:
    """A node with its inputs, and which of their sizes are symbols."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        one = self.one
        self.opset, (self.dtype, self.tolerance) = one(23, 24, 24, 25), TYPES[one(*range(len(TYPES)))]
        self.batch, self.queries, self.keys, groups, shared = one(1, 2, 3), one(1, 3, 5), one(1, 4, 7), one(1, 2), one(1, 1, 2, 3)
        self.heads, self.past, width, rows = groups * shared, one(None, None, 0, 2, 5), one(4, 8), one(False, False, True)
        self.options, self.sizes, self.results = {}, {}, ["y"]
        symbols = {name: name if one(True, False) else size for name, size in (("b", self.batch), ("s", self.queries), ("t", self.keys), ("p", self.past))}
        axes = {name: (symbols["b"], count, symbols[length], size) for name, count, length, size in
                (("q", self.heads, "s", width), ("k", groups, "t", width), ("v", groups, "t", 6), ("past_key", groups, "p", width), ("past_value", groups, "p", 6))}
        actual = dict(b=self.batch, s=self.queries, t=self.keys, p=self.past)
        self.given = {}
        for name, (b, count, length, size) in axes.items():
            if self.past is None and "past" in name:
                continue
            self.sizes[name] = [b, length, count * size] if rows and "past" not in name else [b, count, length, size]
            self.given[name] = self.values(*(actual.get(size, size) for size in self.sizes[name]))
        if rows:
            self.options |= dict(q_num_heads=self.heads, kv_num_heads=groups)
        self.draw_mask(symbols)
        if self.past is None and self.opset > 23 and one(True, False):
            self.given["lengths"], self.sizes["lengths"] = self.random.integers(0, self.keys + 1, self.batch), [symbols["b"]]
        self.draw_options()

    def one(self, *values):
        return values[self.random.integers(len(values))]

    def values(self, *shape):
        return (self.random.standard_normal(shape) * 1.5).astype(self.dtype)

    def draw_mask(self, symbols):
        kind, total, rank = self.one(None, bool, bool, float, float), self.keys + (self.past or 0), self.one(2, 3, 4)
        if kind is None:
            return
        length = self.one(total, 1, max(total - 1, 1), max(total - 3, 1))
        shape, sizes = [], []
        for size, symbol in ((self.batch, symbols["b"]), (self.heads, self.heads), (self.queries, symbols["s"])):
            is_one = self.one(True, False)
            shape.append(1 if is_one else size)
            sizes.append(1 if is_one else symbol)
        same = length == total and self.past is None and self.one(True, False)
        self.sizes["mask"] = [*sizes[4 - rank:], symbols["t"] if same else self.one("m", length)]
        mask = self.values(*shape[4 - rank:], length)
        hidden = self.random.random(mask.shape) < 0.3
        self.given["mask"] = ~hidden if kind is bool else np.where(hidden, np.array(-np.inf, self.dtype), mask)

    def draw_options(self):
        one = self.one
        self.options |= one({}, {"is_causal": 1}) | one({}, {}, {"softcap": 2.0}) | one({}, {"scale": 0.3}) | one({}, {}, {"softmax_precision": T.FLOAT})
        if self.opset > 24:
            self.options |= dict(left_window_size=one(-1, 0, 2), right_window_size=one(-1, 0, 1))
        if self.past is not None and one(True, False):
            self.results += ["present_key", "present_value"]
        if "lengths" not in self.given and one(True, False, False):
            self.results += [""] * (3 - len(self.results)) + ["scores"]
            self.options["qk_matmul_output_mode"] = one(1, 2, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(96))
def test_forms(load, seed):
    drawn = Drawn(seed)
    made = attention_model(drawn.given, drawn.sizes, drawn.opset, drawn.results, **drawn.options)
    loaded = load(made)
    got = loaded(**drawn.given)
    for one, want in zip(got if isinstance(got, tuple) else (got,), wanted(made, drawn.given, drawn.options), strict=True):
        assert one.dtype == want.dtype == drawn.dtype
        np.testing.assert_allclose(one.astype(np.float64), want.astype(np.float64), rtol=drawn.tolerance, atol=drawn.tolerance)


def heads(keys, random=None, dtype=np.float32):
    random = random or np.random.default_rng(0)
    return {name: random.standard_normal((2, 4, length, 8)).astype(dtype) for name, length in (("q", 3), ("k", keys), ("v", keys))}


@pytest.mark.parametrize("opset", [23, 24])
def test_masks_that_are_shorter_than_the_keys(load, opset):
    """Keys behind the end of the mask are not seen, also where it has one element, which is no element for all of them."""
    random, given = np.random.default_rng(1), heads(6)
    masks = {f"{kind.__name__}{length}": random.random((3, length)) > 0.3 if kind is bool else random.standard_normal((2, 1, 3, length)).astype(np.float32)
             for kind in (bool, float) for length in (0, 1, 4)}
    inputs = [(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in {**given, **masks}.items()]
    made = model([node("Attention", ["q", "k", "v", name], [f"y.{name}"]) for name in masks], inputs, [(f"y.{name}", T.FLOAT, [2, 4, 3, 8]) for name in masks], opset=opset)
    for got, mask in zip(load(made)(**given, **masks), masks.values(), strict=True):
        length = mask.shape[-1]
        bias = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
        scores = given["q"] @ given["k"][..., :length, :].swapaxes(2, 3) / 8 ** 0.5 + bias
        powers = np.exp(scores - np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), -1e30))
        total = powers.sum(-1, keepdims=True)
        np.testing.assert_allclose(got, powers / np.where(total, total, 1) @ given["v"][..., :length, :], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}])
def test_lengths_of_masks_that_calls_decide(load, options):
    """One function for masks that are shorter, as long as the keys, and longer, which is an error of the call."""
    made = attention_model({**heads(6), "mask": np.ones((3, 6), bool)}, {"k": [2, 4, "t", 8], "v": [2, 4, "t", 8], "mask": [3, "m"]}, 24, **options)
    loaded = load(made)
    for keys, length in ((6, 6), (6, 4), (6, 1), (1, 1)):
        given = {**heads(keys), "mask": np.random.default_rng(keys + length).random((3, length)) > 0.3}
        np.testing.assert_allclose(loaded(**given), wanted(made, given, options)[0], rtol=1e-4, atol=1e-5)
    for keys, length in ((6, 7), (1, 3)):
        message = f"'Attention' 'own', which makes 'y': expected attn_mask 'mask' with a last axis of at most {keys}, the number of keys, but got {length}"
        with pytest.raises(errors.RunError, match=message):
            loaded(**heads(keys), mask=np.ones((3, length), bool))


@pytest.mark.parametrize("kind", [T.BOOL, T.FLOAT])
@pytest.mark.parametrize("keys, length", [(6, 4), ("t", "m"), ("t", "t")])
def test_both_maps_of_differential_attention_share_a_padded_mask(load, kind, keys, length):
    """Which raising asks for."""
    nodes = [node("Attention", [f"q{n}", f"k{n}", "v", "mask"], [f"o{n}"]) for n in "12"]
    nodes += [node("Mul", ["o2", "lambda"], ["noise"]), node("Sub", ["o1", "noise"], ["y"])]
    inputs = [*((f"q{n}", T.FLOAT, [2, 4, 3, 8]) for n in "12"), *((name, T.FLOAT, [2, 4, keys, 8]) for name in ("k1", "k2", "v")), ("mask", kind, [3, length])]
    made = model(nodes, inputs, [("y", T.FLOAT, [2, 4, 3, 8])], {"lambda": np.float32(0.3).reshape(())}, opset=24)
    loaded, random = load(made), np.random.default_rng(0)
    assert not loaded.diagnostics and sum(one.name == "Raised" for one in loaded.applied) == 1
    given = {name: random.standard_normal((2, 4, 3 if name[0] == "q" else 6, 8)).astype(np.float32) for name, _, _ in inputs[:-1]}
    mask = random.standard_normal((3, 6 if length == "t" else 4)).astype(np.float32)
    given["mask"] = mask if kind == T.FLOAT else mask > -0.5
    np.testing.assert_allclose(loaded(**given), ReferenceEvaluator(made).run(None, given)[0], rtol=1e-4, atol=1e-5)


def test_one_mask_for_different_numbers_of_keys(load):
    """It is padded for each."""
    nodes = [node("Attention", ["q", *names, "mask"], [result]) for names, result in ((("k", "k"), "h"), (("l", "l"), "y"))]
    inputs = [("q", T.FLOAT, [2, 4, 3, 8]), ("k", T.FLOAT, [2, 4, 6, 8]), ("l", T.FLOAT, [2, 4, 5, 8]), ("mask", T.BOOL, [3, 4])]
    made = model(nodes, inputs, [(name, T.FLOAT, [2, 4, 3, 8]) for name in "hy"], opset=24)
    given = {name: np.random.default_rng(0).standard_normal(sizes).astype(np.float32) for name, _, sizes in inputs[:-1]}
    given["mask"] = np.random.default_rng(0).random((3, 4)) > 0.3
    for got, want in zip(load(made)(**given), ReferenceEvaluator(made).run(None, given)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"is_causal": 1}, {"left_window_size": 1, "right_window_size": 2}])
def test_places_of_queries_behind_keys_that_calls_decide(load, options):
    """The last query is at the last of the keys that count, of which there may be fewer than queries."""
    given = {**heads(6), "mask": np.random.default_rng(1).random((3, 5)) > 0.2, "lengths": np.array([5, 2])}
    made = attention_model(given, {}, 25, **options)
    np.testing.assert_allclose(load(made)(**given), wanted(made, given, options)[0], rtol=1e-4, atol=1e-5)


def test_integers_as_masks(load):
    """They are added; onnx's reference does not pad them."""
    given = {**heads(6), "mask": np.random.default_rng(0).integers(-2, 3, (3, 4), np.int32)}
    plain = {**given, "mask": given["mask"].astype(np.float32)}
    want = load(attention_model(plain, {}, 24))(**plain)
    np.testing.assert_allclose(load(attention_model(given, {}, 24))(**given), want, rtol=1e-5, atol=1e-6)


def test_rows_whose_widths_calls_decide(load):
    given = {name: np.random.default_rng(0).standard_normal((2, length, width)).astype(np.float32) for name, length, width in (("q", 3, 16), ("k", 5, 8), ("v", 5, 12))}
    made = attention_model(given, {"q": [2, 3, "a"], "k": [2, "t", "b"], "v": [2, "t", "c"]}, 24, q_num_heads=4, kv_num_heads=2)
    np.testing.assert_allclose(load(made)(**given), ReferenceEvaluator(made).run(None, given)[0], rtol=1e-4, atol=1e-5)


def test_numbers_of_heads_that_calls_decide(load):
    made = attention_model(heads(5), {"q": [2, "h", 3, 8], "k": [2, "g", "t", 8], "v": [2, "g", "t", 8]}, 24)
    loaded = load(made)
    for count in (1, 2, 4):
        given = {name: array[:, :count] if name in "kv" else array for name, array in heads(5).items()}
        np.testing.assert_allclose(loaded(**given), ReferenceEvaluator(made).run(None, given)[0], rtol=1e-4, atol=1e-5)


#: Inputs beside queries, keys and values; results; attributes.
FUSED = {
    "plain": ([], 1, {}), "causal": ([], 1, {"is_causal": 1}), "cap": ([], 1, {"softcap": 5.0}), "present": ([], 3, {}),
    "past": (["past_key", "past_value"], 3, {"is_causal": 1}), "lengths": (["lengths"], 1, {}), "lengths and places": (["lengths"], 1, {"is_causal": 1}),
    "truth": (["truth"], 1, {}), "added": (["added"], 1, {"scale": 0.3}), "truth, cap and past": (["truth", "past_key", "past_value"], 1, {"softcap": 5.0}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("maps", [1, 2])
@pytest.mark.parametrize("form", FUSED)
def test_forms_are_fused(load, form, maps, dtype):
    others, results, options = FUSED[form]
    kind, keys = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), 11 if "past_key" in others else 6
    shapes = {f"{name}{n}": (2, 4, 3 if name == "q" else 6, 8) for n in range(maps) for name in "qk"} | {"v": (2, 4, 6, 8)}
    shapes |= {name: dict(lengths=(2,), truth=(3, keys), added=(3, keys)).get(name, (2, 4, 5, 8)) for name in others}
    names = ["truth" if "truth" in others else "added" if "added" in others else "", *(name if name in others else "" for name in NAMES[4:])]
    nodes = [node("Attention", [f"q{n}", f"k{n}", "v", *names], [f"y{n}", f"present_key{n}", f"present_value{n}"][:results], **options) for n in range(maps)]
    nodes += [node("Mul", ["y1", "lambda"], ["noise"]), node("Sub", ["y0", "noise"], ["y"])] if maps == 2 else [node("Identity", ["y0"], ["y"])]
    kinds = {"lengths": T.INT64, "truth": T.BOOL}
    outputs = [("y", kind, [2, 4, 3, 8]), *((f"{name}{n}", kind, [2, 4, keys, 8]) for n in range(maps) for name in ("present_key", "present_value") if results > 1)]
    made = model(nodes, [(name, kinds.get(name, kind), shape) for name, shape in shapes.items()], outputs, {"lambda": np.array(0.4, dtype)}, opset=24)
    loaded, random = load(made), np.random.default_rng(0)
    diagnostics = [str(one) for one in (*loaded.applied, *loaded.diagnostics) if one.category == "diffattn-fuse"]
    assert len(diagnostics) == 1 and ("two maps became one" if maps == 2 else "one map became a") in diagnostics[0], diagnostics
    given = {name: random.integers(1, 7, shape) if name == "lengths" else random.random(shape) > 0.3 if name == "truth" else
             random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    got, tolerance = loaded(**given), 1e-5 if dtype == np.float32 else 1e-2
    for one, want in zip(got if len(outputs) > 1 else [got], ReferenceEvaluator(made).run(None, given), strict=True):
        np.testing.assert_allclose(one.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


REFUSED = {
    "longer": (dict(mask=(3, 8)), {}, r"attn_mask that fits \[batch, query heads, queries, keys\] = \[2, 4, 3, 6\], whose last axis may be shorter, but got 'mask' \[3, 8\]"),
    "longer than the past and the keys": (dict(mask=(3, 8), past_key=(2, 4, 1, 8), past_value=(2, 4, 1, 8)), {}, r"= \[2, 4, 3, 7\], .*, but got 'mask' \[3, 8\]"),
    "queries": (dict(mask=(2, 6)), {}, r"attn_mask that fits .* = \[2, 4, 3, 6\], .*, but got 'mask' \[2, 6\]"),
    "heads": (dict(mask=(3, 3, 6)), {}, r"attn_mask that fits .*, but got 'mask' \[3, 3, 6\]"),
    "axes": (dict(mask=(1, 2, 4, 3, 6)), {}, r"attn_mask of 1 to 4 axes, but got 'mask' \[1, 2, 4, 3, 6\]"),
    "one of the past": (dict(past_key=(2, 4, 1, 8)), {}, "past_key and past_value together, but got 'past_key' alone"),
    "past and lengths": (dict(past_key=(2, 4, 1, 8), past_value=(2, 4, 1, 8), lengths=(2,)), {}, "past_key or nonpad_kv_seqlen, but got both, 'past_key' and 'lengths'"),
    "groups": (dict(k=(2, 3, 6, 8), v=(2, 3, 6, 8)), {}, "a number of query heads that is a multiple of that of key heads, but got 4 and 3"),
    "rows": (dict(q=(2, 3, 30), k=(2, 6, 32), v=(2, 6, 32)), dict(q_num_heads=4, kv_num_heads=4), r"that divide the widths of rows, but got 4 and 4 for 'q' \[2, 3, 30\] and 'k'"),
    "mode": (dict(), dict(qk_matmul_output_mode=7), "qk_matmul_output_mode from 0 to 3, but got 7"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(load, name):
    """By the node that the model has, not by one that it was taken apart to."""
    shapes, options, message = REFUSED[name]
    given = {**heads(6), **{name: np.zeros(shape, np.int64 if name == "lengths" else np.float32) for name, shape in shapes.items()}}
    with pytest.raises(errors.CompileError, match=rf"model\.onnx: 'Attention' 'own', which makes 'y': expected .*{message}"):
        load(attention_model({name: given[name] for name in NAMES if name in given}, {}, 24, **options))
