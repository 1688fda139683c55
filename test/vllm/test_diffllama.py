"""DiffLlama in vLLM against transformers: every greedy token, in f32."""
import dataclasses

import pytest
import torch
from conftest import diffllama, engine, greedy, prompts


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diffllama")
    made = diffllama(folder)
    made.folder = folder
    return made


def test_tokens(model):
    """Alone, in batches with chunks of prompts, with prefixes that are shared, again from the cache, and several answers of a prompt."""
    texts = prompts(20, 53, 3, 130, 1, 16, 17, 64, 5, 2, 31, 32, 33, 11, 47, 48, 8, 95, 4, 27, 15)
    texts += [texts[3][:100] + tail for tail in prompts(9, 30, 1, seed=6)]
    expected = [greedy(model, text, 12) for text in texts]
    with engine(model.folder, enable_prefix_caching=True) as served:
        assert served.tokens(texts[:1], 12) == expected[:1]
        assert served.tokens(texts, 12) == expected
        assert served.tokens(texts[::-1], 12) == expected[::-1]
        assert served.tokens(texts[:2], 12, n=3, temperature=1, top_k=1) == [[one] * 3 for one in expected[:2]]


def test_preempted(tmp_path):
    """Pages for fewer tokens than the requests have: some are thrown out, and computed again. Projections with biases."""
    model = diffllama(tmp_path, attention_bias=True)
    texts = prompts(40, 33, 60, 5, 48, 30)
    expected = [greedy(model, text, 40) for text in texts]
    with engine(tmp_path, enable_prefix_caching=False, num_gpu_blocks_override=18) as served:
        assert served.tokens(texts, 40) == expected
        assert served.preemptions > 0


def moved(data, **changes):
    return dataclasses.replace(data, **changes)


#: Faults that must be noticed, as changes of the arguments of `Impl.forward`.
FAULTS = {
    "keys and values a page off": lambda q, k, v, data: (q, k, v, moved(data, slots=(data.slots + 16) % (16 * PAGES))),
    "halves of values swapped": lambda q, k, v, data: (q, k, v.unflatten(1, (-1, 2, 32)).flip(2).flatten(1), data),
    "a pair split": lambda q, k, v, data: (q.roll(32, 1), k, v, data),
    "pairs of keys in another order": lambda q, k, v, data: (q, k.unflatten(1, (4, 32))[:, [0, 2, 1, 3]].flatten(1), v, data),
    "lengths of the step before": lambda q, k, v, data: (q, k, v, moved(data, lengths=(data.lengths - 1).clamp(min=1))),
}
PAGES = 64


def test_faults_are_seen(model, monkeypatch):
    texts = prompts(20, 33, 3)
    expected = [greedy(model, text, 12) for text in texts]
    from diffattn.vllm import backend

    forward = backend.Impl.forward
    with engine(model.folder, enable_prefix_caching=False, num_gpu_blocks_override=PAGES) as served:
        assert served.tokens(texts, 12) == expected
        for name, change in FAULTS.items():
            def faulty(self, layer, query, key, value, cache, data, output, **options):
                if data is not None:
                    query, key, value, data = change(query, key, value, data)
                return forward(self, layer, query, key, value, cache, data, output, **options)

            monkeypatch.setattr(backend.Impl, "forward", faulty)
            got = served.tokens(texts, 12)
            assert all(one != other for one, other in zip(got[:2], expected)), name
            monkeypatch.undo()
        first, second = (layer.self_attn.attn.impl for layer in served.runner.model.model.layers)
        first.lam, second.lam = second.lam, first.lam
        assert served.tokens(texts, 12) != expected, "lambda of another layer"


def test_bfloat16(model):
    """Log-probabilities of the first token are those of f32 by the rounding of bf16, alone and in a batch."""
    texts = prompts(20, 53, 130)
    with torch.no_grad():
        expected = [torch.log_softmax(model(torch.tensor([text])).logits[0, -1], -1) for text in texts]
    with engine(model.folder, dtype="bfloat16") as served:
        for batch in (texts[:1], texts):
            for (first,), reference in zip(served.logprobs(batch), expected):
                for token, got in first.items():
                    assert abs(got - reference[token]) < 0.25, (token, got, reference[token])
