"""The entry `inspect` of decoders: what attention used, and the model with another factor of lambda."""
import re

import numpy as np
import pytest
from attention_reference import attention
from checkpoints import write_checkpoint
from test_builders import SMALL, opt  # noqa: F401

import diffattn
from diffattn import models
from diffattn.errors import ConfigError, RunError, UsageError
from diffattn.models.probe import PARTS
from diffattn.runtime import Executable

CONFIG = SMALL | {"num_hidden_layers": 3}
#: A group of three signal maps and one noise map; two layers with windows, one with keys that another reads, and that one.
OWN = {"motif": {"num_attention_heads": 8, "num_noise_heads": 2, "num_key_value_heads": 4},
       "phi4flash": {"num_hidden_layers": 8, "sliding_window": 5}}
#: By layer with attention how many keys before its own a query sees.
ATTENTIONS = dict.fromkeys(models.DECODERS, dict.fromkeys(range(3))) | {"phi4flash": {1: 4, 3: 4, 5: None, 7: None}}
IDS = np.random.default_rng(4).integers(0, 64, (2, 9))
ONE = np.array(1, np.float32)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """A random model, and the executable of the form of it that is inspected."""
    known = {}

    def make(kind, dtype="f32"):
        if (kind, dtype) not in known:
            config = CONFIG | {"model_type": kind} | OWN.get(kind, {})
            rng = np.random.default_rng(6)
            weights = {name: rng.normal("norm" in name, 0.3, shape).astype(np.float32)
                       for name, (shape, _) in models.build(config).file_types().items()}
            folder = write_checkpoint(tmp_path_factory.mktemp("model"), config, weights)
            module = models.build(config, dtype, inspect=True)
            model = diffattn.load(folder, dtype=dtype)
            known[kind, dtype] = model, Executable(str(module), weights=[str(folder / "model.safetensors")]), module
        return known[kind, dtype]

    return make


def inspected(executable, factor=ONE, layers=(0, 1, 2), targets=IDS):
    """Log-probabilities, logits, and by their names the parts of some layers."""
    log_p, logits, *parts = executable.call("inspect", IDS, targets, factor, np.array(layers, np.int64))
    return log_p, logits, dict(zip(PARTS, parts, strict=True))


def difference(parts, layer, batch, head, window=None):
    """The mixed values in double precision, the sum of absolute terms in them, and attention's result."""
    q1, k1, q2, k2, v, x = (parts[name][layer, batch].swapaxes(0, 1)[None] for name in ("q1", "k1", "q2", "k2", "v", "x"))
    lam = parts["lambda"][layer]
    exact, magnitude, *sums = attention(q1, k1, q2, k2, v, lam if lam.ndim == 0 else lam[batch : batch + 1], scale=q1.shape[3] ** -0.5,
                                        is_causal=True, window=None if window is None else (window, -1), return_lse=True)
    for name, expected, row in zip(("lse1", "lse2"), sums, (head, head // (q1.shape[1] // q2.shape[1]))):
        np.testing.assert_allclose(parts[name][layer, batch][row], expected[0, row], rtol=0, atol=2e-5 * (1 + np.abs(expected[0, row]).max()))
    return exact[0, head], magnitude[0, head], x[0, head]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("kind", models.DECODERS)
def test_parses_with_one_attention(kind, dtype, opt):  # noqa: F811
    text = opt(str(models.build(CONFIG | {"model_type": kind} | OWN.get(kind, {}), dtype, inspect=True)), "--verify-roundtrip")
    assert text.count("diffattn.attention ins") == {"phi4flash": 3}.get(kind, 1) and re.findall(r"func.func @(\w+)", text) == ["inspect"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", models.DECODERS)
def test_gives_what_attention_used(kind, load):
    """The scores of the operands have the sums that are given, and mix the values to what is given as X."""
    _, executable, module = load(kind)
    assert module.attentions == ATTENTIONS[kind]
    _, _, parts = inspected(executable, layers=list(ATTENTIONS[kind]))
    for layer, window in enumerate(ATTENTIONS[kind].values()):
        for batch in range(2):
            for head in range(parts["q1"].shape[3]):
                expected, added, x = difference(parts, layer, batch, head, window)
                assert (np.abs(x - expected) <= 5e-5 * added).all()


@pytest.mark.parametrize("kind", models.DECODERS)
def test_is_the_model_itself(kind, load):
    """With factor 1: to the bit where lambda is a number, within rounding where a sigmoid makes it."""
    model, executable, _ = load(kind)
    targets = np.roll(IDS, -1, 1)
    log_p, logits, parts = inspected(executable, layers=[], targets=targets)
    assert all(part.shape[0] == 0 for part in parts.values())
    expected = model.executable.call("score", IDS, targets)[0], model.forward(IDS)[:, -1]
    for got, whole in zip((log_p, logits), expected, strict=True):
        np.testing.assert_allclose(got, whole, rtol=0, atol=1e-5)
    assert kind == "diff_v2" or log_p.tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("kind", models.DECODERS)
def test_factor_multiplies_lambda(kind, load):
    _, executable, _ = load(kind)
    layers = list(ATTENTIONS[kind])
    plain = inspected(executable, layers=layers)
    for factor in (0.0, 0.5, -1.0):
        log_p, _, parts = inspected(executable, np.array(factor, np.float32), layers)
        # The first layer has the input that it had before; later ones have another.
        np.testing.assert_array_equal(parts["q1"][0], plain[2]["q1"][0])
        np.testing.assert_allclose(parts["lambda"][0], factor * plain[2]["lambda"][0], rtol=1e-6)
        expected, added, x = difference(parts, 0, 1, 0, ATTENTIONS[kind][layers[0]])
        assert (np.abs(x - expected) <= 5e-5 * added).all()
        assert np.abs(log_p - plain[0]).max() > 1e-3 and np.abs(parts["q1"][1] - plain[2]["q1"][1]).max() > 1e-3


def test_layers_stand_where_they_are_named(load):
    _, executable, _ = load("diff_v1")
    _, _, every = inspected(executable)
    _, _, some = inspected(executable, layers=[2, 0, 2])
    for name in PARTS:
        np.testing.assert_array_equal(some[name], every[name][[2, 0, 2]])


def test_16_bits(load):
    """Parts have the type of the weights, sums and X are f32."""
    _, executable, _ = load("diffllama", "bf16")
    _, _, parts = inspected(executable)
    assert {name: str(part.dtype) for name, part in parts.items()} == {
        name: "float32" if name in ("lambda", "lse1", "lse2", "x") else "bfloat16" for name in PARTS}
    q, k, v = (parts[name][1, 0].astype(np.float64) for name in ("q1", "k1", "v"))
    assert np.abs(q).max() > 0 and np.abs(k).max() > 0 and np.abs(v).max() > 0


def test_wrong_arguments(load):
    _, executable, _ = load("diff_v1")
    for layers in ([3], [0, -1]):
        with pytest.raises(RunError, match="expected every layer to be at least 0 and below 3"):
            inspected(executable, layers=layers)
    for layers in ([2], [1, 9], [-1]):
        with pytest.raises(RunError, match="expected every layer to be one with attention, an odd number below 8"):
            inspected(load("phi4flash")[1], layers=layers)
    with pytest.raises(RunError, match="expected targets of the shape of ids"):
        inspected(executable, targets=IDS[:, 1:].copy())
    with pytest.raises(ConfigError, match="expected 'model_type' to be one of diff_v1, .* whose attention can be looked at, but got 'diff_multihead'"):
        models.build(CONFIG | {"model_type": "diff_multihead"}, inspect=True)
    with pytest.raises(UsageError, match="page_rows: expected none with inspect, which has no caches, but got 16"):
        models.build(CONFIG | {"model_type": "diff_v1"}, page_rows=16, inspect=True)
