"""timm's differential vision transformers against timm itself, with its names of weights."""
import numpy as np
import pytest
import timm
import torch
from checkpoints import assert_near

import diffattn
from diffattn import models
from diffattn.checkpoint import CheckpointError
from diffattn.models import ConfigError

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


def saved(folder, model, **options):
    """The folder that timm itself writes."""
    from timm.models._hub import save_for_hf

    save_for_hf(model, str(folder), **{"safe_serialization": True, **options})
    return folder


def check(folder, oracle, size, batches=(2, 1), tolerance=2e-5):
    model = diffattn.load(folder)
    images = torch.randn(2, oracle.patch_embed.proj.weight.shape[1], *size)
    with torch.no_grad():
        expected = oracle(images).numpy()
    for batch in batches:
        assert_near(model.forward(images[:batch].numpy()), expected[:batch], tolerance)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["vit_dwee_patch16_reg1_gap_256", "vit_dpwee_patch16_reg1_gap_256", "vit_dlittle_patch16_reg1_gap_256"])
@pytest.mark.parametrize("args", [
    {}, {"img_size": (32, 48)}, {"img_size": (37, 44)}, {"img_size": (32, 48), "patch_size": (8, 16)}, {"num_classes": 0}, {"global_pool": "max"},
    {"global_pool": "avgmax"}, {"fc_norm": False}, {"fc_norm": False, "num_classes": 0, "global_pool": "max"}, {"in_chans": 1},
    {"reg_tokens": 3, "init_values": 0.1, "drop_path_rate": 0.1, "qkv_bias": True, "class_token": False},
], ids=lambda args: "-".join(args) or "plain")
def test_folders_that_timm_writes(name, args, tmp_path):
    heads = {"num_heads": 2} if "little" in name else {}
    oracle = random_model(name, **{**ARGS, **heads, **args})
    size = args.get("img_size", (32, 32))
    check(saved(tmp_path / "m", oracle), oracle, size)


def test_a_model_changed_after_it_was_made(tmp_path):
    oracle = random_model("vit_dwee_patch16_reg1_gap_256", **ARGS)
    oracle.reset_classifier(5, "max")
    torch.nn.init.normal_(oracle.head.weight, std=0.1)
    oracle.set_input_size(img_size=(48, 40))
    check(saved(tmp_path / "m", oracle, model_config={"label_names": ["a", "b", "c", "d", "e"]}), oracle, (48, 40))


def test_the_real_sizes_as_timm_writes_them(tmp_path):
    oracle = random_model("vit_dwee_patch16_reg1_gap_256")
    check(saved(tmp_path / "m", oracle), oracle, (256, 256), batches=(1,), tolerance=5e-5)


def test_what_cannot_be_taken_is_named(tmp_path, checkpoint):
    name = "vit_dwee_patch16_reg1_gap_256"
    with pytest.raises(CheckpointError, match="but got 'pytorch_model.bin', which is not read"):
        diffattn.load(saved(tmp_path / "m", random_model(name, **ARGS), safe_serialization=False))
    for pool in ("map", ""):
        with pytest.raises(ConfigError, match=f"'global_pool' to be one of avg, max, avgmax, but got '{pool}'"):
            diffattn.load(saved(tmp_path / f"pool{pool}", random_model(name, **ARGS, global_pool=pool)))
    for key, value, message in [("class_token", True, "'class_token' to be False, but got True"), ("attn_layer", "", "'attn_layer' to be 'diff'"),
                                ("img_size", [32, 32, 32], "'img_size' to be an integer or a list of two"),
                                ("img_size", [32, 7], "'patch_size' to be at most img_size = 7"), ("patch_size", [8, 0], "'patch_size'"),
                                ("img_size", [32.0, 32], "'img_size' to be an integer"), ("qkv_bias", False, "'qkv_bias' to be True"),
                                ("qkv_bias", 1, "'qkv_bias' to be True, but got 1"), ("init_values", None, "'init_values'"),
                                ("rope", True, "'model_args' to be made of"), ("fc_norm", 1, "'fc_norm' to be true or false")]:
        with pytest.raises(ConfigError, match=message):
            models.build({"architecture": name, "model_args": ARGS | {key: value}})
