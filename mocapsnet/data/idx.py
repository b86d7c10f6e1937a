"""MNIST's format: two zeros, the type, the number of axes, each axis big-endian, then the values."""

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from mocapsnet.data.dataset import Split, split_of
from mocapsnet.data.errors import AGAIN
from mocapsnet.data.files import File
from mocapsnet.errors import BrokenFile


def parse(files: Sequence[File], classes: int = 10) -> Split:
    """A file of images [N,H,W] and a file of labels [N]."""
    images, labels = files
    return split_of(labels.place, parse_array(images, 3)[:, None], parse_array(labels, 1), classes)


def parse_array(file: File, axes: int) -> NDArray[np.uint8]:
    """The array of bytes with that many axes in an idx file."""
    start = 4 + 4 * axes
    magic = bytes((0, 0, 8, axes))
    if len(file.content) < start or file.content[:4] != magic:
        found = file.content[:4].hex() or "nothing"
        raise BrokenFile(
            f"{file.place} is not an idx file of bytes with {axes} axes: "
            f"it begins with {found}, not {magic.hex()}; {AGAIN}"
        )
    shape = tuple(int(size) for size in np.frombuffer(file.content, ">u4", axes, offset=4))
    promised = start + prod(shape)
    if len(file.content) != promised:
        raise BrokenFile(
            f"{file.place} has {len(file.content)} bytes, its header promises {promised}; {AGAIN}"
        )
    return np.frombuffer(file.content, np.uint8, offset=start).reshape(shape)
