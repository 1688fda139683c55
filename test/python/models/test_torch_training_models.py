"""Models whose attention is torch.ops.diffattn.attention, trained beside themselves: DiffLlama of transformers, timm's vision transformers,
and decoders of both versions of differential attention that call the operator."""
import copy
import math
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import training_reference
import transformers
from kernel_library import runnable_isas
from paths import MODULES
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

import diffattn
import diffattn.torch
from diffattn.errors import UsageError

pytestmark = pytest.mark.oracle
TINY = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 11,
       "init_values": 0.5}  # by which what attention gives is scaled
STEPS = 50
IDS = torch.randint(1, 96, (8, 16), generator=torch.Generator().manual_seed(7))


def diffllama(**changes):
    torch.manual_seed(0)
    return transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(**(TINY | changes)))


def vit(name="vit_dwee_patch16_reg1_gap_256", **changes):
    torch.manual_seed(0)
    return timm.create_model(name, **(VIT | changes))


def patched(model):
    assert len(diffattn.patch(model)) == 2
    return model


@pytest.fixture
def backward_calls(monkeypatch):
    """Grows by each call of compiled gradients, so that a test sees who computed them."""
    from diffattn.torch import gradient

    calls, run = [], gradient.attention_backward
    monkeypatch.setattr(gradient, "attention_backward", lambda *args, **options: calls.append(list(args[7])) or run(*args, **options))
    return calls


def loss_of(model, ids=IDS[:4], **more):
    more.setdefault("labels", ids)
    return model(input_ids=ids, use_cache=False, **more).loss


def gradients(model, loss=loss_of, **more):
    """The loss of a call in training, and the gradients by the parameters' names."""
    model.train()
    model.zero_grad()
    value = loss(model, **more)
    value.backward()
    return value.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_same(got, expected, bound=2e-5):
    """Loss and gradients; each gradient by its own largest magnitude, but for those that are small beside all others."""
    torch.testing.assert_close(got[0], expected[0], rtol=bound, atol=0)
    largest = max(gradient.abs().max() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        error = (got[1][name] - gradient).abs().max() / max(gradient.abs().max(), largest * 1e-3)
        assert error <= bound, (name, error.item())


def trained(model, loss, steps=STEPS, rate=1e-3):
    """The losses of a plain loop."""
    model.train()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=rate), []
    for step in range(steps):
        value = loss(model, step)
        losses.append(value.item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return torch.tensor(losses)


def assert_same_curves(got, expected):
    assert (got - expected).abs().max() < 1e-3, (got - expected).abs().max()
    assert expected[-5:].mean() < expected[:5].mean() - 0.1  # something was learned


def test_diffllama_by_a_plain_loop(backward_calls):
    run = lambda model: trained(model, lambda model, step: loss_of(model, IDS[step % 2 * 4:step % 2 * 4 + 4]))
    got = run(patched(diffllama()))
    assert len(backward_calls) == 2 * STEPS
    assert_same_curves(got, run(diffllama()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name, changes", [("vit_dwee_patch16_reg1_gap_256", {}),
                                           ("vit_dpwee_patch16_reg1_gap_256", dict(drop_path_rate=0.2, proj_drop_rate=0.1))])
def test_timm_by_a_plain_loop(name, changes, backward_calls):
    """Dropout of projections and of paths is the module's own, drawn as before."""
    generator = torch.Generator().manual_seed(3)
    images, labels = torch.randn(6, 3, 32, 32, generator=generator), torch.arange(6) % 3

    def run(model):
        torch.manual_seed(5)
        return trained(model, lambda model, step: nn.functional.cross_entropy(model(images), labels))

    got = run(patched(vit(name, **changes)))
    assert len(backward_calls) == 2 * STEPS
    assert_same_curves(got, run(vit(name, **changes)))


def by_trainer(model, folder, rows=None, **options):
    options = dict(per_device_train_batch_size=4, max_steps=STEPS, learning_rate=1e-3, logging_steps=1, logging_strategy="steps", report_to=[],
                   save_strategy="no", use_cpu=True, disable_tqdm=True, seed=3, dataloader_pin_memory=False) | options
    rows = rows or [{"input_ids": ids, "labels": ids} for ids in IDS]
    trainer = transformers.Trainer(model=model, args=transformers.TrainingArguments(output_dir=str(folder), **options), train_dataset=rows)
    trainer.train()
    return torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


def test_diffllama_by_trainer(tmp_path, backward_calls):
    got = by_trainer(patched(diffllama()), tmp_path)
    assert len(got) == STEPS and len(backward_calls) == 2 * STEPS
    assert_same_curves(got, by_trainer(diffllama(), tmp_path))


def test_diffllama_by_trainer_in_bfloat16(tmp_path, backward_calls):
    got = by_trainer(patched(diffllama()), tmp_path, bf16=True)
    assert len(backward_calls) == 2 * STEPS
    expected = by_trainer(diffllama(), tmp_path, bf16=True)
    assert ((got - expected).abs() / expected).max() < 0.02, ((got - expected).abs() / expected).max()
    assert expected[-5:].mean() < expected[:5].mean() - 0.1


class Classifier(nn.Module):
    """A model of images as Trainer calls one."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, labels):
        logits = self.model(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_timm_by_trainer(tmp_path, backward_calls):
    generator = torch.Generator().manual_seed(3)
    rows = [{"images": torch.randn(3, 32, 32, generator=generator), "labels": number % 3} for number in range(4)]
    got = by_trainer(Classifier(patched(vit())), tmp_path, rows)
    assert len(got) == STEPS and len(backward_calls) == 2 * STEPS
    assert_same_curves(got, by_trainer(Classifier(vit()), tmp_path, rows))


def test_trainer_accumulates_and_checkpoints(tmp_path, backward_calls):
    options = dict(max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2, gradient_checkpointing=True)
    models = patched(diffllama()), diffllama()
    losses = [by_trainer(model, tmp_path, **options) for model in models]
    assert (losses[0] - losses[1]).abs().max() < 1e-3 and len(backward_calls) == 2 * 2 * 4
    for a, b in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_left_padding(implementation):
    mask = torch.ones(4, 16, dtype=torch.int64)
    mask[0, :5] = mask[2, :11] = 0
    more = dict(attention_mask=mask, labels=IDS[:4].masked_fill(mask == 0, -100))
    got, expected = (gradients(model, **more) for model in (patched(diffllama(attn_implementation=implementation)),
                                                           diffllama(attn_implementation=implementation)))
    assert_same(got, expected)


def test_batches_without_padding():
    """Sequences that follow one another in one row, as transformers' collator for them hands over."""
    rows = [{"input_ids": ids[:length].tolist(), "labels": ids[:length].tolist()} for ids, length in zip(IDS, (16, 3, 9))]
    batch = transformers.DataCollatorWithFlattening(return_position_ids=True)(rows, return_tensors="pt")
    run = lambda model, **more: model(**batch, use_cache=False).loss
    got, expected = gradients(patched(diffllama()), run), gradients(diffllama(), run)
    assert_same(got, expected)
    alone = [gradients(patched(diffllama()), ids=torch.tensor([row["input_ids"]])) for row in rows]
    counts = torch.tensor([len(row["input_ids"]) - 1.0 for row in rows])
    torch.testing.assert_close(got[0], (torch.stack([loss for loss, _ in alone]) * counts).sum() / counts.sum())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant, backward_calls):
    expected = gradients(patched(diffllama()))
    assert len(backward_calls) == 2
    model = patched(diffllama())
    model.gradient_checkpointing_enable(dict(use_reentrant=reentrant))
    assert_same(gradients(model), expected, 1e-6)


def test_checkpoints_of_timm():
    images, loss = torch.randn(2, 3, 32, 32), lambda model: model(images).square().sum()
    expected, model = gradients(patched(vit()), loss), patched(vit())
    model.set_grad_checkpointing()
    assert_same(gradients(model, loss), expected, 1e-6)


def relative(got, expected):
    """Errors of gradients relative to the norms of gradients of the same kind, in all layers."""
    errors, norms = {}, {}
    for name, gradient in expected.items():
        kind = ".".join(part for part in name.split(".") if not part.isdigit())
        kind = "lambda" if "lambda" in name else kind
        errors[kind] = errors.get(kind, 0) + (got[name] - gradient).square().sum().item()
        norms[kind] = norms.get(kind, 0) + gradient.square().sum().item()
    return {kind: math.sqrt(error / norms[kind]) for kind, error in errors.items()}


@pytest.mark.parametrize("make, loss", [(diffllama, loss_of), (vit, lambda model: model(torch.ones(2, 3, 32, 32).cumsum(-1) / 32).square().sum())],
                         ids=["diffllama", "timm"])
def test_autocast(make, loss):
    """Gradients in bfloat16 err as those of the unpatched model do, each beside the exact ones."""
    def cast(model):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model)

    exact = gradients(make(), loss)
    got, eager = gradients(patched(make()), cast), gradients(make(), cast)
    assert abs(got[0] - exact[0]) < 2e-2 * abs(exact[0]) and all(gradient.dtype == torch.float32 for gradient in got[1].values())
    ours, theirs = relative(got[1], exact[1]), relative(eager[1], exact[1])
    # That of lambda is a difference of sums that nearly cancel, which the unpatched model rounds before it takes it, and pairs of bf16 as they
    # are multiplied.
    cancels = {"lambda"} if "avx512bf16" in runnable_isas() else set()
    assert max(error for kind, error in ours.items() if kind not in cancels) < 2e-2 and all(error < 1.5 * theirs[kind] for kind, error in ours.items()), (ours, theirs)


def test_a_scaler_finds_an_overflow():
    """Gradients that 16 bits cannot hold reach the parameters as infinities or NaN, and the step is left out."""
    model = patched(diffllama())
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0**40), torch.optim.AdamW(model.parameters(), lr=1e-3)
    before, scales, losses = copy.deepcopy(model.state_dict()), [scaler.get_scale()], []
    model.train()
    for step in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model)
        scaler.scale(loss).backward()
        if step == 0:
            attention = model.model.layers[0].self_attn
            assert not any(parameter.grad.isfinite().all() for parameter in (attention.q_proj.weight, attention.v_proj.weight))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        losses.append(loss.item())
        if step == 0:
            assert scales[-1] == scales[0] / 2 and all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values()))
    assert scales[-1] == scales[-5] and losses[-1] < losses[0] - 0.05


def test_frozen_weights_and_low_rank_ones(backward_calls):
    """Projections that are frozen but for a product of two small matrices: no gradient is computed for what is not trained."""
    class LowRank(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear, generator = linear, torch.Generator().manual_seed(1)
            self.down = nn.Parameter(torch.randn(2, linear.in_features, generator=generator) * 0.1)
            self.up = nn.Parameter(torch.randn(linear.out_features, 2, generator=generator) * 0.1)

        def forward(self, x):
            return self.linear(x) + x @ self.down.T @ self.up.T

    def make():
        model = diffllama().requires_grad_(False)
        attention = model.model.layers[1].self_attn
        attention.q_proj = LowRank(attention.q_proj)
        return model

    models = patched(make()), make()
    for model in models:
        model.train()
        loss_of(model).backward()
    assert backward_calls == [["q1", "q2"]]
    for (name, a), (_, b) in zip(*(model.named_parameters() for model in models)):
        assert (a.grad is None) == (b.grad is None) == (name.split(".")[-1] not in ("down", "up")), name
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-7)


def test_saved_models(tmp_path):
    """The weights that a patched model learned are those that transformers saves and loads, patched or not."""
    model = patched(diffllama())
    trained(model, lambda model, _: loss_of(model), steps=2)
    model.save_pretrained(tmp_path)
    loaded = transformers.DiffLlamaForCausalLM.from_pretrained(tmp_path)
    assert type(loaded.model.layers[0].self_attn) is DiffLlamaAttention
    assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True))
    expected = gradients(model)
    assert_same(gradients(loaded), expected)
    assert_same(gradients(patched(loaded)), expected, 1e-7)


def test_compiled_in_one_graph():
    """A training step of a patched model: one node for each layer forward, one backward."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs, operators = [], (torch.ops.diffattn.attention_and_x.default, torch.ops.diffattn.attention_backward.default)
    keep = lambda graph, _: graphs.append(graph) or make_boxed_func(graph.forward)
    model, expected = patched(diffllama()), gradients(diffllama())
    torch._dynamo.reset()
    model.compile(backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)
    got = gradients(model)
    assert_same((got[0], got[1]), expected)
    assert [[sum(node.target == one for node in graph.graph.nodes) for one in operators] for graph in graphs] == [[2, 0], [0, 2]]


def test_dropout_is_refused_where_it_would_be():
    """Not for being in training: for a probability that is not 0."""
    image = patched(vit(attn_drop_rate=0.1))
    assert image.eval()(torch.ones(1, 3, 32, 32)).requires_grad
    with pytest.raises(UsageError, match="attn_drop: expected 0 in a patched model in training"):
        image.train()(torch.ones(1, 3, 32, 32))
    assert patched(vit(proj_drop_rate=0.1)).train()(torch.ones(1, 3, 32, 32)).requires_grad


#: By a worker that test_two_processes runs twice.
WORKER = """
import sys
rank, port = int(sys.argv[1]), sys.argv[2]
sys.path[:0] = sys.argv[3:]
import torch, torch.distributed as dist
import torchvision_stand_in
import test_torch_training_models as models
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + port, rank=rank, world_size=2)
mine = models.IDS[rank * 2:rank * 2 + 2]
_, expected = models.gradients(models.patched(models.diffllama()))

replicated = DistributedDataParallel(models.patched(models.diffllama()))
models.gradients(replicated, ids=mine)
got = {name.removeprefix("module."): parameter.grad for name, parameter in replicated.named_parameters()}

sharded = models.patched(models.diffllama())
for layer in sharded.model.layers:
    fully_shard(layer)
fully_shard(sharded)
models.loss_of(sharded.train(), ids=mine).backward()
full = {name: parameter.grad.full_tensor() for name, parameter in sharded.named_parameters()}
for name, gradient in expected.items():
    for kind, found in (("DDP", got), ("FSDP", full)):
        error = (found[name] - gradient).abs().max() / expected["model.embed_tokens.weight"].abs().max()
        assert error < 1e-5, (kind, name, error)
print("equal", len(expected))
dist.destroy_process_group()
"""


def test_two_processes(tmp_path):
    """Data parallel and with sharded weights, each process with half of a batch: gradients of the whole one."""
    paths = [str(Path(diffattn.__file__).parents[1]), *map(str, MODULES)]
    processes = [subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(tmp_path / "store"), *paths], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for process in processes:
        try:
            output, errors = process.communicate(timeout=180)
        finally:
            process.kill()
        assert process.returncode == 0 and output.startswith("equal "), errors[-3000:]


def rotated(x):
    """Rotary embeddings of [B, H, T, width]."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


class Attention(nn.Module):
    """Differential attention as its papers' authors have it. V1: two heads of queries and keys for each of values, lambda from four vectors,
    a norm of each head. V2: twice as many heads of queries, one K, and lambda a logit of each token and head."""

    def __init__(self, version, attend, width=32, heads=4, groups=2, depth=1):
        super().__init__()
        self.version, self.attend, self.heads, self.groups, self.head = version, attend, heads, groups, width // heads // (2 if version == 1 else 1)
        keys = 2 * groups * self.head if version == 1 else groups * self.head
        self.value = 2 * self.head if version == 1 else self.head
        self.q, self.k, self.v = nn.Linear(width, 2 * heads * self.head), nn.Linear(width, keys), nn.Linear(width, groups * self.value)
        self.o, self.initial = nn.Linear(heads * self.value, width), 0.8 - 0.6 * math.exp(-0.3 * depth)
        if version == 1:
            self.vectors, self.norm = nn.Parameter(torch.randn(4, self.head) * 0.1), nn.Parameter(torch.ones(self.value))
        else:
            self.lam = nn.Linear(width, heads)

    def forward(self, x):
        q, k, v = (project(x).unflatten(-1, (-1, width)).transpose(1, 2) for project, width in ((self.q, self.head), (self.k, self.head), (self.v, self.value)))
        q, k = rotated(q), rotated(k)
        if self.version == 1:
            a, b, c, d = self.vectors
            lam = (a * b).sum().exp() - (c * d).sum().exp() + self.initial
            out = self.attend(q[:, ::2], k[:, ::2], q[:, 1::2], k[:, 1::2], v, lam, is_causal=True, norm="rms", norm_weight=self.norm,
                              out_scale=1 - self.initial)
        else:
            out = self.attend(q[:, ::2], k, q[:, 1::2], k, v, self.lam(x), is_causal=True, lam_activation="sigmoid")
        return self.o(out.to(x.dtype).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    """Two layers, each recomputed in the backward pass."""

    def __init__(self, version, attend, width=32):
        super().__init__()
        torch.manual_seed(version)
        self.embedding, self.head = nn.Embedding(96, width), nn.Linear(width, 96)
        self.layers = nn.ModuleList(nn.ModuleList((nn.RMSNorm(width), Attention(version, attend, depth=depth), nn.RMSNorm(width),
                                                   nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)))) for depth in (1, 2))

    @staticmethod
    def layer(x, before, attention, between, mlp):
        x = x + attention(before(x))
        return x + mlp(between(x))

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = checkpoint(self.layer, x, *layer, use_reentrant=False)
        return nn.functional.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("attend", [torch.ops.diffattn.attention, diffattn.attention], ids=["operator", "function"])
@pytest.mark.parametrize("version", [1, 2])
def test_decoders(version, attend, backward_calls):
    run = lambda attend: trained(Decoder(version, attend), lambda model, _: model(IDS[:4]), steps=20, rate=3e-3)
    got = run(attend)
    assert len(backward_calls) == 2 * 20
    assert_same_curves(got, run(training_reference.attention))
