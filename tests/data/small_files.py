"""Small data sets in the official formats, with what a reader must make of them."""

import gzip
import io
import tarfile
from hashlib import md5
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.io import savemat

from mocapsnet.data.dataset import Dataset, Split
from mocapsnet.data.files import File


def random_split(count, shape, classes, seed=0):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    return Split(torch.from_numpy(images), torch.from_numpy(generator.integers(0, classes, count)))


def as_file(content, name="batch"):
    return File(name, f"data/{name}", content)


def idx(array):
    array = np.asarray(array, np.uint8)
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def idx_pair(split):
    return idx(split.images[:, 0]), idx(split.labels)


def records(split, classes):
    """Binary CIFAR; CIFAR-100 puts a coarse label before the fine one."""
    labels = split.labels.numpy().astype(np.uint8)[:, None]
    coarse = [labels // 5] if classes == 100 else []
    return np.concatenate([*coarse, labels, split.images.numpy().reshape(len(labels), -1)], 1).tobytes()


def python2_pickle(split, classes):
    """The bytes that Python 2 wrote for the official batches, which Python 3 cannot write any more."""

    def text(word):
        return b"U" + bytes((len(word),)) + word

    def number(value):
        return b"J" + value.to_bytes(4, "little")

    pixels = split.images.numpy().tobytes()
    return b"".join(
        (
            b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5"),
            text(b"fine_labels" if classes == 100 else b"labels") + b"](",
            b"".join(b"K" + bytes((label,)) for label in split.labels.tolist()) + b"e",
            text(b"data") + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n",
            b"K\x00\x85" + text(b"b") + b"\x87R(K\x01",
            number(len(split.labels)) + number(3072) + b"\x86",
            b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|"),
            b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb",
            b"\x89T" + len(pixels).to_bytes(4, "little") + pixels + b"tbu.",
        )
    )


def mat(split):
    """SVHN calls the digit 0 ten."""
    labels = split.labels.numpy().astype(np.uint8)[:, None]
    stream = io.BytesIO()
    savemat(stream, {"X": split.images.numpy().transpose(2, 3, 1, 0), "y": np.where(labels == 0, 10, labels)})
    return stream.getvalue()


def write_archive(path, contents, folder="inside"):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


class Small(NamedTuple):
    """A data set of a few images: the content of its files, and what it is."""

    contents: dict[str, bytes]
    dataset: Dataset

    @property
    def table(self):
        return {
            self.dataset.name: {name: md5(content).hexdigest() for name, content in self.contents.items()}
        }

    def write(self, folder: Path, gzipped=False):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            if gzipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
        return folder


def small(name, form):
    """A small copy of an official data set in one of its forms."""
    classes = 100 if name == "cifar100" else 10
    shape = (1, 8, 6) if form == "idx" else (3, 32, 32)
    seed = len(name)
    train, test = random_split(5, shape, classes, seed), random_split(2, shape, classes, seed + 1)
    match form:
        case "idx":
            names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
            names += ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
            contents = dict(zip(names, (*idx_pair(train), *idx_pair(test)), strict=True))
        case "mat":
            contents = {"train_32x32.mat": mat(train), "test_32x32.mat": mat(test)}
        case "binary" | "python":
            write = records if form == "binary" else python2_pickle
            suffix = ".bin" if form == "binary" else ""
            if classes == 100:
                parts = {"train": train, "test": test}
            else:
                parts = {f"data_batch_{n}": train.take(torch.tensor([n - 1])) for n in range(1, 6)}
                parts["test_batch"] = test
            contents = {part + suffix: write(split, classes) for part, split in parts.items()}
    return Small(contents, Dataset(name, train, test, ()))


FORMS = (
    ("mnist", "idx"),
    ("fashion_mnist", "idx"),
    ("svhn", "mat"),
    ("cifar10", "binary"),
    ("cifar10", "python"),
    ("cifar100", "binary"),
    ("cifar100", "python"),
)
ARCHIVES = {
    ("cifar10", "binary"): "cifar-10-binary.tar.gz",
    ("cifar10", "python"): "cifar-10-python.tar.gz",
    ("cifar100", "binary"): "cifar-100-binary.tar.gz",
    ("cifar100", "python"): "cifar-100-python.tar.gz",
}


def same(left, right):
    """Whether two splits, or the splits of two data sets, are equal bit for bit."""
    if isinstance(left, Dataset):
        return same(left.train, right.train) and same(left.test, right.test)
    return all(
        one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(left, right, strict=True)
    )
