"""The models of a pack: small ones of every family with what the CPU answers, tiny-lm, and a decoder whose weights are made on the
other side. Needs the build and the package `diffattn`; check_models.py and time_models.py are the other end.
"""
import json
import math
from pathlib import Path

import numpy as np

from . import safetensors_file
from .check_models import farthest

ROOT = Path(__file__).resolve().parents[3]
TINY_LM = ROOT / "examples/tiny-lm"
# No machine that has a GPU of these chips lacks it; what the host computes beside launches is little.
HOST = "avx2"
DECODER_SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "head_dim": 16}
# The smallest picture that has several tiles of keys: 81 patches and a register token.
PICTURE = {"img_size": 144, "depth": 1, "embed_dim": 64, "num_heads": 2, "num_classes": 10}
# Small models of each family: config, element type, shape of the input of those that are no decoders.
SMALL = {
    "diff_v1": ({"model_type": "diff_v1", **DECODER_SIZES}, "bf16", None),
    "diff_v1_f32": ({"model_type": "diff_v1", **DECODER_SIZES}, "f32", None),
    "diff_v2": ({"model_type": "diff_v2", **DECODER_SIZES}, "bf16", None),
    "diffllama": ({"model_type": "diffllama", **DECODER_SIZES}, "bf16", None),
    "edifice": ({"model_type": "edifice_diff_transformer", "embed_dim": 24, "hidden_size": 32, "num_layers": 2, "num_heads": 4}, "bf16",
                (2, 19, 24)),
    "timm": ({"model_type": "vit_dwee_patch16_reg1_gap_256", "model_args": PICTURE}, "bf16", (1, 3, 144, 144)),
    "multihead": ({"model_type": "diff_multihead", **DECODER_SIZES}, "bf16", (2, 19, 64)),
}
NAMES = [*SMALL, "tiny-lm", "decoder"]
# Largest distance of a row of a result from the CPU's in f32, as a part of its norm. In bf16 it is FACTOR times that of the CPU's own row
# in bf16, and at least LEAST_ALLOWED: two results in bf16 differ by chance.
F32_ALLOWED, FACTOR, LEAST_ALLOWED = 1e-4, 2, 4e-3
# Prompts of the small decoders: ids and how many of a row's count.
PROMPT_LENGTHS = (20, 7, 1)
# Tokens after them, one by one.
STEPS = 4
# After these the first tokens lead clearly; NEW_TOKENS of each are packed.
TEXTS = ("And the LORD spake unto Moses, saying,", "And Mahlon and Chilion died also both of", "Of whom the whole family in heaven and",
         "To the intent that now unto the principalities")
NEW_TOKENS = 24
# The decoder that is timed: a DiffLlama of 351 million parameters, and one that a simulator can run.
TIMED = {"model_type": "diffllama", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2944, "num_hidden_layers": 24,
         "num_attention_heads": 16, "num_key_value_heads": 16, "tie_word_embeddings": True, "max_position_embeddings": 8192,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
TIMED_SMALL = {**TIMED, "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 4}


def _bundle(folder, graph, weights, target, copy):
    from diffattn.runtime import write_bundle

    write_bundle(str(graph), folder, weights=[str(path) for path in weights], target=target, copy_weights=copy, cache=False)


def _random_weights(graph, rng):
    """Numbers that bf16 holds, of sizes with which attention is neither uniform nor one key's alone."""
    weights = {}
    for name, (shape, _) in graph.file_types().items():
        values = rng.standard_normal(shape) * (1.5 * math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.2) + ("norm" in name)
        weights[name] = (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return weights


def _small(name, out, scratch, target):
    import diffattn
    from diffattn import models

    config, dtype, shape = SMALL[name]
    rng = np.random.default_rng(sum(name.encode()))
    checkpoint = scratch / name
    checkpoint.mkdir()
    graph = models.build(config, dtype)
    safetensors_file.write(checkpoint / "model.safetensors", _random_weights(graph, rng))
    (checkpoint / "config.json").write_text(json.dumps(config))
    _bundle(out, graph, [checkpoint / "model.safetensors"], target, copy=True)
    exact, same = (diffattn.load(checkpoint, "cpu", kind) for kind in ("f32", dtype))
    inputs = (rng.integers(0, config["vocab_size"], (len(PROMPT_LENGTHS), max(PROMPT_LENGTHS) + STEPS)) if shape is None
              else rng.standard_normal(shape).astype(np.float32))
    expected = exact.forward(inputs)
    np.savez(out.parent / f"{name}.npz", inputs=inputs, lengths=np.array(PROMPT_LENGTHS), expected=expected)
    return {"name": name, "folder": f"models/{name}", "answers": f"models/{name}.npz", "element": dtype, "decoder": shape is None,
            "allowed": F32_ALLOWED if dtype == "f32" else max(FACTOR * farthest(same.forward(inputs), expected), LEAST_ALLOWED)}


def _greedy(model, prompt, count):
    """The likeliest tokens after a prompt, and by how much of the logits' magnitude each leads."""
    tokens, leads = [], []
    caches = model.new_caches(1, len(prompt) + count)
    logits, *caches = model.executable.call("prefill", np.array([prompt]), np.array([len(prompt)]), *caches)
    for step in range(count):
        second, first = np.sort(logits[0])[-2:]
        tokens.append(int(logits[0].argmax()))
        leads.append(float((first - second) / np.abs(logits[0]).max()))
        logits, *caches = model.executable.call("decode", np.array(tokens[-1:]), np.array([len(prompt) + step]), *caches)
    return tokens, leads


def _tiny_lm(out, target):
    """Its weights stay where they are, in the source tree, which the other side has too."""
    import diffattn
    from diffattn.checkpoint import open_checkpoint
    from diffattn.model import build_graph

    checkpoint = open_checkpoint(TINY_LM)
    _bundle(out, build_graph(checkpoint), checkpoint.files, target, copy=False)
    model = diffattn.load(TINY_LM, "cpu")
    prompts = []
    for text in TEXTS:
        ids = model.tokenizer.encode(text)
        tokens, leads = _greedy(model, ids, NEW_TOKENS)
        prompts.append({"text": text, "ids": ids, "tokens": tokens, "leads": leads})
    return {"name": "tiny-lm", "folder": "models/tiny-lm", "weights": str(TINY_LM.relative_to(ROOT)), "element": checkpoint.dtype,
            "prompts": prompts}


def _timed(out, scratch, target, simulated):
    from diffattn import models

    config = TIMED_SMALL if simulated else TIMED
    graph = models.build(config, "bf16")
    header, size = safetensors_file.header({name: ("BF16", shape) for name, (shape, _) in graph.file_types().items()})
    path = scratch / "decoder.safetensors"
    with open(path, "wb") as file:  # a hole: only the header of these weights is looked at
        file.write(header)
        file.truncate(len(header) + size)
    _bundle(out, graph, [path], target, copy=False)
    (out.parent / "decoder.header").write_bytes(header)
    return {"name": "decoder", "folder": "models/decoder", "header": "models/decoder.header", "file": path.name, "config": config,
            "element": "bf16"}


def write(folder, scratch, chips, names, simulated):
    """Writes the models `names` into `folder`/models, and says what they are, for the manifest."""
    target = f"{'cuda-sim' if simulated else 'cuda'}:{chips[0] if simulated else ','.join(chips)}"
    target += "" if simulated else f"/{HOST}"
    (folder / "models").mkdir()
    made = []
    for name in names:
        out = folder / "models" / name
        made.append(_tiny_lm(out, target) if name == "tiny-lm" else _timed(out, scratch, target, simulated) if name == "decoder"
                    else _small(name, out, scratch, target))
    return made
