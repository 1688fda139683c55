"""Phi-4-mini-flash (SambaY): Mamba, windowed, full and crossing differential attention, and gated memory units."""
import torch
import torch.nn.functional as F
from torch import nn

from .parts import VOCABULARY, LambdaVectors, RMSNorm, lambda_start

WIDTH, INNER, STATE, RANK, KERNEL = 32, 64, 4, 2, 4


class Mamba(nn.Module):
    """Mamba-1. Gives what the gate has not touched, too: the memory of later layers."""

    def __init__(self):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(WIDTH, 2 * INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
        self.conv1d = nn.Conv1d(INNER, INNER, KERNEL, groups=INNER, padding=KERNEL - 1)
        self.x_proj, self.dt_proj = nn.Linear(INNER, RANK + 2 * STATE, bias=False), nn.Linear(RANK, INNER)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, STATE + 1).float()).repeat(INNER, 1))
        self.D = nn.Parameter(torch.ones(INNER))

    def forward(self, x):
        length = x.shape[1]
        x, z = self.in_proj(x).chunk(2, dim=-1)
        x = F.silu(self.conv1d(x.transpose(1, 2))[..., :length].transpose(1, 2))
        dt, b, c = self.x_proj(x).split([RANK, STATE, STATE], dim=-1)
        memory = self.scan(x, F.softplus(self.dt_proj(dt)), b, c)
        return self.out_proj(memory * F.silu(z)), memory

    def scan(self, x, dt, b, c):
        """h[t] = exp(dt A) h[t-1] + dt B x; y[t] = C h[t] + D x, token by token, in f32."""
        a = -torch.exp(self.A_log.float())
        decay = torch.exp(dt.float().unsqueeze(-1) * a)
        new = (dt * x).float().unsqueeze(-1) * b.float().unsqueeze(2)
        state, results = torch.zeros_like(new[:, 0]), []
        for step in range(x.shape[1]):
            state = decay[:, step] * state + new[:, step]
            results.append((state * c[:, step].float().unsqueeze(1)).sum(-1))
        return (torch.stack(results, dim=1) + x.float() * self.D.float()).type_as(x)


class MemoryUnit(nn.Module):
    """A gated memory unit (GMU)."""

    def __init__(self):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, memory):
        return self.out_proj(memory * F.silu(self.in_proj(x)))


class Attention(nn.Module):
    """Differential attention without positions. `window`: how many keys a query sees, with its own. `crosses`: keys and values are
    those of another layer. `fused`: by fused attentions, for each half of the values, in place of maps in memory."""

    def __init__(self, depth, heads=4, key_heads=2, window=None, crosses=False, fused=False):
        super().__init__()
        self.heads, self.key_heads, self.width, self.window, self.crosses = heads, key_heads, WIDTH // heads, window, crosses
        self.attend = self.fused if fused else self.eager
        self.Wqkv = nn.Linear(WIDTH, (heads + (0 if crosses else 2 * key_heads)) * self.width)
        self.out_proj = nn.Linear(WIDTH, WIDTH)
        self.lambda_init = lambda_start(depth)
        self.lambda_full = LambdaVectors(self.width, self.lambda_init)
        self.subln = RMSNorm(2 * self.width, eps=1e-5)

    def forward(self, x, shared=None):
        batch, length, _ = x.shape
        own, each = self.heads * self.width, self.key_heads * self.width
        if self.crosses:
            q, (k, v) = self.Wqkv(x), shared
        else:
            q, k, v = self.Wqkv(x).split([own, each, each], dim=-1)
            k, v = (t.view(batch, length, self.key_heads, self.width) for t in (k, v))
        q = q.view(batch, length, self.heads, self.width)
        (q1, q2), (k1, k2), (v1, v2) = ((t[:, :, 0::2], t[:, :, 1::2]) for t in (q, k, v))
        values = torch.cat([v1, v2], dim=-1)
        result = self.attend(q1, k1, values) - self.lambda_full(x) * self.attend(q2, k2, values)
        result = self.subln(result) * (1 - self.lambda_init)
        return self.out_proj(result.reshape(batch, length, WIDTH)), (k, v)

    def hidden(self, queries, keys):
        query, key = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
        hidden = key > query
        return hidden if self.window is None else hidden | (key < query - (self.window - 1))

    def fused(self, q, k, v):
        q, k, *halves = (t.transpose(1, 2) for t in (q, k, *v.chunk(2, dim=-1)))
        visible = ~self.hidden(q.shape[2], k.shape[2])
        return torch.cat([F.scaled_dot_product_attention(q, k, half, attn_mask=visible, enable_gqa=True) for half in halves],
                         dim=-1).transpose(1, 2)

    def eager(self, q, k, v):
        groups = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
        scores = torch.einsum("bthd,bshd->bhts", q * self.width ** -0.5, k)
        hidden = self.hidden(q.shape[1], k.shape[1])
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")).float(), dim=-1).type_as(v)
        return torch.einsum("bhts,bshd->bthd", weights, v)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        gate, y = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(y * F.silu(gate))


class SambaY(nn.Module):
    """Eight layers: Mamba and windowed attention, Mamba that gives the memory and full attention that gives keys and values, then
    memory units and crossing attention."""

    def __init__(self, window=3, fused=False):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        kinds = [Mamba(), Attention(1, window=window, fused=fused), Mamba(), Attention(3, window=window, fused=fused), Mamba(),
                 Attention(5, fused=fused), MemoryUnit(), Attention(7, crosses=True, fused=fused)]
        self.mixers = nn.ModuleList(kinds)
        self.mlps = nn.ModuleList(MLP() for _ in kinds)
        self.before, self.behind = (nn.ModuleList(nn.LayerNorm(WIDTH) for _ in kinds) for _ in range(2))
        self.final_layernorm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x, memory, shared = self.embed_tokens(ids), None, None
        for mixer, mlp, before, behind in zip(self.mixers, self.mlps, self.before, self.behind):
            y = before(x)
            if isinstance(mixer, Mamba):
                y, memory = mixer(y)
            elif isinstance(mixer, MemoryUnit):
                y = mixer(y, memory)
            else:
                y, shared = mixer(y, shared)
            x = x + y
            x = x + mlp(behind(x))
        return F.linear(self.final_layernorm(x), self.embed_tokens.weight)
