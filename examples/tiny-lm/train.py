#!/usr/bin/env python3
"""Trains the tiny-lm example: a differential transformer that writes in the manner of the King James Bible.

Needs PyTorch, tokenizers, safetensors and the Debian package bible-kjv, whose `bible` command prints the text. All
books but the held-out ones are the training text; the held-out ones become heldout.txt, which `diffattn eval` scores.

    python train.py                       # everything, about 40 minutes on one core
    python train.py --minutes 20          # ends sooner: the learning rate then falls to 0 within the time
    python train.py --resume              # goes on from the last checkpoint in --work
    python train.py --attention diffattn  # attention and its gradients by torch.ops.diffattn.attention
    torchrun --nproc-per-node 2 train.py  # processes that share each batch, with the losses of one but for rounding

The learning rate rises, stays, and falls to 0 over the last quarter. An interrupt (Ctrl-C or SIGTERM) starts the fall
at once, so that a run that had to end early still leaves a finished model; a second interrupt stops it.
"""

import argparse
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import time
from pathlib import Path

import reference
import torch
import torch.distributed as dist
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
SEED = 20241007
HELD_OUT = ("Ruth", "Ephesians")
CONFIG = {
    "model_type": "diff_v1",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "torch_dtype": "bfloat16",
}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
# The names of the books, in order; `bible` prints only abbreviations of them before its verses.
BOOKS = """Genesis,Exodus,Leviticus,Numbers,Deuteronomy,Joshua,Judges,Ruth,1 Samuel,2 Samuel,1 Kings,2 Kings,
1 Chronicles,2 Chronicles,Ezra,Nehemiah,Esther,Job,Psalms,Proverbs,Ecclesiastes,Song of Solomon,Isaiah,Jeremiah,
Lamentations,Ezekiel,Daniel,Hosea,Joel,Amos,Obadiah,Jonah,Micah,Nahum,Habakkuk,Zephaniah,Haggai,Zechariah,Malachi,
Matthew,Mark,Luke,John,Acts,Romans,1 Corinthians,2 Corinthians,Galatians,Ephesians,Philippians,Colossians,
1 Thessalonians,2 Thessalonians,1 Timothy,2 Timothy,Titus,Philemon,Hebrews,James,1 Peter,2 Peter,1 John,2 John,3 John,
Jude,Revelation""".replace("\n", "").split(",")


def read_books() -> dict[str, str]:
    """The text of each book: a heading and then one line a verse for each chapter."""
    printed = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
    names, books, last = iter(BOOKS), {}, (None, None)
    for line in printed.splitlines():
        verse = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):\d+ (.*)", line)
        if not verse:
            raise ValueError(f"expected a verse from `bible -f`, but got {line!r}")
        book, chapter, text = verse.groups()
        if book != last[0]:
            name = next(names)
            books[name] = []
        if (book, chapter) != last:
            books[name].append(f"\n{name} {chapter}\n")
        books[name].append(text.strip() + "\n")
        last = (book, chapter)
    if len(books) != len(BOOKS):
        raise ValueError(f"expected {len(BOOKS)} books, but got {len(books)}")
    return {name: "".join(lines).lstrip() for name, lines in books.items()}


def train_tokenizer(texts):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=["<|bos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    return tokenizer


def learning_rate(step, fall, steps, peak):
    """Rises for 100 steps, stays at `peak`, and falls to 0 from step `fall` to step `steps`."""
    return peak * min(1.0, (step + 1) / 100, (steps - step) / (steps - fall))


def batch_of(tokens, size, length, generator):
    """`size` random pieces of the text, each after the begin token, and what follows each of their tokens."""
    starts = torch.randint(len(tokens) - length, (size,), generator=generator)
    pieces = torch.stack([tokens[s : s + length] for s in starts])
    return F.pad(pieces, (1, 0), value=CONFIG["bos_token_id"])[:, :-1], pieces


class Processes:
    """The processes that `torchrun` started; else this one alone. Each computes a part of every batch, and the first one writes the files."""

    def __init__(self):
        self.count, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        if self.count > 1:
            dist.init_process_group("gloo")

    @property
    def writes(self):
        return self.rank == 0

    def sharing(self, model):
        """The model to compute steps with: gradients are means over the processes."""
        return torch.nn.parallel.DistributedDataParallel(model) if self.count > 1 else model

    def part_of(self, batch):
        return batch[self.rank :: self.count]

    def mean(self, number):
        return self._reduce(number) / self.count

    def agree(self, wish):
        """Whether one of them wishes it, so that all take the same step."""
        return self._reduce(float(wish)) > 0

    def _reduce(self, number):
        total = torch.tensor(number, dtype=torch.float64)
        if self.count > 1:
            dist.all_reduce(total)
        return total.item()

    def end(self):
        if self.count > 1:
            # gloo's threads let go of tensors behind a call's end, and a process that has ended before that is aborted.
            dist.barrier()
            dist.destroy_process_group()


class OperatorAttention(reference.DiffAttention):
    """Attention and its gradients by `torch.ops.diffattn.attention`, which keeps no maps."""

    def attend(self, q, k, v):
        # Autocast makes what projections give 16 bits wide, and the rotation makes it f32 again; products are of 16 bits.
        (q1, q2), (k1, k2) = q.type_as(v).unbind(1), k.type_as(v).unbind(1)
        norm = {"norm": "rms", "norm_weight": self.subln.weight, "norm_eps": 1e-5, "out_scale": 1 - self.lambda_init}
        return torch.ops.diffattn.attention(q1, k1, q2, k2, v, self.lambda_full(), is_causal=True, **norm)


def use_operator(model):
    """Has every layer of `model` attend by the operator. Weights and their names stay."""
    import diffattn.torch  # noqa: F401  registers it

    for layer in model.model.layers:
        layer.self_attn.__class__ = OperatorAttention


def optimizer_of(model):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def train_step(model, optimizer, inputs, targets, dtype):
    """One step on token ids `[B, T]` and what follows each, computed in f32 or, under autocast, in `dtype`: the loss."""
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        logits = model(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def export(model, tokenizer, out):
    """Writes the weights as bf16. The vectors of lambda go through exp and are tiny: they stay f32."""
    from safetensors.torch import save_file

    state = {
        name: (tensor if "lambda" in name else tensor.to(torch.bfloat16)).detach().contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"))


def plot(curve, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(curve["step"], curve["train_loss"], label="training text", linewidth=1)
    axes.plot(curve["heldout_step"], curve["heldout_loss"], "o-", label="held-out books", markersize=3)
    axes.set(xlabel="step", ylabel="loss (nats a token)", title="tiny-lm")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE, help="where the model goes (default: beside this script)")
    parser.add_argument("--work", type=Path, default=Path("/tmp/tiny-lm"), help="where checkpoints go")
    parser.add_argument("--steps", type=int, default=3600)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--peak", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start the fall so as to end in this time")
    parser.add_argument("--fall", type=int, help="step at which the learning rate starts to fall")
    parser.add_argument("--attention", choices=["torch", "diffattn"], default="torch", help="plain PyTorch, or the operator")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="of products; weights are f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    processes = Processes()
    if args.batch % processes.count:
        parser.error(f"argument --batch: expected a multiple of the {processes.count} processes, but got {args.batch}")
    args.out.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    random.seed(SEED)

    books = read_books()
    heldout = "".join(books[name] for name in HELD_OUT)
    if processes.writes:
        (args.out / "heldout.txt").write_text(heldout)
    texts = [text for name, text in books.items() if name not in HELD_OUT]
    tokenizer = train_tokenizer(texts)
    tokens = torch.tensor([i for text in texts for i in tokenizer.encode(text + "\n", add_special_tokens=False).ids])
    heldout_ids = tokenizer.encode(heldout, add_special_tokens=False).ids
    window = CONFIG["max_position_embeddings"]
    model = reference.DiffV1(CONFIG)
    if args.attention == "diffattn":
        use_operator(model)
    parameters = sum(p.numel() for p in model.parameters())
    say = print if processes.writes else lambda *_, **__: None
    say(f"{parameters} parameters, {len(tokens)} tokens, {len(heldout_ids)} held out", flush=True)

    optimizer = optimizer_of(model)
    trained = processes.sharing(model)
    generator = torch.Generator().manual_seed(SEED)
    curve = {"step": [], "train_loss": [], "heldout_step": [], "heldout_loss": []}
    step, steps, fall = 0, args.steps, args.fall or args.steps * 3 // 4
    if args.resume:
        saved = torch.load(args.work / "checkpoint.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        generator.set_state(saved["generator"])
        step, steps, fall, curve = saved["step"], saved["steps"], saved["fall"], saved["curve"]

    interrupts = 0

    def interrupt(*_):
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    begin, losses, seconds = time.monotonic(), [], []
    while step < steps:
        minutes = (time.monotonic() - begin) / 60
        if step < fall and processes.agree(interrupts or minutes > 0.75 * args.minutes):
            fall, steps = step, step + max(step // 3, 50)
            say(f"the learning rate falls from here to step {steps}", flush=True)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, fall, steps, args.peak)
        inputs, targets = map(processes.part_of, batch_of(tokens, args.batch, window, generator))
        start = time.monotonic()
        losses.append(train_step(trained, optimizer, inputs, targets, DTYPES[args.dtype]))
        seconds.append(time.monotonic() - start)
        step += 1
        if step % 20 == 0:
            curve["step"].append(step)
            curve["train_loss"].append(round(processes.mean(sum(losses) / len(losses)), 4))
            milliseconds = statistics.median(seconds) * 1e3
            say(f"step {step}/{steps} loss {curve['train_loss'][-1]} {milliseconds:.0f} ms a step minutes {minutes:.1f}", flush=True)
            losses, seconds = [], []
        if processes.writes and (step % 200 == 0 or step == steps):
            bits = reference.bits_per_character(model, heldout_ids, len(heldout_ids), window, 0)
            curve["heldout_step"].append(step)
            curve["heldout_loss"].append(round(bits * math.log(2), 4))
            print(f"step {step} held-out loss {curve['heldout_loss'][-1]}", flush=True)
            state = {"step": step, "steps": steps, "fall": fall, "curve": curve, "generator": generator.get_state()}
            state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, args.work / "checkpoint.pt")
            export(model, tokenizer, args.out)
    processes.end()
    if not processes.writes:
        return

    plot(curve, args.out / "loss.png")
    # The published number is that of the exported model: bf16 weights, computed with in f32.
    bits = reference.bits_per_character(reference.load(args.out), heldout_ids, len(heldout), window, 0)
    result = {
        "bits_per_character": bits,
        "heldout_characters": len(heldout),
        "heldout_tokens": len(heldout_ids),
        "window": window,
        "parameters": parameters,
        "steps": steps,
        "fall": fall,
        "batch": args.batch,
        "tokens_seen": steps * args.batch * window,
        "seed": SEED,
        "attention": args.attention,
        "dtype": args.dtype,
        "processes": processes.count,
        "torch": torch.__version__,
    }
    (args.out / "training.json").write_text(json.dumps(result | {"curve": curve}) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
