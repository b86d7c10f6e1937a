"""Scaled-distance agreement in a better order: votes are one batched matmul over i, j their last axis."""

from torch import Tensor

from mocapsnet.ops.order import as_written, output_dtype, state_dtype, votes, votes_dtype
from mocapsnet.ops.sda.reference import scale
from mocapsnet.ops.squash import length, squash
from mocapsnet.ops.votes import earlier


def sda(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    scope: str = "sample",
    gradient: str = "all",
) -> tuple[Tensor, Tensor]:
    """What reference.sda gives: capsules v [B,J,E] and the last coupling c [B,J,I]."""
    out, state, dtype = output_dtype(u, W), state_dtype(u, W), votes_dtype(u, W)
    with as_written(u.device.type):
        u_hat = votes(u, W, dtype).to(state)
        longest = length(u.to(state)).T.unsqueeze(-1)
        u_hat = u_hat * (longest / length(u_hat, -2)).clamp(max=1).unsqueeze(2)
        offset = u_hat.new_zeros(()) if bias is None else bias.T
        early_u_hat, early_offset = earlier(gradient, u_hat, offset)
        b = u_hat.new_zeros(u_hat[:, :, 0].shape)
        for _ in range(iterations - 1):
            v = squash(weighted_sum(b.softmax(-1), early_u_hat) + early_offset, -2)
            # A sum spares the gradient one negation of all votes.
            d = length(early_u_hat + -v, -2).permute(1, 2, 0)
            b = (scale(d, scope) * d).permute(2, 0, 1)
        c = b.softmax(-1)
        v = squash(weighted_sum(c, u_hat) + offset, -2)
        return v.mT.to(out), c.permute(1, 2, 0).to(out)


def weighted_sum(c: Tensor, u_hat: Tensor) -> Tensor:
    """s_j = Σ_i c_ij û_{j|i}: c [I,B,J], û [I,B,E,J] -> [B,E,J]."""
    return (c.unsqueeze(2) * u_hat).sum(0)
