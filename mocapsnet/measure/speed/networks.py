"""What is timed: the networks on random images, checked against the naive version first."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocapsnet.data import Split
from mocapsnet.data.augment import standardise, to_pixels
from mocapsnet.data.classes import COUNTS, shape_of
from mocapsnet.losses import capsule_loss
from mocapsnet.measure.report import how
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed.naive import Naive
from mocapsnet.measure.timing import Times, agree, sized
from mocapsnet.nn.inversion import relative_error
from mocapsnet.nn.network import NETWORKS, CapsuleNetwork, MoCapsNet
from mocapsnet.train.fit import How, pick_device
from mocapsnet.train.step import float32_products, in_fast_order

# What two orders of float32 sums may differ by.
LENGTHS, GRADIENTS = 1e-4, 1e-3
# Few images show what is wrong.
CHECKED = 4
Shape = tuple[tuple[int, int, int], int]
# What a first version runs as.
NAIVE = How("fp32", "off", False)


def random_split(dataset: str, count: int, seed: int = 0) -> Split:
    """Random images of a data set's shape, each half its class's own picture, so that a loss can fall."""
    shape, classes = shape_of(dataset)
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randint(
        128, (classes, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    with sized(f"{count} images"):
        labels = torch.randint(classes, (count,), generator=generator)
        noise = torch.randint(128, (count, *shape), generator=generator, dtype=torch.uint8)
        return Split(noise.add_(pictures[labels]), labels)


class Start(NamedTuple):
    """What a bench of networks begins with."""

    how: How
    data: Split
    depths: list[int]
    naive: list[int]


def begin(what: str, settings: BenchSettings) -> Start:
    """Refuse what cannot be before anything takes long; lay as many images as the data set has ready."""
    settings.check(what)
    device, depths = pick_device(settings.device), settings.blocks(what)
    way = how(settings, device)
    for name in settings.networks:
        build(settings, name, depths[0])
    data = random_split(settings.dataset, max(COUNTS[settings.dataset][0], settings.batch)).to(device)
    settings.folder(what).mkdir(parents=True, exist_ok=True)
    if way.compile:
        torch.compiler.reset()
    return Start(way, data, depths, settings.naive_blocks(what))


def build(
    settings: BenchSettings, network: str, blocks: int, shape: Shape | None = None, seed: int = 0
) -> CapsuleNetwork:
    """A network as the settings have it, for images of the data set; its weights are those of the seed."""
    (kind,) = (kind for name, kind in NETWORKS.items() if name.lower() == network)
    names = ["routing", "capsules", "capsule_dim", "channels", "backend"]
    if kind is MoCapsNet:
        names += ["gamma", "memory", "arithmetic"]
    options: dict[str, Any] = {name: getattr(settings, name) for name in names}
    image_shape, classes = shape or shape_of(settings.dataset)
    torch.manual_seed(seed)
    with sized(f"a network of {blocks} such blocks"):
        return kind(image_shape, classes, blocks, **options)


def against_naive(model: CapsuleNetwork, data: Split) -> tuple[float, float]:
    """The errors of lengths and gradients: they must be those of the naive version, in eager float32."""
    pixels, labels = to_pixels(data.images[:CHECKED]), data.labels[:CHECKED]
    found = []
    for network in (copy.deepcopy(model), Naive(model)):
        network.to(pixels.device)
        with float32_products(tf32=False):
            output = network(standardise(pixels), labels)
            capsule_loss(output, labels, pixels).backward()
        found.append((output.lengths.detach(), gradients(network)))
    (lengths, ours), (naive_lengths, theirs) = found
    name = type(model).__name__
    return (
        agree(
            f"{name} and its naive version must have equal lengths",
            relative_error([lengths], [naive_lengths]),
            LENGTHS,
        ),
        max(
            agree(
                f"{name} and its naive version must have equal gradients in {part}",
                relative_error(ours[part], theirs[part]),
                GRADIENTS,
            )
            for part in theirs
        ),
    )


def gradients(network: nn.Module) -> dict[str, list[Tensor]]:
    """The gradients of each part of a network: one that is small must not hide behind a large one."""
    parts: dict[str, list[Tensor]] = {}
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            parts.setdefault(name.split(".")[0], []).append(parameter.grad)
    return parts


class Convolutions(nn.Module):
    """A network's two convolutions alone, which no routing can be faster than."""

    def __init__(self, model: CapsuleNetwork) -> None:
        super().__init__()
        self.stem = model.stem
        self.primary = model.primary.conv

    def forward(self, images: Tensor) -> Tensor:
        """Maps, as primary capsules read them."""
        maps: Tensor = self.primary(self.stem(images))
        return maps


def arrange(model: CapsuleNetwork, device: torch.device) -> None:
    """Weights in the order of memory that training gives them on a device."""
    if device.type == "cuda":
        in_fast_order(model)


def over(one: Times | None, other: Times | None) -> float | None:
    """How many times as long one takes."""
    return one.seconds / other.seconds if one and other else None
