"""Scaled-distance-agreement routing, the specification (Peer et al. 2018)."""

import math

from torch import Tensor

from mocapsnet.ops.rba.reference import couple, weighted_sum
from mocapsnet.ops.squash import length, squash
from mocapsnet.ops.votes import earlier, votes

# The coupling that a parent at half the mean distance gets.
P = 0.9


def sda(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    scope: str = "sample",
    gradient: str = "all",
) -> tuple[Tensor, Tensor]:
    """Route u [B,I,D] through W [J,I,E,D]: capsules v [B,J,E] and the last coupling c [B,J,I].

    û ← û · min(1, ‖u_i‖/‖û‖),  v_j = squash(Σ_i c_ij û_{j|i} + bias_j),  b_ij = t · ‖v_j − û_{j|i}‖
    """
    u_hat = votes(u, W)
    u_hat = u_hat * (length(u)[:, None] / length(u_hat)).clamp(max=1).unsqueeze(-1)
    offset = u_hat.new_zeros(()) if bias is None else bias
    early_u_hat, early_offset = earlier(gradient, u_hat, offset)
    b = u_hat.new_zeros(u_hat.shape[:3])
    for _ in range(iterations - 1):
        v = squash(weighted_sum(couple(b), early_u_hat) + early_offset)
        d = length(v.unsqueeze(2) - early_u_hat)
        b = scale(d, scope) * d
    c = couple(b)
    return squash(weighted_sum(c, u_hat) + offset), c


def scale(d: Tensor, scope: str) -> Tensor:
    """The factor t < 0 from distances to coupling logits, for d [B,J,I].

    t = (log(p(J−1)) − log(1−p)) / (d_p − d_o), with d_o the mean distance and d_p = d_o/2:
    of J parents, one at d_p and the others at d_o, the near one is coupled with exactly p.
    """
    J = d.shape[1]
    if J == 1:
        return d.new_zeros(())
    d_o = d.mean() if scope == "batch" else d.mean((1, 2), keepdim=True)
    return -(math.log(P * (J - 1)) - math.log(1 - P)) / (d_o / 2)
