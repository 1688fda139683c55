"""Compiles models of transformers and timm by torch.compile(backend="diffattn"), and compares what they give with eager PyTorch.

    .venv/bin/python scripts/torch_models.py -o models.md                # all of them, each in a process of its own: half an hour
    .venv/bin/python scripts/torch_models.py --only llama --only swin    # what these processes print too, as the traceback of an error
    .venv/bin/python scripts/torch_models.py -j 4 --seconds 600

The models are small and have random weights: nothing is downloaded. Each is called with two sizes of batch, and texts with two lengths, in
f32; of the second Dynamo makes symbols. Some of the language models generate tokens too, with a cache that grows and with a static one. A
number may differ by a thousandth of itself and a ten thousandth of the largest of its tensor, or of 1 if that is less.

The table says of each model how many graphs Dynamo made, how many parts of them were compiled, how many of the products of matrices,
convolutions and attentions that eager PyTorch computes in a call it computes still, and which ops stay there. The status is 1 if a model is
wrong or fails, be it that its process crashes or takes too long.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

# Threads that spin while they wait slow a busy machine down; the processes of models inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
ROOT = Path(__file__).resolve().parents[1]
RTOL, ATOL = 1e-3, 1e-4
#: Sizes that configurations share; what a model does not know by these names its row says.
SMALL = dict(vocab_size=200, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
ENCODER_DECODER = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
                       decoder_ffn_dim=128, decoder_start_token_id=2)
IMAGE = dict(image_size=32, patch_size=8, num_channels=3)
#: Ops that make a call's time, as the profiler names them.
PRODUCTS = frozenset(f"aten::{name}" for name in (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm", "scaled_dot_product_attention"))


@dataclass(frozen=True)
class Model:
    """How one model is made, and with what it is called.

    kind       "language", "encoder" or "vision"
    make       gives the module
    inputs     gives the arguments by name for the first and for the second call
    caches     the kinds of cache to generate tokens with
    """

    kind: str
    make: Callable
    inputs: Callable
    caches: tuple = ()


@dataclass
class Row:
    """Result of a model: "ok", "wrong" or "error", with the reason."""

    name: str
    kind: str
    result: str = "ok"
    graphs: int = 0
    parts: int = 0
    products: tuple[int, int] = (0, 0)
    left: list[str] = field(default_factory=list)
    message: str = ""
    seconds: float = 0


def of_transformers(name: str, config: dict, head: str) -> Callable:
    """A module of transformers: `name` is what its classes begin with; "Gemma3:Gemma3Text" has a configuration of another name."""
    def make():
        import transformers

        model, _, other = name.partition(":")
        return getattr(transformers, model + head)(getattr(transformers, (other or model) + "Config")(**config))

    return make


def texts(decoder: bool = False, lengths: tuple[int, int] = (12, 19)) -> Callable:
    """Token ids, of which the last of one sequence are padding."""
    def make(number: int) -> dict:
        import torch

        batch, length = (2, 3)[number], lengths[number]
        ids = torch.randint(3, 200, (batch, length))
        mask = torch.ones_like(ids)
        mask[0, length - 4:] = 0
        given = {"input_ids": ids, "attention_mask": mask}
        return given | {"decoder_input_ids": torch.randint(3, 200, (batch, length - 5))} if decoder else given

    return make


def images(size: int = 32, name: str = "pixel_values", **others) -> Callable:
    def make(number: int) -> dict:
        import torch

        batch = (2, 3)[number]
        return {name: torch.randn(batch, 3, size, size), **{key: value(batch) for key, value in others.items()}}

    return make


def ids(length: int) -> Callable:
    def make(batch: int):
        import torch

        return torch.randint(3, 200, (batch, length))

    return make


def features(name: str, *sizes, **others) -> Callable:
    """Numbers of sound."""
    def make(number: int) -> dict:
        import torch

        batch = (2, 3)[number]
        return {name: torch.randn(batch, *sizes), **{key: value(batch) for key, value in others.items()}}

    return make


def language(name: str, head: str = "ForCausalLM", caches=(), **config) -> Model:
    return Model("language", of_transformers(name, {**SMALL, "use_cache": False, **config}, head), texts(), tuple(caches))


def encoder(name: str, head: str = "Model", inputs: Callable | None = None, **config) -> Model:
    return Model("encoder", of_transformers(name, {**SMALL, **config}, head), inputs or texts())


def seq2seq(name: str, **config) -> Model:
    return encoder(name, "ForConditionalGeneration", texts(decoder=True), **ENCODER_DECODER, use_cache=False, **config)


def vision(name: str, head: str = "ForImageClassification", size: int = 32, **config) -> Model:
    common = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = {} if "depths" in config else {key: SMALL[key] for key in common}
    return Model("vision", of_transformers(name, IMAGE | sizes | {"image_size": size} | config, head), images(size))


def timm(name: str, size: int = 32, attention: str = "", **options) -> Model:
    def make():
        import timm as library

        own = {"attn_layer": getattr(library.layers, attention)} if attention else {}
        return library.create_model(name, pretrained=False, num_classes=10, **options, **own)

    return Model("vision", make, images(size, "x"))


BOTH = (None, "static")
MODELS = {
    "llama": language("Llama", caches=BOTH),
    "mistral": language("Mistral", caches=BOTH, sliding_window=8),
    "mixtral": language("Mixtral", num_local_experts=4),
    "qwen2": language("Qwen2"),
    "qwen3": language("Qwen3", caches=BOTH, head_dim=16),
    "qwen3_moe": language("Qwen3Moe", head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
    "qwen3_next": language("Qwen3Next", head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                           shared_expert_intermediate_size=32, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
                           linear_num_value_heads=4, layer_types=["linear_attention", "full_attention"]),
    "gemma2": language("Gemma2", caches=BOTH, head_dim=16, sliding_window=8, query_pre_attn_scalar=16),
    "gemma3": language("Gemma3:Gemma3Text", head_dim=16, sliding_window=8, query_pre_attn_scalar=16,
                       layer_types=["sliding_attention", "full_attention"]),
    "phi": language("Phi"),
    "phi3": language("Phi3"),
    "gpt2": language("GPT2", "LMHeadModel", caches=BOTH, n_embd=64, n_layer=2, n_head=4, n_positions=128),
    "gpt_neo": language("GPTNeo", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8),
    "gptj": language("GPTJ", n_embd=64, n_layer=2, n_head=4, n_positions=128, rotary_dim=8),
    "gpt_neox": language("GPTNeoX"),
    "opt": language("OPT", ffn_dim=128, word_embed_proj_dim=64),
    "bloom": language("Bloom", n_layer=2, n_head=4),
    "falcon": language("Falcon", new_decoder_architecture=True, num_kv_heads=2),
    "mpt": language("Mpt", d_model=64, n_heads=4, n_layers=2, max_seq_len=128),
    "mamba": language("Mamba", caches=(None,), state_size=8),
    "mamba2": language("Mamba2", num_heads=8, head_dim=16, state_size=16, n_groups=2, chunk_size=8),
    "jamba": language("Jamba", num_experts=2, mamba_d_state=8, mamba_dt_rank=4, use_mamba_kernels=False, attn_layer_period=2, attn_layer_offset=1,
                      expert_layer_period=2, expert_layer_offset=1),
    "bamba": language("Bamba", attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=2, mamba_chunk_size=8),
    "rwkv": language("Rwkv", attention_hidden_size=64, context_length=64),
    "olmo2": language("Olmo2"),
    "cohere2": language("Cohere2", sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    "granitemoe": language("GraniteMoe", num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v2": language("DeepseekV2", num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                            v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=32,
                            first_k_dense_replace=1, n_shared_experts=1),
    "deepseek_v3": language("DeepseekV3", num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                            v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=32,
                            first_k_dense_replace=1, n_shared_experts=1),
    "diffllama": language("DiffLlama", caches=BOTH),
    "llama4": language("Llama4:Llama4Text", head_dim=16, intermediate_size_mlp=128, num_local_experts=4, attention_chunk_size=16,
                       no_rope_layers=[1, 0]),
    "glm4": language("Glm4", head_dim=16),
    "gpt_oss": language("GptOss", head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
                        layer_types=["sliding_attention", "full_attention"]),
    "recurrent_gemma": language("RecurrentGemma", lru_width=64, head_dim=16, attention_window_size=8, block_types=["recurrent", "attention"]),
    "zamba2": language("Zamba2", num_key_value_heads=4, mamba_d_state=16, n_mamba_heads=8, mamba_ngroups=1, chunk_size=8, num_mem_blocks=1,
                       use_mem_rope=True, attention_head_dim=32, attention_hidden_size=128, layers_block_type=["mamba", "hybrid"],
                       use_mamba_kernels=False),
    "minimax": language("MiniMax", head_dim=16, num_local_experts=4, block_size=8, layer_types=["linear_attention", "full_attention"]),
    "smollm3": language("SmolLM3"),
    "exaone4": language("Exaone4", sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    "lfm2": language("Lfm2", layer_types=["conv", "full_attention"], block_multiple_of=32),
    "bert": encoder("Bert"),
    "roberta": encoder("Roberta"),
    "deberta": encoder("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "deberta_v2": encoder("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8, share_att_key=True,
                          norm_rel_ebd="layer_norm"),
    "albert": encoder("Albert", embedding_size=32),
    "distilbert": encoder("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    "modernbert": encoder("ModernBert", cls_token_id=1, sep_token_id=2, local_attention=8, global_attn_every_n_layers=2),
    "mpnet": encoder("MPNet"),
    "longformer": encoder("Longformer", attention_window=[4, 4]),
    "big_bird": encoder("BigBird", inputs=texts(lengths=(32, 40)), attention_type="block_sparse", block_size=4, num_random_blocks=1),
    "t5": encoder("T5", "ForConditionalGeneration", texts(decoder=True), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                  decoder_start_token_id=0, use_cache=False),
    "bart": seq2seq("Bart"),
    "pegasus": seq2seq("Pegasus"),
    "whisper": encoder("Whisper", "ForConditionalGeneration", features("input_features", 16, 40, decoder_input_ids=ids(7)), **ENCODER_DECODER,
                       num_mel_bins=16, max_source_positions=20, max_target_positions=32, use_cache=False),
    "wav2vec2": encoder("Wav2Vec2", "ForCTC", features("input_values", 400), conv_dim=(32, 32), conv_stride=(5, 2), conv_kernel=(10, 3),
                        num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4),
    "clip": encoder("CLIP", "Model", images(input_ids=ids(10)), text_config=SMALL, vision_config={**SMALL, **IMAGE}, projection_dim=32),
    "siglip": encoder("Siglip", "Model", images(input_ids=ids(10)), text_config=SMALL, vision_config={**SMALL, **IMAGE}),
    "vit": vision("ViT"),
    "swin": vision("Swin", size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    "swinv2": vision("Swinv2", size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    "beit": vision("Beit", use_relative_position_bias=True, out_indices=[1]),
    "dinov3": vision("DINOv3ViT", "Model", num_register_tokens=4),
    "segformer": vision("Segformer", "ForSemanticSegmentation", size=64, hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1],
                        num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32),
    "timm/vit_dwee_patch16_reg1_gap_256": timm("vit_dwee_patch16_reg1_gap_256", img_size=32, patch_size=8, depth=2),
    "timm/vit_dpwee_patch16_reg1_gap_256": timm("vit_dpwee_patch16_reg1_gap_256", img_size=32, patch_size=8, depth=2),
    "timm/convnext_atto": timm("convnext_atto", 64, depths=(1, 1, 2, 1)),
    "timm/efficientnet_b0": timm("efficientnet_b0", 64),
    "timm/resnet50": timm("resnet50", 64),
    "timm/maxvit_tiny_rw_224": timm("maxvit_tiny_rw_224", 64, img_size=64, depths=(1, 1, 1, 1)),
    "timm/eva02_tiny_patch14_224": timm("eva02_tiny_patch14_224", 56, img_size=56, depth=2),
    "timm/cait_xxs24_224": timm("cait_xxs24_224", img_size=32, patch_size=8, depth=2),
    "timm/xcit_nano_12_p16_224": timm("xcit_nano_12_p16_224", 64, img_size=64, depth=2),
    "timm/levit_128s": timm("levit_128s", 64, img_size=64),
}


def randomize(module) -> None:
    """Weights of a size that tells an error from rounding: as they begin, attentions are nearly uniform, and scales of layers nearly 0."""
    import torch

    with torch.no_grad():
        for one in module.modules():
            for weight in one.parameters(recurse=False):
                if not weight.is_floating_point():
                    continue
                if weight.numel() > 1 and weight.std() < 1e-6:
                    weight += 0.1 * torch.randn_like(weight)
                elif weight.ndim > 1:
                    inputs = weight[0].numel() if "Conv" in type(one).__name__ and weight.ndim > 2 else weight.shape[-1]
                    weight *= max(1, inputs**-0.5 / weight.std())
        for name, statistic in module.named_buffers():
            if name.endswith("running_mean"):
                statistic.normal_(0, 0.1)
            elif name.endswith("running_var"):
                statistic.uniform_(0.5, 1.5)


def difference(got, want) -> str:
    """How results differ beyond the tolerance; empty: they do not."""
    import torch
    from torch.utils import _pytree

    ours, theirs = (_pytree.tree_flatten_with_path(one)[0] for one in (got, want))
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        return "results of another structure"
    for (path, mine), (_, like) in zip(ours, theirs):
        if not isinstance(like, torch.Tensor):
            continue
        place = _pytree.keystr(path)
        if mine.shape != like.shape or mine.dtype != like.dtype:
            return f"result{place} is {mine.dtype} of {list(mine.shape)}, where PyTorch's is {like.dtype} of {list(like.shape)}"
        if not like.is_floating_point():
            if not torch.equal(mine, like):
                return f"result{place}: {int((mine != like).sum())} of {like.numel()} elements differ"
            continue
        finite = like[like.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        if not torch.allclose(mine, like, rtol=RTOL, atol=ATOL * min(1.0, largest), equal_nan=True):
            return f"result{place}: error {float((mine - like).abs().nan_to_num(float('inf')).max()):.3g} at magnitude {largest:.3g}"
    return ""


def count_products(call: Callable) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        call()
    return sum(event.name in PRODUCTS for event in profiled.events())


def generate(model, cache: str | None):
    import torch

    torch.manual_seed(2)
    ids = torch.randint(3, 200, (2, 9))
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6, min_new_tokens=6, use_cache=True,
                          cache_implementation=cache, return_dict_in_generate=True, output_logits=True)
    return made.sequences, made.logits


def judge(name: str) -> Row:
    """Compiles and compares one model in this process."""
    import torch
    import torchvision_stand_in  # noqa: F401 - before timm and transformers ask for torchvision

    from diffattn.torch import reports

    model, begin = MODELS[name], time.monotonic()
    row = Row(name, model.kind)
    with torch.no_grad():
        torch.manual_seed(0)
        module = model.make().eval()
        randomize(module)
        torch.manual_seed(1)
        calls = [model.inputs(number) for number in range(2)]
        wants = [module(**call) for call in calls]
        products = count_products(lambda: module(**calls[-1]))
        try:
            compiled, wrong = torch.compile(module, backend="diffattn"), []
            for number, (call, want) in enumerate(zip(calls, wants), 1):
                wrong.append((f"call {number}", difference(compiled(**call), want)))
            row.products = count_products(lambda: compiled(**calls[-1])), products
            for cache in model.caches:
                torch._dynamo.reset()
                want = generate(module, cache)
                module.compile(backend="diffattn")
                wrong.append((f"generated with the {cache or 'dynamic'} cache", difference(generate(module, cache), want)))
                module._compiled_call_impl = None
            row.message = "; ".join(f"{what}: {how}" for what, how in wrong if how)
            row.result = "wrong" if row.message else "ok"
            if not any(report.parts for report in reports()):
                row.result, row.message = "error", f"nothing was compiled; {row.message}"
        except Exception as error:  # whatever it is, it is what the row says
            traceback.print_exc()
            row.result, row.message = "error", f"{type(error).__name__}: {error}"
        made = reports()
        breaks = torch._dynamo.utils.counters["graph_break"]
        row.graphs, row.parts, row.seconds = len(made), sum(one.parts for one in made), time.monotonic() - begin
        row.left = briefly(line for one in made for line in one.uncompiled)
        if breaks:
            row.left.append(f"{sum(breaks.values())} graph breaks of Dynamo")
    return row


def briefly(lines: Iterable[str]) -> list[str]:
    """Ops without their places, each with the number of its lines."""
    ops = collections.Counter(re.sub(r"^\S+:\d+: ", "", line) for line in dict.fromkeys(lines))
    return [f"{op} ({count})" if count > 1 else op for op, count in ops.items()]


def run(name: str, seconds: float, folder: Path, loud: bool) -> Row:
    """The row of a model, which another process makes: it may crash, or not come back."""
    result, begin = folder / f"{name.replace('/', '_')}.json", time.monotonic()
    row = Row(name, MODELS[name].kind, "error")
    with subprocess.Popen([sys.executable, __file__, "--into", str(result), "--only", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace") as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            row.message = f"took more than {seconds:g} s"
    if loud:
        print(output, file=sys.stderr)
    if result.exists():
        return Row(**json.loads(result.read_text()))
    status = process.returncode
    ended = signal.Signals(-status).name if status < 0 else f"status {status}"
    row.message = row.message or f"its process ended with {ended}: {(output.strip().splitlines() or ['no message'])[-1]}"
    row.seconds = time.monotonic() - begin
    return row


def table(rows: Iterable[Row]) -> str:
    def cell(text) -> str:
        return " ".join(str(text).split()).replace("|", "\\|")

    lines = ["| model | kind | result | graphs | parts | products in PyTorch | stays in PyTorch |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        result = row.result if row.result == "ok" else f"{row.result}: {row.message[:300]}"
        of = " of ".join(map(str, row.products))
        left = ", ".join(row.left[:6]) + (f" and {len(row.left) - 6} more" if len(row.left) > 6 else "")
        lines.append("| " + " | ".join(map(cell, (row.name, row.kind, result, row.graphs, row.parts, of, left))) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", metavar="FILE", type=Path, help="where the table goes; without it to stdout")
    parser.add_argument("-j", metavar="N", type=int, default=1, help="how many models at once")
    parser.add_argument("--only", metavar="NAME", action="append", choices=MODELS, help="this model alone; may be given again")
    parser.add_argument("--seconds", type=float, default=300, help="the time limit of one model")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.into:
        sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test" / "python" / "models")]
        warnings.simplefilter("ignore")
        row = judge(options.only[0])
        options.into.write_text(json.dumps(vars(row)))
        return 0
    names, rows = options.only or list(MODELS), {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.j) as pool:
        running = [pool.submit(run, name, options.seconds, Path(folder), bool(options.only)) for name in names]
        try:
            for done in concurrent.futures.as_completed(running):
                row = done.result()
                rows[row.name] = row
                print(f"{row.name}: {row.result} after {row.seconds:.0f} s {row.message[:200]}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    made = table(rows[name] for name in names)
    if options.o:
        options.o.write_text(made)
    else:
        print(made, end="")
    good = sum(row.result == "ok" for row in rows.values())
    print(f"{good} of {len(rows)} models are as in eager PyTorch", file=sys.stderr)
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
