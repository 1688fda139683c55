"""Models whose attention is GPU kernels, simulated: what the CPU gives."""
import numpy as np
import pytest
from checkpoints import assert_near, cached_logits, write_checkpoint
from paths import ROOT
from test_builders import FEW_LAYERS, SMALL

import diffattn
from diffattn import models

TARGET = "cuda-sim:sm_80"
#: The smallest picture that has several tiles of keys: 81 patches and a register token.
PICTURE = {"model_args": {"img_size": 144, "depth": 1, "embed_dim": 64, "num_heads": 2, "num_classes": 10}}


@pytest.fixture
def both(tmp_path):
    """The model of a config with random weights, for the CPU and for the simulated GPU."""
    def make(config, dtype):
        rng = np.random.default_rng(8)
        weights = {name: rng.normal(0, 0.3, shape).astype(np.float32)
                   for name, (shape, _) in models.build(config, dtype).file_types().items()}
        directory = write_checkpoint(tmp_path / "checkpoint", config, weights)
        cpu, sim = (diffattn.load(directory, target=target, dtype=dtype) for target in ("cpu", TARGET))
        # Among them that the simulator lets the host into the device's memory.
        assert not {"SelectGpuSchedule", "HostAccess"} & {d.name for d in sim.executable.diagnostics}
        return cpu, sim
    return make


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind, dtype, tolerance", [*((kind, "bf16", 3e-2) for kind in models.DECODERS), ("diff_v1", "f32", 1e-4)])
def test_decoders(kind, dtype, tolerance, both):
    cpu, sim = both(SMALL | {"model_type": kind, "num_hidden_layers": FEW_LAYERS[kind]}, dtype)
    ids = np.random.default_rng(0).integers(0, 64, (3, 20))
    assert_near(sim.forward(ids), cpu.forward(ids), tolerance)
    prompts = [ids[0].tolist(), ids[1, :7].tolist(), ids[2, :1].tolist()]
    assert_near(cached_logits(sim, prompts, 0), cached_logits(cpu, prompts, 0), tolerance)
    # Both get the same token and the same caches, so that no earlier difference counts.
    caches = cpu.new_caches(3, 24)
    lengths, padded = np.array([len(p) for p in prompts]), np.where(np.arange(20) < [[20], [7], [1]], ids, 0)
    _, *caches = cpu.executable.call("prefill", padded, lengths, *caches)
    copies = [c.copy() for c in caches]
    expected = cpu.executable.call("decode", ids[:, 0].copy(), lengths, *caches)[0]
    assert_near(sim.executable.call("decode", ids[:, 0].copy(), lengths, *copies)[0], expected, tolerance)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config, shape", [
    ({"model_type": "edifice_diff_transformer", "embed_dim": 24, "hidden_size": 32, "num_layers": 2}, (2, 19, 24)),
    ({"model_type": "diff_attention", **SMALL}, (2, 19, 32)),
    ({"model_type": "diff_multihead", **SMALL}, (2, 19, 32)),
    ({"model_type": "vit_dwee_patch16_reg1_gap_256", **PICTURE}, (1, 3, 144, 144)),
    ({"model_type": "vit_dpwee_patch16_reg1_gap_256", **PICTURE}, (1, 3, 144, 144)),
], ids=lambda x: x.get("model_type") if isinstance(x, dict) else "")
def test_others(config, shape, both):
    cpu, sim = both(config, "bf16")
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    assert_near(sim.forward(x), cpu.forward(x), 3e-2)


@pytest.mark.long  # the same model by a pack for a GPU: test_gpu_check.py
def test_tiny_lm_says_the_same():
    cpu, sim = (diffattn.load(ROOT / "examples" / "tiny-lm", target=target) for target in ("cpu", TARGET))
    ids = cpu.tokenizer.encode((ROOT / "examples/tiny-lm/heldout.txt").read_text()[:300], special=False)[:40]
    assert_near(sim.forward([ids]), cpu.forward([ids]), 3e-2)
    prompts = ["In the beginning", "And the king said unto", "The LORD"]
    assert list(sim.generate(prompts, 10)) == list(cpu.generate(prompts, 10))
