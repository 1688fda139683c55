"""Mixtures of experts as transformers has them, by its grouped products, against PyTorch."""
import pytest
import torch
import transformers

import diffattn

pytestmark = pytest.mark.oracle
SMALL = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
         "max_position_embeddings": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0}


@pytest.fixture(scope="module")
def mixtral():
    torch.manual_seed(0)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL)).eval()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_mixtral(mixtral, dtype, programs):
    """torch.compile meets another operator for f32 than for bf16."""
    model = mixtral.to(dtype)
    compiled = torch.compile(model, backend="diffattn", dynamic=True)
    assert model.config._experts_implementation == "grouped_mm"
    for shape in ((2, 7), (3, 12)):
        ids = torch.randint(1, 100, shape)
        with torch.no_grad():
            want, got = (one(ids, use_cache=False).logits for one in (model, compiled))
        if dtype == torch.float32:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        else:  # rounding elsewhere makes a router choose otherwise now and then
            assert ((got - want).float().norm() / want.float().norm()) < 0.05
    assert any("call @diffattn_grouped_gemm_" in program.mlir for program in programs)  # and not eager PyTorch, where Dynamo gives up


def test_ahead_of_time(mixtral):
    model, ids = mixtral.float(), torch.randint(1, 100, (2, 7))
    with torch.no_grad():
        f = diffattn.compile(model, (ids,), {"use_cache": False})
        torch.testing.assert_close(f(ids, use_cache=False).logits, model(ids, use_cache=False).logits, rtol=1e-4, atol=1e-5)
