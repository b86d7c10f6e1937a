"""The coupling coefficients of every routed layer: who sends how much to whom."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops.em.reference import em
from mocapsnet.ops.rba.reference import rba
from mocapsnet.ops.sda.reference import sda

REFERENCES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "rba": rba,
    "leaky-rba": rba,
    "sda": sda,
    "em": em,
}


@torch.no_grad()
def coupling(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """The last coupling c [B,J,I] of every routed layer of a model, by the layer's name.

    >>> coupling(mc.CapsNet((1, 28, 28), classes=10), torch.rand(2, 1, 28, 28))["caps2"].shape
    torch.Size([2, 10, 32])
    """
    found: dict[str, Tensor] = {}

    def watch(name: str, layer: CapsLayer) -> Any:
        def hook(_: nn.Module, arguments: tuple[Tensor]) -> None:
            found[name] = REFERENCES[layer.routing](arguments[0], **layer.arguments())[1]

        return layer.register_forward_pre_hook(hook)

    hooks = [watch(name, layer) for name, layer in model.named_modules() if isinstance(layer, CapsLayer)]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found
