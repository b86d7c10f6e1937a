"""A bench, completely described. This file needs no torch, so that the command line can read it quickly."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class BenchSettings:
    """Everything that `mocapsnet bench` takes beside what is measured.

    Attributes:
        of: The momentum trunk alone, or a whole MoCapsNet with its loss and Adam.
        depths: Depths in blocks of two routed layers.
        batch: Images per step.
        capsules: Capsules in every layer of the trunk.
        capsule_dim: Size of those capsules.
        routing: How capsules agree.
        gamma: The momentum term.
        dataset: Whose image shape and classes a whole network has; its images are random.
        channels: Channels of both convolutions of a whole network.
        repeats: Timed steps of each variant; the table has their median.
        device: Where to compute; auto takes the best there is.
        output: The folder for the CSV and the picture.
    """

    of: Literal["trunk", "network"] = "trunk"
    depths: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32, 64])
    batch: int = 128
    capsules: int = 32
    capsule_dim: int = 8
    routing: Literal["rba", "leaky-rba", "sda", "em"] = "rba"
    gamma: float = 0.9
    dataset: str = "cifar10"
    channels: int = 256
    repeats: int = 10
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    output: str = "results/memory"
