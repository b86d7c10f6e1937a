"""Every data set by its name: where its files are looked for, and how they are read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

from mocapsnet.data import cifar, idx, npz, svhn
from mocapsnet.data.checksums import MD5, Table, verify
from mocapsnet.data.classes import CLASS_NAMES
from mocapsnet.data.dataset import Dataset, Split
from mocapsnet.data.download import ADDRESSES, Addresses, fetch
from mocapsnet.data.errors import WrongSet
from mocapsnet.data.files import File, read_archive, read_file
from mocapsnet.data.folder import read as read_folder
from mocapsnet.ops.arguments import one_of


@dataclass(frozen=True)
class Layout:
    """A form that a data set comes in: its files, the folders that hold them once unpacked, its archive."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    parse: Callable[[Sequence[File]], Split]
    folders: tuple[str, ...] = ()
    archive: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """All of them."""
        return self.train + self.test


IDX = partial(
    Layout,
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    idx.parse,
)
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

LAYOUTS = {
    "mnist": (IDX(("MNIST/raw",)),),
    "fashion_mnist": (IDX(("FashionMNIST/raw",)),),
    "svhn": (Layout(("train_32x32.mat",), ("test_32x32.mat",), svhn.parse),),
    "cifar10": (
        Layout(
            tuple(f"{batch}.bin" for batch in BATCHES),
            ("test_batch.bin",),
            partial(cifar.parse_binary, classes=10),
            ("cifar-10-batches-bin",),
            "cifar-10-binary.tar.gz",
        ),
        Layout(
            BATCHES,
            ("test_batch",),
            partial(cifar.parse_python, classes=10),
            ("cifar-10-batches-py",),
            "cifar-10-python.tar.gz",
        ),
    ),
    "cifar100": (
        Layout(
            ("train.bin",),
            ("test.bin",),
            partial(cifar.parse_binary, classes=100),
            ("cifar-100-binary",),
            "cifar-100-binary.tar.gz",
        ),
        Layout(
            ("train",),
            ("test",),
            partial(cifar.parse_python, classes=100),
            ("cifar-100-python",),
            "cifar-100-python.tar.gz",
        ),
    ),
}


def load(name: str = "mnist6k", folder: str | Path | None = None, download: bool = False) -> Dataset:
    """Load a data set by name.

    mnist6k is embedded: 5,000 training and 1,000 test digits of MNIST. folder:PATH is your own pictures,
    one sub-folder per class. mnist, fashion_mnist, svhn, cifar10 and cifar100 are their official files,
    checked, under a folder (data by default) or its sub-folder of that name, as published or as torchvision
    leaves them. Without those, and for any other name, it is NAME.npz there, with X, Y and n_train.
    With download, official files that are not there are fetched.

    >>> load("mnist6k").train.images.shape
    torch.Size([5000, 1, 28, 28])
    """
    if name == "mnist6k":
        with as_file(files("mocapsnet.data") / "mnist6k.npz") as path:
            return load_npz(name, path)
    if name.startswith("folder:"):
        return Dataset(name, *read_folder(Path(name.removeprefix("folder:")).expanduser()))
    root = Path("data" if folder is None else folder)
    return replace(load_files(name, root, download), folder=str(root))


def load_files(
    name: str, root: Path, download: bool = False, table: Table = MD5, addresses: Addresses | None = None
) -> Dataset:
    """The first complete set of files under root; its content must be what the table says."""
    wrong = None
    for layout in LAYOUTS.get(name, ()):
        for found in candidates(layout, name, root):
            try:
                for file in found:
                    verify(file, name, table)
            except WrongSet as error:
                wrong = error
                continue
            train, test = found[: len(layout.train)], found[len(layout.train) :]
            return Dataset(name, layout.parse(train), layout.parse(test), CLASS_NAMES[name])
    for path in (root / name / f"{name}.npz", root / f"{name}.npz"):
        if path.is_file():
            return load_npz(name, path)
    one_of("dataset", name, (*CLASS_NAMES, f"NAME of {root / 'NAME.npz'}", "folder:PATH"))
    if not download or name not in CLASS_NAMES:
        raise wrong or not_found(name, root)
    fetch(addresses or ADDRESSES[name], root / name, partial(check, name=name, table=table))
    return load_files(name, root, table=table)


def load_npz(name: str, path: Path) -> Dataset:
    """One .npz file; where the name is not known, classes are called 0, 1, 2 and so on."""
    known = CLASS_NAMES.get(name)
    train, test, classes = npz.read(path, len(known) if known else None)
    return Dataset(name, train, test, known or tuple(map(str, range(classes))))


def candidates(layout: Layout, name: str, root: Path) -> Iterator[list[File]]:
    """The content of every complete set of files in this layout, read when asked for."""
    for place in places(layout, name, root):
        paths = [path for file in layout.files if (path := loose(place, file))]
        if len(paths) == len(layout.files):
            yield [read_file(path) for path in paths]
        elif layout.archive and (place / layout.archive).is_file():
            yield read_archive(place / layout.archive, layout.files)


def places(layout: Layout, name: str, root: Path) -> list[Path]:
    """Where files may lie; the sub-folder of that name comes first, as two sets name their files alike."""
    return [base / folder for base in (root / name, root) for folder in (*layout.folders, "")]


def loose(place: Path, file: str) -> Path | None:
    """The file in a folder, gzipped or not."""
    return next((path for path in (place / file, place / f"{file}.gz") if path.is_file()), None)


def check(path: Path, name: str, table: Table) -> None:
    """Refuse a downloaded file whose content is not the data set's."""
    members = next((layout.files for layout in LAYOUTS[name] if layout.archive == path.name), None)
    for file in read_archive(path, members) if members else [read_file(path)]:
        verify(file, name, table)


def not_found(name: str, root: Path) -> FileNotFoundError:
    """What to say when there is nothing, or only a part."""
    for layout in LAYOUTS.get(name, ()):
        for place in places(layout, name, root):
            lacking = [file for file in layout.files if not loose(place, file)]
            if 0 < len(lacking) < len(layout.files):
                return FileNotFoundError(
                    f"{name} is not complete: {place} has no {lacking[0]}; "
                    "run with --download true or put it there"
                )
    wanted = ", ".join(ADDRESSES.get(name, (f"{name}.npz",)))
    return FileNotFoundError(f"{name} is not under {root}/; run with --download true or put {wanted} there")
