"""A row of a model's result is bitwise what it is alone: for every batch, place in it, padding and number of threads."""
import subprocess

import numpy as np
import pytest
from checkpoints import write_checkpoint
from paths import ROOT
from kernel_library import runnable_isas
from test_builders import FEW_LAYERS, SMALL

import diffattn
from diffattn import errors, models, runtime
from diffattn.models import layers

#: Wide enough that products are cut into several tiles, of a width that is no multiple of any vector.
CONFIG = SMALL | {"hidden_size": 72, "intermediate_size": 200, "vocab_size": 90, "head_dim": 16, "num_hidden_layers": 2}
PICTURE = {"model_args": {"img_size": 64, "depth": 1, "embed_dim": 96, "num_heads": 2, "num_classes": 10}}
DTYPES = ["f32", "bf16", "f16"]


@pytest.fixture
def load(tmp_path):
    def make(config, dtype, **options):
        rng = np.random.default_rng(8)
        weights = {name: rng.normal(0, 0.3, shape).astype(np.float32)
                   for name, (shape, _) in models.build(config, dtype).file_types().items()}
        return diffattn.load(write_checkpoint(tmp_path / "checkpoint", config, weights), dtype=dtype, **options)
    return make


def same(a, b):
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.sampled(15)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", models.DECODERS)
def test_decoders(kind, dtype, load):
    """A batch of 33 prompts of 1 to 40 tokens, padded, and three steps after it, against each prompt alone."""
    config = CONFIG | {"model_type": kind, "num_hidden_layers": FEW_LAYERS[kind]}
    model, two = (load(config, dtype, batch_invariant=True, threads=threads) for threads in (1, 2))
    rng = np.random.default_rng(1)
    lengths = np.array([1, 2, 8, 9, 40, *rng.integers(1, 41, 28)])
    ids = rng.integers(0, 90, (33, 40))
    steps = rng.integers(0, 90, (3, 33))

    def run(model, rows):
        longest = lengths[rows].max()
        caches = model.new_caches(len(rows), longest + 3)
        prefilled, *caches = model.executable.call("prefill", ids[rows, :longest].copy(), lengths[rows], *caches)
        results = [prefilled.copy()]
        for step, tokens in enumerate(steps):
            logits, *caches = model.executable.call("decode", tokens[rows].copy(), lengths[rows] + step, *caches)
            results.append(logits.copy())
        return np.stack(results, 1)

    every = np.arange(33)
    batch = run(model, every)
    assert same(batch, run(two, every))
    order = rng.permutation(33)
    assert same(batch[order], run(two, order))
    for count in (2, 7, 8, 9, 16):
        assert same(batch[:count], run(two, every[:count]))
    for row in (0, 1, 2, 3, 4, 11, 32):
        assert same(batch[row:row + 1], run(model, every[row:row + 1])), f"row {row} of {lengths[row]} tokens"
    # Rows of a token in whole sequences are equal, with others behind it or not.
    forward = model.forward(ids[:5])
    for row in range(5):
        assert same(forward[row:row + 1], two.forward(ids[row:row + 1]))
    for length in (1, 7, 9, 33):
        assert same(forward[:1, :length], model.forward(ids[:1, :length]))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config, row", [
    ({"model_type": "edifice_diff_transformer", "embed_dim": 24, "hidden_size": 96, "num_layers": 2}, (5, 24)),
    ({"model_type": "edifice_diff_attention", "hidden_size": 96, "num_heads": 4, "name": "a"}, (5, 96)),
    ({"model_type": "diff_attention", **CONFIG}, (5, 72)),
    ({"model_type": "diff_multihead", **CONFIG}, (5, 72)),
    ({"model_type": "vit_dwee_patch16_reg1_gap_256", **PICTURE}, (3, 64, 64)),
    ({"model_type": "vit_dpwee_patch16_reg1_gap_256", **PICTURE}, (3, 64, 64)),
], ids=lambda x: x.get("model_type") if isinstance(x, dict) else "")
def test_others(config, row, dtype, load):
    one, two = (load(config, dtype, batch_invariant=True, threads=threads) for threads in (1, 2))
    x = np.random.default_rng(1).standard_normal((33, *row)).astype(np.float32)
    batch = one.forward(x)
    assert same(batch, two.forward(x))
    for count in (1, 2, 3, 8, 9, 32):
        assert same(batch[:count], two.forward(x[:count]))
        assert same(batch[-count:], one.forward(x[-count:]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_it_is_the_default_of_f32_and_f16(dtype, load):
    """As docs/numerics.md has it, on a machine with AVX2 or more: the same numbers as with the option."""
    config = CONFIG | {"model_type": "diff_v2"}
    ids = np.random.default_rng(1).integers(0, 90, (3, 11))
    asked, default = (load(config, dtype, target="cpu:avx2", batch_invariant=choice) for choice in (True, None))
    assert same(asked.forward(ids), default.forward(ids))


@pytest.mark.parametrize("isa", [isa for isa in runnable_isas() if isa.startswith("amx")])
def test_products_of_tiles(isa, load):
    """Every product of bf16 by tiles, for one token and for many, as near to f32 as other code is."""
    config = CONFIG | {"model_type": "diff_v2"}
    tiled = load(config, "bf16", target=f"cpu:{isa}")
    exact, other = load(config, "f32").forward, load(config, "bf16", target="cpu:avx2").forward
    ids = np.random.default_rng(1).integers(0, 90, (3, 19))
    result = tiled.forward(ids)
    for row in range(3):
        assert same(result[row:row + 1], tiled.forward(ids[row:row + 1]))
    assert not same(result, other(ids))
    assert np.abs(result - exact(ids)).max() <= 2 * np.abs(other(ids) - exact(ids)).max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["diff_v2", "diffllama"])
@pytest.mark.parametrize("isa", [isa for isa in runnable_isas() if isa.startswith("amx")])
def test_a_fused_gate_changes_no_bit(isa, kind, load, build_dir, monkeypatch):
    """Prefill and decode against the same model with -g spelt as a product with -1, in which no gate is fused."""
    config = CONFIG | {"model_type": kind, "num_hidden_layers": FEW_LAYERS[kind]}

    def run():
        text = subprocess.run([str(build_dir / "bin/diffattn-opt"), "-", f"--diffattn-cpu-pipeline=isa={isa} until=scheduled"], check=True,
                              input=str(models.build(config, "bf16")), capture_output=True, text=True).stdout
        model = load(config, "bf16", target=f"cpu:{isa}")
        rng = np.random.default_rng(1)
        ids, lengths = rng.integers(0, 90, (3, 19)), np.array([19, 4, 11])
        prefilled, *caches = model.executable.call("prefill", ids, lengths, *model.new_caches(3, 20))
        results = [prefilled.copy(), model.executable.call("decode", ids[:, 0].copy(), lengths, *caches)[0].copy(), model.forward(ids)]
        return text.count("diffattn.gated_gemm"), results

    fused, results = run()

    def sigmoid(f, x):
        one, minus = f.f32(1), f.f32(-1)
        return f.scalar("arith.divf", one, f.scalar("arith.addf", one, f.scalar("math.exp", f.scalar("arith.mulf", x, minus))))

    monkeypatch.setattr(layers, "sigmoid", sigmoid)
    apart, others = run()
    assert fused >= 3 and apart == 0
    assert all(map(same, results, others))


def test_the_library_is_still_there(load):
    """Else this file would compare one thing with itself: without the option, few rows have a kernel with another order."""
    config = CONFIG | {"model_type": "diff_v2"}
    ids = np.random.default_rng(1).integers(0, 90, (1, 5))
    ordered, free = (load(config, "f32", batch_invariant=choice).forward(ids) for choice in (True, False))
    assert not same(ordered, free)
    assert np.abs(ordered - free).max() <= 1e-4 * np.abs(free).max()


def test_the_choice_is_in_the_key_of_the_cache(tmp_path):
    text = str(models.build(CONFIG | {"model_type": "diff_v2"}))
    compiled = [runtime.Executable(text, cache=tmp_path, batch_invariant=choice).from_cache
                for choice in (True, False, None, True, False, None)]
    assert compiled == [False, False, False, True, True, True]


def test_a_gpu_refuses_it():
    text = str(models.build(CONFIG | {"model_type": "diff_v2"}))
    with pytest.raises(errors.UsageError, match="expected a CPU as the target of batch-invariant code.* but got 'cuda-sim:sm_80'"):
        runtime.Executable(text, target="cuda-sim:sm_80", batch_invariant=True)


def test_a_bundle_has_it_baked_in(tmp_path, capsys):
    from diffattn.cli import main

    folder = str(tmp_path / "tiny.bundle")
    assert main(["bundle", str(ROOT / "examples" / "tiny-lm"), "-o", folder, "--batch-invariant"]) == 0
    assert main(["info", "--bundle", folder]) == 0
    assert "batch invariant         yes\n" in capsys.readouterr().out
    assert main(["generate", "--bundle", folder, "--prompt", "In", "--batch-invariant"]) == errors.UsageError.code
    assert "expected no --batch-invariant with --bundle" in capsys.readouterr().err
    opened = diffattn.bundle.load(folder, threads=2)
    ids = np.random.default_rng(1).integers(0, opened.vocabulary, (9, 12))
    batch = opened.forward(ids)
    for row in range(9):
        assert same(batch[row:row + 1], opened.forward(ids[row:row + 1]))
