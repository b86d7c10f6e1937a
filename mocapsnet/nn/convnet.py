"""A plain convolutional network with as many parameters as a MoCapsNet, to compare with."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.nn.network import MoCapsNet
from mocapsnet.nn.primary import STRIDE, primary_places
from mocapsnet.nn.stem import Stem


class Scores(NamedTuple):
    """What a network without capsules returns."""

    lengths: Tensor
    """[B,K]: the probability of each class."""
    logits: Tensor
    """[B,K]."""


class ConvNet(Network):
    """MoCapsNet's two convolutions, and fully connected layers where it has capsules and a decoder.

    Its arguments are those of the MoCapsNet whose number of parameters it has: the two hidden layers are as
    wide as that allows. It has neither dropout nor normalisation, as MoCapsNet has none, and learns by cross
    entropy.

    >>> mc.ConvNet((3, 32, 32), classes=10).width
    484
    """

    loss = "cross-entropy"
    decodes = False

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        classes: int,
        blocks: int = 1,
        capsules: int = 32,
        capsule_dim: int = 8,
        class_dim: int = 16,
        channels: int = 256,
        kernel_size: int = 9,
    ) -> None:
        super().__init__()
        sizes: dict[str, Any] = {
            "blocks": blocks,
            "capsules": capsules,
            "capsule_dim": capsule_dim,
            "class_dim": class_dim,
            "channels": channels,
            "kernel_size": kernel_size,
        }
        with torch.device("meta"):
            twin = MoCapsNet(image_shape, classes, **sizes)
        self.image_shape = C, H, W = twin.image_shape
        self.config = {"model": "ConvNet", "image_shape": [C, H, W], "classes": classes, **sizes}
        self.stem = Stem(C, channels, kernel_size)
        self.conv = nn.Conv2d(channels, channels, kernel_size, STRIDE)
        rows, columns = primary_places(twin.image_shape, kernel_size)
        features = channels * rows * columns
        left = count(twin) - count(self)

        def spare(width: int) -> int:
            """Parameters left when the hidden layers are that wide."""
            return left - (features + 1) * width - (width + 1) * width - (width + 1) * classes

        self.width = next(width for width in range(left + 2) if spare(width + 1) < 0)
        if self.width < 1:
            raise WrongArgument(f"a MoCapsNet of {sizes} is too small to have a plain network as large")
        # The nearer of the two widths around.
        self.width += spare(self.width) > -spare(self.width + 1)
        self.layers = nn.Sequential(
            nn.Linear(features, self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.width),
            nn.ReLU(),
            nn.Linear(self.width, classes),
        )

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Scores:
        """Classify images [B,C,H,W]; labels change nothing."""
        self.check_images(images)
        features = self.conv(self.stem(images)).relu()
        logits = self.layers(features.flatten(1))
        return Scores(logits.softmax(1), logits)

    def lengths(self, images: Tensor) -> Tensor:
        """The probability of each class [B,K]."""
        return self(images).lengths


def count(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())
