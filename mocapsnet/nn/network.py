"""The three networks of the paper, one class each; a residual one becomes a momentum one with its weights."""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.nn.decoder import Decoder, mask
from mocapsnet.nn.primary import PrimaryCapsules, checked_shape, primary_count
from mocapsnet.nn.reversible import MomentumSequence
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.nn.stem import Stem
from mocapsnet.nn.trunk import PlainTrunk, ResidualTrunk
from mocapsnet.nn.watch import Intermediate, chosen, intermediates
from mocapsnet.ops import length
from mocapsnet.ops.arguments import at_least, one_of


class CapsuleOutput(NamedTuple):
    """What a capsule network returns."""

    lengths: Tensor
    """[B,K]: how present each class is."""
    capsules: Tensor
    """[B,K,E]: how each class looks."""
    reconstruction: Tensor
    """[B,C,H,W]: the image the masked capsules describe, in (0,1)."""


class CapsuleNetwork(Network):
    """Stem, primary capsules, CapsLayer 1, a trunk of blocks (two routed layers each), CapsLayer 2, decoder.

    Abstract: CapsNet, ResCapsNet and MoCapsNet choose the trunk.

    image_shape is (C, H, W) and may be any size from 17x17 up (at kernel_size 9); routing is "rba",
    "leaky-rba", "sda" or "em"; capsules and capsule_dim size CapsLayer 1 and the trunk, class_dim the
    class capsules; channels (a multiple of capsule_dim) and kernel_size size both convolutions; weights
    start at N(0, weight_std²) and biases at routing_bias (None: no bias); gradient is "last" or "all",
    None for the routing's default; the decoder's hidden layers are decoder_width and twice that.

    >>> model = mc.ResCapsNet(image_shape=(3, 32, 32), classes=10, blocks=5, routing="sda")
    >>> output = model(images, labels)
    >>> output.lengths, output.capsules, output.reconstruction
    """

    skips: ClassVar[tuple[str, ...]] = ("layer",)

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        classes: int,
        blocks: int = 1,
        routing: str = "rba",
        iterations: int = 3,
        capsules: int = 32,
        capsule_dim: int = 8,
        class_dim: int = 16,
        channels: int = 256,
        kernel_size: int = 9,
        weight_std: float = 0.1,
        routing_bias: float | None = 0.1,
        gradient: str | None = None,
        skip: str = "layer",
        backend: str = "auto",
        decoder_width: int = 512,
    ) -> None:
        super().__init__()
        C, H, W = image_shape = checked_shape(image_shape)
        sizes = {
            "classes": classes,
            "capsules": capsules,
            "capsule_dim": capsule_dim,
            "class_dim": class_dim,
            "channels": channels,
            "kernel_size": kernel_size,
            "decoder_width": decoder_width,
        }
        for name, value in sizes.items():
            at_least(name, value, 1)
        at_least("blocks", blocks, 0)
        if channels % capsule_dim:
            near = max(channels // capsule_dim, 1) * capsule_dim
            raise WrongArgument(
                f"channels must be a multiple of capsule_dim {capsule_dim}, got {channels}; {near} is one"
            )
        one_of("skip", skip, ("layer", "block"))
        if skip not in self.skips:
            raise WrongArgument(
                f"skip={skip!r} is a residual trunk's and {type(self).__name__} has none; use ResCapsNet"
            )
        options: dict[str, Any] = {
            "routing": routing,
            "iterations": iterations,
            "weight_std": weight_std,
            "routing_bias": routing_bias,
            "gradient": gradient,
            "backend": backend,
        }
        self.image_shape = image_shape
        self.config: dict[str, Any] = {
            "model": type(self).__name__,
            "image_shape": [C, H, W],
            "blocks": blocks,
            **sizes,
            **options,
            "skip": skip,
        }
        primary = primary_count(image_shape, channels, capsule_dim, kernel_size)
        self.stem = Stem(C, channels, kernel_size)
        self.primary = PrimaryCapsules(channels, capsule_dim, kernel_size)
        self.caps1 = CapsLayer(primary, capsule_dim, capsules, capsule_dim, **options)
        self.trunk = self.make_trunk(
            CapsLayer(capsules, capsule_dim, capsules, capsule_dim, **options) for _ in range(2 * blocks)
        )
        self.caps2 = CapsLayer(capsules, capsule_dim, classes, class_dim, **options)
        self.decoder = Decoder(classes, class_dim, image_shape, decoder_width)

    def make_trunk(self, layers: Iterable[nn.Module]) -> nn.Module:
        """How this network composes the layers of its blocks."""
        raise TypeError("CapsuleNetwork is abstract: build a CapsNet, ResCapsNet or MoCapsNet")

    def forward(self, images: Tensor, labels: Tensor | None = None) -> CapsuleOutput:
        """Classify images [B,C,H,W]; labels, indices [B] or multi-hot [B,K], choose what is reconstructed."""
        capsules = self.encode(images)
        lengths = length(capsules)
        reconstruction = self.decoder(mask(capsules, lengths, labels))
        return CapsuleOutput(lengths, capsules, reconstruction)

    def forward_intermediates(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        indices: int | list[int] | None = None,
        intermediates_only: bool = False,
    ) -> tuple[CapsuleOutput, list[Intermediate]] | list[Intermediate]:
        """The output and every layer of capsules on the way, primary first: name, capsules, coupling, x.

        indices chooses layers, or how many of the last ones.

        >>> output, layers = model.forward_intermediates(images)
        >>> layers[-1].name, layers[-1].coupling.shape
        ('caps2', torch.Size([2, 10, 32]))
        """
        output, found = intermediates(self, images, labels)
        return chosen(found, indices) if intermediates_only else (output, chosen(found, indices))

    def encode(self, images: Tensor) -> Tensor:
        """The class capsules [B,K,E] of images [B,C,H,W]; nothing is reconstructed."""
        self.check_images(images)
        features = self.stem(images)
        u = self.primary(features)
        x = self.caps1(u)
        x = self.trunk(x)
        capsules: Tensor = self.caps2(x)
        return capsules


class CapsNet(CapsuleNetwork):
    """The plain network, x_{n+1} = f(x_n); with blocks=0, Sabour's network with one layer more."""

    def make_trunk(self, layers: Iterable[nn.Module]) -> nn.Module:
        """Each layer feeds the next."""
        return PlainTrunk(layers)


class ResCapsNet(CapsuleNetwork):
    """The residual network, x_{n+1} = x_n + f(x_n) (equation 2)."""

    skips = ("layer", "block")

    def make_trunk(self, layers: Iterable[nn.Module]) -> nn.Module:
        """Each layer adds to the state."""
        return ResidualTrunk(layers, self.config["skip"])


class MoCapsNet(CapsuleNetwork):
    """The momentum network (equations 3 and 4), its velocity carried through all blocks.

    gamma, memory and arithmetic are those of MomentumSequence.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        classes: int,
        blocks: int = 1,
        routing: str = "rba",
        iterations: int = 3,
        capsules: int = 32,
        capsule_dim: int = 8,
        class_dim: int = 16,
        channels: int = 256,
        kernel_size: int = 9,
        weight_std: float = 0.1,
        routing_bias: float | None = 0.1,
        gradient: str | None = None,
        skip: str = "layer",
        backend: str = "auto",
        gamma: float = 0.9,
        memory: str = "reverse",
        arithmetic: str = "exact",
        decoder_width: int = 512,
    ) -> None:
        self.momentum: dict[str, Any] = {"gamma": gamma, "memory": memory, "arithmetic": arithmetic}
        super().__init__(
            image_shape,
            classes,
            blocks,
            routing,
            iterations,
            capsules,
            capsule_dim,
            class_dim,
            channels,
            kernel_size,
            weight_std,
            routing_bias,
            gradient,
            skip,
            backend,
            decoder_width=decoder_width,
        )
        self.config |= self.momentum

    def make_trunk(self, layers: Iterable[nn.Module]) -> nn.Module:
        """Each layer adds to the velocity, the velocity to the state."""
        return MomentumSequence(layers, **self.momentum)


def to_momentum(
    rescapsnet: ResCapsNet, gamma: float = 0.9, memory: str = "reverse", arithmetic: str = "exact"
) -> MoCapsNet:
    """The momentum counterpart of a residual network, with a copy of its weights.

    >>> mc.to_momentum(mc.ResCapsNet((1, 28, 28), classes=10), gamma=0.9)
    """
    if not isinstance(rescapsnet, ResCapsNet):
        raise WrongArgument(f"to_momentum takes a ResCapsNet, got {type(rescapsnet).__name__}")
    config = {name: value for name, value in rescapsnet.config.items() if name != "model"}
    W = rescapsnet.caps1.W
    mocapsnet = MoCapsNet(**config, gamma=gamma, memory=memory, arithmetic=arithmetic)
    mocapsnet.to(W.device, W.dtype).train(rescapsnet.training).load_state_dict(rescapsnet.state_dict())
    for twin, weight in zip(mocapsnet.parameters(), rescapsnet.parameters(), strict=True):
        twin.requires_grad_(weight.requires_grad)
    return mocapsnet
