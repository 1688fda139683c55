"""Fixtures of the tests with vLLM: models with random weights, and an engine in this process whose free pages are NaN.

They run in an environment of their own: scripts/test-vllm.sh.
"""
import os

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}

import contextlib

import torch
import transformers

TINY = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": None}


def diffllama(folder, seed=0, **changes):
    """A model of transformers with random weights, which it saves in `folder`."""
    torch.manual_seed(seed)
    config = transformers.DiffLlamaConfig(**(TINY | {"architectures": ["DiffLlamaForCausalLM"]} | changes))
    model = transformers.DiffLlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Wide enough that attention is far from uniform; norms that are not all ones.
            parameter.normal_(1 if "norm" in name else 0, 0.3 if parameter.ndim == 1 else 0.2)
    model.save_pretrained(folder)
    return model


def prompts(*lengths, seed=5, vocabulary=256):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, vocabulary, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def greedy(model, prompt, count):
    """The tokens of transformers."""
    return model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)[0, len(prompt):].tolist()


class Engine:
    """vLLM's, with a runner of this process."""

    def __init__(self, folder, **options):
        from vllm import LLM

        options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "kv_cache_memory_bytes": 32 << 20, "max_num_batched_tokens": 64,
                   "max_num_seqs": 16, "block_size": 16} | options
        self.llm = LLM(str(folder), skip_tokenizer_init=True, **options)
        core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler, self.runner = core.scheduler, core.model_executor.driver_worker.worker.model_runner
        self.preemptions = 0
        preempt = self.scheduler._preempt_request

        def counted(*arguments, **options):
            self.preemptions += 1
            return preempt(*arguments, **options)

        self.scheduler._preempt_request = counted
        # Pages that nobody wrote hold NaN, also those that vLLM would clear before it hands them out again.
        for cache in self.runner.kv_caches:
            cache.fill_(float("nan"))
        self.runner._zero_block_ids = lambda ids: [cache[ids].fill_(float("nan")) for cache in self.runner.kv_caches]

    def tokens(self, texts, count, **options):
        """Tokens of each prompt, greedy ones; with n of each of its answers."""
        from vllm import SamplingParams

        sampling = SamplingParams(**({"temperature": 0, "max_tokens": count, "ignore_eos": True, "detokenize": False} | options))
        done = self.llm.generate([{"prompt_token_ids": text} for text in texts], sampling, use_tqdm=False)
        answers = [[list(one.token_ids) for one in answer.outputs] for answer in done]
        return answers if options.get("n") else [answer[0] for answer in answers]

    def logprobs(self, texts, count=1):
        """Log-probabilities of the likeliest tokens behind each prompt and greedy token: {token: its log-probability} for each of `count` tokens."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False, logprobs=5)
        done = self.llm.generate([{"prompt_token_ids": text} for text in texts], sampling, use_tqdm=False)
        return [[{token: one.logprob for token, one in step.items()} for step in answer.outputs[0].logprobs] for answer in done]


@contextlib.contextmanager
def engine(folder, **options):
    from vllm.distributed import cleanup_dist_env_and_memory

    made = Engine(folder, **options)
    try:
        yield made
    finally:
        made.llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()
