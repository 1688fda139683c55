"""`transformers serve` with patched models, asked by the openai client: the tokens of `generate`. This environment has what both need."""
import concurrent.futures
import pathlib
import socket

import openai
import pytest
import torch
import transformers
from conftest import diffllama

from diffattn.torch.serve import patched_models

PROMPTS = ["In the beginning", "And God said, let there be light", "The king", "Then spake the people unto him, saying"]
TOKENIZER = pathlib.Path(__file__).parents[2] / "examples/tiny-lm/tokenizer.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("diffllama")
    diffllama(made, vocab_size=2048)
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER)).save_pretrained(made)
    return made


@pytest.mark.parametrize("options", [{}, {"continuous_batching": True, "cb_block_size": 32, "cb_num_blocks": 64, "cb_max_batch_tokens": 64}],
                         ids=["one at a time", "continuous batching"])
def test_completions(folder, options):
    from transformers.cli.serve import Serve

    tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), transformers.DiffLlamaForCausalLM.from_pretrained(folder)
    expected = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        tokens = model.generate(ids["input_ids"], attention_mask=ids["attention_mask"], max_new_tokens=12, do_sample=False)[0]
        expected.append(tokenizer.decode(tokens[ids["input_ids"].shape[1]:], skip_special_tokens=True))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    attention, calls = torch.ops.diffattn.attention, []
    with patched_models(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.ops.diffattn, "attention", lambda *given, **more: calls.append(more.get("cu_seqlens_q")) or attention(*given, **more))
        server = Serve(str(folder), device="cpu", host="127.0.0.1", port=port, non_blocking=True, **options)
        try:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=120)

            def ask(prompt):
                return client.completions.create(model=str(folder), prompt=prompt, max_tokens=12, temperature=0).choices[0].text

            assert [ask(prompt) for prompt in PROMPTS[:1]] == expected[:1]
            with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as threads:
                assert list(threads.map(ask, PROMPTS)) == expected
        finally:
            server.kill_server()
    assert calls
    if options:
        assert max(len(starts) for starts in calls) > 2, "requests of one step are one call"
