"""EM routing in a better order: votes are one batched matmul over i, j their last axis."""

import math

import torch.nn.functional as F
from torch import Tensor

from mocapsnet.ops.em.reference import inverse_temperature
from mocapsnet.ops.order import as_written, output_dtype, state_dtype, votes, votes_dtype
from mocapsnet.ops.squash import direction, length
from mocapsnet.ops.votes import earlier


def em(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    beta_a: Tensor | None = None,
    beta_u: Tensor | None = None,
    gradient: str = "all",
) -> tuple[Tensor, Tensor]:
    """What reference.em gives: capsules v [B,J,E] and the last assignment R [B,J,I]."""
    out, state, dtype = output_dtype(u, W), state_dtype(u, W), votes_dtype(u, W)
    with as_written(u.device.type):
        V = votes(u, W, dtype).to(state)
        J = V.shape[3]
        if bias is not None:
            V = V + bias.T
        beta_a = V.new_zeros(J) if beta_a is None else beta_a
        beta_u = V.new_zeros(J) if beta_u is None else beta_u
        inputs = (V, length(u.to(state)).log().T.unsqueeze(-1), beta_a, beta_u)
        early_inputs = earlier(gradient, *inputs)
        log_R = V.new_full(V[:, :, 0].shape, -math.log(J))
        for iteration in range(iterations - 1):
            log_a, mu, var = maximise(inverse_temperature(iteration), log_R, *early_inputs)
            log_R = (log_a + log_normal(early_inputs[0], mu, var)).log_softmax(-1)
        log_a, mu, _ = maximise(inverse_temperature(iterations - 1), log_R, *inputs)
        v = log_a.exp().unsqueeze(-1) * direction(mu.mT)
        return v.to(out), log_R.exp().permute(1, 2, 0).to(out)


def maximise(
    lam: float, log_R: Tensor, V: Tensor, log_a: Tensor, beta_a: Tensor, beta_u: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """M step: log activation [B,J], mean [B,E,J] and variance [B,E,J] of every Gaussian."""
    log_r = log_R + log_a
    share = log_r.softmax(0).unsqueeze(2)
    mu = (share * V).sum(0)
    # Sums spare the gradient a negation of all votes.
    var = (share * (V + -mu).square()).sum(0) + 1e-4
    cost = (beta_u + var.log()).sum(1) * log_r.logsumexp(0).exp()
    return F.logsigmoid(lam * (beta_a - cost)), mu, var


def log_normal(V: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """log N(V_ij; μ_j, σ²_j) of independent components: V [I,B,E,J] -> [I,B,J]."""
    return -0.5 * ((V + -mu).square() / var + (2 * math.pi * var).log()).sum(2)
