"""One step of a momentum network (equations 3 and 4)."""

from torch import Tensor


def step(x: Tensor, velocity: Tensor, f: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """v_{n+1} = γ v_n + (1 − γ) f(x_n),  x_{n+1} = x_n + v_{n+1}."""
    velocity = gamma * velocity + (1 - gamma) * f
    return x + velocity, velocity
