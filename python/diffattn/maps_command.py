"""`diffattn maps`: a report of what a decoder's attention looks at (docs/maps.md)."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

from . import checks, files, models
from .errors import InputError, UsageError
from .output import tell, write_files
from .progress import Progress
from .text import printable_name

#: Factors of lambda that one report may have.
MOST_FACTORS = 101
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)"
_SUFFIXES = (".html", ".npz", ".png")


def add_to(commands, threads, ids) -> None:
    """The command among others, with converters of a number of threads and of token ids."""
    sub = commands.add_parser("maps", help="show what attention looks at", description="Write a report of a decoder's attention maps for a "
                              "prompt: both maps of each head, their difference, figures, and what other factors of λ would give. Maps are "
                              "made from what the fused attention used and compared with what it gave.",
                              epilog='example: diffattn maps examples/tiny-lm --prompt "In the beginning" -o report.html')
    sub.set_defaults(function=run)
    sub.add_argument("directory", metavar="DIR", help="config.json, safetensors and, for text, tokenizer.json")
    sub.add_argument("--prompt", metavar="TEXT", help="the text whose maps are shown")
    sub.add_argument("--prompt-file", type=Path, metavar="FILE", help="the same from a file, as a whole; - reads standard input")
    sub.add_argument("--ids", type=ids, metavar="N,N,...", help="the same as token ids; needs no tokenizer")
    sub.add_argument("-o", "--output", action="append", required=True, metavar="FILE", help="a report .html, arrays .npz, or a picture .png "
                     "(pip install 'diffattn[viz]'); may be repeated")
    sub.add_argument("--layers", type=_layers, metavar="N,N,...", help="layers to look at (default: all)")
    sub.add_argument("--heads", type=_heads, metavar="L:H,...", help="layers and heads whose maps are shown in full, or all (default: the 16 "
                     "with most negative mass)")
    sub.add_argument("--lambda-scale", type=_factors, default=[1.0], metavar="A:B:STEP", help="run the model with λ times each of these, or "
                     "with a list as 0,0.5,1 (default: 1 alone)")
    sub.add_argument("--dtype", choices=models.FLOATS, help="type of the weights (default: as in the files)")
    sub.add_argument("--threads", type=threads, metavar="N", help="threads to use (default: as many as are worth it)")


def _layers(text: str) -> list[int]:
    if not re.fullmatch("[0-9]{1,4}(,[0-9]{1,4})*", text):
        raise argparse.ArgumentTypeError(f"expected layers as 0,1,2, but got {text!r}")
    return [int(word) for word in text.split(",")]


def _heads(text: str) -> list[tuple[int, int]] | str:
    if text == "all":
        return text
    if not re.fullmatch("[0-9]{1,4}:[0-9]{1,4}(,[0-9]{1,4}:[0-9]{1,4})*", text):
        raise argparse.ArgumentTypeError(f"expected layers and heads as 0:3,1:2, or all, but got {text!r}")
    return [(int(layer), int(head)) for layer, head in (word.split(":") for word in text.split(","))]


def _factors(text: str) -> list[float]:
    """The factors that a range, both ends included, or a list names."""
    if re.fullmatch(f"{_NUMBER}:{_NUMBER}:{_NUMBER}", text):
        begin, end, step = map(float, text.split(":"))
        if not (step > 0 and end >= begin):
            raise argparse.ArgumentTypeError(f"expected A:B:STEP with A at most B and STEP above 0, but got {text!r}")
        count = (end - begin) / step + 1e-6
        factors = [round(begin + step * i, 9) for i in range(int(min(count, MOST_FACTORS)) + 1)]
    elif re.fullmatch(f"{_NUMBER}(,{_NUMBER})*", text):
        factors = [float(word) for word in text.split(",")]
    else:
        raise argparse.ArgumentTypeError(f"expected A:B:STEP or a list as 0,0.5,1, but got {text!r}")
    if len(factors) > MOST_FACTORS:
        raise argparse.ArgumentTypeError(f"expected at most {MOST_FACTORS} factors, but got {text!r}")
    return factors


def _prompt(args) -> str | list[int]:
    given = [name for name, value in (("--prompt", args.prompt), ("--prompt-file", args.prompt_file), ("--ids", args.ids)) if value is not None]
    if len(given) != 1:
        raise UsageError(f"expected one of --prompt, --prompt-file and --ids, but got {' and '.join(given) or 'none'}")
    if args.ids is not None:
        return args.ids
    if args.prompt is not None:
        return checks.command_text("--prompt", args.prompt)
    text = files.read_text(args.prompt_file)
    if not text:
        raise InputError(f"{args.prompt_file}: expected a text, but got an empty file")
    return text


def run(args) -> int:
    # Errors are raised before anything is compiled.
    for output in args.output:
        if not output.endswith(_SUFFIXES):
            raise UsageError(f"--output: expected a name that ends with {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}, but got {output!r}")
    prompt = _prompt(args)
    from . import maps

    if any(output.endswith(".png") for output in args.output):
        maps.require_png()
    begin = time.perf_counter()
    tell(f"diffattn: compiling {printable_name(args.directory)} ...", end="")
    try:
        with Progress("code, weights and maps"):
            inspected = maps.inspect(args.directory, prompt, layers=args.layers, factors=args.lambda_scale, dtype=args.dtype, threads=args.threads)
    finally:
        tell()
    heads = args.heads
    if heads == "all":
        heads = [(attention.layer, head) for attention in inspected.attentions for head in range(attention.heads)]
    makers = {".html": maps.page, ".npz": lambda *given: [maps.npz(*given)], ".png": lambda *given: [maps.png(*given)]}
    write_files([(output, makers[Path(output).suffix](inspected, heads)) for output in args.output])
    tell(f"diffattn: {maps.check_text(inspected)}")
    tell(f"diffattn: wrote {', '.join(map(printable_name, args.output))} for {len(inspected.tokens)} tokens in {time.perf_counter() - begin:.1f} s")
    return 0
