"""Maps of patched models of PyTorch: what the op was called with, as texts and images have it."""
import numpy as np
import pytest
import torch
from test_patch import diffllama, vit

import diffattn
from diffattn import maps
from diffattn.errors import InputError, UsageError
from diffattn.maps import record

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_diffllama_equals_its_own_weights(implementation):
    model = diffllama(attn_implementation=implementation)
    ids = torch.tensor([[3, 7, 2, 8, 4, 9, 30]])
    diffattn.patch(model)
    collection = record(model, ids, tokens=[f"t{i}" for i in range(7)])
    assert collection.layers == [0, 1] and 0 < collection.largest_error < collection.limit and collection.tokens[6] == "t6" and not collection.runs
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions
    for layer in range(2):
        for head in range(4):
            np.testing.assert_allclose(collection.difference(layer, head), weights[layer][0, head].numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["vit_dwee_patch16_reg1_gap_256", "vit_dpwee_patch16_reg1_gap_256"])
def test_vit(name):
    """timm's own modules give their maps where they are not fused."""
    model = vit(name).eval()
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    kept = {}
    for layer, block in enumerate(model.blocks):
        module = getattr(block, "attn", block)
        module.fused_attn = False
        module.attn_drop.register_forward_hook(lambda _, given, out, layer=layer: kept.setdefault(layer, out))
    with torch.no_grad():
        model(image)
    diffattn.patch(model)
    collection = record(model, image, grid=(4, 4), image=np.zeros((8, 8, 3), np.uint8))
    assert collection.tokens[:2] == ["register 0", "patch 0, 0"] and collection.tokens[-1] == "patch 3, 3" and collection.layers == [0, 1]
    assert collection.largest_error < collection.limit
    for layer in range(2):
        for head in range(3):
            for got, own in zip(collection.maps(layer, head), kept[layer][0, 2 * head : 2 * head + 2]):
                np.testing.assert_allclose(got, own.numpy(), rtol=0, atol=1e-5)
    assert b"".join(maps.page(collection)).count(b'<script id="map-') == 6


def test_windows_masks_and_lambda_by_token():
    class Attention(torch.nn.Module):
        def forward(self, q, v, lam, **options):
            return torch.ops.diffattn.attention(q[:, :4], q[:, 4:6], q[:, 6:8], q[:, 8:], v, lam, **options)

    generator = torch.Generator().manual_seed(5)
    q, v = torch.randn(1, 10, 30, 8, generator=generator), torch.randn(1, 1, 30, 6, generator=generator)
    mask = torch.rand(1, 2, 30, 30, generator=generator) < 0.7
    for lam, options in ((torch.randn(1, 30, 2, generator=generator), {"lam_activation": "sigmoid", "is_causal": True, "window": [4, 0]}),
                         (torch.randn(4, generator=generator), {"attn_mask": mask, "out_scale": 0.5}),
                         (torch.randn(1, 30, 4, generator=generator), {"attn_mask": torch.randn(30, 30, generator=generator), "window": [5, 3]}),
                         (torch.tensor(0.4), {"norm": "rms", "norm_weight": torch.randn(6, generator=generator), "out_scale": 0.3, "scale": 0.7})):
        collection = record(Attention(), q, v, lam, **options)
        assert collection.largest_error < collection.limit
        assert np.abs(collection.maps(0, 3)[0].sum(-1) - 1).max() < 1e-5


def test_what_is_refused():
    model = diffllama()
    with pytest.raises(UsageError, match="expected attention by torch.ops.diffattn.attention, as diffattn.patch makes it, but DiffLlamaForCausalLM has called none"):
        record(model, torch.tensor([[3, 7]]))
    diffattn.patch(model)
    with pytest.raises(InputError, match="inputs: expected one text or image, but got a batch of 2"):
        record(model, torch.tensor([[3, 7], [7, 3]]))
    with pytest.raises(UsageError, match="tokens: expected 2 texts, one for each token, but got 1"):
        record(model, torch.tensor([[3, 7]]), tokens=["a"])
    with pytest.raises(UsageError, match="grid: expected at most 2 patches, as there are tokens, but got 2 x 2"):
        record(model, torch.tensor([[3, 7]]), grid=(2, 2))
    with pytest.raises(InputError, match=r"image: expected an array \[h,w,3\] of uint8, but got \[4, 4\] of float64"):
        record(model, torch.tensor([[3, 7]]), image=np.zeros((4, 4)))

    class Soft(torch.nn.Module):
        def forward(self, q):
            return torch.ops.diffattn.attention(q, q, q, q, q, torch.tensor(0.5), softcap=3.0)

    with pytest.raises(UsageError, match="softcap: expected none, because no map is made with it, but the attention of call 0 has one"):
        record(Soft(), torch.randn(1, 1, 4, 8))
