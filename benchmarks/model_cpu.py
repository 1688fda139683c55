#!/usr/bin/env python3
"""A whole DiffLlama against transformers on this machine's CPU: a prompt, and one token after it.

Both run in this process, turn by turn, on the same random weights and the same number of threads; the medians and their
ratios are printed and written as JSON and PNG. The first answer of both is compared, so that nothing wrong is timed.

    python benchmarks/model_cpu.py                  # 350 M parameters, f32, prompt of 512: some minutes, 4 GB
    python benchmarks/model_cpu.py --layers 2       # a smaller one
"""

import argparse
import datetime
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test" / "python" / "models")]


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def seconds(call):
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def measure(args, directory):
    import torch
    import torchvision_stand_in  # noqa: F401
    import transformers

    import diffattn

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = transformers.DiffLlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=2944, num_hidden_layers=args.layers,
        num_attention_heads=16, num_key_value_heads=16, tie_word_embeddings=True, max_position_embeddings=2048)
    peer = transformers.DiffLlamaForCausalLM(config).eval()
    peer.save_pretrained(directory)
    parameters = sum(p.numel() for p in peer.parameters())
    print(f"{parameters / 1e6:.0f} M parameters, {args.prompt} tokens, {args.threads} thread(s)", flush=True)
    model = diffattn.load(directory, threads=args.threads)

    ids = np.random.default_rng(0).integers(0, 32000, (1, args.prompt))
    lengths, steps = np.array([args.prompt]), args.decode_steps
    caches = model.new_caches(1, args.prompt + steps + 1)
    tensor, token = torch.tensor(ids), np.array([7])
    times = {name: [] for name in ("prefill", "decode", "peer_prefill", "peer_decode")}

    def ours_decode():
        for step in range(steps):
            logits, *_ = model.executable.call("decode", token, lengths + step, *caches)
        return logits

    @torch.no_grad()
    def peer_decode(past):
        for _ in range(steps):
            out = peer(torch.tensor([[7]]), past_key_values=past, use_cache=True)
        return out.logits[:, -1]

    for turn in range(args.runs + 1):
        ours, (logits, *_) = seconds(lambda: model.executable.call("prefill", ids, lengths, *caches))
        with torch.no_grad():
            theirs, out = seconds(lambda: peer(tensor, use_cache=True, logits_to_keep=1))
        error = np.abs(logits - out.logits[:, -1].numpy()).max() / np.abs(logits).max()
        ours_step, logits = seconds(ours_decode)
        theirs_step, expected = seconds(lambda: peer_decode(out.past_key_values))
        error = max(error, np.abs(logits - expected.numpy()).max() / np.abs(logits).max())
        if error > 1e-3:
            raise SystemExit(f"expected equal logits, but got a relative error of {error:.2g}")
        if turn:  # the first turn packs weights and fills caches of code
            for name, value in zip(times, (ours, ours_step / steps, theirs, theirs_step / steps)):
                times[name].append(value)
            print(f"prefill {ours:.3f} s against {theirs:.3f} s, decode {ours_step / steps * 1e3:.1f} ms against "
                  f"{theirs_step / steps * 1e3:.1f} ms", flush=True)
    median = {name: float(np.median(values)) for name, values in times.items()}
    return {
        "machine": cpu_name(), "date": datetime.date.today().isoformat(), "threads": args.threads,
        "parameters": parameters, "layers": args.layers, "prompt": args.prompt, "dtype": "f32",
        "torch": torch.__version__, "transformers": transformers.__version__, "seconds": median, "samples": times,
        "prefill_ratio": median["peer_prefill"] / median["prefill"],
        "decode_ratio": median["peer_decode"] / median["decode"],
        "decode_read_gb_per_s": 4 * parameters / median["decode"] / 1e9,
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
    figure.suptitle(f"DiffLlama, {result['parameters'] / 1e6:.0f} M, f32, {result['prompt']} tokens, "
                    f"{result['threads']} thread(s), {result['machine']}", fontsize=9)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode-steps", type=int, default=8, help="steps that make one sample")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where the JSON goes, and the PNG beside it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = measure(args, directory)
    print(f"medians: prefill {result['prefill_ratio']:.2f}x, decode {result['decode_ratio']:.2f}x of transformers' speed; "
          f"decode reads {result['decode_read_gb_per_s']:.1f} GB/s of weights")
    if args.output:
        args.output.write_text(json.dumps(result, indent=2) + "\n")
        plot(result, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
