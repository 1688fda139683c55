"""The training of the example: attention by the operator gives the losses of plain PyTorch, and the script says how long steps take."""
import json
import re
import subprocess
import sys

import pytest
from paths import ROOT

pytestmark = pytest.mark.oracle

DIRECTORY = ROOT / "examples" / "tiny-lm"
#: Changes of the example's configuration that keep steps short.
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}


@pytest.fixture(scope="module")
def train():
    import train

    return train


@pytest.fixture(scope="module")
def tokens():
    import tokenizers
    import torch

    tokenizer = tokenizers.Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
    return torch.tensor(tokenizer.encode((DIRECTORY / "heldout.txt").read_text(), add_special_tokens=False).ids)


def losses(train, tokens, use, steps, dtype):
    import reference
    import torch

    torch.manual_seed(0)
    model = reference.DiffV1({**train.CONFIG, **SMALL})
    use(model)
    optimizer, generator = train.optimizer_of(model), torch.Generator().manual_seed(0)
    for group in optimizer.param_groups:
        group["lr"] = 3e-3
    return torch.tensor([train.train_step(model, optimizer, *train.batch_of(tokens, 4, 64, generator), train.DTYPES[dtype]) for _ in range(steps)])


def test_losses_equal_pytorch(train, tokens):
    expected, ours = (losses(train, tokens, use, 50, "f32") for use in (lambda model: None, train.use_operator))
    assert (ours - expected).abs().max() < 1e-3
    assert expected[-10:].mean() < expected[0] - 1.5


def test_losses_under_autocast(train, tokens):
    expected, ours = (losses(train, tokens, use, 5, "bf16") for use in (lambda model: None, train.use_operator))
    assert (ours - expected).abs().max() < 0.02


def test_the_operator_is_what_runs(train, monkeypatch):
    import reference
    import torch

    model = reference.DiffV1({**train.CONFIG, **SMALL})
    state = {name: id(parameter) for name, parameter in model.named_parameters()}
    train.use_operator(model)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == state
    monkeypatch.setattr(reference.DiffAttention, "attend", None)
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("attention, dtype", [("torch", "bf16"), ("diffattn", "f32")])
def test_the_script(train, attention, dtype, tmp_path, monkeypatch, capsys):
    import torch

    text = (DIRECTORY / "heldout.txt").read_text()
    monkeypatch.setattr(train, "read_books", lambda: {"Ruth": text[:2000], "Ephesians": text[2000:4000], "Genesis": text[4000:]})
    monkeypatch.setattr(train, "CONFIG", {**train.CONFIG, **SMALL, "max_position_embeddings": 32, "vocab_size": 300})
    monkeypatch.setattr(train.signal, "signal", lambda *_: None)
    monkeypatch.setattr(train.torch, "set_num_threads", lambda _: None)
    used = []
    monkeypatch.setattr(train, "use_operator", lambda model, use=train.use_operator: used.append(use(model)))
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["train.py", "--steps", "40", "--batch", "2", "--attention", attention, "--dtype", dtype, "--out", str(out),
                                     "--work", str(tmp_path / "work")])
    state = torch.get_rng_state()
    train.main()
    torch.set_rng_state(state)
    printed = capsys.readouterr().out
    assert len(used) == (attention == "diffattn")
    assert len(re.findall(r"^step (?:20|40)/40 loss \d+\.\d+ \d+ ms a step minutes \d+\.\d$", printed, re.M)) == 2
    training = json.loads((out / "training.json").read_text())
    assert (training["attention"], training["dtype"], training["steps"]) == (attention, dtype, 40)
    assert training["curve"]["train_loss"][1] < training["curve"]["train_loss"][0]
    assert (out / "model.safetensors").exists() and (out / "loss.png").exists()


#: The program that torchrun starts: the script on a short text, with a small model.
RUN = """
import sys, torch
sys.path.insert(0, {directory!r})
import train
text = open({heldout!r}).read()
train.read_books = lambda: {{"Ruth": text[:2000], "Ephesians": text[2000:4000], "Genesis": text[4000:]}}
train.CONFIG |= {small!r} | {{"max_position_embeddings": 32, "vocab_size": 300}}
train.main()
"""


@pytest.mark.long  # gradients of two processes: test_torch_training_models.py
def test_two_processes_train_as_one(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(RUN.format(directory=str(DIRECTORY), heldout=str(DIRECTORY / "heldout.txt"), small=SMALL))
    curves = []
    for count in (1, 2):
        out = tmp_path / str(count)
        starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if count == 2 else []
        done = subprocess.run([sys.executable, *starter, str(script), "--steps", "40", "--batch", "4", "--attention", "diffattn", "--dtype", "f32",
                               "--out", str(out), "--work", str(out / "work")], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("held out") == 1  # one of them speaks
        training = json.loads((out / "training.json").read_text())
        assert training["processes"] == count
        curves.append(training["curve"])
    for name in ("train_loss", "heldout_loss"):
        assert max(abs(a - b) for a, b in zip(curves[0][name], curves[1][name], strict=True)) < 1e-3
    assert curves[0]["train_loss"][1] < curves[0]["train_loss"][0]


def test_a_batch_that_processes_cannot_share(train, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(train.dist, "init_process_group", lambda _: None)
    monkeypatch.setattr("sys.argv", ["train.py", "--batch", "8"])
    with pytest.raises(SystemExit):
        train.main()
    assert "--batch: expected a multiple of the 3 processes, but got 8" in capsys.readouterr().err
