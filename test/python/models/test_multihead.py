"""One layer of multi-head differential attention: against f64 NumPy, and the PyTorch module with rotary positions."""
import math

import numpy as np
import pytest
from attention_reference import attention
from checkpoints import assert_near, write_checkpoint

import diffattn

SHAPE = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 5, "depth": 3}


def layer(x, w, causal):
    """The layer in f64."""
    x, w = x.astype(np.float64), {name: value.astype(np.float64) for name, value in w.items()}
    batch, length, d = *x.shape[:2], SHAPE["head_dim"]
    lam_init = 0.8 - 0.6 * math.exp(-0.3 * SHAPE["depth"])
    lam = math.exp(w["lambda_q1"] @ w["lambda_k1"]) - math.exp(w["lambda_q2"] @ w["lambda_k2"]) + lam_init
    split = lambda name, width: (x @ w[name]).reshape(batch, length, -1, width).swapaxes(1, 2)
    q, k = split("W_q", d), split("W_k", d)  # the maps of a head beside each other
    out, _ = attention(q[:, ::2], k[:, ::2], q[:, 1::2], k[:, 1::2], split("W_v", 2 * d), np.float64(lam), scale=d**-0.5, is_causal=causal,
                       norm="rms", norm_weight=w["norm.weight"], out_scale=1 - lam_init)
    return out.swapaxes(1, 2).reshape(batch, length, -1) @ w["W_o"]


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
