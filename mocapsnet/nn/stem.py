"""Conv + ReLU: what an image meets first."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mocapsnet.ops.backend import stem


class Stem(nn.Module):
    """Convolution of stride 1 and ReLU, images [B,C,H,W] -> features [B,channels,H',W']."""

    def __init__(self, image_channels: int, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(image_channels, channels, kernel_size)

    def forward(self, images: Tensor) -> Tensor:
        """Features of the images."""
        if images.is_cuda and torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            if (programs := stem(images, self.conv.weight, dtype)) is not None:
                features: Tensor = programs.stem(images, self.conv.weight, self.conv.bias, dtype)
                return features
        # A patch no wider than what is made of it: the copy of all patches is no larger than the features.
        narrow = self.conv.weight[0].numel() <= self.conv.out_channels
        maps = as_product(images, self.conv) if images.is_cuda and narrow else self.conv(images)
        return maps.relu()


def as_product(images: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution of stride 1 as one matrix product of all patches: cuDNN is slow with few channels."""
    k = conv.kernel_size[0]
    patches = images.unfold(2, k, 1).unfold(3, k, 1).permute(0, 2, 3, 1, 4, 5).flatten(3)
    # Rows of a multiple of 8 numbers can be read 16 bytes at a time.
    more = (0, -patches.shape[-1] % 8)
    return F.linear(F.pad(patches, more), F.pad(conv.weight.flatten(1), more), conv.bias).movedim(-1, 1)
