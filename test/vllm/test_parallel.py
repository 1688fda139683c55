"""Tensor parallelism over gloo: the tokens of one rank, with half of the weights each."""
import json
import os
import subprocess
import sys

from conftest import diffllama, greedy, prompts
from test_builders import MODELS, SIZES, save

import diffattn

RANKS = '''
import json, sys

def weights(worker):
    """How many a rank has, by the sizes of its layers: what they hold may be packed."""
    return sum(one.input_size_per_partition * one.output_size_per_partition for one in worker.get_model().modules()
               if hasattr(one, "input_size_per_partition"))

if __name__ == "__main__":
    from vllm import LLM, SamplingParams

    folder, texts = sys.argv[1], json.loads(sys.argv[2])
    engine = LLM(folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=256, kv_cache_memory_bytes=32 << 20, block_size=16,
                 max_num_batched_tokens=64, tensor_parallel_size=int(sys.argv[3]))
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    done = engine.generate([{"prompt_token_ids": text} for text in texts], sampling, use_tqdm=False)
    print("RESULT", json.dumps([[list(one.outputs[0].token_ids) for one in done], engine.collective_rpc(weights)]))
'''


def run(folder, script, *arguments):
    (folder / "ranks.py").write_text(script)
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                                "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, folder / "ranks.py", *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=400)


def result(done):
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert done.returncode == 0 and lines, done.stderr[-4000:]
    return json.loads(lines[0].partition(" ")[2])


def test_diffllama(tmp_path):
    model, texts = diffllama(tmp_path, hidden_size=96), prompts(20, 53, 3)
    tokens, weights = result(run(tmp_path, RANKS, tmp_path, json.dumps(texts), 2))
    assert tokens == [greedy(model, text, 12) for text in texts]
    whole = sum(one.numel() for one in model.parameters() if one.ndim == 2)
    assert len(weights) == 2 and all(0.45 < one / whole <= 0.55 for one in weights)


def test_groups_and_norms_over_ranks(tmp_path):
    """Motif: signal heads of a group, its noise head and their keys on one rank, and PolyNorm over the columns of both."""
    save(tmp_path, SIZES | MODELS["motif_groups"])
    texts = prompts(20, 53, 3)
    model = diffattn.load(tmp_path, dtype="f32")
    tokens, _ = result(run(tmp_path, RANKS, tmp_path, json.dumps(texts), 2))
    assert tokens == [list(model.generate(text, max_new_tokens=12)) for text in texts]


def test_pairs_are_not_parted(tmp_path):
    diffllama(tmp_path, num_key_value_heads=2)
    done = run(tmp_path, RANKS, tmp_path, json.dumps(prompts(3)), 2)
    assert done.returncode != 0
    assert "tensor_parallel_size: expected one that divides the 1 key-value heads, whose two maps stay on one rank (1), but got 2" in done.stdout + done.stderr
