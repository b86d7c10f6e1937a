"""Routing by agreement, the specification (Sabour et al. 2017, procedure 1)."""

import torch
from torch import Tensor

from mocapsnet.ops.squash import squash
from mocapsnet.ops.votes import earlier, votes


def rba(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    leaky: bool = False,
    gradient: str = "last",
) -> tuple[Tensor, Tensor]:
    """Route u [B,I,D] through W [J,I,E,D]: capsules v [B,J,E] and the last coupling c [B,J,I].

    s_j = Σ_i c_ij û_{j|i} + bias_j,  v_j = squash(s_j),  b_ij += û_{j|i} · v_j
    """
    u_hat = votes(u, W)
    offset = u_hat.new_zeros(()) if bias is None else bias
    early_u_hat, early_offset = earlier(gradient, u_hat, offset)
    b = u_hat.new_zeros(u_hat.shape[:3])
    for _ in range(iterations - 1):
        v = squash(weighted_sum(couple(b, leaky), early_u_hat) + early_offset)
        b = b + torch.einsum("bjie,bje->bji", early_u_hat, v)
    c = couple(b, leaky)
    return squash(weighted_sum(c, u_hat) + offset), c


def couple(b: Tensor, leaky: bool = False) -> Tensor:
    """c = softmax of the logits b [B,J,I] over J; leaky: a zero logit joins in and its share is dropped."""
    if not leaky:
        return b.softmax(1)
    return torch.cat([torch.zeros_like(b[:, :1]), b], 1).softmax(1)[:, 1:]


def weighted_sum(c: Tensor, u_hat: Tensor) -> Tensor:
    """s_j = Σ_i c_ij û_{j|i}: c [B,J,I], û [B,J,I,E] -> [B,J,E]."""
    return torch.einsum("bji,bjie->bje", c, u_hat)
