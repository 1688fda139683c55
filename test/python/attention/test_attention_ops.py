"""Differential attention as one op of a model of ONNX and of JAX: the options and operands of diffattn.attention, judged by it."""
import numpy as np
import pytest

import diffattn
from diffattn import errors

B, HS, HN, T, D = 2, 4, 2, 9, 16
#: Options as diffattn.attention has them, with the operands that they bring.
CASES = {
    "plain": {}, "causal": {"is_causal": True}, "window": {"window": (3, None), "is_causal": True}, "softcap": {"softcap": 2.5},
    "scale": {"scale": 0.75}, "sigmoid": {"lam_activation": "sigmoid"}, "integral": {"integral": True},
    "norm": {"norm": "rms", "norm_eps": 1e-3, "norm_eps_mode": "outside", "out_scale": 0.8}, "weight": {"norm": "rms", "norm_weight": (2 * D,)},
    "gate": {"gate": (B, HS, T, 2 * D)}, "mask": {"attn_mask": (HN, T, T)}, "lengths": {"kv_len": [9, 4], "q_offset": [1, 2]},
    "segments": {"segment_ids": ([[0] * 4 + [1] * 5] * B,) * 2},
}


def case(name):
    """The operands by the names of diffattn.attention, and the other options."""
    random = np.random.default_rng(0)
    shapes = {"q1": (B, HS, T, D), "k1": (B, HN, T, D), "q2": (B, HN, T, D), "k2": (B, HN, T, D), "v": (B, HN, T, 2 * D), "lam": (HS,)}
    given, options = {}, dict(CASES[name])
    for key in ("norm_weight", "gate", "attn_mask"):
        if key in options:
            shapes[key] = options.pop(key)
    for key in ("kv_len", "q_offset"):
        if key in options:
            given[key] = np.array(options.pop(key))
    if "segment_ids" in options:
        given["segment_ids"] = tuple(np.array(ids) for ids in options.pop("segment_ids"))
    return {**{key: random.standard_normal(shape, np.float32) for key, shape in shapes.items()}, **given}, options


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_of_jax(name):
    pytest.importorskip("jax")
    given, options = case(name)
    names = list(given)
    compiled = diffattn.jax.compile(lambda *values: diffattn.jax.attention(**dict(zip(names, values)), **options) * 2,
                                    *[tuple(one.astype(np.int32) for one in value) if isinstance(value, tuple) else
                                      value.astype(np.int32) if value.dtype == np.int64 else value for value in given.values()])
    got = compiled(*[tuple(one.astype(np.int32) for one in value) if isinstance(value, tuple) else
                     value.astype(np.int32) if value.dtype == np.int64 else value for value in given.values()])
    np.testing.assert_allclose(got, 2 * diffattn.attention(**given, **options), rtol=2e-5, atol=2e-5)
    assert "call @diffattn_attention_0" in compiled.mlir
    assert name == "integral" or not compiled.diagnostics


#: The op's names for what diffattn.attention calls otherwise.
_NAMES = {"lam": "lambda", "attn_mask": "bias", "lam_activation": "lambda_act"}
_ORDER = ["q1", "k1", "q2", "k2", "v", "lambda", "bias", "norm_weight", "gate", "kv_len", "q_offset", "q_segments", "kv_segments"]


def onnx_model(given, options, **sizes):
    """A model of one node, with names in the place of the sizes of axes that `sizes` has numbers for."""
    from onnx import helper

    values = {_NAMES.get(key, key): value for key, value in given.items() if key != "segment_ids"}
    values.update(zip(("q_segments", "kv_segments"), given.get("segment_ids", ())))
    if "bias" in values:
        values["bias"] = values["bias"][None]
    attributes = {"scale": D ** -0.5, **{_NAMES.get(key, key): int(value) if isinstance(value, bool) else value for key, value in options.items()}}
    if "window" in attributes:
        attributes["window"] = [-1 if side is None else side for side in attributes["window"]]
    named = {number: name for name, number in sizes.items()}

    def info(name, value):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [named.get(n, n) for n in value.shape])

    inputs = [name if name in values else "" for name in _ORDER]
    nodes = [helper.make_node("Attention", inputs, ["y"], domain="diffattn", **attributes), helper.make_node("Add", ["y", "y"], ["z"])]
    result = np.empty((*values["q1"].shape[:3], values["v"].shape[3]), np.float32)
    graph = helper.make_graph(nodes, "layer", [info(name, value) for name, value in values.items()], [info("z", result)])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("diffattn", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), values


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_of_onnx(name, tmp_path):
    onnx = pytest.importorskip("onnx")
    given, options = case(name)
    model, values = onnx_model(given, options)
    onnx.save(model, tmp_path / "m.onnx")
    loaded = diffattn.onnx.load(tmp_path / "m.onnx")
    np.testing.assert_allclose(loaded(*values.values()), 2 * diffattn.attention(**given, **options), rtol=2e-5, atol=2e-5)
    assert "call @diffattn_attention_0" in loaded.mlir
    assert name == "integral" or not loaded.diagnostics


def test_sizes_of_onnx_that_calls_decide(tmp_path):
    onnx = pytest.importorskip("onnx")
    given, options = case("causal")
    onnx.save(onnx_model(given, options, tokens=T)[0], tmp_path / "m.onnx")
    loaded = diffattn.onnx.load(tmp_path / "m.onnx")
    for tokens in (9, 1, 70):
        cut = {key: np.resize(value, [tokens if n == T else n for n in value.shape]) for key, value in given.items()}
        np.testing.assert_allclose(loaded(*cut.values()), 2 * diffattn.attention(**cut, **options), rtol=2e-5, atol=2e-5)
    with pytest.raises(errors.InputError, match="k1, size of axis 2: expected tokens = 9"):
        loaded(*{**given, "k1": given["k1"][:, :, 1:]}.values())


@pytest.mark.parametrize("change, message", [
    ({"norm": "layer"}, "expected another value as norm, but got \"layer\""),
    ({"window": (1, 2, 3)}, "expected window of two numbers, but got 3"),
])
def test_what_onnx_models_may_get_wrong(change, message, tmp_path):
    onnx = pytest.importorskip("onnx")
    given, options = case("plain")
    onnx.save(onnx_model(given, {**options, **change})[0], tmp_path / "m.onnx")
    with pytest.raises(errors.DiffAttnError, match=message):
        diffattn.onnx.load(tmp_path / "m.onnx")


def test_a_negative_length_ends_a_call(tmp_path):
    onnx = pytest.importorskip("onnx")
    given, options = case("lengths")
    model, values = onnx_model(given, options)
    onnx.save(model, tmp_path / "m.onnx")
    values["kv_len"] = np.array([3, -1])
    with pytest.raises(errors.RunError, match="kv_len: expected 0 to 9223372036854775807, but got a negative number"):
        diffattn.onnx.load(tmp_path / "m.onnx")(*values.values())


def test_options_that_jax_is_told():
    pytest.importorskip("jax")
    given, _ = case("plain")
    with pytest.raises(errors.UsageError, match="norm: expected None or 'rms', but got 'layer'"):
        diffattn.jax.attention(**given, norm="layer")
