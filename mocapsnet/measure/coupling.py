"""The coupling coefficients of every routed layer: who sends how much to whom."""

import torch
from torch import Tensor, nn

from mocapsnet.nn.watch import intermediates


@torch.no_grad()
def coupling(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """The last coupling c [B,J,I] of every routed layer of a model, by the layer's name.

    >>> coupling(mc.CapsNet((1, 28, 28), classes=10), torch.rand(2, 1, 28, 28))["caps2"].shape
    torch.Size([2, 10, 32])
    """
    _, layers = intermediates(model, images)
    return {layer.name: layer.coupling for layer in layers if layer.coupling is not None}
