"""A data set in memory: images as uint8 tensors, labels as indices."""

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mocapsnet.errors import BrokenFile, WrongArgument
from mocapsnet.ops.arguments import at_least


class Split(NamedTuple):
    """Images uint8 [N,C,H,W] and their labels int64 [N]."""

    images: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "Split":
        """The same on another device."""
        return Split(self.images.to(device), self.labels.to(device))

    def take(self, indices: Tensor) -> "Split":
        """Some of the images, with their labels."""
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class Dataset:
    """What a network is trained on, perhaps chosen by, and tested with."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    validation: Split | None = None
    folder: str | None = None
    """Where it was read from; None where that does not matter."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        C, H, W = self.train.images.shape[1:]
        return C, H, W

    @property
    def classes(self) -> int:
        """K, the number of classes."""
        return len(self.class_names)

    @property
    def slug(self) -> str:
        """The name, fit for a file: folder:my/birds is folder-my-birds."""
        return re.sub(r"[^\w.]+", "-", self.name).strip("-.")

    @property
    def summary(self) -> str:
        """Its sizes: pets: 16 training and 4 test images of 3x32x32, 2 classes."""
        splits = {"training": self.train, "validation": self.validation, "test": self.test}
        *others, last = (f"{len(split.labels):,} {name}" for name, split in splits.items() if split)
        size = "x".join(map(str, self.image_shape))
        return f"{self.name}: {', '.join(others)} and {last} images of {size}, {self.classes} classes"

    def limit(self, count: int) -> "Dataset":
        """Only count training images, always the same ones, in their old order."""
        at_least("limit", count, 1)
        total = len(self.train.labels)
        if count > total:
            raise WrongArgument(f"limit must be <= {total}, the training images there are, got {count}")
        drawn = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count]
        return replace(self, train=self.train.take(drawn.sort().values))

    def hold_out(self, fraction: float, seed: int = 0) -> "Dataset":
        """A fraction of the training images, drawn by seed, becomes the validation split; 0 is none."""
        total = len(self.train.labels)
        if not 0 <= fraction < 1:
            raise WrongArgument(f"validation must be >= 0 and < 1, got {fraction!r}")
        if fraction == 0:
            return self
        count = round(fraction * total)
        if not 0 < count < total:
            raise WrongArgument(
                f"validation must leave images on both sides, got {fraction!r}, which is {count} of {total}"
            )
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        held, kept = order[:count].sort().values, order[count:].sort().values
        return replace(self, train=self.train.take(kept), validation=self.train.take(held))


def split_of(place: str, images: NDArray[Any], labels: NDArray[Any], classes: int) -> Split:
    """Images uint8 [N,C,H,W] and as many labels, each within 0..classes-1, as tensors; place is to blame."""
    if images.size == 0:
        raise BrokenFile(f"{place} holds no image")
    if len(images) != len(labels):
        raise BrokenFile(f"{place} holds {len(labels)} labels for {len(images)} images")
    for label in (int(labels.min()), int(labels.max())):
        if not 0 <= label < classes:
            raise BrokenFile(f"{place} holds the label {label}, outside 0..{classes - 1}")
    return Split(torch.from_numpy(np.array(images, order="C")), torch.from_numpy(labels.astype(np.int64)))
