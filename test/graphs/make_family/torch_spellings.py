"""Softmaxes and norms, as PyTorch code spells them: `SOFTMAXES[name](scores)`, `norm(name, x)`."""

import torch
import torch.nn.functional as F

SOFTMAXES = {
    "torch": lambda x: torch.softmax(x, -1),
    "F32": lambda x: F.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype),
    "up": lambda x: torch.softmax(x.float(), dim=-1).type_as(x),
    "lse": lambda x: torch.exp(x - torch.logsumexp(x, -1, keepdim=True)),
    "logsm": lambda x: torch.log_softmax(x, -1).exp(),
    "nan": lambda x: torch.nan_to_num(torch.softmax(x, -1)),
}


def softmax(function):
    SOFTMAXES[function.__name__] = function
    return function


@softmax
def manual(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


@softmax
def nomax(x):
    e = torch.exp(x)
    return e / e.sum(dim=-1, keepdim=True)


@softmax
def recip(x):
    e = (x - x.max(-1, keepdim=True).values).exp()
    return e * (1.0 / e.sum(-1, keepdim=True))


@softmax
def recip2(x):
    e = (x - x.max(-1, keepdim=True)[0]).exp()
    return e * e.sum(-1, keepdim=True).reciprocal()


@softmax
def exp2(x):
    x = x * 1.4426950408889634
    e = torch.exp2(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


@softmax
def detach(x):
    e = torch.exp(x - x.max(dim=-1, keepdim=True)[0].detach())
    return e / torch.sum(e, -1, keepdim=True)


@softmax
def pow(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e * torch.pow(e.sum(-1, keepdim=True), -1.0)


#: Norms of x [B, H, T, dv] along its last axis that need no parameters.
NORMS = {
    "none": lambda x: x,
    "rms_pow": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
    "rms_float": lambda x: (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x),
    "rms_sqrt": lambda x: x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6),
    "rms_norm": lambda x: x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + 1e-5),
    "rms_F": lambda x: F.rms_norm(x, (x.shape[-1],), eps=1e-5),
    "rms_out": lambda x: x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6),
    "rms_sum": lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) / x.size(-1) + 1e-5),
    "l2": lambda x: F.normalize(x, dim=-1) * x.shape[-1] ** 0.5,
}


def rms_of_all_heads(x):
    """A norm over heads and widths together, which is none of one head."""
    B, H, T, dv = x.shape
    y = x.transpose(1, 2).reshape(B, T, H * dv)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
    return y.view(B, T, H, dv).transpose(1, 2)


def group_norm(module, x):
    B, H, T, dv = x.shape
    return module(x.permute(0, 1, 3, 2).reshape(B, H * dv, T)).reshape(B, H, dv, T).permute(0, 1, 3, 2)
