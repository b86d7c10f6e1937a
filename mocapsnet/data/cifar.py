"""CIFAR-10 and CIFAR-100, in their binary and their python layout."""

from collections.abc import Sequence

import numpy as np
import torch

from mocapsnet.data.dataset import Split, split_of
from mocapsnet.data.errors import AGAIN
from mocapsnet.data.files import File
from mocapsnet.data.unpickle import unpickle
from mocapsnet.errors import BrokenFile

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


def parse_binary(files: Sequence[File], classes: int) -> Split:
    """Batches of records: the label (of CIFAR-100 the coarse one and the fine one), then the pixels."""
    return join([parse_records(file, classes) for file in files])


def parse_python(files: Sequence[File], classes: int) -> Split:
    """Batches of pickled dictionaries: data [N,3072] and labels (of CIFAR-100 fine_labels)."""
    return join([parse_pickle(file, classes) for file in files])


def parse_records(file: File, classes: int) -> Split:
    """One binary batch."""
    label_bytes = 2 if classes == 100 else 1
    record = label_bytes + PIXELS
    if len(file.content) % record:
        raise BrokenFile(
            f"{file.place} has {len(file.content)} bytes, not a whole number of records of {record}; {AGAIN}"
        )
    rows = np.frombuffer(file.content, np.uint8).reshape(-1, record)
    return split_of(file.place, rows[:, label_bytes:].reshape(-1, *SHAPE), rows[:, label_bytes - 1], classes)


def parse_pickle(file: File, classes: int) -> Split:
    """One pickled batch."""
    batch = unpickle(file)
    data, labels = batch.get("data"), batch.get("fine_labels" if classes == 100 else "labels")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS:
        raise BrokenFile(f"{file.place} holds no data [N,{PIXELS}]; {AGAIN}")
    if not isinstance(labels, list) or any(type(label) is not int for label in labels):
        raise BrokenFile(f"{file.place} holds no list of labels; {AGAIN}")
    if any(not 0 <= label < classes for label in labels):
        raise BrokenFile(f"{file.place} holds a label outside 0..{classes - 1}; {AGAIN}")
    return split_of(file.place, data.reshape(-1, *SHAPE), np.array(labels, np.int64), classes)


def join(splits: Sequence[Split]) -> Split:
    """Batches one after another."""
    return Split(torch.cat([split.images for split in splits]), torch.cat([split.labels for split in splits]))
