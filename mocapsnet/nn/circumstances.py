"""What a layer's result depends on beside its input, so that the layer can be computed again."""

import sys
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Circumstances(NamedTuple):
    """What a layer's result depended on beside its input."""

    needs_grad: bool
    """Whether its input did."""
    modes: tuple[bool, ...]
    """Which of its modules were training."""
    parameters: dict[str, nn.Parameter]
    """Its parameters, which functional_call may have lent to it."""
    buffers: dict[str, Tensor]
    """Its buffers; those that it wrote as copies of what they were before."""
    versions: dict[str, int]
    """Of parameters and buffers, as torch counts what is written to them."""
    random: tuple[Tensor, ...]
    """The states of the random generators, if it drew numbers."""
    sums: Tensor | None
    """Checksums of its input and of its result, if they are to be compared."""


def generators(device: torch.device) -> tuple[Tensor, ...]:
    """The states of the generators that a layer on this device draws from."""
    cpu = torch.get_rng_state()
    return (cpu,) if device.type == "cpu" else (cpu, torch.get_device_module(device).get_rng_state(device))


def set_generators(device: torch.device, states: tuple[Tensor, ...]) -> None:
    """Put the generators back to states that generators() gave, if it gave any."""
    for where, state in zip((torch, torch.get_device_module(device)), states, strict=False):
        where.set_rng_state(state)


def modes(layer: nn.Module) -> tuple[bool, ...]:
    """Which modules of a layer are training."""
    return tuple(module.training for module in layer.modules())


def sharded(layer: nn.Module) -> bool:
    """Whether FSDP exchanges this layer's parameters, shards for whole ones, on its own."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in layer.modules())


def checksums(*tensors: Tensor) -> Tensor:
    """A number for each tensor that changes when a bit changes or two numbers swap places."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    with torch.no_grad():
        bits = [x.detach().contiguous().view(integers[x.element_size()]).flatten().long() for x in tensors]
        return torch.stack([(b * (2 * torch.arange(len(b), device=b.device) + 1)).sum() for b in bits])
