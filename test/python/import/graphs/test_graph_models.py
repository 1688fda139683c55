"""Models of two layers, as importers wrote them: every attention of theirs is raised, to the same text in every process, and
computes what the graph does as it is, at any batch and length.

graphs/models.zip holds a V2 decoder, a GDA decoder and DiffLlama with dynamic batch and length, DiffLlama's step with a static
cache (PyTorch, by torch-mlir's fx importer), and a Flax decoder (JAX, by StableHLO). Weights are arguments.
"""
import hashlib
import json
import subprocess
import zipfile

import numpy as np
import pytest
from diffattn.runtime import Executable, emit
from paths import ROOT

MODELS = zipfile.ZipFile(ROOT / "test/graphs/models.zip")
MANIFEST = json.loads(MODELS.read("manifest.json"))
IDS, PLACES = 96, 32


def text_of(entry):
    return MODELS.read(f"{entry['name']}.mlir").decode()


def inputs_of(entry, batch, length):
    random = np.random.default_rng(batch * 1000 + length)
    arrays = []
    for type, shape in entry["inputs"]:
        shape = [{"B": batch, "T": length}.get(size, size) for size in shape]
        if type == "float32":
            arrays.append((random.standard_normal(shape) / 4).astype(type))
        else:  # ids, or the place in a cache of the step's token
            arrays.append(random.integers(0, IDS if len(shape) == 2 else PLACES, shape).astype(type))
    return arrays


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["name"])
def test_every_attention_is_raised_alike(entry, build_dir, tmp_path):
    graph = tmp_path / "graph.mlir"
    graph.write_text(text_of(entry))
    texts = set()
    for _ in range(6):
        done = subprocess.run([build_dir / "bin/diffattn-opt", graph, "--diffattn-cpu-pipeline=until=raised"],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("diffattn.attention") == entry["attention_ops"]
        texts.add(hashlib.sha256(done.stdout.encode()).hexdigest())
    assert len(texts) == 1


def check_run(entry, text):
    raised, plain = (Executable(text, cache=False, raise_attention=raise_attention) for raise_attention in (True, False))
    is_dynamic = any(isinstance(size, str) for _, shape in entry["inputs"] for size in shape)
    for batch, length in ((1, 1), (2, 24), (3, 7), (1, 70)) if is_dynamic else ((0, 0),):
        inputs = inputs_of(entry, batch, length)
        for got, want in zip(raised.call(entry["function"], *inputs), plain.call(entry["function"], *inputs), strict=True):
            assert got.shape == want.shape
            assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max(), (batch, length)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["name"])
def test_raised_as_it_was(entry):
    check_run(entry, text_of(entry))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["name"])
def test_bodies_that_were_fused(entry, build_dir, tmp_path, full):
    """Upstream's fusion of element-wise ops, run before, does not hinder raising: no value is a softmax alone."""
    graph = tmp_path / "graph.mlir"
    graph.write_text(text_of(entry))
    done = subprocess.run([build_dir / "bin/diffattn-opt", graph, "--linalg-fuse-elementwise-ops"],
                          capture_output=True, text=True, timeout=120, check=True)
    assert emit(done.stdout, "raised").decode().count("diffattn.attention") == entry["attention_ops"]
    if full or entry["name"] == "diffllama_dynamic":
        check_run(entry, done.stdout)
