"""What happens to a batch of images, on whatever device it is on, with no loop over samples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mocapsnet.data.dataset import Split

PAD = 2
# Sabour et al. on CIFAR-10: brightness by up to 63 of 255, contrast by 0.2 to 1.8.
BRIGHTNESS, CONTRAST = 63 / 255, (0.2, 1.8)
# Into how many steps a random number between 0 and 1 falls.
GRAIN = 2**20


def to_pixels(images: Tensor) -> Tensor:
    """uint8 [B,C,H,W] -> floats in [0,1]."""
    return images.float() / 255


def windowed(image_shape: tuple[int, int, int], window: int | None) -> tuple[int, int, int]:
    """(C, H, W) of what a network sees of images, which is a square where there is a window."""
    C, H, W = image_shape
    return (C, H, W) if window is None else (C, window, window)


def crop_offsets(
    count: int, generator: torch.Generator, pad: int = PAD, spare: tuple[int, int] = (0, 0)
) -> Tensor:
    """Where each of count images is cropped: rows and columns in 0..2·pad and what is to spare, [count,2]."""
    rows, columns = (2 * pad + more + 1 for more in spare)
    if rows == columns:
        return torch.randint(0, rows, (count, 2), generator=generator)
    return torch.cat([torch.randint(0, most, (count, 1), generator=generator) for most in (rows, columns)], 1)


def crop(images: Tensor, offsets: Tensor, pad: int = PAD, window: int | None = None) -> Tensor:
    """Pad images [B,C,H,W] and cut the old size, or a window, at offsets [B,2]; (pad,pad) is no change."""
    B, C, H, W = images.shape
    _, H, W = windowed((C, H, W), window)
    padded = F.pad(images, (pad, pad, pad, pad)).movedim(1, -1)
    rows = offsets[:, :1] + torch.arange(H, device=images.device)
    columns = offsets[:, 1:] + torch.arange(W, device=images.device)
    batch = torch.arange(B, device=images.device)
    return padded[batch[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def standardise(pixels: Tensor) -> Tensor:
    """Zero mean and unit variance per image [B,C,H,W]; an image of one colour becomes zero."""
    mean = pixels.mean((1, 2, 3), keepdim=True)
    std = pixels.std((1, 2, 3), correction=0, keepdim=True)
    return (pixels - mean) / std.clamp(min=pixels[0].numel() ** -0.5)


def cut_out(images: Tensor, centres: Tensor, side: int) -> Tensor:
    """Zero a square of images [B,C,H,W] around centres [B,2], as far as it lies within the image."""
    H, W = images.shape[2:]
    top, left = (centres - side // 2).unsqueeze(-1).unbind(1)
    rows, columns = torch.arange(H, device=images.device), torch.arange(W, device=images.device)
    inside = ((rows >= top) & (rows < top + side))[:, :, None] & (
        (columns >= left) & (columns < left + side)
    )[:, None, :]
    return images.masked_fill(inside.unsqueeze(1), 0)


def jitter(pixels: Tensor, chances: Tensor) -> Tensor:
    """Change brightness and contrast of pixels [B,C,H,W] by chances [B,2] in 0..1; 0.5 twice is no change."""
    brightness, contrast = chances[:, :, None, None, None].unbind(1)
    pixels = pixels + BRIGHTNESS * (2 * brightness - 1)
    mean = pixels.mean((2, 3), keepdim=True)
    return (pixels - mean) * (CONTRAST[0] + (CONTRAST[1] - CONTRAST[0]) * contrast) + mean


def warp(pixels: Tensor, chances: Tensor, turn: float, zoom: float) -> Tensor:
    """Turn pixels [B,C,H,W] by up to `turn` degrees, and make them up to 1 + zoom times as large or as small.

    chances [B,2] are in 0..1; 0.5 twice is no change. The middle stays, and what comes from outside is black.
    """
    H, W = pixels.shape[2:]
    angle, size = (2 * chances - 1)[:, :, None, None].unbind(1)
    angle, size = angle * math.radians(turn), (1 + zoom) ** -size
    cos, sin = size * angle.cos(), size * angle.sin()
    # Where a pixel comes from: in pixels from the middle, then in halves of the image.
    y = torch.arange(H, device=pixels.device)[:, None] - (H - 1) / 2
    x = torch.arange(W, device=pixels.device)[None, :] - (W - 1) / 2
    grid = torch.stack([(cos * x - sin * y) * (2 / W), (sin * x + cos * y) * (2 / H)], -1)
    return F.grid_sample(pixels, grid, align_corners=False)


@dataclass(frozen=True)
class Augmentation:
    """What is done to training images: a random crop; if asked for, mirror, turn, colours, hole and mixing.

    All chance is drawn beforehand, as whole numbers [N,n], and handed to a step beside its indices.
    """

    pad: int = PAD
    window: int | None = None
    flip: bool = False
    jitter: bool = False
    cutout: int = 0
    mix: float = 0.0
    turn: float = 0.0
    zoom: float = 0.0

    @property
    def warps(self) -> bool:
        """Whether images are turned or made larger and smaller."""
        return self.turn > 0 or self.zoom > 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers per image for crop, mirror, colours, hole, mixing and warping."""
        more = self.flip, 2 * self.jitter, 2 * (self.cutout > 0), self.mix > 0, 2 * self.warps
        return 2, *map(int, more)

    def draw(self, count: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """The chance of count images of a size (H, W)."""
        H, W = size
        _, h, w = windowed((0, H, W), self.window)
        drawn = [crop_offsets(count, generator, self.pad, (H - h, W - w))]
        if self.flip:
            drawn.append(torch.randint(0, 2, (count, 1), generator=generator))
        if self.jitter:
            drawn.append(torch.randint(0, GRAIN + 1, (count, 2), generator=generator))
        if self.cutout:
            drawn += [torch.randint(0, most, (count, 1), generator=generator) for most in (h, w)]
        if self.mix:
            drawn.append(torch.randint(0, GRAIN + 1, (count, 1), generator=generator))
        if self.warps:
            drawn.append(torch.randint(0, GRAIN + 1, (count, 2), generator=generator))
        return torch.cat(drawn, 1)

    def pixels(self, images: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
        """Of uint8 [B,C,H,W]: what the decoder should draw, and what the network sees once normalised."""
        offsets, mirrored, colours, _, _, warped = chance.split(self.widths, 1)
        images = crop(images, offsets, self.pad, self.window)
        if self.flip:
            images = torch.where(mirrored[:, :, None, None] == 1, images.flip(-1), images)
        pixels = to_pixels(images)
        if self.warps:
            pixels = warp(pixels, warped / GRAIN, self.turn, self.zoom)
        return pixels, jitter(pixels, colours / GRAIN) if self.jitter else pixels

    def holes(self, images: Tensor, chance: Tensor) -> Tensor:
        """Normalised images with their hole, which is as grey as the mean."""
        return cut_out(images, chance.split(self.widths, 1)[3], self.cutout) if self.cutout else images

    def share(self, chance: Tensor) -> Tensor | None:
        """What of each image is its own [B,1], 1 - mix at least; the rest is the next one's of the batch."""
        return 1 - self.mix * (chance.split(self.widths, 1)[4] / GRAIN) if self.mix else None


def mixed(x: Tensor, share: Tensor | None) -> Tensor:
    """share · x + (1 - share) · the next of x [B,...], which after the last is the first; share is [B,1]."""
    if share is None:
        return x
    share = share.view(-1, *[1] * (x.dim() - 1))
    return share * x + (1 - share) * x.roll(-1, 0)


class Normalisation:
    """How a network's images are made of pixels, its tensors on a device once and for all.

    preprocessing may hold a "mean" and a "std" per channel, else every image is standardised by its own.
    """

    def __init__(self, preprocessing: Mapping[str, Any], device: torch.device) -> None:
        self.window: int | None = preprocessing.get("window")
        self.mean, self.std = (
            torch.tensor(preprocessing[name], device=device)[:, None, None] if name in preprocessing else None
            for name in ("mean", "std")
        )

    def __call__(self, pixels: Tensor) -> Tensor:
        """Images [B,C,H,W] of pixels."""
        if self.mean is None or self.std is None:
            return standardise(pixels)
        return (pixels - self.mean) / self.std

    def centre(self, images: Tensor) -> Tensor:
        """The middle of images [B,C,H,W], as large as the window."""
        if self.window is None:
            return images
        top, left = ((size - self.window) // 2 for size in images.shape[2:])
        return images[:, :, top : top + self.window, left : left + self.window]


def mean_and_std(split: Split) -> dict[str, list[float]]:
    """Of every channel of a split's pixels, in [0,1]; a channel of one colour gets the std 1."""
    counts = torch.stack([torch.bincount(part.flatten(), minlength=256) for part in split.images.unbind(1)])
    levels = torch.arange(256, dtype=torch.float64) / 255
    share = counts.double() / counts.sum(1, keepdim=True)
    mean = share @ levels
    std = (share * (levels - mean[:, None]).square()).sum(1).sqrt()
    return {"mean": mean.tolist(), "std": torch.where(std > 0, std, 1.0).tolist()}
