"""A layer of differential attention learns, through the operator, to find the token that came behind this one before."""
import torch

import diffattn.torch  # noqa: F401 - registers torch.ops.diffattn.attention

VOCABULARY, WIDTH, HEADS, HALF = 8, 32, 2, 12


class Model(torch.nn.Module):
    """Embeddings of a token and of the one before it, one attention with two maps, logits."""

    def __init__(self):
        super().__init__()
        self.token, self.before = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(VOCABULARY, WIDTH)
        self.q1, self.q2, self.k1, self.k2, self.v = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(5))
        self.lam, self.logits = torch.nn.Parameter(torch.full((HEADS,), 0.2)), torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x, y = self.token(tokens), self.before(tokens.roll(1, 1))
        def split(z):
            return z.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        o = torch.ops.diffattn.attention(split(self.q1(x)), split(self.k1(y)), split(self.q2(x)), split(self.k2(y)), split(self.v(x)),
                                         self.lam, is_causal=True)
        return self.logits(o.transpose(1, 2).flatten(2))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(61):
    # Half a text that is drawn anew, and the same half again, which can be known.
    tokens = torch.stack([torch.randperm(VOCABULARY) for _ in range(64)]).repeat(1, 3)[:, :2 * HALF]
    loss = torch.nn.functional.cross_entropy(model(tokens)[:, HALF:-1].flatten(0, 1), tokens[:, HALF + 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.2f}")
assert loss.item() < 0.3, "the text repeats itself, so the model should know what comes"
