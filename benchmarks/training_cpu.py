#!/usr/bin/env python3
"""Steps of training on this machine's CPU: attention by the operator against the models' own attention in PyTorch, time and memory.

Two models with random weights: examples/tiny-lm by the step of its train.py, and a DiffLlama of transformers by `Trainer`, patched
against `attn_implementation="sdpa"`. Both contestants have the same weights and tokens and take steps in turn in one process, with the
probes and samples of attention_cpu.py. A step is forward, backward and AdamW. Memory is that of a process of its own: how far two steps
raise the peak of what it holds, gradients and the optimizer's state included.

    python benchmarks/training_cpu.py                          # f32, one thread
    python benchmarks/training_cpu.py --dtype bf16 --threads 2 --output benchmarks/results/training.json
    python benchmarks/training_cpu.py --tiny-lm 2048 --diffllama --no-memory    # tiny-lm alone
"""

import argparse
import json
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmarks"), str(ROOT / "examples/tiny-lm"), str(ROOT / "test/python/models")]

from attention_cpu import add_run_options, check_run_options, run, set_up  # noqa: E402
from core_rate import at_least, noise, sample  # noqa: E402
from held_memory import peak_in_process, peak_of, raised  # noqa: E402

#: The largest norm of the error of all gradients, as a part of their norm in PyTorch's own attention.
TOLERANCE = {"f32": 1e-3, "bf16": 0.1}
#: The tokens of a sequence that compiles and loads what a step needs.
SHORT = 32
CONTESTANTS = ("torch", "diffattn")


class TinyLm:
    """examples/tiny-lm in training."""

    def __init__(self, args, length, batch, contestant):
        import reference
        import torch
        import train

        torch.manual_seed(0)
        self.model, self.dtype, self.train_step = reference.DiffV1(train.CONFIG), train.DTYPES[args.dtype], train.train_step
        if contestant == "diffattn":
            train.use_operator(self.model)
        self.optimizer = train.optimizer_of(self.model)
        self.ids = torch.randint(train.CONFIG["vocab_size"], (batch, length + 1))

    def loss(self, length):
        import torch

        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            logits = self.model(self.ids[:, :length])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), self.ids[:, 1 : length + 1].flatten())

    def step(self):
        self.train_step(self.model, self.optimizer, self.ids[:, :-1], self.ids[:, 1:], self.dtype)

    def end(self):
        """There is nothing that goes on."""


class DiffLlama:
    """A DiffLlama in the hands of `Trainer`, which runs in a thread of its own and waits before each step."""

    class _End(Exception):
        pass

    def __init__(self, args, length, batch, contestant):
        import torch
        import torchvision_stand_in  # noqa: F401
        from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

        import diffattn

        torch.manual_seed(0)
        config = DiffLlamaConfig(vocab_size=2048, hidden_size=args.hidden, intermediate_size=4 * args.hidden, num_hidden_layers=args.layers,
                                 num_attention_heads=8, num_key_value_heads=4, attn_implementation="sdpa", use_cache=False)
        self.args, self.batch, self.model = args, batch, DiffLlamaForCausalLM(config).train()
        if contestant == "diffattn":
            diffattn.patch(self.model)
        self.ids = torch.randint(config.vocab_size, (batch, length))
        self.thread = None

    def loss(self, length):
        import torch

        with torch.autocast("cpu", torch.bfloat16, enabled=self.args.dtype == "bf16"):
            return self.model(input_ids=self.ids[:, :length], labels=self.ids[:, :length]).loss

    def _start(self):
        self.go, self.done, self.error, self.is_over = threading.Semaphore(0), threading.Semaphore(0), None, False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self._wait()

    def _run(self):
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Turns(TrainerCallback):
            def on_step_begin(_, *__, **___):
                self.done.release()
                self.go.acquire()
                if self.is_over:
                    raise DiffLlama._End

        try:
            with tempfile.TemporaryDirectory() as folder:
                rows = [{"input_ids": row, "labels": row} for row in self.ids] * 1000
                Trainer(self.model, TrainingArguments(
                    folder, per_device_train_batch_size=self.batch, max_steps=1 << 30, use_cpu=True, bf16=self.args.dtype == "bf16", report_to="none",
                    disable_tqdm=True, logging_strategy="no", save_strategy="no"), train_dataset=rows, callbacks=[Turns()]).train()
        except DiffLlama._End:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.done.release()

    def _wait(self):
        self.done.acquire()
        if self.error:
            raise self.error

    def step(self):
        """Up to the next one's begin."""
        if self.thread is None:
            self._start()
        self.go.release()
        self._wait()

    def end(self):
        if self.thread is not None:
            self.is_over = True
            self.go.release()
            self.thread.join()


KINDS = {"tiny-lm": TinyLm, "diffllama": DiffLlama}


def batch_of(args, length):
    return max(args.tokens // length, 1)


def check(args, trainings, length):
    """Nothing wrong is timed: the loss and all gradients of the first step."""
    import torch

    results = {}
    for name, training in trainings.items():
        loss = training.loss(length)
        gradients = torch.autograd.grad(loss, list(training.model.parameters()))
        results[name] = loss.item(), torch.cat([x.flatten() for x in gradients])
    (loss, ours), (expected_loss, expected) = results["diffattn"], results["torch"]
    error = ((ours - expected).norm() / expected.norm()).item()
    if not abs(loss - expected_loss) < TOLERANCE[args.dtype] or not error < TOLERANCE[args.dtype]:
        raise SystemExit(f"expected the loss {expected_loss:.5f} of PyTorch's own attention and its gradients, but got the loss {loss:.5f} and an "
                         f"error of {error:.2g} in the gradients")


def measure(args, probe, kind, length):
    trainings = {name: KINDS[kind](args, length, batch_of(args, length), name) for name in CONTESTANTS}
    check(args, trainings, length)
    try:
        for training in trainings.values():  # the first one makes the optimizer's state
            training.step()
        times = sample(probe, {name: training.step for name, training in trainings.items()}, args.turns)
    finally:
        for training in trainings.values():
            training.end()
    row = {"kind": kind, "dtype": args.dtype, "length": length, "batch": batch_of(args, length), "times": times,
           "ratio": times["torch"]["seconds"] / times["diffattn"]["seconds"]}
    print(f"{args.dtype} {kind}, {row['batch']} x {length} tokens: {times['diffattn']['seconds'] * 1e3:.0f} ms a step, {row['ratio']:.2f}x of "
          f"PyTorch's own attention ({times['torch']['seconds'] * 1e3:.0f}) {noise(times)}", flush=True)
    return row


def show_memory(args, kind, contestant, length):
    """In a process of its own: prints what it holds before two steps, and at their peak."""
    training = KINDS[kind](args, length, batch_of(args, length), contestant)
    training.loss(SHORT).backward()
    training.model.zero_grad()
    bytes_ = peak_of(lambda: (training.step(), training.step()))
    training.end()
    print(json.dumps(bytes_))


def measure_memory(args, kind, length):
    row = {"kind": f"{kind} memory", "dtype": args.dtype, "length": length, "batch": batch_of(args, length),
           "bytes": {name: peak_in_process("--show-memory", kind, name, length) for name in CONTESTANTS}}
    print(f"{args.dtype} {kind}, {row['batch']} x {length} tokens: steps take {raised(row['bytes']['diffattn']) / 2**20:.0f} MiB, with PyTorch's own "
          f"attention {raised(row['bytes']['torch']) / 2**20:.0f}", flush=True)
    return row


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    length = at_least(SHORT)
    parser.add_argument("--tiny-lm", type=length, nargs="*", default=[256, 1024], metavar="LENGTH", help="lengths of its sequences; no number: none")
    parser.add_argument("--diffllama", type=length, nargs="*", default=[1024], metavar="LENGTH", help="likewise")
    parser.add_argument("--tokens", type=at_least(1), default=2048, help="of a step, in sequences of that length (at least one)")
    parser.add_argument("--layers", type=at_least(1), default=6, help="of the DiffLlama")
    parser.add_argument("--hidden", type=at_least(16), default=256, help="its width, a multiple of 16")
    parser.add_argument("--dtype", choices=list(TOLERANCE), default="f32", help="bf16: under autocast, with weights in f32")
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--show-memory", nargs=3, metavar=("KIND", "CONTESTANT", "LENGTH"), help=argparse.SUPPRESS)
    add_run_options(parser)
    args = parser.parse_args()
    check_run_options(parser, args)
    if args.hidden % 16:
        parser.error(f"--hidden: expected a multiple of 16, but got {args.hidden}")
    return args


def main():
    args = parse()
    set_up(args.threads)
    if args.show_memory:
        kind, contestant, length = args.show_memory
        show_memory(args, kind, contestant, int(length))
        return

    def rows(probe):
        cases = [(kind, length) for kind, lengths in (("tiny-lm", args.tiny_lm), ("diffllama", args.diffllama)) for length in lengths]
        times = [measure(args, probe, *case) for case in cases]
        return times + [measure_memory(args, *case) for case in cases if args.memory]

    run(args, f"{args.tokens} tokens a step, {args.dtype}", {"tokens": args.tokens, "layers": args.layers, "hidden": args.hidden}, rows)


if __name__ == "__main__":
    main()
