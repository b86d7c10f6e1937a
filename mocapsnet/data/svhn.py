"""SVHN's cropped digits: MATLAB files with X [32,32,3,N] and y [N,1], where 10 means the digit 0."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np

from mocapsnet.data.dataset import Split, split_of
from mocapsnet.data.errors import AGAIN, naming
from mocapsnet.data.files import File
from mocapsnet.errors import BrokenFile


def parse(files: Sequence[File]) -> Split:
    """A file of images and labels."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ImportError("svhn's .mat files need scipy: pip install 'mocapsnet[svhn]'") from None
    (file,) = files
    with naming(file.place):
        content = loadmat(BytesIO(file.content), variable_names=("X", "y"))
    images, labels = content.get("X"), content.get("y")
    if images is None or images.ndim != 4 or images.shape[2] != 3 or images.dtype != np.uint8:
        raise BrokenFile(f"{file.place} holds no X of bytes [H,W,3,N]; {AGAIN}")
    if labels is None or labels.shape != (images.shape[3], 1) or labels.dtype.kind not in "ui":
        raise BrokenFile(f"{file.place} holds no y of whole numbers [{images.shape[3]},1]; {AGAIN}")
    if np.any((labels < 1) | (labels > 10)):
        raise BrokenFile(f"{file.place} holds a label outside 1..10; {AGAIN}")
    return split_of(file.place, images.transpose(3, 2, 0, 1), labels[:, 0] % 10, classes=10)
