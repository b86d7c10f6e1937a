"""The squashing non-linearity and the length it rests on, both smooth at zero."""

import torch
from torch import Tensor


def length(s: Tensor, axis: int = -1) -> Tensor:
    """Length of the vectors in an axis, the last one, [..., E] -> [...].

    ‖s‖ = sqrt(Σ s² + ε): with ε inside the root the gradient at s = 0 is 0, not NaN.

    >>> length(torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    epsilon = max(1e-20, torch.finfo(s.dtype).tiny)
    return (s.square().sum(axis) + epsilon).sqrt()


def squash(s: Tensor, axis: int = -1) -> Tensor:
    """Keep the direction of a vector and map its length n to n²/(1 + n²), [..., E] -> [..., E].

    squash(s) = s · ‖s‖ / (1 + ‖s‖²)   (Sabour et al. 2017, equation 1)

    >>> squash(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.5000])
    """
    n = length(s, axis).unsqueeze(axis)
    return s * (n / (1 + n.square()))


def direction(s: Tensor) -> Tensor:
    """The unit vector s/‖s‖, [..., E] -> [..., E]; a vector shorter than 1e-8 has none and stays as it is.

    >>> direction(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    n = length(s).unsqueeze(-1)
    return torch.where(n > 1e-8, s / n, s)
