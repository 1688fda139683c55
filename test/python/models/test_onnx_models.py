"""Whole models by PyTorch's ONNX exporter and diffattn.onnx.load: the numbers, and that each attention was raised."""
import pytest
import tiny_attentions
import torch
from test_torch_models import TOLERANCE, assert_near, assert_raised, diffllama, ids
from torch_family.cases import CASES

import diffattn

pytestmark = pytest.mark.oracle


class Logits(torch.nn.Module):
    """A decoder without its cache, which would be results too."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


def attention(name, dtype):
    torch.manual_seed(1)
    return getattr(tiny_attentions, name)().eval().to(dtype)


def exported(module, argument, path, dynamic):
    sizes = ({0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", min=2, max=100)},) if dynamic else None
    with torch.no_grad():
        torch.onnx.export(module, (argument,), dynamo=True, verbose=False, dynamic_shapes=sizes).save(path)
    return path


def check(module, inputs, path, dynamic, count=1):
    loaded = diffattn.onnx.load(exported(module, inputs(2, 20), path, dynamic))
    assert_raised(loaded, count)
    assert diffattn.onnx.model.read(str(path)).text == loaded.mlir
    for shape in [(2, 20)] + [(1, 2), (3, 33)] * dynamic:
        with torch.no_grad():
            want = module(inputs(*shape))
        assert_near(loaded(inputs(*shape)), want)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
class TestModels:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("name, dtype, dynamic", [
        ("PlainV1", torch.float32, False), ("PlainV1", torch.bfloat16, True), ("UnilmV1", torch.float32, True),
        ("UnilmV1", torch.float16, False), ("V2", torch.float32, True), ("V2", torch.float16, False), ("V2", torch.bfloat16, True),
    ])
    def test_an_attention(self, name, dtype, dynamic, tmp_path):
        def inputs(batch, length):
            generator = torch.Generator().manual_seed(batch * 1000 + length)
            return torch.randn(batch, length, tiny_attentions.WIDTH, generator=generator).to(dtype)

        assert dtype in TOLERANCE
        check(attention(name, dtype), inputs, tmp_path / "m.onnx", dynamic)

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("name", ["v1_halves", "motif_sdpa", "gda", "gdla", "sambay"])
    def test_a_model_of_the_family(self, name, tmp_path):
        case, path = next(case for case in CASES if case.name == name), tmp_path / "m.onnx"
        torch.manual_seed(0)
        module, arguments = case.make().eval(), case.arguments(*case.example)
        with torch.no_grad():
            torch.onnx.export(module, arguments, dynamo=True, verbose=False).save(path)
            want = module(*arguments)
        loaded = diffattn.onnx.load(path)
        assert_raised(loaded, case.attentions)
        assert diffattn.onnx.model.read(str(path)).text == loaded.mlir
        assert_near(loaded(*arguments), want)

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("kind, dtype, dynamic", [
        ("eager", torch.float32, False), ("sdpa", torch.float32, True), ("eager", torch.bfloat16, True), ("sdpa", torch.float16, False),
    ])
    def test_diffllama(self, kind, dtype, dynamic, tmp_path):
        check(Logits(diffllama(kind, dtype)), ids, tmp_path / "m.onnx", dynamic, count=2)

    def test_a_vision_transformer_of_timm(self, tmp_path):
        import timm
        from timm.layers import DiffAttention

        torch.manual_seed(0)
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=2, num_classes=10,
                                  attn_layer=DiffAttention).eval()
        image = torch.randn(2, 3, 32, 32)
        check(model, lambda *_: image, tmp_path / "m.onnx", False, count=2)
