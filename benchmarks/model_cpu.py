#!/usr/bin/env python3
"""A whole DiffLlama against transformers on this machine's CPU: a prompt, and one token after it.

Both run in this process, turn by turn, on the same random weights and the same number of threads; the medians and their
ratios are printed and written as JSON and PNG. Answers of both are compared, so that nothing wrong is timed. The time of ours is then
told by attention, products and the rest: the first two measured by themselves (model_parts.py).

    python benchmarks/model_cpu.py                  # 350 M parameters, f32, prompt of 512: some minutes, 4 GB
    python benchmarks/model_cpu.py --layers 2       # a smaller one
    python benchmarks/model_cpu.py --dtype bf16 --batch 4
    python benchmarks/model_cpu.py --weights int4   # against transformers on the numbers that the integers stand for
"""

import argparse
import datetime
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmarks"), str(ROOT / "test" / "python" / "models")]

from core_rate import at_least, cpu_name  # noqa: E402
from model_parts import Parts  # noqa: E402

#: By type, the largest difference of logits as a part of the largest logit.
TOLERANCE = {"f32": 1e-3, "bf16": 0.1}


def seconds(call):
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def widened(folder):
    """The tensors of a quantized folder as numbers, under their names: a weight is its integer times its scale."""
    import torch
    from safetensors.torch import load_file

    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())["quantization_config"]
    result = {}
    for name, tensor in tensors.items():
        if f"{name}_scale" in tensors:
            if config["bits"] == 4:  # column 2j in the low half
                tensor = torch.stack([tensor << 4 >> 4, tensor >> 4], -1).flatten(1)
            scales = tensors[f"{name}_scale"].repeat_interleave(config["group_size"], 1)
            result[name] = tensor.float() * scales
        elif not name.endswith("_scale"):
            result[name] = tensor
    return result


def prepare(args, directory):
    """Ours, and transformers' model of the same numbers."""
    import torch
    import torchvision_stand_in  # noqa: F401
    import transformers

    import diffattn

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = transformers.DiffLlamaConfig(
        vocab_size=args.vocabulary, hidden_size=args.hidden, intermediate_size=-(-23 * args.hidden // 1024) * 128, num_hidden_layers=args.layers,
        num_attention_heads=16, num_key_value_heads=16, tie_word_embeddings=True, max_position_embeddings=2048)
    peer = transformers.DiffLlamaForCausalLM(config).eval().to(torch.bfloat16 if args.dtype == "bf16" else torch.float32)
    folder = Path(directory) / "model"
    peer.save_pretrained(folder)
    if args.weights:
        narrow = Path(directory) / args.weights
        diffattn.quantize(folder, narrow, args.weights)
        missing = peer.load_state_dict(widened(narrow), strict=False).unexpected_keys
        if missing:
            raise SystemExit(f"expected weights of transformers' model, but got {missing[0]}")
        folder = narrow
    return diffattn.load(folder, threads=args.threads), peer, folder


def measure(args, directory):
    import torch
    import transformers

    model, peer, folder = prepare(args, directory)
    parameters = sum(p.numel() for p in peer.parameters())
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    kind = f"{args.dtype}, {args.weights} weights" if args.weights else args.dtype
    print(f"{parameters / 1e6:.0f} M parameters, {kind}, {args.batch} x {args.prompt} tokens, {args.threads} thread(s)", flush=True)

    ids = np.random.default_rng(0).integers(0, args.vocabulary, (args.batch, args.prompt))
    lengths, steps = np.full(args.batch, args.prompt), args.decode_steps
    caches = model.new_caches(args.batch, args.prompt + steps + 1)
    tensor, token = torch.tensor(ids), np.full(args.batch, 7)
    times = {name: [] for name in ("prefill", "decode", "peer_prefill", "peer_decode")}

    def ours_decode():
        for step in range(steps):
            logits, *_ = model.executable.call("decode", token, lengths + step, *caches)
        return logits

    @torch.no_grad()
    def peer_decode(past):
        for _ in range(steps):
            out = peer(torch.tensor(token)[:, None], past_key_values=past, use_cache=True)
        return out.logits[:, -1].float()

    for turn in range(args.runs + 1):
        ours, (logits, *_) = seconds(lambda: model.executable.call("prefill", ids, lengths, *caches))
        with torch.no_grad():
            theirs, out = seconds(lambda: peer(tensor, use_cache=True, logits_to_keep=1))
        error = np.abs(logits - out.logits[:, -1].float().numpy()).max() / np.abs(logits).max()
        ours_step, logits = seconds(ours_decode)
        theirs_step, expected = seconds(lambda: peer_decode(out.past_key_values))
        error = max(error, np.abs(logits - expected.numpy()).max() / np.abs(logits).max())
        if not error < TOLERANCE[args.dtype]:
            raise SystemExit(f"expected equal logits, but got a relative error of {error:.2g}")
        if turn:  # the first turn packs weights and fills caches of code
            for name, value in zip(times, (ours, ours_step / steps, theirs, theirs_step / steps)):
                times[name].append(value)
            print(f"prefill {ours:.3f} s against {theirs:.3f} s, decode {ours_step / steps * 1e3:.1f} ms against "
                  f"{theirs_step / steps * 1e3:.1f} ms", flush=True)
    median = {name: float(np.median(values)) for name, values in times.items()}
    parts = Parts(folder, model, args.batch, args.threads, time.perf_counter)
    split = {"prefill": parts.split(median["prefill"], args.prompt, args.prompt, args.runs),
             "decode": parts.split(median["decode"], 1, args.prompt + 1, 3 * args.runs)}
    return {
        "machine": cpu_name(), "date": datetime.date.today().isoformat(), "threads": args.threads,
        "parameters": parameters, "layers": args.layers, "prompt": args.prompt, "batch": args.batch, "dtype": args.dtype, "weights": args.weights or args.dtype,
        "torch": torch.__version__, "transformers": transformers.__version__, "seconds": median, "samples": times,
        "prefill_ratio": median["peer_prefill"] / median["prefill"],
        "decode_ratio": median["peer_decode"] / median["decode"],
        "decode_read_gb_per_s": size / median["decode"] / 1e9, "split": split,
        "relative_error": float(error),
    }


def plot(result, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(7, 3), layout="constrained")
    s = result["seconds"]
    for axis, name, factor, unit in ((axes[0], "prefill", 1, "s"), (axes[1], "decode", 1e3, "ms a token")):
        bars = axis.bar(["transformers", "diffattn"], [s[f"peer_{name}"] * factor, s[name] * factor],
                        color=["#999999", "#3366aa"])
        axis.bar_label(bars, fmt="%.3g")
        axis.set(title=f"{name}: {result[f'{name}_ratio']:.2f}x", ylabel=unit)
    figure.suptitle(f"DiffLlama, {result['parameters'] / 1e6:.0f} M, {result['weights']}, {result['batch']} x {result['prompt']} tokens, "
                    f"{result['threads']} thread(s), {result['machine']}", fontsize=9)
    figure.savefig(path, dpi=120)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=at_least(1), default=24)
    parser.add_argument("--hidden", type=at_least(128), default=1024, help="a multiple of 128")
    parser.add_argument("--vocabulary", type=at_least(8), default=32000)
    parser.add_argument("--dtype", choices=list(TOLERANCE), default="f32")
    parser.add_argument("--weights", choices=["int8", "int4"], help="quantized ones (default: of the type)")
    parser.add_argument("--batch", type=at_least(1), default=1)
    parser.add_argument("--prompt", type=at_least(2), default=512)
    parser.add_argument("--decode-steps", type=at_least(1), default=8, help="steps that make one sample")
    parser.add_argument("--runs", type=at_least(1), default=3)
    parser.add_argument("--threads", type=at_least(1), default=1)
    parser.add_argument("--output", type=Path, help="where the JSON goes, and the PNG beside it")
    args = parser.parse_args()
    if args.hidden % 128:
        parser.error(f"--hidden: expected a multiple of 128, but got {args.hidden}")
    return args


def main():
    args = parse()
    with tempfile.TemporaryDirectory() as directory:
        result = measure(args, directory)
    print(f"medians: prefill {result['prefill_ratio']:.2f}x, decode {result['decode_ratio']:.2f}x of transformers' speed; "
          f"decode reads {result['decode_read_gb_per_s']:.1f} GB/s of weights")
    for what, parts in result["split"].items():
        whole = result["seconds"][what]
        print(f"{what}: " + ", ".join(f"{name} {part * 1e3:.2f} ms ({part / whole:.0%})" for name, part in parts.items()))
    if args.output:
        args.output.write_text(json.dumps(result, indent=2) + "\n")
        plot(result, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
