"""Models that `python -m diffattn.torch.serve` loads run by the operator. The server itself is tested with vLLM (test/vllm), which brings what
it needs."""
import pytest
import torch
import transformers
import typer

from diffattn.errors import UsageError
from diffattn.torch import serve

TINY = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("diffllama")
    torch.manual_seed(0)
    transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(**TINY)).save_pretrained(made)
    return made


def test_models_that_are_loaded(folder, tmp_path, capsys):
    plain = transformers.DiffLlamaForCausalLM.from_pretrained(folder)
    with serve.patched_models():
        loaded = [transformers.DiffLlamaForCausalLM.from_pretrained(folder), transformers.AutoModelForCausalLM.from_pretrained(folder),
                  transformers.DiffLlamaForCausalLM.from_pretrained(folder, output_loading_info=True)[0]]
        assert capsys.readouterr().err.count("diffattn: patched 2 attention modules of DiffLlamaForCausalLM\n") == 3
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))
        llama.save_pretrained(tmp_path)
        with pytest.raises(UsageError, match="model: expected a module with .*, but LlamaForCausalLM has none"):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[5, 9, 11, 2]])
    with torch.no_grad():
        for model in loaded:
            assert hasattr(type(model.model.layers[0].self_attn), "unfused")
            torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=0, atol=1e-5)
    assert not hasattr(type(transformers.AutoModelForCausalLM.from_pretrained(folder).model.layers[0].self_attn), "unfused")


def test_command(folder, monkeypatch):
    """Arguments are those of transformers' own command, which loads its models while they are patched."""
    from transformers.cli import transformers as cli

    app, seen = typer.Typer(), {}
    app.callback()(lambda: None)

    @app.command("serve")
    def command(model: str, port: int = 8000):
        seen.update(model=model, port=port, layers=transformers.AutoModelForCausalLM.from_pretrained(model).model.layers)

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        serve.main([str(folder), "--port", "8391"])
    assert ended.value.code == 0 and (seen["model"], seen["port"]) == (str(folder), 8391)
    assert all(hasattr(type(layer.self_attn), "unfused") for layer in seen["layers"])
