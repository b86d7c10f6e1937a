"""The coupling coefficients of every routed layer: who sends how much to whom."""

from typing import Any

import torch
from torch import Tensor, nn

from mocapsnet.nn.routing import CapsLayer
from mocapsnet.nn.watch import watching


@torch.no_grad()
def coupling(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """The last coupling c [B,J,I] of every routed layer of a model, by the layer's name.

    >>> coupling(mc.CapsNet((1, 28, 28), classes=10), torch.rand(2, 1, 28, 28))["caps2"].shape
    torch.Size([2, 10, 32])
    """
    found: dict[str, Tensor] = {}

    def see(name: str, module: nn.Module, given: tuple[Any, ...], _: Any) -> None:
        if isinstance(module, CapsLayer):
            found[name] = module.coupling(given[0])

    with watching(model, see):
        model(images)
    return found
