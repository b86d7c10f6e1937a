"""Primary capsules: the last convolution, its channels at one place read as vectors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mocapsnet.errors import WrongArgument
from mocapsnet.ops import squash
from mocapsnet.ops.arguments import at_least
from mocapsnet.ops.backend import convolution

STRIDE = 2


class PrimaryCapsules(nn.Module):
    """Convolution of stride 2, features [B,channels,H,W] -> capsules u [B,I,D].

    D neighbouring channels at one place make a capsule, so that I = types · H' · W', where types capsules
    are at each place: channels/D unless told.
    """

    def __init__(self, channels: int, capsule_dim: int, kernel_size: int, types: int | None = None) -> None:
        super().__init__()
        self.capsule_dim = capsule_dim
        self.conv = nn.Conv2d(
            channels, channels if types is None else types * capsule_dim, kernel_size, STRIDE
        )

    def forward(self, features: Tensor) -> Tensor:
        """Capsules in the order channel group, row, column."""
        maps = convolve(features, self.conv).unflatten(1, (-1, self.capsule_dim))
        # Capsules are at least float32, whatever autocast makes of convolutions.
        maps = maps.to(torch.promote_types(maps.dtype, self.conv.weight.dtype))
        return squash(maps.movedim(2, -1).flatten(1, 3))


def convolve(features: Tensor, conv: nn.Conv2d) -> Tensor:
    """The convolution, by a program of our own where that is faster: autocast's bfloat16 on a GPU."""
    if features.is_cuda and torch.is_autocast_enabled("cuda"):
        x = features.to(torch.get_autocast_dtype("cuda"))
        if (programs := convolution(x, conv.out_channels)) is not None:
            maps: Tensor = programs.conv(x, conv.weight, conv.bias, STRIDE)
            return maps
    return conv(features)


def checked_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    """image_shape as a tuple; what is not three whole numbers (C, H, W) is refused."""
    if not isinstance(image_shape, Sequence) or len(image_shape) != 3:
        raise WrongArgument(f"image_shape must be (channels, height, width), got {image_shape!r}")
    for name, size in zip(("channels", "height", "width"), image_shape, strict=True):
        at_least(f"image_shape's {name}", size, 1)
    C, H, W = image_shape
    return C, H, W


def primary_places(image_shape: tuple[int, int, int], kernel_size: int) -> tuple[int, int]:
    """Rows and columns of the primary map of an image [C,H,W]; one too small for the stem is refused."""
    smallest = 2 * kernel_size - 1
    if min(image_shape[1:]) < smallest:
        raise WrongArgument(
            f"image_shape {image_shape} is too small for two convolutions of kernel_size {kernel_size}: "
            f"the smallest that fits is {smallest}x{smallest}; enlarge the images or lower kernel_size"
        )
    rows, columns = ((size - smallest) // STRIDE + 1 for size in image_shape[1:])
    return rows, columns


def primary_count(
    image_shape: tuple[int, int, int], channels: int, capsule_dim: int, kernel_size: int
) -> int:
    """How many primary capsules an image [C,H,W] makes."""
    rows, columns = primary_places(image_shape, kernel_size)
    return channels // capsule_dim * rows * columns
