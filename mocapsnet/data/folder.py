"""Your own pictures: one sub-folder per class, in sorted order.

Where PATH has the sub-folders train and test, these are the two splits, and the classes lie in them.
Elsewhere every fifth picture of each class, in sorted order, is a test picture.
Pictures that share one size up to 64 x 64 keep it; all others become 32 x 32.
Pictures stay gray where all of them are gray; otherwise all become RGB. What is transparent is white.
Names that begin with a dot are passed over.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mocapsnet.data.dataset import Split, split_of
from mocapsnet.data.errors import naming
from mocapsnet.errors import BrokenFile

SIZE = (32, 32)
LARGEST_KEPT = 64
TEST_EVERY = 5
GRAY = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N")
BILINEAR = Image.Resampling.BILINEAR
WAY_OUT = "repair it or take it away"

# Names of folders that hold classes and are none themselves.
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}

Pictures = Mapping[str, Sequence[Path]]


def read(path: Path) -> tuple[Split, Split, tuple[str, ...]]:
    """The training split, the test split and the names of the classes."""
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}; folder:PATH needs one sub-folder per class")
    if (path / "train").is_dir() and (path / "test").is_dir():
        train, test = pictures(path / "train"), pictures(path / "test")
    else:
        found = pictures(path)
        if {name.casefold() for name in found} <= SPLITS:
            raise BrokenFile(
                f"{path} has only {', '.join(found)}, which are no classes; give PATH/CLASS, "
                "or PATH/train/CLASS and PATH/test/CLASS"
            )
        train, test = divide(found)
    if not any(test.values()):
        raise BrokenFile(
            f"{path} leaves no picture to test with; "
            f"put {TEST_EVERY} in a class, or use the sub-folders train and test"
        )
    classes = tuple(train)
    for name in test:
        if name not in classes:
            raise BrokenFile(
                f"{path}/test has the class {name}, which {path}/train has not; the two must agree"
            )
    if len(classes) < 2:
        raise BrokenFile(
            f"{path} has only the class {classes[0]}; put two sub-folders or more there, one per class"
        )
    size, mode = common(train, test)
    return decode(path, train, classes, size, mode), decode(path, test, classes, size, mode), classes


def pictures(path: Path) -> Pictures:
    """The files of every class, however deep below its folder."""
    folders = [entry for entry in path.iterdir() if entry.is_dir() and entry.name[0] != "."]
    if not folders:
        raise BrokenFile(f"{path} has no sub-folders; folder:PATH needs one per class")
    found = {}
    # Sorted as text: paths themselves sort differently on Windows.
    for folder in sorted(folders, key=Path.as_posix):
        files = [
            file
            for file in folder.rglob("*")
            if file.is_file() and not any(part[0] == "." for part in file.relative_to(folder).parts)
        ]
        found[folder.name] = sorted(files, key=Path.as_posix)
        if not found[folder.name]:
            raise BrokenFile(f"{folder} is empty; put pictures of that class there or take it away")
    return found


def divide(found: Pictures) -> tuple[Pictures, Pictures]:
    """Every fifth picture of each class is for testing, the others are for training."""
    test = {name: files[TEST_EVERY - 1 :: TEST_EVERY] for name, files in found.items()}
    train = {
        name: [file for number, file in enumerate(files, 1) if number % TEST_EVERY]
        for name, files in found.items()
    }
    return train, test


def common(*splits: Pictures) -> tuple[tuple[int, int], str]:
    """The size and the mode that all pictures will have, from their headers alone."""
    sizes, gray = set(), True
    for split in splits:
        for files in split.values():
            for file in files:
                with naming(file, WAY_OUT), Image.open(file) as picture:
                    sizes.add(picture.size)
                    gray = gray and picture.mode in GRAY
    shared = sizes.pop() if len(sizes) == 1 else SIZE
    return shared if max(shared) <= LARGEST_KEPT else SIZE, "L" if gray else "RGB"


def decode(path: Path, split: Pictures, classes: Sequence[str], size: tuple[int, int], mode: str) -> Split:
    """All pictures of a split, class after class."""
    images = np.stack([picture(file, size, mode) for files in split.values() for file in files])
    labels = np.array([classes.index(name) for name, files in split.items() for _ in files])
    return split_of(str(path), images, labels, len(classes))


def picture(file: Path, size: tuple[int, int], mode: str) -> NDArray[np.uint8]:
    """One picture, upright, in that size and mode, as uint8 [C,H,W]."""
    with naming(file, WAY_OUT), Image.open(file) as opened:
        try:
            return to_pixels(opened, size, mode)
        except BrokenFile as error:
            raise BrokenFile(f"{file} {error}") from error


def to_pixels(opened: Image.Image, size: tuple[int, int], mode: str) -> NDArray[np.uint8]:
    """An open picture, upright, in that size and mode, as uint8 [C,H,W]."""
    if opened.mode in ("I", "F"):
        raise BrokenFile("has 32-bit pixels of unknown range; save it with 8 or 16 bits")
    # No copy is made that need not be: a picture may be large.
    ImageOps.exif_transpose(opened, in_place=True)
    upright = opened
    if upright.mode.startswith("I;16"):
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.has_transparency_data:
        # As every viewer shows it: ink on nothing is ink on paper.
        small = (upright if upright.mode == "RGBA" else upright.convert("RGBA")).resize(size, BILINEAR)
        upright = Image.alpha_composite(Image.new("RGBA", size, "white"), small)
    if upright.mode != mode:
        upright = upright.convert(mode)
    pixels = np.asarray(upright.resize(size, BILINEAR))
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
