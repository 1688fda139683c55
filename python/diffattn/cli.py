"""The `diffattn` command: generate, eval, serve, chat, bench, info, build and bundle for a model in a directory; the first six, with
--bundle, for a compiled model; maps for what attention looks at, explain for what it becomes; import for a model of another framework."""

from __future__ import annotations

import _thread
import argparse
import contextlib
import difflib
import json
import math
import os
import re
import shlex
import sys
import threading
import time
import warnings
from pathlib import Path

from . import __version__, checks, files, hints, import_command, library, maps_command, models, pull_command, quantization, tracing
from .checkpoint import MLIR, has_weights, is_bundle, kind_of_file, open_checkpoint, read_config, read_json
from .errors import BundleError, CheckpointError, DiffAttnError, InputError, RunError, UsageError
from .generation_config import MOST_TOKENS, GenerationDefaults, read_defaults
from .importing.requirements import require
from .output import ReaderGoneError, prepare_streams, say, tell, write_file, write_files
from .progress import Progress
from .serving import chat_command, serve_command
from .serving.model import PAGE_ROWS
from .text import printable_generated, printable_name, shown
from .tokenizer import Tokenizer

# Exit codes are the classes of errors, the same as diffattn-run's; argparse ends with 2 for wrong usage.
INTERRUPTED = 130


def _command_for(args, folder: str, bundle: bool) -> str:
    """This command with another folder, and for the other kind of it if need be."""
    words = [args.command, *(["--bundle"] if bundle else []), folder]
    if bundle and args.command in ("build", "bundle", "explain"):  # commands that make something of checkpoints alone
        words[0] = "info"
    elif args.command == "eval":
        words.append(str(args.file))
    elif args.command == "bundle":
        words += ["-o", args.output]
    return f"{hints.command()} {shlex.join(words)}"


def _way_from_file(args) -> str:
    """Advice about a file that was given in place of a folder; empty: there is none."""
    folder = os.path.dirname(args.directory) or "."
    if kind_of_file(args.directory) == MLIR:
        return f"; run it with: {hints.runner()} {shlex.quote(args.directory)}"
    if not is_bundle(folder) and not has_weights(folder):
        return ""
    return f"; name its folder: {_command_for(args, folder, bundle=not has_weights(folder))}"


def _check_kind(args) -> None:
    """A bundle is code and a checkpoint is data, so the caller says which of them the folder is; its files do not."""
    bundle, given = getattr(args, "bundle", False), args.directory
    expected = f"{given}: expected {'the folder of a bundle' if bundle else 'a directory with config.json and safetensors'}"
    error = BundleError if bundle else CheckpointError
    if os.path.isfile(given) and (way := _way_from_file(args)):
        raise error(f"{expected}, but got {kind_of_file(given)}{way}")
    if bundle and not is_bundle(given):
        if has_weights(given):
            raise BundleError(f"{given}: expected a bundle, but got a checkpoint; compile and run it with: "
                              f"{_command_for(args, given, bundle=False)}")
        if os.path.isdir(given):
            raise BundleError(f"{expected}, but it has no manifest.json")
        raise BundleError(f"{expected}, but {'got ' + kind_of_file(given) if files.exists(Path(given)) else 'there is none'}")
    if not bundle and is_bundle(given) and not has_weights(given):
        raise CheckpointError(f"{given}: expected a checkpoint, but got a bundle; if you trust its code, "
                              f"{'look at it' if args.command in ('build', 'bundle', 'explain') else 'run it'} with: "
                              f"{_command_for(args, given, bundle=True)}")


@tracing.span("open the model")
def _load(args, is_served: bool = False):
    """The model of the command line, in the form whose caches lie in pages if it `is_served`."""
    if is_served:
        from .serving.model import load, load_bundle

        options = {}
    else:
        from .bundle import load as load_bundle
        from .model import load

        options = {"batch_invariant": args.batch_invariant}
    begin = time.perf_counter()
    tell(f"diffattn: {'opening' if args.bundle else 'compiling'} {printable_name(args.directory)} ...", end="")
    try:
        with Progress("weights" if args.bundle else "code and weights") as progress:
            model = _opened(args, progress, load, load_bundle, options)
    except BaseException:
        tell()
        raise
    tell(f" {time.perf_counter() - begin:.2f} s")
    _report(getattr(model.executable, "diagnostics", ()))
    return model


def _opened(args, progress: Progress, load, load_bundle, options):
    """The model of the command line, by the one of both functions that its kind of folder takes."""
    if args.bundle:
        if args.dtype or args.target != "cpu":
            raise UsageError(f"{args.directory}: expected no --dtype and no --target with --bundle, because its code is made")
        if options.get("batch_invariant") is not None:
            raise UsageError(f"{args.directory}: expected no --batch-invariant with --bundle, because its code is made")
        return load_bundle(args.directory, weights=args.weights, threads=args.threads, cuda_driver=args.cuda_driver, progress=progress)
    if args.weights is not None:
        raise UsageError(f"--weights: expected it with --bundle, but {args.directory} is opened as a checkpoint")
    return load(args.directory, args.target, args.dtype, threads=args.threads, progress=progress, cuda_driver=args.cuda_driver, **options)


def _report(diagnostics) -> None:
    """Prints the compiler's diagnostics to standard error, without those of the cache, about which the library has warned."""
    for diagnostic in diagnostics:
        if diagnostic.category != "diffattn-cache":
            tell(f"diffattn: {diagnostic}")


def _prompts(args) -> list[str]:
    """The prompts of the command line, or one for each line of a file or pipe."""
    if args.prompt_file is None:
        if files.waiting_on_standard_input():
            warnings.warn("standard input is not read; --prompt-file - takes prompts from it")
        return [checks.command_text("--prompt", prompt) for prompt in args.prompt or [""]]
    if args.prompt is not None:
        raise UsageError("expected --prompt or --prompt-file, but got both")
    lines = files.read_text(args.prompt_file).split("\n")
    if not lines[-1]:  # what follows the last line's end
        lines.pop()
    if not lines:
        raise InputError(f"{args.prompt_file}: expected at least one line with a prompt, but got none")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise InputError(f"{args.prompt_file}: expected a prompt in each line, but line {number} is blank")
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def _ids(text: str) -> list[int]:
    """Token ids of the command line, as 1,2,3."""
    if not re.fullmatch("[0-9]{1,10}(,[0-9]{1,10})*", text):
        raise argparse.ArgumentTypeError(f"expected token ids as 1,2,3, but got {text!r}")
    return [int(word) for word in text.split(",")]


def _decoder_config(args) -> dict:
    """The config of a model that can generate; of a bundle without one: nothing."""
    from .model import build_graph

    _check_kind(args)
    directory, checkpoint = Path(args.directory), None
    if not args.bundle:
        checkpoint = open_checkpoint(directory)
        config = checkpoint.config
    elif files.exists(directory / "config.json"):
        config = read_config(directory)
    else:
        return {}
    kind = models.model_type(models.Config(config, str(directory / "config.json")))
    if kind not in models.DECODERS:
        if checkpoint:
            build_graph(checkpoint, args.dtype)  # what is wrong with its weights is the first thing to know
        raise InputError(f"{directory}: expected a decoder, but got {kind}, which has no tokens to generate")
    return config


def _tokenizer(directory, for_prompts: bool = False) -> Tokenizer:
    path = Path(directory) / "tokenizer.json"
    if not files.exists(path):
        raise CheckpointError(f"{directory}: expected a tokenizer.json, because the command works on text"
                              + ("; --ids takes and gives token ids without one" if for_prompts else ""))
    return Tokenizer(path)


def _check_tokens(directory, rows: list[list[int]], vocabulary, bos: int | None = None) -> None:
    """Raises, before the model is compiled, the errors that the model would raise for these tokens."""
    if bos is None and not all(rows):
        raise InputError("expected a text of at least one token, but got none")
    largest = max((token for row in rows for token in row), default=0)
    if isinstance(vocabulary, int) and largest >= vocabulary:
        raise CheckpointError(f"{directory}/tokenizer.json: expected tokens below the config's vocab_size, {vocabulary}, but the "
                              f"text has token {largest}")


def _shown_text(text: str) -> str:
    """Text of a model as standard output takes it: to a file or a pipe as it is, to a terminal without its controls."""
    return printable_generated(text) if sys.stdout.isatty() else text


def _sampling(args, config: dict, count: int) -> tuple[GenerationDefaults, dict]:
    """The defaults of the model's makers, and the checked options of the command line for so many prompts."""
    options = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p,
               "repetition_penalty": args.repetition_penalty}
    defaults = read_defaults(Path(args.directory), config)
    defaults.sampler(**options)
    seeds = args.seed or [0]
    if len(seeds) not in (1, count):
        raise UsageError(f"--seed: expected one for all prompts or {count}, one for each, but got {len(seeds)}")
    options["seed"] = seeds[0] if len(seeds) == 1 else seeds
    return defaults, options


def _generate_ids(args) -> int:
    """Prompts and texts as ids, for which no tokenizer is needed."""
    for option, value in (("--prompt", args.prompt), ("--prompt-file", args.prompt_file), ("--stop", args.stop)):
        if value is not None:
            raise UsageError(f"--ids: expected no {option} with it, because that is text")
    config = _decoder_config(args)
    _, options = _sampling(args, config, len(args.ids))
    vocabulary, largest = config.get("vocab_size"), max(map(max, args.ids))
    if isinstance(vocabulary, int) and largest >= vocabulary:
        raise InputError(f"--ids: expected token ids below the config's vocab_size, {vocabulary}, but got {largest}")
    model = _load(args)
    rows, code = [list(ids) for ids in args.ids], 0
    try:
        for row, token in model.generate(args.ids, args.max_new_tokens, **options):
            rows[row].append(token)
    except KeyboardInterrupt:
        code = INTERRUPTED
    for row in rows:
        say(",".join(map(str, row)))
    tell(f"diffattn: {model.timing}")
    return code


def generate(args) -> int:
    # Errors are raised before anything is compiled.
    if args.ids is not None:
        return _generate_ids(args)
    prompts = _prompts(args)
    config, tokenizer = _decoder_config(args), _tokenizer(args.directory, for_prompts=True)
    defaults, options = _sampling(args, config, len(prompts))
    if args.stop is not None:
        options["stop"] = [checks.command_text("--stop", text) for text in checks.texts("--stop", args.stop)]
    _check_tokens(args.directory, [tokenizer.encode(prompt) for prompt in prompts], config.get("vocab_size"), defaults.bos)
    model = _load(args)
    model.tokenizer = tokenizer
    texts = list(prompts)
    code = 0
    try:
        if len(prompts) == 1:
            say(_shown_text(prompts[0]), end="")
            for piece in model.generate(prompts[0], args.max_new_tokens, **options):
                say(_shown_text(piece), end="")
            say()
        else:
            for row, piece in model.generate(prompts, args.max_new_tokens, **options):
                texts[row] += piece
    except KeyboardInterrupt:
        say()
        code = INTERRUPTED
    if len(prompts) > 1:
        say(_shown_text("\n---\n".join(texts)))
    tell(f"diffattn: {model.timing}")
    return code


def evaluate(args) -> int:
    text = files.read_text(args.file)
    if not text:
        raise InputError(f"{args.file}: expected a text, but got an empty file")
    config, tokenizer = _decoder_config(args), _tokenizer(args.directory)
    _check_tokens(args.directory, [tokenizer.encode(text, special=False)], config.get("vocab_size"))
    model = _load(args)
    model.tokenizer = tokenizer
    begin = time.perf_counter()
    with Progress("evaluating", "pieces") as progress:
        bits = model.bits_per_character(text, args.window, progress=progress)
    seconds = time.perf_counter() - begin
    say(f"bits per character: {bits:.4f}")
    tell(f"diffattn: {len(text)} characters in {seconds:.2f} s")
    return 0


def serve(args) -> int:
    serve_command.check(args)
    _decoder_config(args)
    _tokenizer(args.directory)
    return serve_command.run(args, lambda args: _load(args, is_served=True))


def chat(args) -> int:
    _decoder_config(args)
    _tokenizer(args.directory)
    return chat_command.run(args, lambda args: _load(args, is_served=True))


def build(args) -> int:
    _check_kind(args)
    directory = Path(args.directory)
    # The type comes from the weights; without any, a graph can still be built for a given type.
    dtype = args.dtype or open_checkpoint(directory).dtype
    config = read_config(directory)
    module = models.build(config, dtype, str(directory / "config.json"))
    text = str(module)
    if args.output == "-":
        say(text, end="")
        return 0
    write_file(args.output, text)
    tell(f"diffattn: wrote {printable_name(args.output)}; " + _next_for_graph(Path(args.output), directory, module))
    return 0


def _next_for_graph(output: Path, directory: Path, module: models.Module) -> str:
    try:
        complete = set(module.file_names()) <= set(open_checkpoint(directory).tensors)
    except CheckpointError:
        complete = False
    if complete:
        return f"run it with: {hints.run_graph(output, directory, module.arguments['forward'])}"
    return f"its weights are not in {directory}; look at it with: {hints.runner()} {shlex.quote(str(output))} --info"


def bundle(args) -> int:
    from .model import build_graph
    from .runtime import write_bundle

    _check_kind(args)
    checkpoint = open_checkpoint(args.directory)
    module = build_graph(checkpoint, args.dtype, PAGE_ROWS if args.paged else None)
    batch_invariant = args.batch_invariant
    if args.paged and args.target.partition(":")[0] == "cpu":
        if batch_invariant is False:
            raise UsageError("--paged: expected no --no-batch-invariant with it, because rows that are served do not depend on their batch")
        batch_invariant = True
    with Progress("writing the bundle"):
        diagnostics = write_bundle(str(module), args.output, weights=[str(f) for f in checkpoint.files], target=args.target,
                                   model_folder=checkpoint.directory, copy_weights=args.copy_weights, batch_invariant=batch_invariant)
    _report(diagnostics)
    tell(f"diffattn: wrote {printable_name(args.output)}; " + _next_for_bundle(args, checkpoint, module))
    return 0


def _next_for_bundle(args, checkpoint, module: models.Module) -> str:
    here = f"{hints.command()} {{}} --bundle {shlex.quote(args.output)}"
    if args.target != "cpu":  # it may be for another machine
        return f"look at it with: {here.format('info')}"
    if args.paged:
        return f"serve it with: {here.format('serve')}"
    if "decode" not in module.arguments:
        return f"run it with: {hints.run_bundle(args.output, module.arguments['forward'])}"
    if checkpoint.tokenizer_file is None:
        return f"it has no tokenizer for text; measure it with: {here.format('bench')}"
    return f"run it with: {here.format('generate')} --prompt Hello"


def _print_rows(rows, as_json: bool) -> None:
    if as_json:
        say(json.dumps(dict(rows), indent=2))
    else:
        say("\n".join(f"{printable_name(key):24}{printable_name(value)}" for key, value in rows))


def _bundle_info(args) -> int:
    from . import bundle

    # Its own files are checked; what it is for need not be here: no GPU, no such CPU, no weights.
    code = bundle.BundledCode(args.directory, read_only=True)
    manifest = read_json(Path(args.directory) / "manifest.json")
    rows = [("bundle", f"version {manifest['version']}, by {manifest.get('tool', 'an unknown tool')}"),
            ("code", f"{manifest['cpu']['isa']}, needs {' '.join(manifest['cpu']['features']) or 'any x86-64'}")]
    # Bundles that were written before there was a choice have none.
    rows.append(("batch invariant", {"true": "yes", "false": "no"}.get(
        manifest.get("batch_invariant"), "products with weights, where it is as fast") if "batch_invariant" in manifest else "no"))
    if manifest["devices"]:
        rows.append(("kernels", ", ".join(f"{part['chip']} ({' and '.join(image['format'] for image in part['images'])})"
                                          for part in manifest["devices"])))
    if manifest["weight_files"]:
        rows.append(("weights", ", ".join(f"{file['path']} ({file['bytes'] / 2**20:.1f} MiB)"
                                          for file in manifest["weight_files"])))
    for entry in code.entries:
        arguments, results = code.signature(entry)
        rows.append((f"function {entry}", f"{', '.join(map(repr, arguments))} -> {', '.join(map(repr, results))}"))
    _print_rows(rows, args.json)
    return 0


def info(args) -> int:
    _check_kind(args)
    if args.bundle:
        return _bundle_info(args)
    checkpoint = open_checkpoint(args.directory, without_weights=True)
    source = str(checkpoint.directory / "config.json")
    kind = models.model_type(models.Config(checkpoint.config, source))
    module = models.build(checkpoint.config, args.dtype or checkpoint.dtype, source)
    needed = set(module.file_names())
    bytes_ = sum(file.stat().st_size for file in checkpoint.files)
    weights = f"{checkpoint.dtype}, {len(checkpoint.files)} file(s), {bytes_ / 2**20:.1f} MiB" if checkpoint.files else "none"
    # A config alone has as many as its weights will have.
    parameters = checkpoint.parameters if checkpoint.files else sum(math.prod(shape) for shape, _ in module.file_types().values())
    rows = [("model", kind), ("parameters", f"{parameters:,}"), ("weights", weights),
            ("tokenizer", checkpoint.tokenizer_file.name if checkpoint.tokenizer_file else "none")]
    if checkpoint.quantization is not None:
        rows.insert(3, ("quantization", f"int{checkpoint.quantization.bits}, groups of {checkpoint.quantization.group}"))
    for key in ("num_hidden_layers", "num_layers", "hidden_size", "num_attention_heads", "num_heads",
                "num_key_value_heads", "vocab_size", "max_position_embeddings"):
        if key in checkpoint.config:
            rows.append((key, shown(checkpoint.config[key])))
    for label, names in (("missing", needed - set(checkpoint.tensors)), ("not used", set(checkpoint.tensors) - needed)):
        if names and checkpoint.files:
            rows.append((label, ", ".join(sorted(names)[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")))
    for layers, (heads, width) in module.cache_shapes[:1]:
        size = sum(n * h * w for n, (h, w) in module.cache_shapes)
        more = f" and {module.state_size:,} a sequence" if module.state_size else ""
        rows.append(("cache", f"{size:,} numbers a token{more}, {layers} layer{'s' * (layers > 1)}"))
    _print_rows(rows, args.json)
    return 0


def explain(args) -> int:
    from .explain import explain
    from .runtime import Executable

    if args.time or args.png:
        return _explain_times(args)
    _check_kind(args)
    directory = Path(args.directory)
    config = read_config(directory)
    text = str(models.build(config, args.dtype or open_checkpoint(directory, without_weights=True).dtype, str(directory / "config.json")))
    with Progress("compiling"):
        executable = Executable(text, target=args.target, threads=args.threads, batch_invariant=args.batch_invariant,
                                cuda_driver=args.cuda_driver)
    explanation = explain(executable, text)
    say(explanation.json() if args.json else str(explanation))
    return 0


def _explain_times(args) -> int:
    """With times of a prefill and some decode steps, for which the weights are needed."""
    import numpy as np

    from . import explain_times

    if args.png:
        require("viz", {"matplotlib": ("3.",)})
    args.bundle, args.weights = False, None
    _decoder_config(args)
    model = _load(args)
    ids = np.random.default_rng(0).integers(0, model.vocabulary, (1, args.prompt_tokens))
    with Progress("measuring"):
        explanation = explain_times.timed(lambda: list(model.generate(ids, args.max_new_tokens, temperature=0, repetition_penalty=1)))
    if args.png:
        write_files([(args.png, [explain_times.png(explanation)])])
    say(explanation.json() if args.json else str(explanation))
    return 0


def bench(args) -> int:
    import numpy as np

    _decoder_config(args)
    model = _load(args)
    ids = np.random.default_rng(args.seed).integers(0, model.vocabulary, (args.batch, args.prompt_tokens))
    results = []
    # The first run packs weights; on a device the second one captures the prefill.
    warm = 2 if model.executable.has_device else 1
    with Progress("measuring", "tokens") as progress:
        new = args.max_new_tokens
        for run in range(args.runs + warm):
            for step, _ in enumerate(model.generate(ids, new, temperature=0, repetition_penalty=1), 1):
                progress(run * new - (-step // args.batch), (args.runs + warm) * new)
            if run >= warm:
                t = model.timing
                results.append((t.prefill_tokens / t.prefill_seconds, t.decode_tokens / max(t.decode_seconds, 1e-9)))
    prefill, decode = (sorted(column)[len(results) // 2] for column in zip(*results))
    report = {"model": model.kind, "dtype": model.dtype, "batch": args.batch, "prompt_tokens": args.prompt_tokens,
              "new_tokens": args.max_new_tokens, "prefill_tokens_per_second": round(prefill, 1),
              "decode_tokens_per_second": round(decode, 1) or None}
    if args.json:
        say(json.dumps(report, indent=2))
    else:
        say(f"{args.runs} runs, batch {args.batch}, {args.prompt_tokens} tokens and {args.max_new_tokens} new ones; "
            f"medians: prefill {prefill:.1f} tokens/s" + (f", decode {decode:.1f} tokens/s" if decode else ""))
    return 0


def _integer(least: int, most: int = checks.MOST_INT64):
    """A converter of arguments; int itself would take underscores and digits of other scripts too."""

    def convert(text: str) -> int:
        if not re.fullmatch("[+-]?[0-9]{1,19}", text) or not least <= int(text) <= most:
            limits = f"from {least} to {most}" if most < checks.MOST_INT64 else f"of at least {least}"
            raise argparse.ArgumentTypeError(f"expected an integer {limits}, but got {text!r}")
        return int(text)

    return convert


def _number(text: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text) or float(text) in (math.inf, -math.inf):
        raise argparse.ArgumentTypeError(f"expected a finite number, but got {text!r}")
    return float(text)


def _no_threads(text: str) -> int:
    raise argparse.ArgumentTypeError("expected none, because the number of threads is chosen where the bundle runs")


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file=None) -> None:
        """Help and versions are results, and usage is a message; the base class passes over what cannot be written."""
        if message:
            (say if file is sys.stdout else tell)(message, end="")


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="diffattn", description=__doc__,
                                     epilog="diffattn COMMAND --help: the options of a command, and an example")
    parser.add_argument("--version", action="version", version=f"diffattn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, function, help_: str, example: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_, description=help_[0].upper() + help_[1:] + ".",
                                  epilog=f"example: {example}")
        sub.set_defaults(function=function)
        sub.add_argument("directory", metavar="DIR", help="config.json, safetensors and, for text, tokenizer.json")
        if name not in ("build", "bundle", "explain"):
            sub.add_argument("--bundle", action="store_true", help="DIR is a compiled model (diffattn bundle), which is code: open "
                             "only what you trust")
        sub.add_argument("--dtype", choices=models.FLOATS, help="type of the weights (default: as in the files)")
        if name not in ("build", "info"):
            sub.add_argument("--target", default="cpu", help="cpu, cpu:ISA, cuda[:CHIP][@NUMBER], or cuda-sim:CHIP, which simulates GPU "
                             "kernels; of a bundle that is written, cuda:CHIP,CHIP too (default: %(default)s)")
            if name not in ("serve", "chat"):  # these two have rows that never depend on the batch, on a CPU
                sub.add_argument("--batch-invariant", action=argparse.BooleanOptionalAction, help="a row's result does not depend on its "
                                 "batch (default: where that costs little)")
            if name == "bundle":
                sub.add_argument("--threads", type=_no_threads, help=argparse.SUPPRESS)
            else:
                sub.add_argument("--threads", type=_integer(1, checks.MOST_THREADS), metavar="N",
                                 help="threads to use (default: as many as are worth it)")
                if name in ("generate", "eval", "serve", "bench"):
                    sub.add_argument("--trace", metavar="FILE", help="write what ran when, on which thread, as Chrome's trace JSON; "
                                     "look at it in ui.perfetto.dev")
                if name != "explain":
                    sub.add_argument("--weights", metavar="FOLDER", help="of a bundle: where its weight files lie now")
                sub.add_argument("--cuda-driver", metavar="FILE", help="libcuda.so.1, where the loader finds none")
        return sub

    sub = command("generate", generate, "write text that follows a prompt",
                  'diffattn generate examples/tiny-lm --prompt "And the king said" --temperature 0.8')
    sub.add_argument("--prompt", action="append", metavar="TEXT", help="may be repeated: a batch")
    sub.add_argument("--prompt-file", type=Path, metavar="FILE", help="a prompt a line; - reads standard input")
    sub.add_argument("--ids", action="append", type=_ids, metavar="N,N,...", help="a prompt as token ids; gives ids too and needs no tokenizer; may be repeated")
    sub.add_argument("--max-new-tokens", type=_integer(1, MOST_TOKENS), metavar="N", help="(default: 128)")
    sub.add_argument("--temperature", type=_number, help="0 (the default) takes the likeliest token")
    sub.add_argument("--top-k", type=_integer(0), metavar="K", help="draw from the K likeliest (default: 0, all)")
    sub.add_argument("--top-p", type=_number, metavar="P", help="draw from the fewest that reach P (default: 1)")
    sub.add_argument("--repetition-penalty", type=_number, metavar="R", help="make tokens that came before less likely (default: 1)")
    sub.add_argument("--seed", type=_integer(0), action="append", metavar="N", help="of what is drawn (default: 0); repeated: one for each prompt")
    sub.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    sub.description += " The model's generation_config.json may set other defaults."

    sub = command("eval", evaluate, "measure bits per character on a text",
                  "diffattn eval examples/tiny-lm examples/tiny-lm/heldout.txt")
    sub.add_argument("file", type=Path, metavar="FILE", help="UTF-8 text; - reads standard input")
    sub.add_argument("--window", type=_integer(2, MOST_TOKENS), metavar="N", help="tokens in view at most (default: what the model was made for)")

    sub = command("serve", serve, "answer requests of OpenAI's interface, with texts that no batch changes", "diffattn serve examples/tiny-lm")
    serve_command.add_to(sub, _integer)

    sub = command("chat", chat, "talk with a model that has a chat template", "diffattn chat DIR --system 'Be brief.'")
    chat_command.add_to(sub, _integer, _number)

    sub = command("build", build, "write the model's graph as MLIR", "diffattn build examples/tiny-lm -o tiny.mlir")
    sub.add_argument("-o", "--output", default="-", metavar="FILE", help="default: standard output")

    sub = command("bundle", bundle, "write the compiled model as a folder that runs without the compiler",
                  "diffattn bundle examples/tiny-lm -o tiny.bundle")
    sub.add_argument("-o", "--output", required=True, metavar="OUT", help="a folder that is not there yet, or an empty one")
    sub.add_argument("--copy-weights", action="store_true", help="copy the weight files (default: the bundle points at them)")
    sub.add_argument("--paged", action="store_true", help="the form that diffattn serve takes, whose rows do not depend on their batch")

    quantization.add_to(commands)

    maps_command.add_to(commands, _integer(1, checks.MOST_THREADS), _ids)

    pull_command.add_to(commands)

    import_command.add_to(commands, _integer(1))

    sub = commands.add_parser("plugin", help="say where a plugin for mlir-opt lies", description="Say where a plugin for mlir-opt lies.",
                              epilog="example: mlir-opt --load-dialect-plugin=$(diffattn plugin) --load-pass-plugin=$(diffattn plugin) ...")
    sub.add_argument("--model", action="store_true", help="the one with the pipelines of models (default: attention alone)")
    sub.set_defaults(function=lambda args: say(str(library.plugin(args.model))) or 0)

    sub = command("info", info, "say what a directory holds", "diffattn info examples/tiny-lm")
    sub.add_argument("--json", action="store_true")

    sub = command("explain", explain, "say which kernel each attention becomes, and with --time where the time goes",
                  "diffattn explain examples/tiny-lm --time --threads 1")
    sub.add_argument("--time", action="store_true", help="run a prompt and some steps, and say of each product and attention how long it takes, "
                     "beside what this machine reaches; needs the weights")
    sub.add_argument("--prompt-tokens", type=_integer(1, MOST_TOKENS), default=128, metavar="N", help="with --time (default: %(default)s)")
    sub.add_argument("--max-new-tokens", type=_integer(1, MOST_TOKENS), default=8, metavar="N", help="with --time (default: %(default)s)")
    sub.add_argument("--png", metavar="FILE", help="times as a roofline; needs matplotlib (diffattn[viz])")
    sub.add_argument("--json", action="store_true")

    sub = command("bench", bench, "measure prefill and decode", "diffattn bench examples/tiny-lm --prompt-tokens 100 --max-new-tokens 50")
    sub.add_argument("--prompt-tokens", type=_integer(1, MOST_TOKENS), default=128, metavar="N")
    sub.add_argument("--max-new-tokens", type=_integer(1, MOST_TOKENS), default=64, metavar="N")
    sub.add_argument("--batch", type=_integer(1, MOST_TOKENS), default=1)
    sub.add_argument("--runs", type=_integer(1, MOST_TOKENS), default=3)
    sub.add_argument("--seed", type=_integer(0), default=0)
    sub.add_argument("--json", action="store_true")
    return parser


def _parse(argv: list[str] | None) -> argparse.Namespace:
    """The arguments; a word that no option has is answered by the command's own usage and the option that is like it."""
    parser = make_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        command = commands.choices[args.command]
        word = unknown[0].split("=")[0]
        like = difflib.get_close_matches(word, command._option_string_actions, 1)
        command.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {like[0]}?" if like else ""))
    return args


def _run(argv: list[str] | None) -> int:
    args = _parse(argv)
    trace = getattr(args, "trace", None)
    warnings.showwarning = lambda message, *_: tell(f"diffattn: warning: {message}", fresh=True)
    try:
        with tracing.trace(trace) if trace else contextlib.nullcontext():
            with tracing.span(args.command):
                return args.function(args)
    except MemoryError:
        raise RunError("expected memory for this model and these arguments, but there is too little") from None


@contextlib.contextmanager
def interrupts_kept():
    """Ctrl-C that comes while a finalizer runs, of an array's memory for one, is raised after it. Python prints what a finalizer raises and goes
    on, so that a command that makes many arrays would now and then not end."""
    before = sys.unraisablehook

    def hook(unraisable) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            # From another thread and a little later: at once it would be raised in this function, and be lost as well.
            threading.Timer(0.01, _thread.interrupt_main).start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def main(argv: list[str] | None = None) -> int:
    prepare_streams()
    try:
        with interrupts_kept():
            return _run(argv)
    except KeyboardInterrupt:
        tell()
        return INTERRUPTED
    except ReaderGoneError as error:  # as with `| head`
        return error.code
    except DiffAttnError as error:
        tell(f"diffattn: error: {error}")
        return error.code
    except (ValueError, RuntimeError) as error:
        tell(f"diffattn: error: {error}")
        return InputError.code


if __name__ == "__main__":
    sys.exit(main())
