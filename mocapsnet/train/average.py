"""The exponential moving average of a network's weights, which is tested and saved in their place."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """a ← d·a + (1 − d)·w after every step, from a = 0; a / (1 − d^steps) is a mean of the weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.weights = list(model.parameters())
        self.decay = decay
        self.sums = [torch.zeros_like(weight) for weight in self.weights]

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of a step in; part of the step's graph."""
        torch._foreach_lerp_(self.sums, [weight.detach() for weight in self.weights], 1 - self.decay)

    @torch.no_grad()
    def apply(self, steps: int) -> list[Tensor]:
        """Put the average of so many steps into the network; the weights it had."""
        had = [weight.detach().clone() for weight in self.weights]
        for weight, total in zip(self.weights, self.sums, strict=True):
            weight.copy_(total / (1 - self.decay**steps))
        return had

    @contextmanager
    def applied(self, steps: int) -> Iterator[None]:
        """The network has its average for a while."""
        had = self.apply(steps)
        try:
            yield
        finally:
            self.load(had, self.weights)

    @staticmethod
    @torch.no_grad()
    def load(saved: list[Tensor], into: list[Tensor] | list[nn.Parameter]) -> None:
        """Copy tensors in place, from whatever device they are on."""
        for mine, other in zip(into, saved, strict=True):
            mine.copy_(other)
