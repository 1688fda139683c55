"""One layer of multi-head differential attention: against f64 NumPy, and the PyTorch module with rotary positions."""
import math

import numpy as np
import pytest
from checkpoints import assert_near, write_checkpoint

import diffattn

SHAPE = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 5, "depth": 3}


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer(x, w, causal):
    """The layer in f64, head by head."""
    x, w = x.astype(np.float64), {name: value.astype(np.float64) for name, value in w.items()}
    heads, group, d = SHAPE["num_attention_heads"], 2, SHAPE["head_dim"]
    length = x.shape[1]
    lam_init = 0.8 - 0.6 * math.exp(-0.3 * SHAPE["depth"])
    lam = math.exp(w["lambda_q1"] @ w["lambda_k1"]) - math.exp(w["lambda_q2"] @ w["lambda_k2"]) + lam_init
    mask = np.where(np.tril(np.ones((length, length), bool)) | (not causal), 0, -np.inf)
    q, k, v = x @ w["W_q"], x @ w["W_k"], x @ w["W_v"]
    out = []
    for j in range(heads):
        maps = []
        for m in (0, 1):
            qs = q[..., (2 * j + m) * d : (2 * j + m + 1) * d]
            at = 2 * (j // group) + m
            ks = k[..., at * d : (at + 1) * d]
            maps.append(softmax(qs @ ks.transpose(0, 2, 1) / math.sqrt(d) + mask))
        head = (maps[0] - lam * maps[1]) @ v[..., (j // group) * 2 * d : (j // group + 1) * 2 * d]
        head = head / np.sqrt((head**2).mean(-1, keepdims=True) + 1e-5) * w["norm.weight"]
        out.append(head * (1 - lam_init))
    return np.concatenate(out, -1) @ w["W_o"]


def random_weights():
    generator = np.random.default_rng(5)
    shapes = {"W_q": (24, 40), "W_k": (24, 20), "W_v": (24, 20), "W_o": (40, 24), "norm.weight": (10,)}
    shapes |= {f"lambda_{n}": (5,) for n in ("q1", "k1", "q2", "k2")}
    return {name: generator.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("causal", [True, False])
def test_equals_f64(causal, tmp_path):
    weights = random_weights()
    x = np.random.default_rng(6).standard_normal((3, 9, 24)).astype(np.float32)
    config = SHAPE | {"model_type": "diff_multihead", "is_causal": causal}
    got = diffattn.load(write_checkpoint(tmp_path, config, weights)).forward(x)
    assert_near(got, layer(x, weights, causal), 2e-5)


@pytest.mark.oracle
def test_module_with_rotary_positions_equals_pytorch(tmp_path):
    import reference
    import torch

    torch.manual_seed(0)
    config = SHAPE | {"head_dim": 6, "rope_theta": 100.0}
    oracle = reference.DiffAttention(config, depth=3)
    torch.nn.init.normal_(oracle.subln.weight, 1, 0.2)
    x = torch.randn(2, 11, 24)
    angles = torch.arange(11)[:, None] * 100.0 ** (-2 * torch.arange(3) / 6)
    with torch.no_grad():
        expected = oracle(x, angles.cos()[None], angles.sin()[None]).numpy()
    names = {"q_proj.weight": "wq.weight", "k_proj.weight": "wk.weight", "v_proj.weight": "wv.weight",
             "subln.weight": "sublayer_norm.weight"}
    state = {names.get(name, name): value for name, value in oracle.state_dict().items()}
    model = diffattn.load(write_checkpoint(tmp_path, config | {"model_type": "diff_attention"}, state))
    assert_near(model.forward(x.numpy()), expected, 2e-5)
