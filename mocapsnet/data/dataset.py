"""A data set in memory: images as uint8 tensors, labels as indices."""

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocapsnet.ops.arguments import one_of

NAMES = ("mnist6k",)


class Split(NamedTuple):
    """Images uint8 [N,C,H,W] and their labels int64 [N]."""

    images: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "Split":
        """The same on another device."""
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Dataset:
    """What a network is trained on and tested with."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        C, H, W = self.train.images.shape[1:]
        return C, H, W

    @property
    def classes(self) -> int:
        """K, the number of classes."""
        return len(self.class_names)


def load(name: str = "mnist6k") -> Dataset:
    """Load a data set by name.

    mnist6k: 5,000 training and 1,000 test digits of MNIST, embedded in the package.

    >>> load("mnist6k").train.images.shape
    torch.Size([5000, 1, 28, 28])
    """
    one_of("dataset", name, NAMES)
    with as_file(files("mocapsnet.data") / f"{name}.npz") as path:
        train, test = read_npz(path)
    return Dataset(name, train, test, tuple("0123456789"))


def read_npz(path: Path) -> tuple[Split, Split]:
    """Read X uint8 [N,H,W,C] (training images first), Y [N] and n_train."""
    with np.load(path, allow_pickle=False) as archive:
        images = torch.from_numpy(archive["X"]).movedim(-1, 1).contiguous()
        labels = torch.from_numpy(archive["Y"].astype(np.int64))
        n_train = int(archive["n_train"])
    return Split(images[:n_train], labels[:n_train]), Split(images[n_train:], labels[n_train:])
