"""timm's differential vision transformers against timm itself, with its names of weights."""
import numpy as np
import pytest
import timm
import torch
from conftest import assert_near

import diffattn

pytestmark = pytest.mark.oracle
ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 11}


def random_model(name, **args):
    torch.manual_seed(1)
    model = timm.create_model(name, **args).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            vector = parameter.ndim == 1
            mean = 1.0 if vector and ("norm" in key and "weight" in key or "gamma" in key) else 0.0
            parameter.normal_(mean, 0.2 if vector else 0.1)
    return model


@pytest.mark.parametrize("name, args", [
    ("vit_dwee_patch16_reg1_gap_256", ARGS),
    ("vit_dwee_patch16_reg1_gap_256", ARGS | {"reg_tokens": 0, "mlp_ratio": 3.5, "in_chans": 1}),
    ("vit_dlittle_patch16_reg1_gap_256", ARGS | {"num_heads": 2}),
    ("vit_dpwee_patch16_reg1_gap_256", ARGS),
], ids=["dwee", "dwee_changed", "dlittle", "dpwee"])
def test_equals_timm(name, args, checkpoint):
    oracle = random_model(name, **args)
    config = {"architecture": name, "model_args": args} if "num_heads" in args and args["num_heads"] == 2 else \
        {"model_type": name, "model_args": args}
    model = diffattn.load(checkpoint(config, oracle.state_dict()))
    images = torch.randn(3, args.get("in_chans", 3), 32, 32)
    with torch.no_grad():
        expected = oracle(images).numpy()
    assert_near(model.forward(images.numpy()), expected, 2e-5)
    assert_near(model.forward(images[:1].numpy()), expected[:1], 2e-5)


@pytest.mark.parametrize("name, parameters", [("vit_dwee_patch16_reg1_gap_256", 13425256),
                                              ("vit_dpwee_patch16_reg1_gap_256", 15252456)])
def test_full_size(name, parameters, checkpoint):
    """The real sizes, as timm makes them, with nothing in the config but the name."""
    oracle = random_model(name)
    assert sum(p.numel() for p in oracle.parameters()) == parameters
    model = diffattn.load(checkpoint({"architecture": name}, oracle.state_dict()))
    images = torch.randn(1, 3, 256, 256)
    with torch.no_grad():
        expected = oracle(images).numpy()
    assert_near(model.forward(images.numpy()), expected, 5e-5)


def test_short_type(checkpoint):
    oracle = random_model("vit_dwee_patch16_reg1_gap_256", **ARGS)
    directory = checkpoint({"model_type": "vit_dwee_patch16_reg1_gap_256", "model_args": ARGS}, oracle.state_dict())
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    with torch.no_grad():
        expected = oracle(torch.tensor(images)).numpy()
    assert_near(diffattn.load(directory, dtype="bf16").forward(images), expected, 4e-2)
