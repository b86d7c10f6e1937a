"""EM routing on vector capsules, the specification (after Hinton et al. 2018), in the log domain."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mocapsnet.ops.squash import direction, length
from mocapsnet.ops.votes import earlier, votes


def em(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    beta_a: Tensor | None = None,
    beta_u: Tensor | None = None,
    gradient: str = "all",
) -> tuple[Tensor, Tensor]:
    """Route u [B,I,D] through W [J,I,E,D]: capsules v [B,J,E] and the last assignment R [B,J,I].

    Capsule j is a Gaussian over the votes V_ij = W_ij u_i + bias_j, each weighted by R_ij · ‖u_i‖;
    v_j is the direction of its mean, with its activation a_j as length.
    """
    V = votes(u, W)
    J = V.shape[1]
    if bias is not None:
        V = V + bias[:, None]
    beta_a = V.new_zeros(J) if beta_a is None else beta_a
    beta_u = V.new_zeros(J) if beta_u is None else beta_u
    inputs = (V, length(u).log()[:, None], beta_a, beta_u)
    early_inputs = earlier(gradient, *inputs)
    log_R = V.new_full(V.shape[:3], -math.log(J))
    for iteration in range(iterations - 1):
        log_a, mu, var = maximise(inverse_temperature(iteration), log_R, *early_inputs)
        log_R = (log_a.unsqueeze(2) + log_normal(early_inputs[0], mu, var)).log_softmax(1)
    log_a, mu, _ = maximise(inverse_temperature(iterations - 1), log_R, *inputs)
    return log_a.exp().unsqueeze(-1) * direction(mu), log_R.exp()


def maximise(
    lam: float, log_R: Tensor, V: Tensor, log_a: Tensor, beta_a: Tensor, beta_u: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """M step: log activation [B,J], mean [B,J,E] and variance [B,J,E] of every Gaussian.

    r = R·a;  cost_j = Σ_h (β_u + log σ²_jh) · Σ_i r_ij;  a_j = sigmoid(λ (β_a − cost_j))
    """
    log_r = log_R + log_a
    share = log_r.softmax(2)
    mu = torch.einsum("bji,bjie->bje", share, V)
    var = torch.einsum("bji,bjie->bje", share, (V - mu.unsqueeze(2)).square()) + 1e-4
    cost = (beta_u.unsqueeze(-1) + var.log()).sum(-1) * log_r.logsumexp(2).exp()
    return F.logsigmoid(lam * (beta_a - cost)), mu, var


def log_normal(V: Tensor, mu: Tensor, var: Tensor) -> Tensor:
    """log N(V_ij; μ_j, σ²_j) of independent components: V [B,J,I,E] -> [B,J,I]."""
    mu, var = mu.unsqueeze(2), var.unsqueeze(2)
    return -0.5 * ((V - mu).square() / var + (2 * math.pi * var).log()).sum(-1)


def inverse_temperature(iteration: int) -> float:
    """λ of an iteration counted from 0."""
    return 0.01 * (1 - 0.95 ** (iteration + 1))
