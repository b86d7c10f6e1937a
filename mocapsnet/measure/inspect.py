"""What a network is made of: stages, sizes, lengths of capsules, and what is kept for backward."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocapsnet.nn.watch import watching
from mocapsnet.ops import length


class Stage(NamedTuple):
    """One module that computes; its shape is the output's, without the batch."""

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    length: float | None
    """The mean of its capsules; None where the output is not capsules."""


class Inspection(NamedTuple):
    """The stages in the order they run, and the bytes that one image keeps for the backward pass."""

    stages: list[Stage]
    bytes_for_backward: int


CAPSULES = (
    *("PrimaryCapsules", "CapsLayer", "ReleasedPrimary", "ReleasedLayer"),
    *("PlainTrunk", "ResidualTrunk", "DoubledResidualTrunk", "MomentumSequence"),
)
STAGES = ("Stem", *CAPSULES, "Decoder")


def inspect(model: nn.Module, images: Tensor) -> Inspection:
    """Run a batch of standardised images through a model and look at every stage."""
    stages: list[Stage] = []

    def see(name: str, module: nn.Module, _: Any, output: Tensor) -> None:
        kind = type(module).__name__
        if kind in STAGES:
            parameters = sum(parameter.numel() for parameter in module.parameters())
            mean = float(length(output.detach()).mean()) if kind in CAPSULES else None
            stages.append(Stage(name, kind, tuple(output.shape[1:]), parameters, mean))

    with watching(model, see):
        kept = bytes_for_backward(lambda: model(images), model)
    return Inspection(stages, kept // len(images))


def bytes_for_backward(forward: Callable[[], Any], model: nn.Module) -> int:
    """The bytes a forward pass saves for the backward pass, parameters not counted, each storage once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        # Held until the end: a storage that was freed could come again at the same address.
        output = forward()
    del output
    return sum(kept.values())
