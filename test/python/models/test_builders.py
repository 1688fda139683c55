"""The builders' modules: they parse, have one attention a layer in bthd layout, and copy no cache."""
import re
import subprocess

import pytest

from diffattn import models
from diffattn.models import Config, ConfigError, mlir_text
from diffattn.models.rope import read_rope

#: A config that every builder takes; no wider than must be, and deep enough for each kind of layer.
SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "embed_dim": 24, "num_heads": 4, "rope_theta": 10000.0,
         "sliding_window": 5, "mamba_d_state": 4}
#: Sizes with few layers of each kind.
FEW_LAYERS = dict.fromkeys(models.DECODERS, 2) | {"phi4flash": 8}
#: Forward, prefill, extend and decode of a decoder have a layer function each, with one attention. Of phi4flash the layers with windows
#: have; that with shared keys has one for a step and one for the others, and those that share them one for a token and one for all.
ATTENTIONS = dict.fromkeys(models.DECODERS, 4) | {"phi4flash": 8}


@pytest.fixture(scope="session")
def opt(build_dir):
    def run(text, *options):
        done = subprocess.run([build_dir / "bin/diffattn-opt", "-", *options], input=text, capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("kind", models.BUILDERS)
def test_parses_with_one_attention_a_layer_function(kind, dtype, opt):
    text = opt(str(models.build(SMALL | {"model_type": kind}, dtype)), "--verify-roundtrip")
    assert text.count("diffattn.attention ins") == ATTENTIONS.get(kind, 1)
    for line in text.splitlines():
        if "diffattn.attention ins" in line:
            assert line.count("#diffattn.layout<bthd>") == 4
    # Heads are views: nothing but an image's patches is ever transposed.
    assert "linalg.transpose" not in text and "tensor.concat" not in text


@pytest.mark.parametrize("kind", models.DECODERS)
def test_code_does_not_grow_with_depth(kind):
    def length(depth):
        text = str(models.build(SMALL | {"model_type": kind, "num_hidden_layers": depth}))
        return len(re.sub(r"dense<\[.*?\]>", "", text).splitlines())

    assert length(16) == length(40)


@pytest.mark.parametrize("kind", models.DECODERS)
def test_caches_are_updated_in_place(kind, opt):
    text = str(models.build(SMALL | {"model_type": kind}))
    # Weights become fresh tensors here, as only the flow of the caches is looked at.
    text = re.sub(r"(diffattn.layer_weight|ml_program.global_load_const) @\"[^\"]*\"(\[%\w+\])? :",
                  "bufferization.alloc_tensor() :", text)
    text = re.sub(r"  ml_program.global private .*\n", "", text)
    out = opt(text, "--empty-tensor-to-alloc-tensor", "--cse",
              "--one-shot-bufferize=bufferize-function-boundaries=1 "
              "function-boundary-type-conversion=identity-layout-map",
              "--drop-equivalent-buffer-results", "--cse", "--canonicalize", "--cse")
    copies = [line for line in out.splitlines() if "memref.copy" in line and re.search(r"memref<\d*\?*x\S*x\S*x", line)]
    # The values of a prompt, which are a product's result, are stored once; a decode step and a further chunk store two rows; scores
    # come in parts. Of phi4flash: a step stores two rows in rings and two in the shared cache, as other calls do there.
    assert sum("strided" in line for line in out.splitlines() if "memref.copy" in line) == {"phi4flash": 7}.get(kind, 6), copies
    assert not any(re.search(r"memref<\d+x\?x(\?|\d+)x\d+x", line) for line in copies), copies


@pytest.mark.parametrize("change, message", [
    ({"model_type": "gpt"}, "expected 'model_type' to be one of diff_v1, .*, but got 'gpt'"),
    ({"model_type": None}, "expected 'model_type' to be one of .*, but it is missing"),
    ({"hidden_size": -3}, "expected 'hidden_size' to be an integer from 1 to .*, but got -3"),
    ({"hidden_size": "32"}, "expected 'hidden_size' to be an integer .*, but got '32'"),
    ({"hidden_size": True}, "expected 'hidden_size' to be an integer .*, but got True"),
    ({"num_hidden_layers": 10**30}, "expected 'num_hidden_layers' to be an integer from 1 to 4096"),
    ({"num_key_value_heads": 3}, "expected 'num_key_value_heads' to be a divisor of num_attention_heads = 4, but got 3"),
    ({"head_dim": 7}, "expected 'head_dim' to be even"),
    ({"rms_norm_eps": float("nan")}, "expected 'rms_norm_eps' to be a finite number above 0, but got nan"),
    ({"hidden_act": "laplace"}, "expected 'hidden_act' to be one of silu"),
    ({"tie_word_embeddings": 1}, "expected 'tie_word_embeddings' to be true or false, but got 1"),
    ({"rope_scaling": [1]}, "rope_scaling: expected an object, but got list"),
    ({"rope_scaling": {"type": "longrope"}}, "expected 'type' to be one of default, linear"),
    ({"rope_scaling": {"type": "linear"}}, "expected 'factor' to be a finite number above .*, but it is missing"),
    ({"model_type": "diffllama", "num_key_value_heads": 1}, "expected 'num_key_value_heads' to be even"),
    ({"model_type": "diffllama", "attention_dropout": 0.1}, "expected 'attention_dropout' to be 0, but got 0.1"),
    ({"model_type": "edifice_diff_transformer", "num_heads": 5}, "expected 'num_heads' to be a divisor of hidden_size"),
    ({"model_type": "edifice_diff_transformer", "output_mode": "first"}, "expected 'output_mode' to be one of"),
    ({"model_type": "vit_dwee_patch16_reg1_gap_256", "model_args": {"head_count": 3}}, "model_args' to be made of"),
    ({"model_type": "vit_dwee_patch16_reg1_gap_256", "model_args": {"patch_size": 257}}, "at most img_size = 256"),
])
def test_config_errors(change, message):
    config = {"model_type": "diff_v1"} | SMALL | change
    with pytest.raises(ConfigError, match=message):
        models.build(config)


def test_missing_key_names_the_file():
    with pytest.raises(ConfigError, match="/x/config.json: expected 'vocab_size' .*, but it is missing"):
        models.build({"model_type": "diff_v1", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1,
                      "intermediate_size": 8}, source="/x/config.json")


@pytest.mark.parametrize("value", [1.0, 0.1, -0.125, 1e-5, 3.4e38, 1e-30, 123456.789, 0.0])
def test_float_attributes_read_back(value, opt):
    text = f"func.func @f() -> f32 {{ %c = arith.constant {mlir_text.float_attr(value)} return %c : f32 }}"
    exact = text.replace(mlir_text.float_attr(value), f"{mlir_text.float_literal(value)} : f32")
    assert opt(text) == opt(exact)


def test_older_and_newer_rope_keys_mean_the_same():
    parameters = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192}
    old = Config({"rope_theta": 500000.0, "rope_scaling": parameters})
    new = Config({"rope_parameters": parameters | {"rope_theta": 500000.0}})
    a, b = (read_rope(c, 64, interleaved=False, longest=131072).frequencies for c in (old, new))
    assert (a == b).all() and a[0] == 1.0 and a[-1] < 500000.0 ** (-62 / 64) / 31
