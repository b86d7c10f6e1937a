"""A momentum network around any layers that keep their input's shape; it knows nothing of capsules."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.arguments import one_of
from mocapsnet.ops.momentum import step


class MomentumSequence(nn.Module):
    """v_{n+1} = γ v_n + (1 − γ) f(x_n),  x_{n+1} = x_n + v_{n+1} (equations 3 and 4).

    The velocity starts at zero and is carried through all layers. gamma = 0 is the residual network.
    Further arguments of the call go to every layer.

    >>> sequence = MomentumSequence([nn.Linear(4, 4) for _ in range(6)], gamma=0.9)
    >>> y = sequence(torch.randn(2, 4))
    >>> y, velocity = sequence(torch.randn(2, 4), return_velocity=True)
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        gamma: float = 0.9,
        memory: str = "store",
        arithmetic: str = "float",
    ) -> None:
        super().__init__()
        if gamma == 1:
            raise WrongArgument(
                "gamma must be < 1, got 1: equation 3 then ignores f; 0.9 is the paper's value"
            )
        if not isinstance(gamma, int | float) or not 0 <= gamma < 1:
            raise WrongArgument(f"gamma must be in [0, 1), got {gamma!r}; 0 is the residual network")
        one_of("memory", memory, ("store",))
        one_of("arithmetic", arithmetic, ("float",))
        self.layers = nn.ModuleList(layers)
        self.gamma = gamma
        self.memory = memory
        self.arithmetic = arithmetic

    def forward(
        self,
        x: Tensor,
        *args: Any,
        velocity: Tensor | None = None,
        return_velocity: bool = False,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The state after the last layer, and the velocity when asked for."""
        velocity = torch.zeros_like(x) if velocity is None else velocity
        for number, layer in enumerate(self.layers):
            f = layer(x, *args, **kwargs)
            if f.shape != x.shape:
                raise WrongArgument(
                    f"layers must keep their input's shape, but layer {number} makes {tuple(f.shape)} "
                    f"of {tuple(x.shape)}"
                )
            x, velocity = step(x, velocity, f, self.gamma)
        return (x, velocity) if return_velocity else x

    def extra_repr(self) -> str:
        """The options, for print(model)."""
        return f"gamma={self.gamma}, memory={self.memory!r}, arithmetic={self.arithmetic!r}"
