"""A small vision transformer of timm with differential attention learns handwritten digits, with its own attention and patched."""
import pytest
import sklearn.datasets
import timm
import torch
from torch import nn

import diffattn

pytestmark = pytest.mark.oracle
EPOCHS, WARM_UP, BATCH, RATE = 20, 3, 64, 3e-3


@pytest.mark.long  # steps of optimizers on models of timm: test_torch_training_models.py
def test_digits():
    """scikit-learn's 1,797 images of 8 x 8: every fourth one is kept for the test."""
    digits = sklearn.datasets.load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1, torch.tensor(digits.target)
    is_test = torch.arange(len(labels)) % 4 == 0

    def accuracy(model):
        rates = [RATE * min(1, (epoch + 1) / WARM_UP) * (1 - epoch / EPOCHS) for epoch in range(EPOCHS)]
        optimizer, generator = torch.optim.AdamW(model.parameters(), weight_decay=0.05), torch.Generator().manual_seed(3)
        model.train()
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            for batch in torch.randperm(int((~is_test).sum()), generator=generator).split(BATCH):
                loss = nn.functional.cross_entropy(model(images[~is_test][batch]), labels[~is_test][batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            return (model(images[is_test]).argmax(1) == labels[is_test]).float().mean().item()

    def made():
        torch.manual_seed(0)
        return timm.create_model("vit_dwee_patch16_reg1_gap_256", img_size=8, patch_size=4, in_chans=1, embed_dim=48, depth=2, num_heads=3, num_classes=10,
                                 init_values=0.5)

    patched = made()
    assert len(diffattn.patch(patched)) == 2
    for model in (patched, made()):
        assert accuracy(model) >= 0.97
