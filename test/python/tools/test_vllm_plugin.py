"""Parts of the plugin for vLLM that need no vLLM: the order of heads, and that registering never raises. test/vllm has the rest."""
import logging
import subprocess
import sys
import types

import numpy as np
import pytest

import diffattn.vllm
from diffattn.errors import ConfigError, UsageError
from diffattn.vllm import heads

DIFFLLAMA = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64}


def test_orders_of_diffllama():
    """Map j goes with map j + H/2, and a rank has pairs whole."""
    plan = heads.diffllama_heads(DIFFLLAMA)
    assert (plan.width, plan.groups, plan.value_width) == (8, 2, 16)
    assert plan.order("q", 1) == list(range(8)) and plan.order("k", 1) == list(range(4)) and plan.order("v", 1) == [0, 2, 1, 3]
    assert plan.order("q", 2) == [0, 1, 4, 5, 2, 3, 6, 7] and plan.order("k", 2) == [0, 2, 1, 3] and plan.order("v", 2) == [0, 2, 1, 3]


def test_orders_of_groups():
    """Two groups of four signal heads and a noise head, each with a key-value head of its own."""
    plan = heads.motif_heads({"num_attention_heads": 10, "num_noise_heads": 2, "num_key_value_heads": 4, "hidden_size": 80, "head_dim": 16})
    assert plan.order("q", 1) == [0, 1, 2, 3, 5, 6, 7, 8, 4, 9] and plan.order("q", 2) == list(range(10))
    assert plan.order("k", 1) == [0, 2, 1, 3] and plan.order("k", 2) == plan.order("v", 2) == list(range(4))


def test_orders_of_shared_keys():
    plan = heads.diff_v2_heads({"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64})
    assert (plan.width, plan.value_width, plan.keys2) == (16, 16, ())
    assert plan.order("q", 2) == [0, 2, 1, 3, 4, 6, 5, 7] and plan.order("k", 2) == plan.order("v", 2) == [0, 1]


@pytest.mark.parametrize("made, config", [
    (heads.diffllama_heads, DIFFLLAMA), (heads.diff_v1_heads, DIFFLLAMA), (heads.diff_v2_heads, DIFFLLAMA),
    (heads.motif_heads, {"num_attention_heads": 24, "num_noise_heads": 4, "num_key_value_heads": 8, "hidden_size": 192, "head_dim": 8})])
def test_ranks_have_what_belongs_together(made, config):
    """For each rank, by the one-rank order: its signal heads, noise heads and keys serve its values and no others."""
    plan = made(config)
    for ranks in (size for size in range(1, plan.groups + 1) if plan.groups % size == 0):
        plan.check_ranks(ranks)
        for projection, parts in (("q", (plan.signals, plan.noises)), ("k", (plan.keys1, plan.keys2)), ("v", (plan.values,))):
            rows = np.array(plan.order(projection, ranks)).reshape(ranks, -1)
            for rank, mine in enumerate(rows):
                counts = [len(part) // ranks for part in parts]
                assert list(mine) == [head for part, count in zip(parts, counts) for head in part[rank * count:(rank + 1) * count]]


def test_rows_of_weights():
    import torch

    plan = heads.diffllama_heads(DIFFLLAMA)
    weight = torch.arange(32.0)[:, None].expand(32, 3)
    moved = heads.in_order("model.layers.0.self_attn.v_proj.weight", weight, plan, 1)
    assert moved[:, 1].tolist() == [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)]
    assert heads.in_order("model.layers.0.self_attn.v_proj.bias", weight[:, 0], plan, 1).tolist() == moved[:, 0].tolist()
    for name in ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.lambda_q1"):
        assert heads.in_order(name, weight, plan, 2) is weight


def test_what_does_not_divide_is_refused():
    plan = heads.diff_v1_heads({"num_attention_heads": 12, "num_key_value_heads": 6, "hidden_size": 96})
    with pytest.raises(UsageError, match=r"tensor_parallel_size: expected one that divides the 6 key-value heads, .* \(1, 2, 3, 6\), but got 4"):
        plan.check_ranks(4)
    with pytest.raises(ConfigError, match="expected 'num_key_value_heads' to be even, as two maps make a head, but got 1"):
        heads.diffllama_heads(DIFFLLAMA | {"num_key_value_heads": 1})


@pytest.mark.parametrize("version, tried", [("0.32.0", True), ("0.32.4rc1", True), ("0.31.9", False), ("0.33.0", False), ("1.32.0", False), ("dev", False)])
def test_range_of_releases(version, tried):
    assert diffattn.vllm.is_tried(version) == tried


def test_registering_never_raises(monkeypatch, caplog):
    """With a vLLM that has nothing of what is asked of it, whose release was not tried."""
    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace(__version__="0.99.0"))
    with caplog.at_level(logging.WARNING, "vllm.diffattn"):
        diffattn.vllm.register()
    untried, missing = caplog.messages
    assert untried == "diffattn: vLLM 0.99.0 was not tried, as 0.32 to 0.32 were: compare the texts once (docs/vllm.md)"
    assert missing.startswith("diffattn: its models are not there, because of ImportError: ") and "\n" not in missing


def test_importing_is_light():
    code = "import sys, diffattn.vllm; print([name for name in ('torch', 'transformers', 'vllm', 'diffattn.library', 'ml_dtypes') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
