"""Compiles Stable Audio 3's codec and its diffusion transformer, as diffusers has them, and times them beside eager PyTorch.

    python examples/stable-audio/stable_audio.py                   # a small random configuration: half a minute
    python examples/stable-audio/stable_audio.py --size large      # the default widths of diffusers, with four layers each
    python examples/stable-audio/stable_audio.py --threads 1 --rounds 9 --target cpu:avx2

Needs diffusers 0.42 or later. Weights are random, so nothing is downloaded; layers that start as zeros get random numbers too, or
attention would have no effect. Prints of the codec's encoder, its decoder and one step of the transformer: how many attentions there are, how many
were fused, the largest difference to eager PyTorch as a share of the largest number, and the times of both, which take turns. Ends with
status 1 where an attention stays in pieces or a difference is above 1e-4.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import diffusers
import torch
from diffattn.torch import reports

#: Sizes by name: of the codec, of the transformer, and how many latents a call has.
SIZES = {
    "small": (dict(patch_size=16, encoder_channels=64, encoder_c_mults=(4,), encoder_transformer_depths=(2,), latent_dim=64, dim_heads=64),
              dict(io_channels=64, embed_dim=256, depth=2, num_heads=4, cond_token_dim=96, global_cond_dim=96, local_add_cond_dim=65,
                   num_memory_tokens=8),
              64),
    "large": (dict(encoder_transformer_depths=(4,)), dict(depth=4), 128),
}
HIGHEST = 1e-4


def fill_zeros(module: torch.nn.Module) -> torch.nn.Module:
    """`module`, whose parameters that are all zeros have small random numbers instead."""
    for parameter in module.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return module.eval()


def make_calls(size: str) -> dict[str, tuple[int, Callable, tuple]]:
    """For each part: the number of its attentions, the function, and its arguments."""
    for_codec, for_transformer, latents = SIZES[size]
    codec = fill_zeros(diffusers.AutoencoderSAME(**for_codec))
    transformer = fill_zeros(diffusers.StableAudio3DiTModel(**for_transformer))
    layers = sum(codec.config.encoder_transformer_depths)
    sound = torch.randn(1, 2, latents * codec.downsampling_ratio)
    config = transformer.config
    step = (torch.randn(1, config.io_channels, latents), torch.rand(1), torch.randn(1, 77, config.cond_token_dim),
            torch.randn(1, config.global_cond_dim))
    return {
        "encode": (layers, lambda sound: codec.encode(sound).latents, (sound,)),
        "decode": (layers, lambda latent: codec.decode(latent).sample, (codec.encode(sound).latents,)),
        "transformer step": (2 * config.depth, lambda *step: transformer(*step).sample, step),
    }


def take_time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--threads", type=int, help="of PyTorch and of compiled code (default: all)")
    parser.add_argument("--target", default="cpu", help="of compiled code (default: cpu)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    right = True
    print("| part | attentions | fused | difference | eager ms | compiled ms | ratio |\n|---|---|---|---|---|---|---|")
    with torch.inference_mode():
        for name, (attentions, function, arguments) in make_calls(options.size).items():
            before = len(reports())
            compiled = torch.compile(function, backend="diffattn", options={"target": options.target})
            want, got = function(*arguments), compiled(*arguments)
            fused = sum("two maps became one" in str(line) for report in reports()[before:] for line in report.applied)
            difference = ((got - want).abs().max() / want.abs().max()).item()
            right &= fused == attentions and difference <= HIGHEST
            pairs = [(take_time(lambda: function(*arguments)), take_time(lambda: compiled(*arguments))) for _ in range(options.rounds)]
            eager, ours = (statistics.median(times) for times in zip(*pairs))
            print(f"| {name} | {attentions} | {fused} | {difference:.1e} | {eager:.1f} | {ours:.1f} | {eager / ours:.2f} |", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
