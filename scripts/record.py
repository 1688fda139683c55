"""Writes README's figures from the readings in benchmarks/results, between the markers `<!-- figures: NAME -->` and `<!-- /figures -->`.

scripts/record.py [--check]

Each block takes the newest reading of its machine and benchmark. --check writes nothing and fails where README has other text.
"""
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Readings:
    """The newest reading of each name in a folder: `zen4-attention-1core` of `2026-11-27-zen4-attention-1core.json`."""

    def __init__(self, folder):
        self.folder = folder

    def newest(self, name, file=None):
        """The reading of a name, or a file of the newest folder of that name which has it."""
        paths = sorted(self.folder.glob(f"20??-??-??-{name}/{file}" if file else f"20??-??-??-{name}.json"))
        if not paths:
            raise SystemExit(f"expected a reading {name}{'/' + file if file else ''} in {self.folder}, but got none")
        return json.loads(paths[-1].read_text())

    def rows(self, name, **wanted):
        rows = [row for row in self.newest(name)["rows"] if all(row.get(key) == value for key, value in wanted.items())]
        if not rows:
            raise SystemExit(f"expected rows of {wanted} in the newest reading {name}, but got none")
        return rows

    def gpu_row(self, name, file, row):
        (match,) = (one for one in self.newest(name, file)["rows"] if one["name"] == row)
        return match


def span(values, digits=1):
    """`1.5 to 1.8`, or one number where the values are printed alike."""
    texts = [f"{value:.{digits}f}" for value in (min(values), max(values))]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def table(*rows):
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def prose(text):
    return textwrap.fill(" ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False)


def ratios(rows, kernel="diffattn"):
    return [row[kernel]["ratio"] for row in rows]


def rates(reading, rows, kernel="diffattn"):
    """Nominal GFLOP/s."""
    return [row[kernel]["of peak"] * reading["fma_peak_gflops"] for row in rows]


def summary(readings):
    """The first line on speed."""
    (row,) = readings.rows("zen4-attention-1core", kind="prefill", dtype="f32", length=2048, causal=False)
    return prose(f"One Zen 4 core, f32, 2048 tokens: {row['diffattn']['ratio']:.1f} times the speed of the best PyTorch variant ([more](#how-fast)).")


def attention(readings):
    """Prefill on CPUs."""
    name = "zen4-attention-1core"
    reading = readings.newest(name)
    shape, version = reading["shape"], reading["torch"].partition("+")[0].rpartition(".")[0]

    def line(title, dtype, kernel):
        rows = readings.rows(name, kind="prefill", dtype=dtype)
        return [title, *(f"{rate:.0f} ({row[kernel]['ratio']:.1f}×)" for row, rate in zip(rows, rates(reading, rows, kernel)))]

    columns = ["causal" if row["causal"] else f"N = {row['length']} full" for row in readings.rows(name, kind="prefill", dtype="f32")]
    text = prose(f"""One core of a Zen 4 server (FMA peak measured beside it: {reading['fma_peak_gflops']:.0f} GFLOP/s), {shape['heads']} heads of
                 {shape['d']} with values of {shape['dv']}, head norm included; nominal GFLOP/s (6 units of matrix product), and the ratio to the
                 fastest of PyTorch {version}'s naive module, the same under `torch.compile`, and compositions of two and four
                 `scaled_dot_product_attention` calls, interleaved in the same process:""")
    text += "\n\n" + table(["", *columns], line("f32, AVX-512", "f32", "diffattn"), line("f32, 256-bit", "f32", "diffattn 256-bit"),
                           line("bf16 dot products", "bf16", "diffattn"))
    long, short, wide = (f"zen4-attention-{kind}-1core" for kind in ("bf16-4096", "short", "128x256"))
    long_rows, long_rates = readings.rows(long, kind="prefill"), rates(readings.newest(long), readings.rows(long, kind="prefill"))
    few = {(dtype, causal): span(ratios(readings.rows(short, kind="prefill", dtype=dtype, causal=causal)))
           for dtype in ("f32", "bf16") for causal in (False, True)}
    wide_rows = [row for dtype in ("f32", "bf16") for row in readings.rows(wide, kind="prefill", dtype=dtype, causal=False)]
    wide_rates = rates(readings.newest(wide), wide_rows)
    zen3 = readings.newest("zen3-attention-1core")
    old = {key: readings.rows("zen3-attention-1core", kind="prefill", **key_of) for key, key_of in
           {"f32": {"dtype": "f32"}, "bf16": {"dtype": "bf16"}, "full": {"causal": False}, "causal": {"causal": True}}.items()}
    return text + "\n\n" + prose(f"""More than the FMA peak is no mistake: the kernel multiplies by V once where the count takes it twice. At N = 4096
        bf16 runs at {long_rates[0]:.0f} full and {long_rates[1]:.0f} causal ({long_rows[0]['diffattn']['ratio']:.1f}×,
        {long_rows[1]['diffattn']['ratio']:.1f}×), and with 128 and 256 tokens f32 is {few['f32', False]} times (full) and {few['f32', True]} times
        (causal) as fast as PyTorch, bf16 {few['bf16', False]} and {few['bf16', True]} times. Heads of 128 with values of 256 run at
        {wide_rates[0]:.0f} (f32) and {wide_rates[1]:.0f} (bf16) full at N = 1024 ({wide_rows[0]['diffattn']['ratio']:.1f}×,
        {wide_rows[1]['diffattn']['ratio']:.1f}×). A core of Zen 3, which has AVX2 alone (FMA peak {zen3['fma_peak_gflops']:.0f}), runs f32 at
        {span(rates(zen3, old['f32']), 0)} in these four columns and bf16 at {span(rates(zen3, old['bf16']), 0)}: {span(ratios(old['full']))} times
        (full) and {span(ratios(old['causal']))} times (causal) as fast as PyTorch.""")


def decode(readings):
    """One query against many keys on CPUs: parts of the rate of the read loop."""
    def line(title, *names):
        cells = []
        for heads in (8, 2):
            for dtype in ("f32", "bf16"):
                parts = [row["diffattn"]["of read loop"] * 100 for name in names for row in readings.newest(name)["rows"]
                         if row["kind"] == "decode" and row["dtype"] == dtype and row["key heads"] == heads and (dtype == "f32" or name not in replaced)]
                cells.append(span(parts, 0) + " %")
        return [title, *cells]

    # A later reading of bf16 alone on this core.
    replaced = {"zen3-attention-1core"}
    keys = readings.rows("zen4-attention-1core", kind="decode")[0]["length"] // 1024
    text = prose(f"One query against {keys}k keys, as a part of the rate of a loop that does nothing but read them:")
    return text + "\n\n" + table(["", "f32", "bf16", "f32, four heads share a key", "bf16, four share"],
                 line("Zen 4", "zen4-attention-1core", "zen4-decode-masks-1core"),
                 line("Zen 4, heads of 128 with values of 256, 16k keys", "zen4-attention-128x256-1core"),
                 line("Zen 3", "zen3-attention-1core", "zen3-decode-bf16-1core"))


def models(readings):
    """A whole model on CPUs, beside transformers."""
    names = {"f32": "{}-model-1core", "bf16": "{}-model-bf16-1core", "int8": "{}-model-bf16-int8-1core", "int4": "{}-model-bf16-int4-1core"}

    def line(title, machine, key):
        cells = [f"{readings.newest(name.format(machine))[key]:.1f}×" if weights != "f32" or machine == "zen4" else "" for weights, name in names.items()]
        return [title, *cells]

    reading = readings.newest("zen4-model-1core")
    version, prompt = reading["transformers"].rpartition(".")[0], reading["prompt"]
    return prose(f"""A DiffLlama of {reading['parameters'] / 1e6:.0f} M parameters, in times the speed of transformers {version}, which has quantized
                 weights as the bf16 numbers that they stand for:""") + "\n\n" + table(
        ["", *names], line(f"Zen 4: a prompt of {prompt} tokens", "zen4", "prefill_ratio"), line("Zen 4: a token", "zen4", "decode_ratio"),
        line(f"Zen 3: a prompt of {prompt} tokens", "zen3", "prefill_ratio"), line("Zen 3: a token", "zen3", "decode_ratio"))


def others(readings):
    """One map, gradients, and masks that are arrays, on a core of Zen 4."""
    def plain(dtype, causal):
        return span(ratios(readings.rows("zen4-plain-1core", kind="prefill", dtype=dtype, causal=causal)))

    def step(dtype):
        return span(ratios(readings.rows("zen4-plain-1core", kind="decode", dtype=dtype, **{"key heads": 8})))

    def gradients(causal):
        return span(ratios(readings.rows("zen4-backward-1core", kind="forward + backward", dtype="f32", causal=causal)))

    def memory(length):
        (row,) = readings.rows("zen4-backward-1core", kind="memory", length=length)
        taken = {name: numbers["peak"] - numbers["before"] for name, numbers in row["bytes"].items()}
        return f"{taken['sdpa x2'] / taken['diffattn']:.0f}"

    many = [row["boolean mask"] for queries in (1024, 2048) for row in readings.rows("zen4-attention-1core", kind="mask", mask="causal", queries=queries)]
    one = readings.rows("zen4-decode-masks-1core", kind="mask", mask="room", queries=1)
    return "\n\n".join(map(prose, [
        f"""Attention of one map on that core, 8 heads of 64 and 257, 512 or 2048 tokens, beside the best of PyTorch: in f32 {plain('f32', False)} times
        (full) and {plain('f32', True)} times (causal) as fast, in bf16 {plain('bf16', False)} times and {plain('bf16', True)} times; one query of 8k
        keys {step('f32')} times in f32 and {step('bf16')} in bf16.""",
        f"""Gradients in f32 on the core of Zen 4, forward and backward, (64,128) and 1024 or 2048 tokens: {gradients(False)} times (full) and
        {gradients(True)} times (causal) as fast as the best of PyTorch under autograd. Two calls of SDPA take {memory(2048)} times the memory for 2048
        tokens and {memory(4096)} times for 4096 ([training](docs/training.md#speed)).""",
        f"""Blocks of keys that a boolean mask hides are skipped, also where it is an array: 1024 or 2048 tokens with a causal one take
        {span([row['of no mask'] for row in many], 2)} of the time without a mask, and one query that sees a quarter of the 32k keys takes
        {one[0]['boolean mask']['of no mask']:.2f} (f32) and {one[1]['boolean mask']['of no mask']:.2f} (bf16); PyTorch's calls with the same masks take
        {span([row['ratio'] for row in many])} and {span([row['boolean mask']['ratio'] for row in one])} times as long."""]))


def hopper(readings):
    """Attention and a model on an H200."""
    def times(row, peer, ours="diffattn", digits=2):
        return f"{row['times'][peer]['median_s'] / row['times'][ours]['median_s']:.{digits}f}×"

    def cell(name):
        row = readings.gpu_row("h200", "forward.json", name)
        alone, tail = (times(row, f"cuDNN x2, {kernels}") for kernels in ("kernels alone", "eager tail"))
        return f"{row['times']['diffattn']['nominal_tflops']:.0f} ({alone}, {tail})"

    # The probe of the same run.
    folder = max(readings.folder.glob("20??-??-??-h200/forward.json")).parent
    probe = json.loads((folder / "probe.json").read_text())
    versions, cudnn, size = probe["versions"], int(probe["versions"]["cudnn"]), probe["rates"]["size"]
    product = 2 * size**3 / probe["rates"]["gemm"]["median_s"] / 1e12
    text = prose(f"""On an H200 (141 GB, {float(probe['driver']['power.limit'].split()[0]):.0f} W) in bf16, 16 heads (8 of (128,256)), in one run with
                 PyTorch {versions['torch'].rpartition('.')[0]} and cuDNN {cudnn // 10000}.{cudnn // 100 % 100}: our nominal TFLOP/s (an {size}³ product
                 reaches {product:.0f}), and how many times as long two calls of cuDNN take, alone and with the eager tail that makes differential
                 attention of them:""")
    text += "\n\n" + table(["", "4k tokens full", "causal", "16k full", "causal", "2k causal, head norm"],
                           ["(64,128)", *map(cell, ("full 4k", "causal 4k", "full 16k", "causal 16k", "causal 2k with tail"))],
                           ["(128,256)", "", "", cell("(128,256) full 16k"), "", ""],
                           ["(128,128), one K", "", "", cell("(128,128) one K, full 16k"), cell("(128,128) one K, causal 16k"), ""])
    step = readings.gpu_row("h200", "decode.json", "B32, 8k")
    prompt, token = (readings.gpu_row("h200", "models.json", name) for name in ("prefill 2048", "decode at 512"))
    parameters = readings.newest("h200", "models.json")["parameters"]
    eager, compiled, graph = "PyTorch, eager, CUDA graph", "PyTorch, compiled, CUDA graph", "diffattn, one graph"
    return text + "\n\n" + prose(f"""One query against 8k keys, batch 32, reads memory at {step['times']['diffattn']['tb_per_s']:.1f} TB/s,
        {times(step, 'cuDNN x2, eager tail')} as fast as cuDNN with the tail. A DiffLlama of {parameters / 1e6:.0f} M parameters takes a prompt of 2048
        tokens, as one graph, at {times(prompt, eager, graph, 1)} the speed of eager PyTorch in one and at {times(prompt, compiled, graph)} that of
        `torch.compile`, and a token after 511 at {times(token, eager, digits=1)} and {times(token, compiled, digits=1)}
        ([gpu-check](docs/gpu-check.md#what-an-h200-and-an-h100-reached)).""")


def superseded(folder):
    """Readings of which a newer one of the same name has every kind of row, or every file."""
    def parts(path):
        if path.is_dir():
            return {file.name for file in path.iterdir()}
        if path.suffix != ".json":
            return {path.suffix}
        rows = json.loads(path.read_text()).get("rows", [])
        return {"reading", *((row.get("kind"), row.get("dtype")) for row in rows if isinstance(row, dict))}

    newest: dict[str, pathlib.Path] = {}
    old = []
    for path in sorted(folder.glob("20??-??-??-*"), reverse=True):
        later = newest.setdefault(path.name[11:], path)
        # A picture goes with its reading.
        if later is not path and parts(path) <= parts(later) and not (path.suffix == ".png" and path.with_suffix(".json").exists()):
            old.append(path.name)
    return old


BLOCKS = {function.__name__: function for function in (summary, attention, decode, models, others, hopper)}
MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(\n<!-- /figures -->)", re.S)


def write(text, readings):
    """The text with every marked block written anew."""
    names = [match[2] for match in MARKED.finditer(text)]
    if sorted(names) != sorted(BLOCKS):
        raise SystemExit(f"expected one block each of {', '.join(BLOCKS)}, but got {', '.join(names) or 'none'}")
    return MARKED.sub(lambda match: match[1] + BLOCKS[match[2]](readings) + match[3], text)


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    path = ROOT / "README.md"
    before = path.read_text()
    after = write(before, Readings(ROOT / "benchmarks/results"))
    if arguments and after != before:
        sys.exit("expected README.md as scripts/record.py writes it, but its figures are others: run scripts/record.py")
    if after != before:
        path.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
