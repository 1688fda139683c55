#!/usr/bin/env python3
"""A DiffLlama of 351 million random parameters in vLLM on a CPU: the plugin, and the same model with vLLM's own attention of CPUs called
four times a layer (each map and each half of the values), the maps subtracted and normed in PyTorch.

One engine in one process, whose steps the two take in turns: each has keys and values of its own. At the end the engine's texts of 32
prompts take turns with transformers' `generate_batch`, as it comes and patched, without HTTP on any side. Runs in the environment of scripts/setup-vllm.sh:

    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_model.py
    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_model.py --dtype bfloat16 --only decode prefill --output result.json
    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_model.py --only serve
    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_model.py --layers 2 --hidden 128 --vocabulary 512 --context 64 --turns 3
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "benchmarks")]

from core_rate import cpu_name  # noqa: E402

#: Tokens of a page, and the most of one step.
ROWS, MOST_TOKENS = 128, 2048


class FourCalls:
    """The attention of a layer by vLLM's own kernels: four caches, of each map and each half of the values."""

    def __init__(self, impl, cache):
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        self.heads, self.width, self.scale = impl.key_value_heads, impl.head_size, impl.scale
        self.lam, self.eps, self.out_scale = impl.lam, impl.options["norm_eps"], impl.options["out_scale"]
        self.isa = _get_attn_isa(cache.dtype, ROWS, self.width)
        self.caches = [torch.zeros(cache.shape[0], self.heads, 2 * ROWS, self.width, dtype=cache.dtype).chunk(2, 2) for _ in range(4)]
        self.scales = {"k_scale": 1.0, "v_scale": 1.0, "kv_cache_dtype": "auto"}

    def __call__(self, plans, query, key, value, data, output):
        from vllm import _custom_ops as ops

        count, heads = data.tokens, self.heads
        query, key, value, output = (rows[:count].unflatten(1, (-1, width)) for rows, width in
                                     ((query, self.width), (key, self.width), (value, 2 * self.width), (output, 2 * self.width)))
        signals = output.shape[1]
        if not plans:  # once a step, as vLLM does
            plans.append((ops.cpu_attn_get_scheduler_metadata(
                num_reqs=len(data.lengths), num_heads=signals, num_kv_heads=heads, head_dim=self.width, seq_lens=data.lengths, dtype=query.dtype,
                query_start_loc=data.query_starts, causal=True, sliding_window_size=-1, isa=self.isa, enable_kv_split=False, dynamic_causal=None,
                kv_cache_dtype="auto"), data.slots))
        plan, slots = plans[0]
        parts = []
        for number, cache in enumerate(self.caches):
            first, side = divmod(number, 2)
            ops.cpu_attn_reshape_and_cache(key[:, first * heads:(first + 1) * heads].contiguous(), value.chunk(2, 2)[side].contiguous(),
                                           *cache, slots, self.isa, **self.scales)
            parts.append(torch.empty(count, signals, self.width, dtype=query.dtype))
            ops.cpu_attention_with_kv_cache(
                query=query.chunk(2, 1)[first].contiguous(), key_cache=cache[0], value_cache=cache[1], output=parts[-1],
                query_start_loc=data.query_starts, seq_lens=data.lengths, scale=self.scale, causal=True, alibi_slopes=None, sliding_window=-1,
                block_table=data.block_table, softcap=0.0, scheduler_metadata=plan, s_aux=None, dynamic_causal=None, **self.scales)
        one, two = torch.cat(parts[:2], -1), torch.cat(parts[2:], -1)
        mixed = (one - self.lam * two).float()
        output[:] = (mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + self.eps) * self.out_scale).to(output.dtype)


class Contest:
    """vLLM's engine, whose layers' attention is that of `turn`: "diffattn" or "four calls"; `both`: each stores keys and values, whoever
    computes. `attention` has the seconds of its calls."""

    def __init__(self, folder, args):
        from vllm import LLM

        from diffattn.vllm import backend

        pages = max(16 * -(-(args.context + 2 * args.steps + 1) // ROWS), 64) + 8
        self.llm = LLM(str(folder), skip_tokenizer_init=True, dtype=args.dtype, enforce_eager=True, max_model_len=args.model_length, block_size=ROWS,
                       max_num_batched_tokens=MOST_TOKENS, max_num_seqs=32, num_gpu_blocks_override=pages, enable_prefix_caching=False,
                       kv_cache_memory_bytes=1 << 30)
        self.engine, self.turn, self.both, self.attention = self.llm.llm_engine, "diffattn", False, []
        self.peers, self.plans, self.numbers = {}, [], 0
        ours = self.ours = backend.Impl.forward

        def forward(impl, layer, query, key, value, cache, data, output, *more, **options):
            if data is None:
                return ours(impl, layer, query, key, value, cache, data, output, *more, **options)
            if impl not in self.peers:
                self.peers[impl] = FourCalls(impl, cache)
            names = [name for name in ("diffattn", "four calls") if self.both and name != self.turn] + [self.turn]
            for name in names:
                begin = time.perf_counter()
                if name == "diffattn":
                    ours(impl, layer, query, key, value, cache, data, output, *more, **options)
                else:
                    self.peers[impl](self.plans, query, key, value, data, output)
            self.attention.append(time.perf_counter() - begin)
            return output

        backend.Impl.forward = forward

    def add(self, prompts, count):
        from vllm import SamplingParams

        for prompt in prompts:
            self.numbers += 1
            self.engine.add_request(str(self.numbers), {"prompt_token_ids": prompt},
                                    SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False))

    def step(self, turn, both=False):
        """The seconds of a step, of its attention, and what it gave: tokens by request."""
        self.turn, self.both, self.attention = turn, both, []
        self.plans.clear()
        begin = time.perf_counter()
        done = self.engine.step()
        return time.perf_counter() - begin, sum(self.attention), {one.request_id: list(one.outputs[0].token_ids) for one in done}

    def finish(self, turn, both=False):
        """Steps until no request is left: their seconds, and the last tokens of each request."""
        seconds, tokens = 0.0, {}
        while self.engine.has_unfinished_requests():
            taken, _, given = self.step(turn, both)
            seconds += taken
            tokens |= given
        return seconds, [tokens[name] for name in sorted(tokens, key=int)]


def prompts(count, length, vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = [length] * count if isinstance(length, int) else [length[number % len(length)] for number in range(count)]
    return [torch.randint(2, vocabulary, (one,), generator=generator).tolist() for one in lengths]


def decode(contest, args):
    """Steps of 16 requests behind a context, in turns; keys of the context are in both caches."""
    contest.add(prompts(16, args.context, args.vocabulary), 2 * args.steps + 1)
    waiting = set(range(16))
    while waiting:
        _, _, given = contest.step("diffattn", both=True)
        waiting -= {number for number in waiting if str(contest.numbers - 15 + number) in given}
    steps = {"diffattn": [], "four calls": []}
    attention = {name: [] for name in steps}
    for number in range(2 * (args.steps - 1)):
        name = ("diffattn", "four calls")[number % 2]
        taken, inside, _ = contest.step(name)
        steps[name].append(taken)
        attention[name].append(inside)
    contest.finish("diffattn")
    return {"kind": "decode", "requests": 16, "context": args.context, **rows(steps, attention)}


def prefill(contest, args, length):
    """A prompt of one step, in turns; both give the same token."""
    times, attention = {"diffattn": [], "four calls": []}, {"diffattn": [], "four calls": []}
    (prompt,) = prompts(1, length, args.vocabulary, seed=length)
    tokens = {}
    for number in range(2 * (args.turns + 1)):
        name = ("diffattn", "four calls")[number % 2]
        contest.add([prompt], 1)
        taken, inside, given = contest.step(name)
        (tokens[name],) = given.values()
        if number > 1:  # the first of each is cold
            times[name].append(taken)
            attention[name].append(inside)
    if args.dtype == "float32" and tokens["diffattn"] != tokens["four calls"]:
        sys.exit(f"error: expected the same token behind {length} tokens, but got {tokens}")
    return {"kind": "prefill", "tokens": length, **rows(times, attention)}


def serve(contest, args, folder):
    """32 prompts with 32 tokens each: this engine, and `generate_batch` of transformers with the same sizes of steps, as it comes and with
    attention by the operator, in turns. Seconds of the clock and of the process's CPU, of which other programs take no part."""
    import diffattn

    texts = prompts(32, (32, 64, 96, 128), args.vocabulary, seed=7)
    models = {name: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype)).eval()
              for name in ("generate_batch", "generate_batch, patched")}
    diffattn.patch(models["generate_batch, patched"])
    sizes = transformers.ContinuousBatchingConfig(page_size=ROWS, num_blocks=96, max_batch_tokens=MOST_TOKENS, max_requests_per_batch=32)
    attention = []

    def run(name, texts, count):
        if name == "diffattn":
            contest.add(texts, count)
            attention.append(0.0)
            while contest.engine.has_unfinished_requests():
                attention[-1] += contest.step("diffattn")[1]
        else:
            config = transformers.GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
            models[name].generate_batch(inputs=texts, continuous_batching_config=sizes, generation_config=config, warmup=False, progress_bar=False)

    names = ["diffattn", *models]
    clock, cpu = {name: [] for name in names}, {name: [] for name in names}
    for name in names:  # code of both kinds of steps
        run(name, texts[:2], 2)
    attention.clear()
    for _ in range(args.serve_turns):
        for name in names:
            begin = time.perf_counter(), time.process_time()
            run(name, texts, 32)
            clock[name].append(time.perf_counter() - begin[0])
            cpu[name].append(time.process_time() - begin[1])
    return {"kind": "serve", "prompts": 32, "new tokens": 32, **row(clock), "CPU": row(cpu), "attention": statistics.median(attention)}


class CallClock:
    """Seconds in layers of attention (vLLM's dispatch and context included), in the compiled calls in them, and in what
    is made once a step."""

    def __init__(self, contest):
        from diffattn.runtime import library
        from diffattn.vllm import backend

        self.seconds = {"layers": 0.0, "compiled calls": 0.0, "tables": 0.0}
        self.undo = [(backend.Impl, "forward", backend.Impl.forward)]
        backend.Impl.forward = contest.ours
        for name, owner, function in (("layers", backend.DifferentialAttention, "forward"), ("compiled calls", library(), "call"),
                                      ("tables", backend.MetadataBuilder, "build")):
            self.undo.append((owner, function, getattr(owner, function)))
            setattr(owner, function, self.timed(name, getattr(owner, function)))

    def timed(self, name, function):
        seconds, clock = self.seconds, time.perf_counter

        def call(*given, **more):
            begin = clock()
            result = function(*given, **more)
            seconds[name] += clock() - begin
            return result

        return call

    def close(self):
        for owner, function, original in self.undo:
            setattr(owner, function, original)


def python_time(contest, args):
    """Microseconds that a layer of a decode step of 16 requests takes besides the compiled call: the median of steps."""
    contest.add(prompts(16, 32, args.vocabulary), 2 * args.steps + 2)
    contest.step("diffattn")
    clock, steps = CallClock(contest), []
    while contest.engine.has_unfinished_requests():
        clock.seconds |= dict.fromkeys(clock.seconds, 0.0)
        contest.step("diffattn")
        inside, compiled, tables = clock.seconds.values()
        steps.append([(inside - compiled) / args.layers, compiled / args.layers, tables])
    clock.close()
    beside, compiled, tables = (statistics.median(column) * 1e6 for column in zip(*steps[2:]))
    return {"kind": "Python time", "requests": 16, "microseconds a layer and step": beside, "microseconds of a compiled call": compiled,
            "microseconds of metadata a step": tables}


def rows(steps, attention):
    """Whole steps and their attention, and the ratio that attention without time would give."""
    whole, part = row(steps), row(attention)
    ours, peer = whole["seconds"].values()
    return {**whole, "attention": part, "ratio with free attention": peer / (ours - part["seconds"]["diffattn"])}


def row(times):
    """Medians, and how many times as long as the first of `times` the second took; of more than two each of the others."""
    ours, *peers = times
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    ratios = {name: medians[name] / medians[ours] for name in peers}
    return {"seconds": medians, "samples": len(times[ours]), "ratio": ratios[peers[0]] if len(peers) == 1 else ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--only", nargs="+", choices=("decode", "prefill", "serve", "python"), default=["decode", "prefill", "serve", "python"])
    parser.add_argument("--steps", type=int, default=20, help="decode steps of each (20)")
    parser.add_argument("--turns", type=int, default=5, help="prefills of each (5)")
    parser.add_argument("--serve-turns", type=int, default=2, help="runs of all prompts of each (2)")
    parser.add_argument("--context", type=int, default=1024, help="tokens before the decode steps (1024)")
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048], help="tokens of the prefills (512 2048)")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--output", type=Path, help="a file of JSON")
    args = parser.parse_args()
    if max(args.prompts) > MOST_TOKENS:
        sys.exit(f"error: --prompts: expected at most {MOST_TOKENS}, which one step computes, but got {max(args.prompts)}")
    args.model_length = max(args.context + 2 * args.steps + 1, *args.prompts, 256) + 1
    torch.set_num_threads(1)
    torch.manual_seed(0)
    heads = args.hidden // 64
    config = transformers.DiffLlamaConfig(
        architectures=["DiffLlamaForCausalLM"], vocab_size=args.vocabulary, hidden_size=args.hidden, intermediate_size=args.hidden * 23 // 8,
        num_hidden_layers=args.layers, num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=4096, eos_token_id=None,
        tie_word_embeddings=True)
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.DiffLlamaForCausalLM(config)
        parameters = sum(one.numel() for one in model.parameters())
        model.save_pretrained(folder)
        del model
        contest, results = Contest(folder, args), []
        made = {"python": lambda: [python_time(contest, args)], "prefill": lambda: [prefill(contest, args, length) for length in args.prompts],
                "decode": lambda: [decode(contest, args)], "serve": lambda: [serve(contest, args, folder)]}
        for name in args.only:
            for one in made[name]():
                results.append(one)
                print(json.dumps(one), flush=True)
        if args.output:
            args.output.write_text(json.dumps({
                "machine": cpu_name(), "date": datetime.date.today().isoformat(), "threads": 1, "dtype": args.dtype, "parameters": parameters,
                "torch": torch.__version__, "transformers": transformers.__version__, "rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
