"""Official files from their official addresses: a file appears only when it is whole and right."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tqdm import tqdm

from mocapsnet.errors import BrokenFile

Addresses = Mapping[str, Sequence[str]]

IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CIFAR_MIRRORS = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")


def at(mirrors: Sequence[str], *files: str) -> Addresses:
    """The addresses of each file, to be tried in turn."""
    return {file: [mirror + file for mirror in mirrors] for file in files}


ADDRESSES: Mapping[str, Addresses] = {
    "mnist": at(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        *IDX_FILES,
    ),
    "fashion_mnist": at(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        *IDX_FILES,
    ),
    "svhn": at(("http://ufldl.stanford.edu/housenumbers/",), "train_32x32.mat", "test_32x32.mat"),
    "cifar10": at(CIFAR_MIRRORS, "cifar-10-binary.tar.gz"),
    "cifar100": at(CIFAR_MIRRORS, "cifar-100-binary.tar.gz"),
}

SILENCE = 30
PIECE = 2**18


def fetch(addresses: Addresses, folder: Path, check: Callable[[Path], None]) -> None:
    """Download into a folder what it does not have; check raises BrokenFile for one that is not right."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, mirrors in addresses.items():
        if not (folder / file).exists():
            fetch_file(mirrors, folder / file, check)


def fetch_file(mirrors: Sequence[str], target: Path, check: Callable[[Path], None]) -> None:
    """Download one file from the first address that has it."""
    reasons = []
    for address in mirrors:
        try:
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
                part = Path(folder) / target.name
                receive(address, part)
                check(part)
                os.replace(part, target)
            return
        except BrokenFile:
            reasons.append(f"{urlsplit(address).hostname} sent a broken file")
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if type(error) is URLError else error
            reasons.append(f"{urlsplit(address).hostname}: {' '.join(str(reason).split())}")
    raise ConnectionError(
        f"{target.name} could not be downloaded ({'; '.join(reasons)}); put it in {target.parent} by hand"
    )


def receive(address: str, part: Path) -> None:
    """Write what an address sends, with a bar on a terminal; silence for half a minute is a failure."""
    request = Request(address, headers={"User-Agent": "mocapsnet"})
    with urlopen(request, timeout=SILENCE) as response, part.open("wb") as stream:
        size = int(response.headers.get("Content-Length") or 0) or None
        bar = tqdm(desc=part.name, total=size, unit="B", unit_scale=True, leave=False, disable=None)
        with bar:
            while piece := response.read(PIECE):
                stream.write(piece)
                bar.update(len(piece))
