"""A module of PyTorch with differential attention, compiled: the attention in it becomes one kernel."""
import torch

import diffattn


class DifferentialAttention(torch.nn.Module):
    """Multi-head, causal, as the paper has it: two maps, their difference, a norm over each head."""

    def __init__(self, width=64, heads=2, lambda_init=0.8):
        super().__init__()
        self.heads, self.head, self.lambda_init = heads, width // heads // 2, lambda_init
        self.q, self.k, self.v, self.out = (torch.nn.Linear(width, width, bias=False) for _ in range(4))
        self.lam = torch.nn.Parameter(torch.tensor(0.3))
        self.norm = torch.nn.RMSNorm(2 * self.head, eps=1e-5)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q = self.q(x).view(batch, tokens, self.heads, 2, self.head).permute(3, 0, 2, 1, 4)
        k = self.k(x).view(batch, tokens, self.heads, 2, self.head).permute(3, 0, 2, 1, 4)
        v = self.v(x).view(batch, tokens, self.heads, 2 * self.head).transpose(1, 2)
        hidden = torch.full((tokens, tokens), float("-inf")).triu(1)
        first, second = (q @ k.transpose(-1, -2) / self.head**0.5 + hidden).softmax(-1).unbind(0)
        o = self.norm((first - self.lam * second) @ v) * (1 - self.lambda_init)
        return self.out(o.transpose(1, 2).flatten(2))


torch.manual_seed(0)
module, x = DifferentialAttention().eval(), torch.randn(2, 24, 64)
compiled = diffattn.compile(module, (x,))
with torch.no_grad():
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
print(compiled.explain())
assert any("diffattn.attention" in str(note) for note in compiled.applied), compiled.diagnostics
