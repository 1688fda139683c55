"""`MultiHeadAttention` of com.microsoft, as ONNX Runtime's optimizer writes it: its numbers, that it is fused, and what is refused."""
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx_cases import load, model, node  # noqa: F401

from diffattn import errors

pytestmark = pytest.mark.oracle

NAMES = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value", "past_sequence_length")
BATCH, QUERIES, KEYS, HEADS, WIDTH = 2, 3, 5, 2, 4
ROWS = {"query": (BATCH, QUERIES, 8), "key": (BATCH, KEYS, 8), "value": (BATCH, KEYS, 12)}
SAME = {"query": (BATCH, QUERIES, 8), "key": (BATCH, QUERIES, 8), "value": (BATCH, QUERIES, 8)}
PAST = {"past_key": (BATCH, HEADS, 4, WIDTH), "past_value": (BATCH, HEADS, 4, WIDTH)}


def drawn(shapes):
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    if "key_padding_mask" in shapes:
        shape = shapes["key_padding_mask"]
        given["key_padding_mask"] = random.integers(1, shape[0] + 3, shape, np.int32) if len(shape) == 1 else random.integers(0, 2, shape, np.int32)
    return given


def made(given, sizes, results=1, dtype=T.FLOAT, **options):
    names = [name if name in given else "" for name in NAMES]
    inputs = [(name, helper.np_dtype_to_tensor_dtype(array.dtype), sizes.get(name, array.shape)) for name, array in given.items()]
    outputs = [(name, dtype, [None] * rank) for name, rank in (("y", 3), ("present_key", 4), ("present_value", 4), ("qk", 4))[:results]]
    one = node("MultiHeadAttention", names, [name for name, _, _ in outputs], domain="com.microsoft", name="own", num_heads=HEADS, **options)
    return model([one], inputs, outputs, opset=17)


def wanted(given, mask_filter_value=-10000.0, scale=None, unidirectional=0):
    """As ONNX Runtime computes it on a CPU: y, and the keys and values with those of the past."""
    def split(x):
        return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3) if x.ndim == 3 else x

    parts = [given.get(name) for name in NAMES[:3]]
    packed = next((part for part in parts if part is not None and part.ndim == 5), None)
    if packed is not None:
        parts[3 - packed.shape[3]:] = [packed[:, :, :, number].transpose(0, 2, 1, 3) for number in range(packed.shape[3])]
    begin = 0
    for number, part in enumerate(parts):
        width = part.shape[-1] if part.ndim == 3 else part.shape[-1] * HEADS
        if "bias" in given and part.ndim == 3:
            parts[number] = part + given["bias"][begin:begin + width]
        begin += width
    q, k, v = map(split, parts)
    past = 0
    if "past_key" in given:
        past = given["past_key"].shape[2]
        k, v = (np.concatenate(pair, 2) for pair in ((given["past_key"], k), (given["past_value"], v)))
    scores = q @ k.swapaxes(2, 3) * (scale or q.shape[-1] ** -0.5) + given.get("attention_bias", 0)
    if "key_padding_mask" in given:
        mask = given["key_padding_mask"]
        kept = np.arange(k.shape[2]) < mask[:, None] if mask.ndim == 1 else mask > 0
        scores = scores + np.where(kept if kept.ndim == 3 else kept[:, None], 0, mask_filter_value)[:, None]
    if unidirectional:
        scores = np.where(np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + past, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    y = (powers / powers.sum(-1, keepdims=True)) @ v
    return y.transpose(0, 2, 1, 3).reshape(*y.shape[:1], y.shape[2], -1), k, v


SYMBOLS = {"query": ("b", "s", 8), "key": ("b", "t", 8), "value": ("b", "t", 12)}
SAME_SYMBOLS = {"query": ("b", "s", 8), "key": ("b", "s", 8), "value": ("b", "s", 8), "past_key": ("b", HEADS, "p", WIDTH), "past_value": ("b", HEADS, "p", WIDTH)}
#: Shapes, sizes that are symbols, how many results, attributes.
FORMS = {
    "plain": (ROWS, {}, 1, {}), "symbols": (ROWS, SYMBOLS, 3, {}), "scale": (ROWS, SYMBOLS, 1, {"scale": 0.3}),
    "bias": (ROWS | {"bias": (28,)}, SYMBOLS, 1, {}), "mask of lengths": (ROWS | {"key_padding_mask": (BATCH,)}, SYMBOLS | {"key_padding_mask": ("b",)}, 1, {}),
    "mask of keys": (ROWS | {"key_padding_mask": (BATCH, KEYS)}, SYMBOLS | {"key_padding_mask": ("b", "t")}, 1, {}),
    "small fill": (ROWS | {"key_padding_mask": (BATCH, KEYS)}, {}, 1, {"mask_filter_value": -2.0}),
    "mask of pairs": (ROWS | {"key_padding_mask": (BATCH, QUERIES, KEYS)}, {}, 1, {}), "attention bias": (ROWS | {"attention_bias": (1, HEADS, QUERIES, KEYS)}, SYMBOLS, 1, {}),
    "unidirectional": (SAME, SAME_SYMBOLS, 1, {"unidirectional": 1}), "past": (SAME | PAST, SAME_SYMBOLS, 3, {}),
    "unidirectional past": (SAME | PAST | {"key_padding_mask": (BATCH, QUERIES + 4)}, SAME_SYMBOLS | {"key_padding_mask": ("b", "m")}, 3, {"unidirectional": 1}),
    "heads": ({"query": (BATCH, QUERIES, 8), "key": (BATCH, HEADS, KEYS, WIDTH), "value": (BATCH, HEADS, KEYS, WIDTH), "bias": (24,)}, {}, 1, {}),
    "packed": ({"query": (BATCH, QUERIES, HEADS, 3, WIDTH)}, {}, 3, {}), "packed keys": ({"query": (BATCH, QUERIES, 8), "key": (BATCH, KEYS, HEADS, 2, WIDTH)}, {}, 1, {}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_forms(load, form):
    shapes, sizes, results, options = FORMS[form]
    given = drawn(shapes)
    loaded = load(made(given, sizes, results, **options))
    assert [str(one).count("one map became a") for one in loaded.applied if one.category == "diffattn-fuse"] == [1]
    got = loaded(**given)
    for one, want in zip(got if results > 1 else [got], wanted(given, **options)):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-5)


def test_elements_of_16_bits(load):
    given = {name: array.astype(np.float16) for name, array in drawn(ROWS).items()}
    want = wanted({name: array.astype(np.float64) for name, array in given.items()})[0]
    np.testing.assert_allclose(load(made(given, SYMBOLS, dtype=T.FLOAT16))(**given).astype(np.float64), want, rtol=5e-3, atol=5e-3)


def test_two_of_them_subtracted(load):
    """As one op of two maps."""
    nodes = [node("MultiHeadAttention", [f"q{n}", f"k{n}", "v", "", "mask"], [f"o{n}"], domain="com.microsoft", num_heads=HEADS) for n in "12"]
    nodes += [node("Mul", ["o2", "lambda"], ["noise"]), node("Sub", ["o1", "noise"], ["y"])]
    shapes = {"q1": ROWS["query"], "k1": ROWS["key"], "q2": ROWS["query"], "k2": ROWS["key"], "v": ROWS["value"]}
    inputs = [*((name, T.FLOAT, shape) for name, shape in shapes.items()), ("mask", T.INT32, (BATCH, KEYS))]
    loaded = load(model(nodes, inputs, [("y", T.FLOAT, [BATCH, QUERIES, 12])], {"lambda": np.float32(0.3).reshape(())}, opset=17))
    assert sum("two maps became one" in str(one) for one in loaded.applied) == 1 and not loaded.diagnostics
    given = drawn(shapes) | {"mask": np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], np.int32)}
    maps = [wanted({"query": given[f"q{n}"], "key": given[f"k{n}"], "value": given["v"], "key_padding_mask": given["mask"]})[0] for n in "12"]
    np.testing.assert_allclose(loaded(**given), maps[0] - 0.3 * maps[1], rtol=1e-4, atol=1e-5)


REFUSED = {
    "cache in place": (SAME | PAST | {"past_sequence_length": (1,)}, {}, 1, {}, "whose cache grows, but got past_sequence_length"),
    "scores": (ROWS, {}, 4, {}, "of at most 3 results, but got one that gives qk"),
    "one of the past": (SAME | {"past_key": PAST["past_key"]}, {}, 1, {}, "past_key and past_value together, but got past_key alone"),
    "axes": ({"query": ROWS["query"], "key": ROWS["key"], "value": (BATCH, HEADS, KEYS, 6)}, {}, 1, {}, r"of rows, of rows and heads, or of packed heads, but got query \[2, 3, 8\] and key \[2, 5, 8\] and value"),
    "packed bias": ({"query": (BATCH, QUERIES, HEADS, 3, WIDTH), "bias": (24,)}, {}, 1, {}, "of packed heads without a bias, but got one"),
    "symbolic bias": (ROWS | {"bias": (28,)}, {"value": (BATCH, KEYS, "w")}, 1, {}, "of known widths with a bias, but got a symbol"),
    "symbolic width": (ROWS, {"query": (BATCH, QUERIES, "w")}, 1, {}, r"of heads of known width, but got \[2, 3, w\]"),
    "unidirectional cross": (ROWS, {}, 1, {"unidirectional": 1}, r"of as many new keys as queries, but got \[3, 5\]"),
    "lengths": (ROWS | {"key_padding_mask": (8,)}, {}, 1, {}, r"key_padding_mask with one number of keys for each sequence, but got \[8\]"),
    "mask of heads": (ROWS | {"key_padding_mask": (BATCH, 1, QUERIES, KEYS)}, {}, 1, {}, r"key_padding_mask of 1 to 3 axes, but got \[2, 1, 3, 5\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(load, name):
    shapes, sizes, results, options, message = REFUSED[name]
    given = drawn(shapes)
    if "past_sequence_length" in given:
        given["past_sequence_length"] = np.array([4], np.int32)
    with pytest.raises(errors.CompileError, match=rf"'com\.microsoft\.MultiHeadAttention' 'own', which makes 'y'.*: expected .*{message}"):
        load(made(given, sizes, results, **options))
