"""Options that the backend does not have are refused by name, before a request comes."""
import types

import pytest
import torch
from conftest import diffllama, engine

from diffattn.errors import UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("diffllama")
    diffllama(made, num_hidden_layers=1)
    return made


@pytest.mark.parametrize("options, message", [
    ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype: expected one of auto, float16, bfloat16, float32, .* but got fp8"),
    ({"hf_overrides": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}},
     "rope_type: expected one of default, linear, llama3, yarn, .* but got dynamic"),
    ({"quantization": "fp8", "dtype": "bfloat16"}, "quantization: expected none, .* but got fp8"),
], ids=["cache", "angles", "weights"])
def test_engine(folder, options, message):
    with pytest.raises(UsageError, match=message):
        with engine(folder, **options):
            pass


MADE = {"num_heads": 4, "head_size": 32, "scale": 1.0, "num_kv_heads": 4, "signals": 2, "noises": 2, "shares_keys": False, "options": {}}


def impl(monkeypatch, dcp=1, pcp=1, **changes):
    from vllm.v1.attention.backend import AttentionImplBase

    from diffattn.vllm import backend

    def new(cls, *_, **__):
        made = object.__new__(cls)
        made.dcp_world_size, made.pcp_world_size = dcp, pcp
        return made

    monkeypatch.setattr(AttentionImplBase, "__new__", new)
    return backend.Impl(**(MADE | changes))


@pytest.mark.parametrize("changes, message", [
    ({"dcp": 2}, "decode_context_parallel_size: expected 1, .* but got 2"),
    ({"pcp": 4}, "prefill_context_parallel_size: expected 1, .* but got 4"),
    ({"attn_type": "encoder_only"}, "attn_type: expected decoder, .* but got encoder_only"),
    ({"sliding_window": 64}, "sliding_window: expected none, .* but got 64"),
    ({"kv_sharing_target_layer_name": "model.layers.0"}, "kv_sharing_target_layer_name: expected none, .* but got model.layers.0"),
])
def test_layer(monkeypatch, changes, message):
    with pytest.raises(UsageError, match=message):
        impl(monkeypatch, **changes)


def test_pages_of_another_form(monkeypatch):
    made = impl(monkeypatch)
    keys, values = made._pages(torch.empty(6, 4, 16, 64))
    assert keys.shape == (6, 4, 16, 32) and values.shape == (6, 2, 16, 64)
    # Dense pages, between those of other layers.
    cache = torch.empty(6, 3, 4, 16, 64)[:, 1]
    keys, values = made._pages(cache)
    assert keys.stride(0) == values.stride(0) == 3 * 4 * 16 * 64
    assert keys.data_ptr() == cache.data_ptr() and values.data_ptr() == cache.data_ptr() + 4 * 4 * 16 * 32
    for cache in (torch.empty(6, 16, 4, 64).transpose(1, 2), torch.empty(6, 2, 16, 64), torch.empty(6, 4, 16, 96)):
        with pytest.raises(UsageError, match=r"kv_cache: expected dense pages \[4, rows, 64\], but got shape"):
            made._pages(cache)


def test_step_and_cache(monkeypatch):
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    from diffattn.vllm import backend

    sizes = {"block_size": 16, "num_kv_heads": 4, "head_size": 32, "dtype": torch.float32}
    with pytest.raises(UsageError, match="kv_cache_spec: expected FullAttentionSpec, .* but got SlidingWindowSpec"):
        backend.MetadataBuilder(SlidingWindowSpec(**sizes, sliding_window=64), ["a"], None, torch.device("cpu"))
    builder = backend.MetadataBuilder(FullAttentionSpec(**sizes), ["a"], None, torch.device("cpu"))
    with pytest.raises(UsageError, match="causal: expected True, .* but got False"):
        builder.build(0, types.SimpleNamespace(causal=False))
    with pytest.raises(UsageError, match="causal: expected True, .* but got a mask"):
        builder.build(0, types.SimpleNamespace(causal=torch.ones(2, dtype=torch.bool)))


@pytest.mark.parametrize("decode", [True, False])
def test_tables_of_a_step(decode):
    """On a device, which "meta" stands for, they stay where they are, and are made once; on a CPU compiled code takes them as they are."""
    from diffattn.vllm import backend

    for device in ("meta", "cpu"):
        tables = [torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, 1, 2], [5, 3], [[0], [2]])]
        step = backend.Metadata(2, torch.zeros(2, dtype=torch.int64), decode, *tables)
        assert step.is_on_host == (device == "cpu")
        if device == "cpu":
            made = step.tables()
            assert made["kv_len"].dtype == "int64" and made["block_table"].ctypes.data == tables[2].data_ptr()
        else:
            made = step.arguments_on_device()
            assert step.arguments_on_device() is made
            assert made["kv_len"].dtype == torch.int64 and made["block_table"] is tables[2] and made["target"] == "meta@0"
        assert ("cu_seqlens_q" in made) != decode
