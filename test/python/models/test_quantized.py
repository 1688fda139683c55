"""Folders with matrices of integers: what is in them, what every family makes of them, and what is refused."""
import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from checkpoints import assert_near, cached_logits, check_against, chunked_logits, write_checkpoint
from paths import ROOT
from kernel_library import runnable_isas
from test_builders import FEW_LAYERS, SMALL

import diffattn
from diffattn import errors, models
from diffattn.cli import main

PICTURE = {"model_args": {"img_size": 32, "depth": 1, "embed_dim": 48, "num_heads": 2, "num_classes": 10}}
TINY = ROOT / "examples" / "tiny-lm"
MOST = {"int8": 127, "int4": 7}


def family(kind):
    return SMALL | {"model_type": kind, "num_hidden_layers": FEW_LAYERS.get(kind, 2), "num_layers": 2,
                    "hidden_act": "poly_norm" if kind == "motif" else "silu"} | (PICTURE if kind.startswith("vit") else {})


def random_state(config, dtype="f32"):
    rng = np.random.default_rng(3)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, (shape, _) in models.build(config, dtype).file_types().items()}


def integers(stored, kind):
    """Integers of a file's bytes, by arithmetic."""
    if kind == "int8":
        return stored.astype(np.int64)
    low, high = stored.astype(np.int64) % 16, stored.astype(np.int64) // 16 % 16
    halves = np.stack([low, high], -1).reshape(len(stored), -1)
    return halves - 16 * (halves > 7)


def dequantized(folder, kind, group, original, transposed=False):
    """The tensors of the original's names and shapes, with the numbers that the folder stands for; how many were integers. The
    original's matrices may be `[in, out]`, those of the folder never are."""
    given, result, count = safetensors.numpy.load_file(folder / "model.safetensors"), {}, 0
    for name, before in original.items():
        if name + "_scale" not in given:
            assert given[name].dtype == before.dtype
            np.testing.assert_array_equal(given[name], before)
            result[name] = before
            continue
        matrix, scales = integers(given[name], kind), given[name + "_scale"]
        assert given[name].dtype == np.int8 and scales.dtype == np.float32
        assert np.abs(matrix).max() == MOST[kind]
        assert scales.shape == (len(matrix), matrix.shape[1] // group)
        wide = matrix * np.repeat(scales, group, 1).astype(np.float64)
        result[name] = (wide.T if transposed else wide).astype(np.float32)
        assert np.abs(result[name] - before).max() <= scales.max() * 0.501
        count += 1
    return result, count


def quantized_folder(tmp_path, config, state, kind, group):
    source = write_checkpoint(tmp_path / "plain", config, state)
    diffattn.quantize(source, tmp_path / "narrow", kind, group)
    return tmp_path / "narrow"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name, kind, matrices", [
    ("diff_v1", "int4", 15), ("diff_v2", "int8", 15), ("diffllama", "int4", 15), ("motif", "int8", 15), ("phi4flash", "int4", 32),
    ("edifice_diff_transformer", "int8", 13), ("edifice_diff_attention", "int4", 4), ("diff_multihead", "int4", 4),
    ("diff_attention", "int8", 4), ("vit_dwee_patch16_reg1_gap_256", "int4", 5), ("vit_dpwee_patch16_reg1_gap_256", "int8", 3)])
def test_a_family_is_its_model_with_the_numbers_of_the_integers(name, kind, matrices, tmp_path):
    config = family(name)
    state = random_state(config)
    folder = quantized_folder(tmp_path, config, state, kind, 8)
    stands_for, count = dequantized(folder, kind, 8, state, name.startswith("edifice") or name == "diff_multihead")
    assert count == matrices
    plain = diffattn.load(write_checkpoint(tmp_path / "wide", config, stands_for), dtype="f32", threads=1)
    model = diffattn.load(folder, threads=1)
    assert model.dtype == "f32" and model.checkpoint.parameters == sum(array.size for array in state.values())
    if name in models.DECODERS:
        # More rows than the kernel for few of them takes, too.
        ids = np.random.default_rng(2).integers(0, config["vocab_size"], (3, 40))
        assert_near(model.forward(ids), plain.forward(ids), 1e-5)
        check_against(model, lambda row: plain.forward(row[None])[0], config["vocab_size"], 3e-5)
        return
    shape = {"e": (3, 5, config["embed_dim"]), "v": (2, 3, 32, 32)}.get("d" if name == "edifice_diff_attention" else name[0],
                                                                        (3, 40, config["hidden_size"]))
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    assert_near(model.forward(x), plain.forward(x), 1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", MOST)
def test_half_precision_and_rows_of_any_batch(kind, tmp_path):
    """A bf16 model rounds what is multiplied with integers as it did; with batch_invariant a row is bitwise what it is alone."""
    config = family("diffllama") | {"head_dim": 16}
    state = random_state(config)
    folder = quantized_folder(tmp_path, config, state, kind, 16)
    stands_for, _ = dequantized(folder, kind, 16, state)
    plain = diffattn.load(write_checkpoint(tmp_path / "wide", config, stands_for), threads=1)
    ids = np.random.default_rng(2).integers(0, config["vocab_size"], (7, 19))
    exact = plain.forward(ids)
    for invariant in (True, False):
        one, two = (diffattn.load(folder, dtype="bf16", threads=threads, batch_invariant=invariant) for threads in (1, 2))
        assert one.dtype == "bf16"
        batch = one.forward(ids)
        assert_near(batch, exact, 0.03)
        prompts = [row[:n].tolist() for row, n in zip(ids, (19, 3, 8, 1, 12, 9, 5))]
        several = cached_logits(one, prompts, 3)
        assert_near(chunked_logits(one, prompts[:1], [[4]], 20), exact[:1, -1], 0.03)
        if invariant:
            assert two.forward(ids).tobytes() == batch.tobytes()
            assert one.forward(ids[3:4]).tobytes() == batch[3:4].tobytes()
            for row in (0, 3, 4):
                assert cached_logits(two, prompts[row: row + 1], 3).tobytes() == several[row: row + 1].tobytes()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("isa", [isa for isa in runnable_isas() if isa.startswith("amx")])
@pytest.mark.parametrize("name, kind, dtype", [("diff_attention", "int8", "bf16"), ("diff_v2", "int8", "f16"), ("diffllama", "int4", "f32")])
def test_many_rows_by_tiles(name, kind, dtype, isa, tmp_path):
    """More than 64 rows are near what the numbers of the integers give, and the same in every batch as docs/numerics.md has it, also
    in a bundle."""
    config = family(name) | {"head_dim": 16}
    state = random_state(config)
    folder = quantized_folder(tmp_path, config, state, kind, 16)
    stands_for, _ = dequantized(folder, kind, 16, state)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((5, 19, 32)).astype(np.float32) if name == "diff_attention" else rng.integers(0, 64, (5, 19))
    exact = diffattn.load(write_checkpoint(tmp_path / "wide", config, stands_for)).forward(x)
    tiled = diffattn.load(folder, dtype=dtype, target=f"cpu:{isa}")
    result = tiled.forward(x)
    assert_near(result, exact, {"f32": 1e-5, "f16": 0.005, "bf16": 0.03}[dtype])
    assert tiled.forward(x[1:]).tobytes() == result[1:].tobytes()
    if dtype == "bf16":  # its attention by emulated tiles is slow to compile
        return
    ordered = diffattn.load(folder, dtype=dtype, target=f"cpu:{isa}", batch_invariant=True)
    in_one_order = ordered.forward(x)
    assert in_one_order.tobytes() != result.tobytes()
    assert ordered.forward(x[3:4]).tobytes() == in_one_order[3:4].tobytes()
    assert main(["bundle", str(folder), "-o", str(tmp_path / "bundle"), f"--dtype={dtype}", f"--target=cpu:{isa}"]) == 0
    assert diffattn.bundle.load(tmp_path / "bundle").forward(x).tobytes() == result.tobytes()


def test_integers_and_scales():
    """Against the definition, with groups of zeros, of numbers below the least scale, and of the largest."""
    from diffattn.quantization import packed, quantized

    rng = np.random.default_rng(0)
    block = (rng.normal(0, 1, (5, 48)) * 10.0 ** rng.integers(-30, 30, (5, 1))).astype(np.float32)
    block[0, :16], block[1, 16:32], block[2, 0], block[3, 0] = 0, 1e-45, 3.4e38, -3.4e38
    for bits, most in ((8, 127), (4, 7)):
        numbers, scales = quantized(block, bits, 16)
        for row in range(5):
            for group in range(3):
                part = block[row, 16 * group: 16 * group + 16]
                scale = np.float32(np.abs(part).max() / np.float32(most))
                assert scales[row, group] == scale
                expected = [0 if scale == 0 else round(float(part[i] / scale)) for i in range(16)]
                assert numbers[row, 16 * group: 16 * group + 16].tolist() == expected
        if bits == 4:
            assert (integers(packed(numbers).view(np.int8), "int4") == numbers).all()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized") / "int4"
    diffattn.quantize(TINY, folder, "int4")
    return folder


def command(*words):
    return subprocess.run([sys.executable, "-m", "diffattn", *map(str, words)], capture_output=True, text=True, timeout=120)


def test_commands_take_the_folder(narrow, tmp_path, build_dir):
    assert {path.name for path in narrow.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (narrow / "tokenizer.json").read_bytes() == (TINY / "tokenizer.json").read_bytes()
    info = json.loads(command("info", narrow, "--json").stdout)
    plain = json.loads(command("info", TINY, "--json").stdout)
    assert info["parameters"] == plain["parameters"] and info["quantization"] == "int4, groups of 128"
    text = tmp_path / "text"
    text.write_text((TINY / "heldout.txt").read_text()[:3000])
    bits = [float(command("eval", folder, text, "--threads=1").stdout.split()[-1]) for folder in (TINY, narrow)]
    assert bits[0] - 0.02 < bits[1] < bits[0] + 0.05
    done = command("bundle", narrow, "-o", tmp_path / "bundle")
    assert done.returncode == 0, done.stderr
    words = ["--prompt", "And the king said", "--max-new-tokens", "8", "--threads=1"]
    assert command("generate", narrow, *words).stdout == command("generate", "--bundle", tmp_path / "bundle", *words).stdout != ""
    assert "decode" in command("bench", narrow, "--runs=1", "--max-new-tokens=3", "--threads=1", "--json").stdout
    done = command("build", narrow, "-o", tmp_path / "tiny.mlir")
    assert done.returncode == 0 and "quantized_gemm" in (tmp_path / "tiny.mlir").read_text()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("check", ["unfused", "oracle"])
def test_the_runner_judges_it(check, tmp_path, build_dir):
    config = family("diff_v1")
    folder = quantized_folder(tmp_path, config, random_state(config), "int4" if check == "oracle" else "int8", 16)
    (tmp_path / "m.mlir").write_text(str(models.build(json.loads((folder / "config.json").read_text()))))
    done = subprocess.run([build_dir / "bin/diffattn-run", tmp_path / "m.mlir", f"--weights={folder / 'model.safetensors'}", "--entry=forward",
                           "--input=2x5xi64=1,2,3,4,5,6,7,8,9,10", f"--check={check}", "--quiet"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def refused(source, output, error, message, weights="int8", group=8):
    before = sorted(path.name for path in output.parent.iterdir())
    inside = sorted(output.iterdir()) if output.is_dir() else None
    with pytest.raises(error, match=message):
        diffattn.quantize(source, output, weights, group)
    assert sorted(path.name for path in output.parent.iterdir()) == before
    assert inside is None or sorted(output.iterdir()) == inside


def test_what_is_not_quantized(tmp_path):
    config = family("diff_v1")
    state = random_state(config)
    source, out = write_checkpoint(tmp_path / "plain", config, state), tmp_path / "out"
    refused(source, out, errors.UsageError, r"group: expected a divisor of the 32 columns of 'model.layers.0.self_attn.q_proj.weight', but got 24", group=24)
    refused(source, out, errors.UsageError, "group: expected a multiple of 8, but got 12", group=12)
    refused(source, out, errors.UsageError, "weights: expected 'int8' or 'int4', but got 'int2'", weights="int2")
    for value in (np.nan, np.inf):
        wrong = {**state, "model.layers.1.mlp.down_proj.weight": state["model.layers.1.mlp.down_proj.weight"].copy()}
        wrong["model.layers.1.mlp.down_proj.weight"][3, 5] = value
        refused(write_checkpoint(tmp_path / "wrong", config, wrong), out, errors.CheckpointError,
                rf"'model.layers.1.mlp.down_proj.weight': expected finite numbers of float32, but got {value} at \[3, 5\]")
    out.mkdir()
    (out / "mine").write_text("")
    refused(source, out, errors.OutputError, "expected a folder that is not there yet, or an empty one, but it has files")
    refused(source, out / "mine", errors.OutputError, "expected a folder that is not there yet, or an empty one, but got a file")
    (out / "mine").unlink()
    (tmp_path / "link").symlink_to("nowhere")
    refused(source, tmp_path / "link", errors.OutputError, "but got a link that leads nowhere")
    out.chmod(0o700)
    diffattn.quantize(source, out, "int8", 8)
    assert out.stat().st_mode & 0o777 == 0o700 and not [path for path in out.iterdir() if path.name.startswith(".")]
    refused(out, tmp_path / "again", errors.CheckpointError, "expected weights that are not quantized yet, but its config.json has a quantization_config")


def damaged(source, folder, change):
    """A copy of the folder whose header of weights is changed: `change` gives its entries, or its text."""
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    content = path.read_bytes()
    behind = 8 + struct.unpack("<Q", content[:8])[0]
    header = change(json.loads(content[8:behind]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[behind:])
    return folder


DOWN = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1)]


@pytest.mark.parametrize("change, message", [
    (lambda h: h | {DOWN[0]: h[DOWN[0]] | {"data_offsets": h[DOWN[1]]["data_offsets"]}}, "expected its data at byte [0-9]+, but got bytes"),
    (lambda h: json.dumps(h).encode().replace(DOWN[1].encode(), DOWN[0].encode()), f"expected every name once, but got '{DOWN[0]}' twice"),
])
def test_files_are_whole_as_the_loader_wants_them(change, message, tmp_path):
    config = family("diff_v1")
    source = write_checkpoint(tmp_path / "plain", config, random_state(config))
    diffattn.quantize(damaged(source, tmp_path / "same", lambda header: header), tmp_path / "out", "int8", 8)
    refused(damaged(source, tmp_path / "damaged", change), tmp_path / "wrong", errors.CheckpointError, message)


@pytest.mark.parametrize("place", ["here", "link"])
def test_an_empty_folder_stays_the_same_one(place, tmp_path, monkeypatch):
    config = family("diff_v1")
    source, real = write_checkpoint(tmp_path / "plain", config, random_state(config)), tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to("real")
    before = real.stat().st_ino
    monkeypatch.chdir(real)
    diffattn.quantize(source, "." if place == "here" else tmp_path / "link", "int8", 8)
    assert real.stat().st_ino == before and sorted(os.listdir(real)) == ["config.json", "model.safetensors"]


@pytest.fixture
def broken(tmp_path):
    """A small folder of int8, whose scales `change` has changed."""
    def make(change):
        config = family("diff_v1")
        folder = quantized_folder(tmp_path, config, random_state(config), "int8", 8)
        tensors = safetensors.numpy.load_file(folder / "model.safetensors")
        change(tensors, "model.layers.1.self_attn.k_proj.weight_scale")
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")
        return folder
    return make


def test_scales_are_checked(broken, tmp_path):
    def lose(tensors, name):
        del tensors[name]

    with pytest.raises(errors.CheckpointError, match="'model.layers.1.self_attn.k_proj.weight_scale' is missing"):
        diffattn.load(broken(lose))
    shutil.rmtree(tmp_path / "narrow")

    def cut(tensors, name):
        tensors[name] = tensors[name][:, :-1].copy()

    with pytest.raises(errors.CheckpointError, match=r"k_proj.weight_scale': expected shape \[32, 4\], but got \[32, 3\]"):
        diffattn.load(broken(cut))


def test_scales_are_finite_wherever_they_are_bound(broken, tmp_path, build_dir):
    places = {}

    def spoil(tensors, name):
        places["before"] = tensors[name].copy()
        tensors[name][3, 2] = np.inf

    folder = broken(spoil)
    message = "model.safetensors: weight 'model.layers.1.self_attn.k_proj.weight_scale': expected finite numbers, but got inf in row 3, column 2"
    with pytest.raises(errors.WeightsError, match=message):
        diffattn.load(folder)
    (tmp_path / "m.mlir").write_text(str(models.build(json.loads((folder / "config.json").read_text()))))
    done = subprocess.run([build_dir / "bin/diffattn-run", tmp_path / "m.mlir", f"--weights={folder / 'model.safetensors'}", "--entry=forward",
                           "--input=1x2xi64=1,2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and message in done.stderr
    # A bundle was made of sound weights, and finds others.
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    spoiled, tensors[name] = tensors[name := "model.layers.1.self_attn.k_proj.weight_scale"], places["before"]
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    assert command("bundle", folder, "-o", tmp_path / "bundle").returncode == 0
    tensors[name] = spoiled
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(errors.WeightsError, match="k_proj.weight_scale': expected finite numbers, but got inf in row 3, column 2"):
        diffattn.bundle.load(tmp_path / "bundle")


@pytest.mark.parametrize("given, message", [
    ({"quant_method": "gptq"}, "expected weights that are not quantized, or by 'diffattn', but got 'gptq' in quantization_config"),
    ({"quant_method": "diffattn", "bits": 3, "group_size": 8, "dtype": "f32"}, "quantization_config: expected 'bits' to be 4 or 8, but got 3"),
    ({"quant_method": "diffattn", "bits": 4, "group_size": 12, "dtype": "f32"}, "expected 'group_size' to be a multiple of 8, but got 12"),
    ({"quant_method": "diffattn", "bits": 4, "group_size": 24, "dtype": "f32"}, "expected group_size to divide the 32 columns of "),
    ({"quant_method": "diffattn", "bits": 4, "group_size": 8}, "expected 'dtype' to be one of f32, f16, bf16, but it is missing"),
])
def test_a_config_that_says_it_wrong(given, message):
    with pytest.raises(errors.ConfigError, match=message):
        models.build(family("diff_v1") | {"quantization_config": given})


def test_gpus_refuse_it(narrow):
    with pytest.raises(errors.CompileError, match="expected a CPU as the target, but got a GPU, for which no kernel multiplies with quantized weights"):
        diffattn.load(narrow, target="cuda-sim:sm_80")
