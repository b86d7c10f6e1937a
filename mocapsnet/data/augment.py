"""What happens to a batch of images, on whatever device it is on, with no loop over samples."""

import torch
import torch.nn.functional as F
from torch import Tensor

PAD = 2


def to_pixels(images: Tensor) -> Tensor:
    """uint8 [B,C,H,W] -> floats in [0,1]."""
    return images.float() / 255


def crop_offsets(count: int, generator: torch.Generator) -> Tensor:
    """Where each of count images is cropped: rows and columns in 0..2·PAD, [count,2]."""
    return torch.randint(0, 2 * PAD + 1, (count, 2), generator=generator)


def crop(images: Tensor, offsets: Tensor) -> Tensor:
    """Pad images [B,C,H,W] by 2 and cut the old size at offsets [B,2]; (2,2) is the image itself."""
    B, _, H, W = images.shape
    padded = F.pad(images, (PAD, PAD, PAD, PAD)).movedim(1, -1)
    rows = offsets[:, :1] + torch.arange(H, device=images.device)
    columns = offsets[:, 1:] + torch.arange(W, device=images.device)
    batch = torch.arange(B, device=images.device)
    return padded[batch[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def standardise(pixels: Tensor) -> Tensor:
    """Zero mean and unit variance per image [B,C,H,W]; an image of one colour becomes zero."""
    mean = pixels.mean((1, 2, 3), keepdim=True)
    std = pixels.std((1, 2, 3), correction=0, keepdim=True)
    return (pixels - mean) / std.clamp(min=pixels[0].numel() ** -0.5)
