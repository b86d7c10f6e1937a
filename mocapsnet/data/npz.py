"""A data set in one .npz file: X uint8 [N,H,W,C] (training images first), Y [N] and n_train."""

from pathlib import Path

import numpy as np

from mocapsnet.data.dataset import Split, split_of
from mocapsnet.data.errors import naming
from mocapsnet.errors import BrokenFile

WAY_OUT = "make it again with numpy.savez(file, X=images, Y=labels, n_train=count)"


def read(path: Path, classes: int | None = None) -> tuple[Split, Split, int]:
    """The training split, the test split and the number of classes, by default the largest label plus one."""
    with naming(path, WAY_OUT), np.load(path, allow_pickle=False) as archive:
        if broken := archive.zip.testzip():
            raise BrokenFile(f"{path} is damaged at {broken}; {WAY_OUT}")
        X, Y, n_train = archive["X"], archive["Y"], archive["n_train"]
    if X.dtype != np.uint8 or X.ndim != 4 or X.size == 0:
        raise BrokenFile(f"{path} must have X uint8 [N,H,W,C], got {X.dtype} {list(X.shape)}; {WAY_OUT}")
    if Y.dtype.kind not in "ui" or Y.shape != (len(X),):
        raise BrokenFile(
            f"{path} must have Y of whole numbers [{len(X)}], got {Y.dtype} {list(Y.shape)}; {WAY_OUT}"
        )
    if Y.min() == Y.max():
        raise BrokenFile(f"{path} must have Y of two classes or more, got {Y[0]} alone; {WAY_OUT}")
    if n_train.dtype.kind not in "ui" or n_train.ndim or not 0 < n_train < len(X):
        raise BrokenFile(
            f"{path} must have a whole number n_train in 1..{len(X) - 1}, got {n_train}; {WAY_OUT}"
        )
    classes = classes or min(int(Y.max()) + 1, len(X))
    both = split_of(str(path), X.transpose(0, 3, 1, 2), Y, classes)
    train, test = (
        Split(both.images[part], both.labels[part])
        for part in (slice(int(n_train)), slice(int(n_train), None))
    )
    return train, test, classes
