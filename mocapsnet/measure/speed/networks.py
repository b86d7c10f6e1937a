"""What is timed: the networks on random images, checked against the naive version first."""

import copy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
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
from mocapsnet.nn.load import NETWORKS
from mocapsnet.nn.network import CapsuleNetwork, MoCapsNet
from mocapsnet.nn.primary import convolve
from mocapsnet.nn.released import ReleasedNetwork
from mocapsnet.train.device import How, float32_products, in_fast_order, make_fabric, pick_device
from mocapsnet.train.graph import another_stream

# What two orders of float32 sums may differ by.
LENGTHS, GRADIENTS = 1e-4, 1e-3
# Few images show what is wrong; the programs of convolutions take no fewer than 64.
CHECKED, ROUNDED = 4, 64
# What lengths and gradients may differ by beyond twice naive's own error in a precision, and at most.
BEYOND = {"bf16-mixed": (1e-3, 5e-2), "tf32": (1e-4, 5e-3)}
MOST = 0.5
Shape = tuple[tuple[int, int, int], int]


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
    if device.type == "cuda":
        take_rooms(device)
    return Start(way, data, depths, settings.naive_blocks(what))


def take_rooms(device: torch.device) -> None:
    """Let cuBLAS take its room, once for each thread and stream: it is a process's, and no network's."""
    with another_stream():
        x = torch.ones(8, 8, device=device, requires_grad=True)
        F.linear(x, x, x[0]).sum().backward()


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


def released(settings: BenchSettings, blocks: int) -> dict[str, ReleasedNetwork]:
    """What the released code of the paper computes, with and without momentum, all votes in memory."""
    names = ("routing", "capsules", "capsule_dim", "channels")
    options: dict[str, Any] = {name: getattr(settings, name) for name in names}
    trunks = {"released-mocapsnet": "momentum", "released-rescapsnet": "residual"}
    torch.manual_seed(0)
    with sized(f"a network of {blocks} such blocks"):
        return {
            name: ReleasedNetwork(*shape_of(settings.dataset), blocks, trunk, backend="reference", **options)
            for name, trunk in trunks.items()
        }


def outcome(network: nn.Module, data: Split, count: int, precision: str) -> dict[str, list[Tensor]]:
    """Lengths of some images and the gradients of each part of a network, in eager mode."""
    pixels, labels = to_pixels(data.images[:count]), data.labels[:count]
    network.to(pixels.device)
    with float32_products(tf32=precision != "fp32"):
        with make_fabric(pixels.device, precision).autocast():
            output = network(standardise(pixels), labels)
        capsule_loss(output, labels, pixels).backward()
    return {"lengths": [output.lengths.detach()], **gradients(network)}


def against_naive(model: CapsuleNetwork, data: Split) -> tuple[float, float]:
    """The errors of lengths and gradients: they must be those of the naive version, in eager float32."""
    right = outcome(Naive(model), data, CHECKED, "fp32")
    found = outcome(copy.deepcopy(model), data, CHECKED, "fp32")
    allowed = {part: LENGTHS if part == "lengths" else GRADIENTS for part in right}
    return errors(f"{type(model).__name__} and its naive version", found, right, allowed)


def in_precision(model: CapsuleNetwork, data: Split, how: How) -> tuple[float, float] | tuple[None, None]:
    """The same in a precision that rounds, where the naive version's own errors say how much is allowed."""
    if how.precision == "fp32":
        return None, None
    ours = copy.deepcopy(model)
    in_fast_order(ours, data.images.device)
    right = outcome(Naive(model), data, ROUNDED, "fp32")
    found, naive = (outcome(network, data, ROUNDED, how.precision) for network in (ours, Naive(model)))
    of_lengths, of_gradients = BEYOND[how.precision]
    allowed = {
        part: min(
            MOST,
            2 * relative_error(naive[part], right[part])
            + (of_lengths if part == "lengths" else of_gradients),
        )
        for part in right
    }
    return errors(f"{type(model).__name__} in {how.precision} and its naive version", found, right, allowed)


def errors(
    what: str, found: dict[str, list[Tensor]], right: dict[str, list[Tensor]], allowed: dict[str, float]
) -> tuple[float, float]:
    """The errors of lengths, and of gradients in the part where it is largest; none may be too large."""
    told = {}
    for part, limit in allowed.items():
        of = "lengths" if part == "lengths" else f"gradients in {part}"
        told[part] = agree(f"{what} must have equal {of}", relative_error(found[part], right[part]), limit)
    return told.pop("lengths"), max(told.values())


def gradients(network: nn.Module) -> dict[str, list[Tensor]]:
    """The gradients of each part of a network: one that is small must not hide behind a large one."""
    parts: dict[str, list[Tensor]] = {}
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            parts.setdefault(name.split(".")[0], []).append(parameter.grad)
    return parts


class Convolutions(nn.Module):
    """A network's two convolutions alone, as it computes them: no routing can be faster."""

    def __init__(self, model: CapsuleNetwork) -> None:
        super().__init__()
        self.stem = model.stem
        self.primary = model.primary.conv

    def forward(self, images: Tensor) -> Tensor:
        """Maps, as primary capsules read them."""
        return convolve(self.stem(images), self.primary)


def over(one: Times | None, other: Times | None) -> float | None:
    """How many times as long one takes."""
    return one.seconds / other.seconds if one and other else None
