"""Conv + ReLU: what an image meets first."""

from torch import Tensor, nn


class Stem(nn.Module):
    """Convolution of stride 1 and ReLU, images [B,C,H,W] -> features [B,channels,H',W']."""

    def __init__(self, image_channels: int, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(image_channels, channels, kernel_size)

    def forward(self, images: Tensor) -> Tensor:
        """Features of the images."""
        return self.conv(images).relu()
